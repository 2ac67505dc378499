"""The functions of the code tasks: made here from a seed, or read from the user's file, and changed by one fault for repair."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from echo_core import ConfigError

__all__ = ["Function", "arguments", "evaluated", "faults", "is_literal", "made", "read"]

MOST_FILE = 64 << 20


@dataclass(frozen=True)
class Function:
    """A function with calls of it.

    Attributes:
        name: what it is called in the code, such as ``"f"``.
        code: its Python source.
        calls: the arguments of calls, as between the parentheses.
        results: the text of each call's result; empty where it is not known yet.
        label: says which one it is.
    """

    name: str
    code: str
    calls: tuple[str, ...]
    results: tuple[str, ...]
    label: str


def arguments(text: str) -> ast.Call | None:
    """A call with these arguments, as between its parentheses; None if the text is not the arguments of exactly one call, such as ``1),(2``."""
    try:
        call = ast.parse(f"f({text}\n)", mode="eval").body  # the end of the line ends a comment in the text
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return call if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None


def is_literal(value: str | ast.AST) -> bool:
    """Whether a text is a literal of Python, or a call has nothing but literals as its arguments."""
    parts: list[str | ast.AST] = [*value.args, *(each.value for each in value.keywords)] if isinstance(value, ast.Call) else [value]
    if isinstance(value, ast.Call) and any(each.arg is None for each in value.keywords):  # **{...}
        return False
    try:
        for part in parts:
            ast.literal_eval(part)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


LIST_STEPS = (
    "v = [x {op} {n} for x in v]",
    "v = [x for x in v if x % {m} {cmp} {r}]",
    "v = sorted(v, reverse={flag})",
    "v = v[{r}:] + v[:{r}]",
    "v = v[::-1]",
    "v = [x + i for i, x in enumerate(v)]",
    "v = [max(x, {n}) for x in v]",
    "total = 0\nfor x in v:\n    if x > {n}:\n        total += x\n    else:\n        total -= {m}\nv = v + [total]",
    "seen = []\nfor x in v:\n    if x {cmp} {n} and x not in seen:\n        seen.append(x)\nv = seen",
    "sums = []\nfor x in v:\n    sums.append(x + (sums[-1] if sums else {n}))\nv = sums",
)
LIST_ENDS = (
    "return v",
    "return sum(v) % {m}",
    "return len(v)",
    "return max(v) if v else {n}",
    "return {{x: v.count(x) for x in v}}",
    "return [x for x in v if x {cmp} {n}]",
)
TEXT_STEPS = (
    "s = s.upper()",
    "s = s.swapcase()",
    "s = s[::-1]",
    "s = s.replace('{a}', '{b}')",
    "s = s[{r}:]",
    "s = s[::{r1}]",
    "s = ''.join(c for c in s if c not in '{a}{b}')",
    "s = ''.join(chr((ord(c) - 97 + {n1}) % 26 + 97) if 'a' <= c <= 'z' else c for c in s)",
    "out = ''\nfor i, c in enumerate(s):\n    out += c.upper() if i % {m} == {r} else c\ns = out",
    "out = ''\nfor c in s:\n    if c < '{a}':\n        out = c + out\n    else:\n        out += c\ns = out",
)
TEXT_ENDS = (
    "return s",
    "return len(s)",
    "return s.count('{a}')",
    "return sorted(set(s))",
    "return s.split('{a}')",
    "return {{c: s.count(c) for c in s}}",
    "return s + str(len(s))",
)
LETTERS = "abcdefgh"


def made(seed: int, longest: int, calls: int, take: int = 0) -> Function:
    """A function of this seed, of at most ``longest`` characters; another ``take`` gives another one.

    It ends for every list of integers or text, and it is our own, so it runs in this process.
    """
    rng = np.random.default_rng([seed, 46, take])
    while True:
        words = rng.random() < 0.5
        steps, ends = (TEXT_STEPS, TEXT_ENDS) if words else (LIST_STEPS, LIST_ENDS)
        chosen = [*(steps[i] for i in rng.choice(len(steps), int(rng.integers(1, 5)), replace=False)), ends[int(rng.integers(len(ends)))]]
        body = "\n".join(_filled(step, rng) for step in chosen)
        code = f"def f({'s' if words else 'v'}):\n" + "\n".join("    " + line for line in body.split("\n")) + "\n"
        if len(code) > longest:
            continue
        arguments = [repr(_text(rng)) if words else repr(rng.integers(-9, 20, int(rng.integers(2, 8))).tolist()) for _ in range(calls)]
        results = evaluated(code, "f", arguments)
        if len(set(results)) > 1 or (calls == 1 and results[0] not in ("[]", "''", "{}")):
            return Function("f", code, tuple(arguments), results, f"made/{seed}")


def _filled(step: str, rng: np.random.Generator) -> str:
    modulus = int(rng.integers(2, 6))
    first, second = rng.choice(list(LETTERS), 2, replace=False)
    return step.format(
        op=rng.choice(["+", "-", "*"]), n=int(rng.integers(1, 9)), n1=int(rng.integers(1, 26)), m=modulus, r=int(rng.integers(0, modulus)),
        r1=int(rng.integers(2, 4)), cmp=rng.choice(["==", "!=", "<", ">"]), flag=bool(rng.random() < 0.5), a=first, b=second,
    )  # fmt: skip


def _text(rng: np.random.Generator) -> str:
    return "".join(rng.choice(list(LETTERS + "AB "), int(rng.integers(4, 13))))


def evaluated(code: str, name: str, calls: list[str]) -> tuple[str, ...]:
    """The results of calls of a function that was made here, or of a variant of it; an empty text where it raises."""
    space: dict[str, Any] = {}
    exec(code, space)
    results = []
    for call in calls:
        try:
            results.append(repr(space[name](*ast.literal_eval(f"({call},)"))))
        except Exception:
            results.append("")
    return tuple(results)


def faults(code: str, seed: int) -> Iterator[str]:
    """Variants of the code that differ in one operator, constant or flag, in a random order."""
    places = [(number, kind) for number, node in enumerate(ast.walk(ast.parse(code))) for kind in _changes(node)]
    for index in np.random.default_rng([seed, 47]).permutation(len(places)):
        tree = ast.parse(code)
        number, kind = places[int(index)]
        _change(list(ast.walk(tree))[number], kind)
        yield ast.unparse(tree) + "\n"


OPERATORS: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add}
COMPARISONS: dict[type, type] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.Lt,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def _changes(node: ast.AST) -> list[str]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        return ["operator"]
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        return ["comparison"]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return ["flag"]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return ["more", "less"]
    return []


def _change(node: Any, kind: str) -> None:
    if kind == "operator":
        node.op = OPERATORS[type(node.op)]()
    elif kind == "comparison":
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif kind == "flag":
        node.value = not node.value
    else:
        node.value += 1 if kind == "more" else -1


def read(path: str, longest: int) -> list[Function]:
    """Functions of a file of the form of CRUXEval's: a JSON object in each line, with ``code`` and ``input``, and perhaps ``output`` and ``id``.

    ``inputs`` instead of ``input`` gives several calls, and ``outputs`` their results. Nothing is executed. Longer functions are left out.

    Raises:
        ConfigError: the file cannot be read, is larger than 64 MiB or has a line that is wrong, which the message names; or every function is too long.
    """
    try:
        if Path(path).stat().st_size > MOST_FILE:
            raise ConfigError(f"cruxeval: the file {path} is larger than {MOST_FILE >> 20} MiB")
        lines = Path(path).read_bytes().decode("utf-8-sig").split("\n")  # JSON's texts may have other characters that end a line for Python
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cruxeval: the file of functions {path} cannot be read: {error}") from error
    functions = [_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    short = [function for function in functions if len(function.code) <= longest]
    if not short:
        raise ConfigError(f"cruxeval: {path} has no function of at most max_code_length = {longest} characters")
    return short


def _line(path: str, number: int, line: str) -> Function:
    try:
        entry = json.loads(line)
        if not isinstance(entry, dict) or not isinstance(entry.get("code"), str):
            raise ValueError('it has to be an object with "code", a text')
        inputs = entry.get("inputs", [entry.get("input")])
        outputs = entry.get("outputs", [entry["output"]] if "output" in entry else [""] * len(inputs))
        for name, texts in (("input", inputs), ("output", outputs)):
            if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
                raise ValueError(f'"{name}" has to be a text, or "{name}s" a list of texts')
        if len(outputs) != len(inputs):
            raise ValueError(f"it has {len(inputs)} inputs and {len(outputs)} outputs")
        for text in inputs:
            if arguments(text) is None:
                raise ValueError(f"its input {text!r:.200} is not the arguments of one call")
        for text in filter(None, outputs):
            if not is_literal(text.strip()):
                raise ValueError(f"its output {text!r:.200} is not a literal of Python, so that no answer can be compared with it; leave the function out")
        names = [node.name for node in ast.parse(entry["code"]).body if isinstance(node, ast.FunctionDef)]
        if not names:
            raise ValueError("its code defines no function")
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ConfigError(f"cruxeval: {path}, line {number}: {error}") from error
    name = "f" if "f" in names else names[-1]
    return Function(name, entry["code"], tuple(inputs), tuple(outputs), str(entry.get("id", number)))


def with_results(function: Function, results: tuple[str, ...]) -> Function:
    """The same function, whose results are known now."""
    return replace(function, results=results)
