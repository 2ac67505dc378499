"""Web pages in a real browser: the tasks of MiniWoB++ by name, ``miniwob:click-button``.

Source: Liu et al., "Reinforcement Learning on Web Interfaces using Workflow-Guided Exploration", 2018; pages and rewards are those of the package miniwob.
"""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from echo_core import ConfigError
from echo_core.base.installing import how_to_install
from echo_rl.checks import Rule, instance, optional, real
from echo_rl.environments.adapters.browser import Browser
from echo_rl.environments.base import EnvironmentFailure
from echo_rl.environments.task import Outcome, TaskConfig, TaskEnvironment, check_task

__all__ = ["ORACLES", "Element", "MiniWoBConfig", "MiniWoBEnvironment"]

_ACTION = re.compile(r'\s*(?:click \[(\d+)\]|type \[(\d+)\] (".*"))\s*', re.DOTALL)
#: Time does not end an episode and does not lower a reward: steps do, so that a slow machine plays the same game.
_BEGIN = """
Math.seedrandom(arguments[0]);
core.setDataMode('train');
core.EPISODE_MAX_TIME = 2147483647;
core.startEpisodeReal();
"""
_SEEN = "return {done: WOB_DONE_GLOBAL, raw: WOB_RAW_REWARD_GLOBAL, utterance: core.getUtterance(), dom: WOB_DONE_GLOBAL ? null : core.getDOMInfo()};"
_FOCUS = "const element = core.previousDOMInfo[arguments[0]]; element.focus(); if (element.select) element.select(); return document.activeElement === element;"


class Element(NamedTuple):
    """A part of a page that shows text or can be acted on.

    Attributes:
        ref: its number in actions.
        tag: its kind, such as ``"button"`` or ``"input_text"``; ``"t"`` is a piece of text, which cannot be acted on.
        classes: the names of its classes.
        text: what it shows.
        value: what a field contains, or whether a box is ticked; None for other elements.
        focused: whether it has the keyboard.
    """

    ref: int
    tag: str
    classes: str
    text: str
    value: str | bool | None
    focused: bool


@dataclass(frozen=True)
class MiniWoBConfig(TaskConfig):
    """The task.

    Attributes:
        name: of the task in MiniWoB++, such as ``"click-button"``.
        timeout: for how many seconds the browser may take to answer.
        browser, driver: the programs of Chromium and of its driver; None looks for them.
    """

    name: str = "click-test"
    timeout: float = 60.0
    browser: str | None = None
    driver: str | None = None

    def __post_init__(self) -> None:
        text: Rule = instance(str)
        check_task("miniwob", self, name=text, timeout=real(above=0), browser=optional(text), driver=optional(text))


class MiniWoBEnvironment(TaskEnvironment):
    """A page an episode, in a browser that belongs to this environment. The observation is the instruction and a numbered list of what the page shows.

    Actions are ``click [NUMBER]`` and ``type [NUMBER] "TEXT"``, which replaces what is selected in a field by real keys. The reward is 1 for the solution, and
    less where a page scores a part of it.
    """

    name = "miniwob"

    def __init__(self, config: MiniWoBConfig) -> None:
        super().__init__(config, 20)
        pages = _pages()
        names = sorted(page.stem for page in pages.glob("*.html"))
        if config.name not in names:
            close = difflib.get_close_matches(config.name, names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise ConfigError(f"miniwob: there is no task {config.name!r}{hint} There are: {', '.join(names)}")
        self._page = (pages / f"{config.name}.html").as_uri()
        self._browser: Browser | None = Browser(config.browser, config.driver, config.timeout)
        self._instruction = ""
        self._elements: Sequence[Element] = ()
        self._done: list[str] = []

    @property
    def admissible(self) -> list[str]:
        """Clicks on all elements, and in fields the texts that the instruction quotes."""
        words = list(dict.fromkeys(re.findall(r'"([^"]*)"', self._instruction)))
        clicks = [f"click [{element.ref}]" for element in self._elements if element.ref > 0]
        return clicks + [f"type [{element.ref}] {json.dumps(word)}" for element in self._elements if _is_field(element) for word in words]

    def solve(self) -> str:
        """The next right action, for the baseline ``oracle``. Raises EnvironmentFailure for a task that has none here."""
        if self.config.name not in ORACLES:
            raise EnvironmentFailure(f"miniwob:{self.config.name} has no oracle; these have one: {', '.join(sorted(ORACLES))}")
        return next(action for action in ORACLES[self.config.name](self._instruction, self._elements) if action not in self._done)

    def close(self) -> None:
        """End the browser and its driver."""
        browser, self._browser = self._browser, None
        if browser is not None:
            browser.close()

    def _begin(self, seed: int) -> str:
        browser = self._running()
        self._done = []
        browser.open(self._page)
        browser.run(_BEGIN, str(seed))
        browser.until("return WOB_TASK_READY;")
        return self._look(browser.run(_SEEN))

    def _act(self, action: Any) -> Outcome:
        browser, found = self._running(), _ACTION.fullmatch(action) if isinstance(action, str) else None
        ref = int(found[1] or found[2]) if found else None
        element = next((element for element in self._elements if element.ref == ref), None)
        text = None
        if found and found[3]:
            try:
                text = json.loads(found[3])
            except ValueError:
                element = None
        if element is None or (text is not None and not _is_field(element)):
            return Outcome(self._shown(), info={"invalid": True})
        assert ref is not None
        self._done.append(action.strip())
        if text is None:
            browser.run("return core.elementClick(arguments[0]);", ref)
        elif browser.run(_FOCUS, ref):
            browser.keys(text)
        seen = browser.run(_SEEN)
        score = max(0.0, float(seen["raw"])) if seen["done"] else 0.0
        return Outcome("" if seen["done"] else self._look(seen), score, bool(seen["done"]), score)

    def _running(self) -> Browser:
        if self._browser is None:
            raise EnvironmentFailure("miniwob: the environment is closed; make another")
        return self._browser

    def _look(self, seen: Mapping[str, Any]) -> str:
        self._instruction, self._elements = str(seen["utterance"]), list(_elements(seen["dom"]))
        return self._shown()

    def _shown(self) -> str:
        lines = [f"Instruction: {self._instruction}"]
        for element in self._elements:
            number = f"[{element.ref}] " if element.ref > 0 else ""
            value = "" if element.value is None else f" value={json.dumps(element.value, ensure_ascii=False)}"
            lines.append(f"{number}{element.tag} {json.dumps(element.text, ensure_ascii=False)}{value}{' (focused)' if element.focused else ''}")
        return "\n".join(lines)


def _pages() -> Path:
    found = importlib.util.find_spec("miniwob")
    if found is None or not found.submodule_search_locations or importlib.util.find_spec("selenium") is None:
        raise ConfigError(f"environment miniwob: needs miniwob and selenium, which are not installed; {how_to_install('echo-rl[miniwob]')}")
    return Path(found.submodule_search_locations[0]) / "html" / "miniwob"


def _elements(node: Mapping[str, Any]) -> Any:
    """The elements of a page that have no others in them, and fields, in the order of the page."""
    tag, children = str(node["tag"]).lower(), node.get("children") or []
    if not children or tag == "select":
        value = node.get("value")
        classes = node.get("classes")
        yield Element(
            int(node["ref"]),
            tag,
            classes if isinstance(classes, str) else "",
            str(node.get("text") or ""),
            value if isinstance(value, str | bool) else None,
            bool(node.get("focused")),
        )
    for child in children:
        yield from _elements(child)


def _is_field(element: Element) -> bool:
    return element.tag == "textarea" or (element.tag.startswith("input_") and isinstance(element.value, str) and element.tag != "input_button")


def _clicks(elements: Sequence[Element], *, tag: str = "", text: str | None = None) -> list[str]:
    return [f"click [{e.ref}]" for e in elements if e.ref > 0 and e.tag.startswith(tag) and (text is None or e.text == text or e.value == text)]


def _types(elements: Sequence[Element], *texts: str) -> list[str]:
    fields = [element for element in elements if _is_field(element)]
    return [f"type [{element.ref}] {json.dumps(text)}" for element, text in zip(fields, texts, strict=False)]


def _quoted(instruction: str) -> list[str]:
    return re.findall(r'"([^"]*)"', instruction)


def _boxes(instruction: str, elements: Sequence[Element]) -> list[str]:
    wanted = re.fullmatch(r"Select (.*) and click Submit\.", instruction)
    names = [] if wanted is None else wanted[1].split(", ")
    boxes = [element for element in elements if element.tag in ("input_checkbox", "t", "label")]
    pairs = [(box, after) for box, after in itertools.pairwise(boxes) if box.tag == "input_checkbox"]
    return [f"click [{box.ref}]" for box, label in pairs if label.text in names] + _clicks(elements, tag="button")


#: For each task that has an oracle: its actions in order, from the instruction and the page.
ORACLES: Mapping[str, Callable[[str, Sequence[Element]], list[str]]] = {
    "click-test": lambda _, elements: _clicks(elements, tag="button"),
    "click-test-2": lambda _, elements: _clicks(elements, tag="button", text="ONE"),
    "click-button": lambda said, elements: _clicks(elements, tag="button", text=_quoted(said)[0]),
    "click-link": lambda said, elements: _clicks(elements, tag="span", text=_quoted(said)[0]),
    "click-checkboxes": _boxes,
    "focus-text": lambda _, elements: _clicks(elements, tag="input_text"),
    "enter-text": lambda said, elements: _types(elements, _quoted(said)[0]) + _clicks(elements, tag="button"),
    "enter-password": lambda said, elements: _types(elements, *_quoted(said) * 2) + _clicks(elements, tag="button"),
    "login-user": lambda said, elements: _types(elements, *_quoted(said)) + _clicks(elements, tag="button"),
}
