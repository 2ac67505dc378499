"""What the engine's tests share."""

import pytest

from echo_rl.engine import ModelConfig


@pytest.fixture
def configs() -> dict[str, ModelConfig]:
    """Return a small config of each kind."""
    return {
        "gpt2": ModelConfig("gpt2", vocab=40, layers=2, heads=4, width=32, inner=64, context=256),
        "llama": ModelConfig("llama", vocab=40, layers=2, heads=4, width=32, inner=48, context=256, kv_heads=2),
    }
