"""The program of an actor: ``python -m echo_rl.rollouts.actor_process JOB``, where JOB is what ``ActorJob.to_json`` returns.

An actor ends when the learner ends the job. It also ends when its standard input is closed while it is a pipe: then its parent has died. Where its rules
say ``resume``, SIGTERM and Ctrl-C let it hand back what it has made, and leave; the second one ends it at once.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import signal
import stat
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from echo_core import ConfigError
from echo_core.base.option_reader import build_options
from echo_rl.rollouts.actor import Collector, Leave, run_actor

__all__ = ["ActorJob", "end_with_the_parent", "main", "make_collector"]


@dataclass(frozen=True)
class ActorJob:
    """What an actor does.

    Attributes:
        address: of the learner.
        kind: ``"tokens"``: groups of a language model (``TextRules``); ``"segments"``: steps of environments that observe numbers (``SegmentRules``).
        rules: the fields of these rules.
        imports: modules that register environments; they are imported first.
        timeout: see ``run_actor``.
        log_level: of the program's log.
    """

    address: str
    kind: Literal["tokens", "segments"]
    rules: dict[str, Any]
    imports: list[str] = field(default_factory=list)
    timeout: float = 60.0
    log_level: str = "WARNING"

    def to_json(self) -> str:
        """The job as one argument of a command line. It has no secrets; the token comes from the environment or from the user's token file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ActorJob:
        """Read a job. Raises ConfigError, which names the field."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"the job is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError("the job has to be a JSON object")
        return build_options(cls, values, "job")


def make_collector(kind: str, rules: Mapping[str, Any], imports: list[str], index: int = 0, leave: Leave | None = None) -> Any:
    """The collector of a job. It also has ``leaves``, the example of its records, and ``close``. ``leave`` tells it to stop, if it can."""
    for module in imports:
        importlib.import_module(module)
    if kind == "tokens":
        from echo_rl.rollouts.text_policy import TextRules
        from echo_rl.rollouts.token_collector import TokenCollector

        return TokenCollector(build_options(TextRules, rules, "rules"), leave)
    from echo_rl.rollouts.segment_collector import SegmentCollector, SegmentRules

    return SegmentCollector(build_options(SegmentRules, rules, "rules"), index)


def main(arguments: list[str]) -> int:
    """Run the job of the first argument; the second one is the number of the actor."""
    job, index = ActorJob.from_json(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0
    logging.basicConfig(level=job.log_level, format=f"%(asctime)s actor {index}: %(message)s", datefmt="%H:%M:%S")
    if job.log_level == "WARNING":
        logging.getLogger("echo").setLevel(logging.ERROR)  # an actor that waits for tickets is no fault: the learner sets the pace
        logging.getLogger("echo.rl").setLevel(logging.WARNING)
    end_with_the_parent()
    import torch

    torch.set_num_threads(1)  # the machine's cores are the other actors' too
    leave = Leave() if job.rules.get("resume") else None
    collector = make_collector(job.kind, job.rules, job.imports, index, leave)
    working: Collector = collector
    if leave is not None:
        _leave_by_signals(leave)
    try:
        run_actor(job.address, collector.leaves, working, timeout=job.timeout, leave=leave, name=f"actor-{index}-{os.getpid()}")
    finally:
        collector.close()
    return 0


def _leave_by_signals(leave: Leave) -> None:
    def ask(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        leave.ask()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        signal.signal(number, ask)


def end_with_the_parent() -> None:
    """End this process when its standard input ends, if that is a pipe."""
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os._exit(0)  # the learner is gone, and its checkpoint has every ticket of this actor

    threading.Thread(target=watch, name="echo-rl-parent", daemon=True).start()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m echo_rl.rollouts.actor_process", description="Make rollouts for a learner until it ends the job.")
    parser.add_argument("job", metavar="JOB", help="the JSON of an ActorJob")
    parser.add_argument("index", metavar="INDEX", type=int, nargs="?", default=0, help="the number of this actor; default: 0")
    given = parser.parse_args()
    try:
        sys.exit(main([given.job, str(given.index)]))
    except KeyboardInterrupt:
        sys.exit(130)
