"""Weights from files and from mappings, checked by name, shape, dtype and finiteness, and written so that transformers loads them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from echo_rl.engine.families import FAMILIES
from echo_rl.engine.families.config import ModelConfig

HEAD = "lm_head.weight"
_FLOATS = {"F64", "F32", "F16", "BF16", "torch.float64", "torch.float32", "torch.float16", "torch.bfloat16"}
_MOST_JSON = 16 << 20


class Weights(Mapping[str, Tensor]):
    """The weights of a model under the names of its family, each as a float32 tensor when it is asked for.

    Names, shapes and dtypes are checked at once, and the numbers when a weight is read; so a wrong file is refused before anything is allocated.

    Args:
        config: The shape. If ``tied`` is None, the presence of ``lm_head.weight`` decides.
        source: Tensors by name, or ``TensorFiles``. The family's prefix ("transformer." or "model.") may be there or not.
        device: Where the tensors go.

    Attributes:
        config: The shape with ``tied`` decided.

    Raises:
        ValueError: The message names the weight that is missing, unknown, double, of a wrong shape or of a dtype that is no float.
    """

    def __init__(self, config: ModelConfig, source: Mapping[str, Tensor] | TensorFiles, device: torch.device) -> None:
        family = FAMILIES[config.kind]
        self._source, self._device = source, device
        self._names: dict[str, str] = {}
        for name in source:
            own = name.removeprefix(family.PREFIX)
            if family.BUFFERS.fullmatch(own):
                continue
            if own in self._names:
                raise ValueError(f"the weights have {own!r} twice, as {self._names[own]!r} and {name!r}")
            self._names[own] = name
        tied = HEAD not in self._names if config.tied is None else config.tied
        self.config = ModelConfig(**{**vars(config), "tied": tied})
        self._shapes = family.shapes(config) | ({} if tied else {HEAD: (config.vocab, config.width)})
        self._check_names(tied, family.EMBEDDING)
        for name, shape in self._shapes.items():
            self._check_form(name, shape)
        if tied and HEAD in self._names:
            # Some files have the shared matrix under both names.
            self._check_form(HEAD, (config.vocab, config.width))
            if not torch.equal(self._read(HEAD), self._read(family.EMBEDDING)):
                raise ValueError(f"tie_word_embeddings is true, but {HEAD!r} differs from {family.EMBEDDING!r}; one of them is wrong")

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._shapes:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def _check_names(self, tied: bool, embedding: str) -> None:
        missing = [name for name in self._shapes if name not in self._names]
        unknown = [given for own, given in self._names.items() if own not in self._shapes and not (tied and own == HEAD)]
        parts = []
        if missing:
            parts.append(f"lack {missing[0]!r}" + (f" and {len(missing) - 1} others" if missing[1:] else ""))
        if unknown:
            parts.append(f"have {unknown[0]!r}" + (f" and {len(unknown) - 1} others" if unknown[1:] else "") + f", which this {self.config.kind} does not know")
        note = f" (tie_word_embeddings is false, so {embedding!r} does not replace the head)" if missing == [HEAD] else ""
        if parts:
            raise ValueError(f"the weights {'; they '.join(parts)}{note}")

    def _check_form(self, name: str, shape: tuple[int, ...]) -> None:
        given = self._names[name]
        if isinstance(self._source, TensorFiles):
            found, dtype = self._source.form(given)
        else:
            value = self._source[given]
            if not isinstance(value, Tensor):
                raise ValueError(f"weight {name!r} is of the type {type(value).__name__}, not a tensor")
            found, dtype = tuple(value.shape), str(value.dtype)
        if found != shape:
            raise ValueError(f"weight {name!r} has shape {found}; the config needs {shape}")
        if dtype not in _FLOATS:
            raise ValueError(f"weight {name!r} has dtype {dtype}; float32, float16, bfloat16 and float64 can be read")

    def _read(self, name: str) -> Tensor:
        value = self._source[self._names[name]].detach().to(self._device, torch.float32)
        if not torch.isfinite(value).all():
            raise ValueError(f"weight {name!r} holds a number that is not finite")
        return value


class TensorFiles:
    """The tensors of a folder's ``*.safetensors`` files, read one by one.

    If there is a ``model.safetensors.index.json``, its files are taken, else ``model.safetensors``, else every file.

    Raises:
        ValueError: If there are no files, if a file that the index names is missing, or if two files have the same name in them.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
        if index.exists():
            files = [folder / name for name in sorted(set(_json(index).get("weight_map", {}).values()))]
            if any(file.parent != folder for file in files):
                raise ValueError(f"{index} names a file outside of its folder")
        else:
            files = [single] if single.exists() else sorted(folder.glob("*.safetensors"))
        if not files:
            raise ValueError(f"{folder} has no *.safetensors file; save the model with transformers' save_pretrained, which writes this format")
        self._where: dict[str, Any] = {}
        for file in files:
            if not file.exists():
                raise ValueError(f"{index} names {file.name}, which is missing")
            try:
                opened = safe_open(str(file), framework="pt")
            except SafetensorError as error:
                raise ValueError(f"{file} is damaged or no safetensors file: {error}") from error
            for name in list(opened.keys()):
                if name in self._where:
                    raise ValueError(f"two files of {folder} have the weight {name!r}")
                self._where[name] = opened

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __getitem__(self, name: str) -> Tensor:
        found: Tensor = self._where[name].get_tensor(name)
        return found

    def form(self, name: str) -> tuple[tuple[int, ...], str]:
        """Return shape and dtype of a tensor, which is not read."""
        piece = self._where[name].get_slice(name)
        return tuple(piece.get_shape()), str(piece.get_dtype())


def read_config(folder: Path) -> ModelConfig:
    """Read ``config.json``. Raise ValueError if its model would not fit into the memory that is free now."""
    config = ModelConfig.from_json(_json(folder / "config.json"))
    free = _free_memory()
    if free is not None and config.bytes > free:
        raise ValueError(
            f"{folder / 'config.json'} describes {config.bytes / 2**30:.1f} GiB of weights in float32, and {free / 2**30:.1f} GiB of memory are free"
        )
    return config


def write(folder: Path, config: ModelConfig, weights: Mapping[str, Tensor], generation: Mapping[str, Any]) -> None:
    """Write a folder that ``Model.load`` and transformers' ``from_pretrained`` read. Each file is replaced by a rename, the config last."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    prefix = FAMILIES[config.kind].PREFIX
    named = {name if name == HEAD else prefix + name: value.cpu().contiguous() for name, value in weights.items()}
    partial = folder / "model.safetensors.new"
    save_file(named, str(partial), metadata={"format": "pt"})
    os.replace(partial, folder / "model.safetensors")
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    ends = {"eos_token_id": generation.get("eos_token_id"), "bos_token_id": None, "pad_token_id": None}
    for name, fields in (("generation_config.json", {"bos_token_id": None, **generation}), ("config.json", config.to_json() | ends)):
        (folder / f"{name}.new").write_text(json.dumps(fields, indent=2) + "\n")
        os.replace(folder / f"{name}.new", folder / name)


def random_weights(config: ModelConfig, generator: torch.Generator, scale: float) -> dict[str, Tensor]:
    """Return normal random weights with deviation ``scale``. Norms have weight one; biases of norms are zero."""
    needed = FAMILIES[config.kind].shapes(config) | ({HEAD: (config.vocab, config.width)} if config.tied is False else {})
    found = {}
    for name, shape in needed.items():
        norm = "ln_" in name or "norm" in name
        found[name] = (torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)) if norm else torch.randn(shape, generator=generator) * scale
    assert all(prod(value.shape) for value in found.values())
    return found


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MOST_JSON:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; at most {_MOST_JSON} are read")
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be a JSON object")
    return found


def _free_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None  # It is no Linux; the allocation itself will say.
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
