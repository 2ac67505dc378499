"""The containers of a pytree: the paths of leaves, a description as JSON, and the error for a tree
that should have the same containers as the example but has not.

All three walk an optree treedef. A dict's children come in optree's order (sorted keys). The
order in which the example wrote its keys is known too, and rebuilt dicts use that order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import optree
from optree import PyTreeKind as Kind

from ..base.errors import SpecError, did_you_mean
from ..base.foreign_text import escaped

__all__ = ["MAX_DEPTH", "check_depth", "dict_order", "explain", "leaf_name", "leaf_paths", "rebuilt", "to_json"]

MAX_DEPTH = 64  # of containers; far above any real tree, far below the C stack

_DICTS = frozenset(
    kind
    for kind in (Kind.DICT, Kind.ORDEREDDICT, Kind.DEFAULTDICT, getattr(Kind, "FROZENDICT", None))
    if kind is not None
)
_LOOKS_LIKE_INDEX = re.compile(r"-?[0-9]+|True|False|None")


def segment(entry: Any) -> str:
    """Return one step of a path: the key, field or index. Anything that could be mistaken for another is in brackets."""
    if isinstance(entry, str):
        if entry and "/" not in entry and not _LOOKS_LIKE_INDEX.fullmatch(entry):
            return entry
    elif isinstance(entry, int):
        return str(entry)
    return f"[{entry!r}]"


def join(path: str, entry: Any) -> str:
    return f"{path}/{segment(entry)}" if path else segment(entry)


def entries(node: optree.PyTreeSpec) -> list[Any]:
    """Return for each child its key, index or field; optree has indices for the fields of a namedtuple."""
    if node.kind == Kind.NAMEDTUPLE:
        return list(_class_of(node)._fields)
    return node.entries()


def _class_of(node: optree.PyTreeSpec) -> Any:
    return node.type


def leaf_paths(treedef: optree.PyTreeSpec) -> list[str]:
    """Return the path of every leaf, in leaf order: `obs/pixels`, `layers/0/w`; the path of a bare array is `""`.

    Raises SpecError for a tree deeper than `MAX_DEPTH`.
    """
    paths: list[str] = []

    def walk(node: optree.PyTreeSpec, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise SpecError(
                f"containers are nested more than {MAX_DEPTH} deep at {shown(path)}; flatten them"
            )
        if node.kind == Kind.LEAF:
            paths.append(path)
        for entry, child in zip(entries(node), node.children()):
            walk(child, join(path, entry), depth + 1)

    walk(treedef, "", 0)
    return paths


def shown(path: str) -> str:
    """Return a place in a tree as error messages print it."""
    return f"'{escaped(path)}'" if path else "the tree itself"


def leaf_name(path: str) -> str:
    """Return a leaf as error messages print it."""
    return f"leaf '{escaped(path)}'" if path else "the array"


def dict_order(node: optree.PyTreeSpec) -> list[tuple[Any, int]]:
    """Return for a dict node its keys as the example wrote them, each with the index of its child."""
    one_level: Any = node.one_level()
    return list(one_level.unflatten(range(node.num_children)).items())


def to_json(treedef: optree.PyTreeSpec, keep_order: bool = False) -> Any:
    """Return the containers as JSON. A leaf is its index, None is null, and a container is one of
    `{"dict": [[key, child], ...]}`, `{"list": [...]}`, `{"tuple": [...]}`, `{"deque": [...]}`,
    `{"named": name, "fields": [[field, child], ...]}`.

    All kinds of dict count as one kind, and classes count by name and fields, not by module, so that
    a script's `__main__.Step` and a library's `lib.Step` are equal. With `keep_order`, dicts list
    their keys as the example wrote them. Otherwise the keys are sorted, so that equal trees have equal JSON.
    """
    counter = iter(range(treedef.num_leaves))

    def walk(node: optree.PyTreeSpec) -> Any:
        if node.kind == Kind.LEAF:
            return next(counter)
        if node.kind == Kind.NONE:
            return None
        children = [walk(child) for child in node.children()]
        if node.kind in _DICTS:
            if keep_order:
                return {"dict": [[_key(k), children[i]] for k, i in dict_order(node)]}
            return {"dict": _by_key([_key(k), c] for k, c in zip(node.entries(), children))}
        for kind, name in ((Kind.LIST, "list"), (Kind.TUPLE, "tuple"), (Kind.DEQUE, "deque")):
            if node.kind == kind:
                return {name: children}
        fields = [[_key(entry), child] for entry, child in zip(entries(node), children)]
        return {"named": _class_of(node).__name__, "fields": fields}

    return walk(treedef)


def check_depth(containers: Any) -> None:
    """Raise SpecError if the result of `to_json`, which a peer sent, is nested deeper than that of any tree here."""
    level = [containers]
    for _ in range(3 * MAX_DEPTH + 3):  # up to three JSON levels per container
        level = [child for node in level if isinstance(node, (list, dict)) for child in (node.values() if isinstance(node, dict) else node)]
        if not level:
            return
    raise SpecError(f"containers nested more than {MAX_DEPTH} deep")


def rebuilt(structure: Any, leaves: Sequence[Any]) -> Any:
    """Return the tree that `to_json` described, with these leaves. It has plain dicts, lists and tuples, whatever the classes were."""
    if isinstance(structure, int):
        return leaves[structure]
    if structure is None:
        return None
    for kind, children in structure.items():
        if kind in ("dict", "fields"):
            return {_key_back(key): rebuilt(child, leaves) for key, child in children}
        if kind in ("list", "deque", "tuple"):
            made = [rebuilt(child, leaves) for child in children]
            return tuple(made) if kind == "tuple" else made
    raise SpecError(f"{structure!r:.80} is no description of containers; see structure.to_json")


def sorted_dicts(structure: Any) -> Any:
    """Turn the result of `to_json` with `keep_order` into the result without it."""
    if isinstance(structure, list):
        return [sorted_dicts(child) for child in structure]
    if isinstance(structure, dict):
        children = {kind: sorted_dicts(child) for kind, child in structure.items()}
        return {"dict": _by_key(children["dict"])} if "dict" in children else children
    return structure


def _by_key(pairs: Iterable[list[Any]]) -> list[list[Any]]:
    return sorted(pairs, key=lambda pair: json.dumps(pair[0]))


def _key_back(key: Any) -> Any:
    return key["repr"] if isinstance(key, dict) else key


def _key(key: Any) -> Any:
    if key is None or type(key) in (str, int, bool):
        return key
    return {"repr": repr(key)[:200]}


def explain(
    treedef: optree.PyTreeSpec, tree: Any, namespace: str = "", path: str = ""
) -> str | None:
    """Return the first place where the containers of `tree` differ from those of `treedef`, as one
    sentence that ends with the fix; None if they agree (leaves are not looked at)."""
    kind, got = treedef.kind, type(tree).__name__
    if kind == Kind.LEAF:
        return None
    if kind == Kind.NONE:
        if tree is None:
            return None
        return f"{shown(path)} is None in the example and a {got} here; put None there"
    if kind in _DICTS:
        if not isinstance(tree, dict):
            keys = _listed(treedef.entries())
            return f"{shown(path)} must be a dict with the keys {keys}, got a {got}"
        wrong = _explain_keys(treedef.entries(), tree, path)
        if wrong is not None:
            return wrong
        pairs = [(key, tree[key]) for key in treedef.entries()]
    else:
        if type(tree) is not treedef.type:
            return f"{shown(path)} must be a {_class_of(treedef).__name__}, got a {got}"
        node: Any = tree
        children: list[Any] = optree.tree_flatten_one_level(node, namespace=namespace)[0]
        if len(children) != treedef.num_children:
            return (
                f"{shown(path)} must have {treedef.num_children} elements, got {len(children)}; "
                "pad it, or make a variable length one array of fixed size"
            )
        pairs = list(zip(entries(treedef), children))
    for (entry, value), child in zip(pairs, treedef.children()):
        wrong = explain(child, value, namespace, join(path, entry))
        if wrong is not None:
            return wrong
    return None


def _explain_keys(expected: Iterable[Any], tree: dict[Any, Any], path: str) -> str | None:
    expected = list(expected)
    missing = [key for key in expected if key not in tree]
    extra = [key for key in tree if key not in expected]
    if not missing and not extra:
        return None
    where = f"{shown(path)}: " if path else ""
    if missing and extra:
        near = did_you_mean(str(extra[0]), [str(key) for key in missing])
        return (
            f"{where}{_listed(missing)} is missing and {_listed(extra)} is not in the example; "
            f"expected the keys {_listed(expected)}{near}"
        )
    if missing:
        return f"{where}{_listed(missing)} is missing; expected the keys {_listed(expected)}"
    return (
        f"{where}{_listed(extra)} is not in the example; remove it, or add it to the example at "
        "both ends"
    )


def _listed(keys: Iterable[Any]) -> str:
    keys = list(keys)
    text = ", ".join(repr(key) for key in keys[:12])
    return text + (f", ... ({len(keys)} in all)" if len(keys) > 12 else "")
