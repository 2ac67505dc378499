"""Packs weights for the wire: one flat, aligned payload, and a JSON description of the place of each leaf.

    packed = pack({"policy": {"w": w, "b": b}}, version=7)
    weights = unpack(packed.meta, packed.payload)      # zero-copy, read-only arrays
    weights.params["policy"]["w"], weights.version, weights.digest

The digest covers the payload and the description but neither the version nor the learner, so equal weights published
twice have equal digests. The learner computes it. The worker checks it on arrival (except with shared
memory, where the bytes cannot have changed on the way) and sends it back in its receipt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import optree

from ..base.errors import ProtocolError, SpecError
from ..base.memory.recycled import large
from ..spec import device, structure
from ..spec.arrays import as_array
from ..spec.dtypes import dtype_from_json, dtype_to_json, native, refusal
from ..spec.structure import leaf_name
from .digest import Digester, digest

__all__ = ["ALIGNMENT", "PACKED", "PackedWeights", "Weights", "aligned_bytes", "digest", "learner_of", "pack", "unpack", "verify"]

ALIGNMENT = 64  # bytes: a cache line, and the widest vector load
LARGE = 1 << 20  # bytes; memory of at least this size is used again
MAX_LEAVES = 1 << 16
MAX_META_BYTES = 16 << 20

PACKED: Any = object()  # given to `unpack` as `like`, it asks for the `PackedWeights` in place of the tree

# `pack` writes who numbers the versions at the beginning, so that a reader need not parse the whole description.
_LEARNER = re.compile(rb'\{"version":\d+,"digest":"[0-9a-f]{16}","learner":"([0-9a-f]{1,64})"')

# The exceptions that reading an invalid description can raise.
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """One published version, ready for any transport.

    Attributes:
        version: its number, at least 1.
        digest: the 64-bit digest of payload and description.
        meta: the description, UTF-8 JSON.
        payload: read-only uint8 array; every leaf begins at a multiple of 64 bytes.
        learner: the identity of the learner that numbers the versions; see `Weights`.
    """

    version: int
    digest: int
    meta: bytes
    payload: np.ndarray
    learner: str = ""

    @property
    def nbytes(self) -> int:
        return len(self.meta) + self.payload.nbytes


@dataclass(frozen=True, eq=False)
class Weights:
    """One version in a worker. `params` is the published tree, with read-only arrays over the received
    bytes. The bytes stay alive as long as any of these arrays. `learner` is the id of the server that published it, also if
    others passed it on: a restarted learner has another id, and counts versions anew."""

    params: Any
    version: int
    digest: int
    learner: str = ""


def aligned_bytes(count: int) -> np.ndarray:
    """A writable uint8 array of `count` bytes that begins at a multiple of `ALIGNMENT`, with undefined
    contents. A transport should receive a payload into such an array."""
    if count >= LARGE:
        return large(count)
    raw = np.empty(count + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + count]


def pack(
    tree: Any, version: int, *, namespace: str = "", memory: Callable[[int], np.ndarray] = aligned_bytes, learner: str = ""
) -> PackedWeights:
    """Copy `tree` (arrays, array-likes, tensors of torch, and Python numbers, bools, strings and bytes) into one payload.

    `memory` is called with a number of bytes and returns the array that becomes the payload. The tree
    may be changed as soon as this returns. `learner` is hex digits. Raises SpecError with the name of a leaf that cannot be sent, before it
    calls `memory`.
    """
    values, treedef = optree.tree_flatten(tree, namespace=namespace)
    if len(values) > MAX_LEAVES:
        raise SpecError(
            f"these weights have {len(values)} leaves, but at most {MAX_LEAVES} can be sent; stack some of them"
        )
    layout, arrays = _layout(tree, values, treedef)
    payload = memory(layout.size)
    digester = Digester(layout.seed)
    for offset, array in zip(layout.offsets, arrays):
        end = offset + array.nbytes
        # The whole 64-byte lines are digested while they are copied; pieces must be multiples of 64 bytes, so the rest is digested after them.
        even = array.nbytes // ALIGNMENT * ALIGNMENT
        if even and array.dtype == native(array.dtype) and array.flags.c_contiguous:
            source = array.reshape(-1).view(np.uint8)
            digester.copy(payload[offset : offset + even], source[:even])
            payload[offset + even : end] = source[even:]
        else:
            even = 0
            if array.nbytes:
                np.copyto(np.ndarray(array.shape, native(array.dtype), payload, offset), array)
        upto = -(-end // ALIGNMENT) * ALIGNMENT
        payload[end:upto] = 0  # so that equal weights have equal digests
        digester.update(payload[offset + even : upto])
    payload.flags.writeable = False
    value = digester.value
    who = f'"learner":"{learner}",' if learner else ""
    meta = f'{{"version":{version},"digest":"{value:016x}",{who}{layout.text}'
    return PackedWeights(version, value, meta.encode(), payload, learner)


class _Layout(NamedTuple):
    """The place of each leaf in a payload. It holds for all trees that have the same containers and arrays and no other leaves."""

    offsets: list[int]
    size: int
    seed: int  # the seed of the payload's digest
    text: str  # the text of the description from its third entry on


# The newest layout, and the trees for which it holds. A learner publishes the same arrays again and again, and for a small network
# writing the description takes longer than copying the arrays.
_latest: tuple[Any, _Layout] | None = None


def _layout(tree: Any, values: list[Any], treedef: optree.PyTreeSpec) -> tuple[_Layout, list[np.ndarray]]:
    global _latest
    key = None
    if all(type(value) is np.ndarray for value in values) and (shape := _shape(tree)) is not None:
        key = treedef, shape, [(value.dtype, value.shape) for value in values]
        latest = _latest
        if latest is not None and latest[0] == key:
            return latest[1], values
    leaves: list[dict[str, Any]] = []
    offsets, arrays, size = [], [], 0
    for path, value in zip(structure.leaf_paths(treedef), values):
        _unicode(path, path)
        if type(value) in (bool, int, float) or (isinstance(value, str) and not isinstance(value, np.generic)):
            leaves.append({"path": path, "value": _scalar_to_json(path, value)})
            continue
        if isinstance(value, bytes) and not isinstance(value, np.generic):
            array = np.frombuffer(value, np.uint8)  # numpy's own type for bytes has no trailing zeros
            leaves.append({"path": path, "bytes": len(value), "offset": size})
        else:
            array = _array_of(path, value)
            dtype = dtype_to_json(native(array.dtype))
            leaves.append({"path": path, "shape": list(array.shape), "dtype": dtype, "offset": size})
        offsets.append(size)
        arrays.append(array)
        size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    content = {"leaves": leaves, "structure": structure.to_json(treedef, keep_order=True)}
    layout = _Layout(offsets, size, _seed(content), json.dumps(content, separators=(",", ":"))[1:])
    if key is not None:
        _latest = key, layout
    return layout, arrays


def _shape(tree: Any, depth: int = structure.MAX_DEPTH) -> Any:
    """The keys of the tree's dicts in their order. That order is published, but comparing optree's specs ignores it. None: the tree has
    containers of other kinds, or they are nested too deeply."""
    if type(tree) is np.ndarray:
        return ()
    if depth == 0 or type(tree) not in (dict, list, tuple):
        return None
    inner = [_shape(child, depth - 1) for child in (tree.values() if type(tree) is dict else tree)]
    if None in inner:
        return None
    return (*tree, *map(type, tree), inner) if type(tree) is dict else inner


def unpack(
    meta: bytes, payload: Any, like: Any = None, *, namespace: str = "", proven: int | None = None
) -> Weights:
    """Rebuild the tree that was given to `pack`, over `payload` (any contiguous buffer) without copying.

    Dicts, lists, tuples and None are rebuilt without help (any kind of dict becomes a plain dict, in the
    published order of keys). Other classes need `like`, an example tree. Its containers must be the
    published ones, and so must the shapes and dtypes of its numpy arrays.

    If `like` is `PACKED`, `params` is the `PackedWeights`, to be passed on as they are.

    `proven` is the digest of these bytes, if `verify` computed it or the transport guarantees it. The bytes are then not read again, which
    would take as long as copying them.

    Raises ProtocolError if the bytes are not the packed ones (damaged or mixed up), and SpecError with
    the name of the leaf if `like` is missing or differs. It validates everything that it reads.
    """
    try:
        content, buffer, version, found = _opened(meta, payload, proven)
        buffer = buffer.view()
        buffer.flags.writeable = False
        learner = learner_of(meta)
        if like is PACKED:
            return Weights(PackedWeights(version, found, meta, buffer, learner), version, found, learner)
        leaves = [_leaf_from_json(leaf, buffer) for leaf in content["leaves"]]
        paths = [str(leaf["path"]) for leaf in content["leaves"]]
        containers = content["structure"]
        if like is None:
            params = _rebuild(containers, leaves)
        else:
            params = _rebuild_like(containers, leaves, paths, like, namespace)
    except (ProtocolError, SpecError):
        raise
    except _MALFORMED as error:
        raise ProtocolError(f"the description of these weights is malformed: {error!r}") from error
    return Weights(params, version, found, learner)


def learner_of(meta: bytes) -> str:
    """The id of the learner that numbered this version, from its description; "" if that does not say it. It is quick."""
    found = _LEARNER.match(meta)
    return found[1].decode() if found else ""


def verify(meta: bytes, payload: Any, number: int | None = None) -> int:
    """Check all bytes of a version that has arrived, and return its digest.

    Raises ProtocolError if the bytes are not the packed ones, or if the version is not `number`.
    """
    try:
        _, _, version, found = _opened(meta, payload)
        if number not in (None, version):
            raise ProtocolError(f"weights {version} arrived as version {number}: bytes were damaged on their way")
        return found
    except (ProtocolError, SpecError):
        raise
    except _MALFORMED as error:
        raise ProtocolError(f"the description of these weights is malformed: {error!r}") from error


def _opened(meta: bytes, payload: Any, proven: int | None = None) -> tuple[dict[str, Any], np.ndarray, int, int]:
    """The description of the leaves, the payload's bytes, the version, the digest."""
    size = memoryview(payload).nbytes
    buffer = np.frombuffer(payload, np.uint8) if size else np.empty(0, np.uint8)
    content, version, claimed = _parsed(meta)
    found = digest(buffer, _seed(content)) if proven is None else proven
    _same(version, claimed, found)
    if len(content["leaves"]) > MAX_LEAVES:
        raise ProtocolError(f"these weights have {len(content['leaves'])} leaves, more than {MAX_LEAVES}")
    return content, buffer, version, found


def _parsed(meta: bytes) -> tuple[dict[str, Any], Any, int]:
    """The description of the leaves, then version and digest."""
    if len(meta) > MAX_META_BYTES:
        raise ProtocolError(f"the description of these weights has {len(meta)} bytes, which is too many")
    content = json.loads(meta)
    version, claimed = content.pop("version"), int(content.pop("digest"), 16)
    content.pop("learner", None)
    return content, version, claimed


def _same(version: Any, claimed: int, found: int) -> None:
    if found != claimed or type(version) is not int:
        raise ProtocolError(
            f"weights {version!r:.20} arrived damaged: their digest is {found:016x}, "
            f"but {claimed:016x} was published"
        )


def _seed(content: dict[str, Any]) -> int:
    """The seed of the payload's digest: the digest of the description."""
    # The description is written again from its parsed form, so that neither blanks nor the order of keys matter.
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return digest(text.encode())


def _array_of(path: str, value: Any) -> np.ndarray:
    array = as_array(value, leaf_name(path))
    if isinstance(array, device.Lent):
        return array.landed()
    reason = refusal(array.dtype)
    if reason is not None:
        raise SpecError(f"{leaf_name(path)} (a {type(value).__name__}): {reason}")
    return array


def _scalar_to_json(path: str, value: bool | int | float | str) -> Any:
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, str):
        return _unicode(path, str.__str__(value))
    return {"int": hex(value)} if value.bit_length() > 64 else value  # Python limits the length of an integer in decimal text


def _unicode(path: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON would join halves of a character that are separate here
        where = leaf_name(path).encode("ascii", "backslashreplace").decode()
        raise SpecError(f"{where}: {text!a:.80} is not valid Unicode; send it as bytes, for instance text.encode(errors='surrogatepass')") from None
    return text


def _leaf_from_json(leaf: dict[str, Any], buffer: np.ndarray) -> Any:
    if "value" in leaf:
        value = leaf["value"]
        if isinstance(value, dict):
            return int(value["int"], 16) if "int" in value else float.fromhex(value["float"])
        if type(value) in (bool, int, str):
            return value
        raise ProtocolError(f"{leaf_name(str(leaf['path']))} is not a scalar")
    if "bytes" in leaf:
        return _leaf_from_json({"path": leaf["path"], "shape": [leaf["bytes"]], "dtype": "|u1", "offset": leaf["offset"]}, buffer).tobytes()
    shape, offset, dtype = leaf["shape"], leaf["offset"], dtype_from_json(leaf["dtype"])
    if dtype.hasobject or not all(type(n) is int and n >= 0 for n in (*shape, offset)):
        raise ProtocolError(f"{leaf_name(str(leaf['path']))} is not an array")
    if prod(shape) * dtype.itemsize == 0:
        array = np.empty(shape, dtype)
        array.flags.writeable = False
        return array
    if offset + prod(shape) * dtype.itemsize > len(buffer):
        raise ProtocolError(f"{leaf_name(str(leaf['path']))} reaches past the end of the payload")
    return np.ndarray(shape, dtype, buffer, offset)


def _rebuild(node: Any, leaves: list[Any]) -> Any:
    if node is None:
        return None
    if type(node) is int and 0 <= node < len(leaves):
        return leaves[node]
    if isinstance(node, dict):
        if "dict" in node and not any(isinstance(key, dict) for key, _ in node["dict"]):
            return {key: _rebuild(child, leaves) for key, child in node["dict"]}
        if "list" in node:
            return [_rebuild(child, leaves) for child in node["list"]]
        if "tuple" in node:
            return tuple(_rebuild(child, leaves) for child in node["tuple"])
        what = node.get("named") or ("deque" if "deque" in node else "dict with unusual keys")
        raise SpecError(
            f"these weights contain a {what!s:.80}, which only its class can rebuild; pass "
            "like=<a tree of the same classes>, or publish dicts, lists and tuples"
        )
    raise ProtocolError(f"{node!r:.40} is not a container")


def _rebuild_like(
    containers: Any, leaves: list[Any], paths: list[str], like: Any, namespace: str
) -> Any:
    examples, treedef = optree.tree_flatten(like, namespace=namespace)
    for path, ours in zip(paths, structure.leaf_paths(treedef)):
        if path != ours:
            raise SpecError(
                f"the published weights have {leaf_name(path)} where `like` has {leaf_name(ours)}; "
                "build `like` as the learner builds its weights"
            )
    if structure.sorted_dicts(containers) != structure.to_json(treedef):
        raise SpecError(
            f"the published containers {json.dumps(containers):.200} differ from those of `like`; "
            "build `like` as the learner builds its weights"
        )
    for path, value, example in zip(paths, leaves, examples):
        if isinstance(example, (np.ndarray, np.generic)) and (
            not isinstance(value, np.ndarray)
            or value.shape != example.shape
            or value.dtype != native(example.dtype)
        ):
            got = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else repr(value)
            raise SpecError(
                f"{leaf_name(path)} of the published weights is {got}, but `like` has {example.dtype} "
                f"{example.shape}; learner and worker must build the same network"
            )
    return treedef.unflatten(leaves)
