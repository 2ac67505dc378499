"""What the engine's tests share."""

import pytest
import torch

from echo_rl.engine import ModelConfig


@pytest.fixture
def configs() -> dict[str, ModelConfig]:
    """Return a small config of each kind."""
    return {
        "gpt2": ModelConfig("gpt2", vocab=40, layers=2, heads=4, width=32, inner=64, context=256),
        "llama": ModelConfig("llama", vocab=40, layers=2, heads=4, width=32, inner=48, context=256, kv_heads=2),
    }


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not available"))])
def device(request: pytest.FixtureRequest) -> str:
    """Return each device that there is."""
    return str(request.param)
