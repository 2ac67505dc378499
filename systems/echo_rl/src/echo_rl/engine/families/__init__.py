"""The transformers that the engine computes: one module for GPT-2, and one for Llama and its relatives."""

from types import ModuleType

from echo_rl.engine.families import gpt2, llama

FAMILIES: dict[str, ModuleType] = {"gpt2": gpt2, **dict.fromkeys(llama.KINDS, llama)}
"""The module of each ``model_type``. Each has ``read`` and ``write`` (config.json), ``shapes``, ``PREFIX``, ``BUFFERS`` and ``Blocks``."""
