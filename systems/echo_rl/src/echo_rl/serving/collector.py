"""An actor whose rollouts are made by agents: each attempt at a ticket's task is a session."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from echo_core import EchoTimeoutError
from echo_rl.checks import check, optional, real, whole
from echo_rl.rollouts.actor import Policy
from echo_rl.rollouts.schema import RolloutSchema
from echo_rl.rollouts.tickets import Ticket
from echo_rl.serving.endpoint import Endpoint
from echo_rl.serving.errors import ApiError
from echo_rl.serving.sessions.records import Which, group_record
from echo_rl.serving.sessions.session import EndedSession, Session


class SessionCollector:
    """Makes the rollouts of tickets for ``echo_rl.rollouts.actor.run_actor``, whose example is ``schema.example()``.

    Args:
        endpoint: Serves the engine. Its weights become those of each ticket, under their version.
        schema: Its group says how many attempts a ticket has.
        attempt: Lets an agent try the task of a session, and returns the reward. It runs in one thread for each attempt, and gives the agent the session's
            ``base_url``, and its ``key`` as the API key.
        seed: Makes the draws of each attempt repeatable, with the task and the number of the attempt. None: they are random.
        timeout: For how many seconds all attempts at a ticket may take.
        branch: As in ``group_record``.
    """

    at_once = 1  # one ticket at a time: its attempts run side by side

    def __init__(
        self,
        endpoint: Endpoint,
        schema: RolloutSchema,
        attempt: Callable[[Session], float],
        *,
        seed: int | None = None,
        timeout: float = 600.0,
        branch: Which = "only",
    ) -> None:
        check("seed", seed, optional(whole(0)))
        check("timeout", timeout, real(above=0))
        self.endpoint, self.schema, self.seed, self.timeout, self.branch = endpoint, schema, seed, timeout, branch
        self._attempt = attempt

    def collect(self, tickets: Sequence[Ticket], policy: Policy, newer: Callable[[int], Policy | None] | None = None) -> list[dict[str, Any]]:
        """Return the record of each ticket, made with this policy: all attempts, or nothing. ``newer`` is not used.

        If an attempt raises, the sessions of all of them end without a record.

        Raises:
            EchoTimeoutError: The attempts did not end within ``timeout``; the message says which.
            What the attempt raises, ApiError for a reward that is no number, and SpecError for sessions that do not fit into the record.
        """
        worker = self.endpoint.worker
        if policy.version > int(worker.stats()["version"]):
            worker.update_weights({name: torch.from_numpy(np.array(array)) for name, array in policy.params.items()}, policy.version)
        return [self._record(ticket) for ticket in tickets]

    def _record(self, ticket: Ticket) -> dict[str, Any]:
        runs = [_Run(self._attempt, self.endpoint.open_session(task=ticket.task, attempt=i, seed=self._seed(ticket.task, i))) for i in range(self.schema.group)]
        end = time.monotonic() + self.timeout
        try:
            for run in runs:
                run.thread.start()
            for run in runs:
                run.thread.join(max(0.0, end - time.monotonic()))
                if run.error is not None:
                    raise run.error
            if late := [run.session.attempt for run in runs if run.ended is None]:
                raise EchoTimeoutError(f"the attempts {late} at task {ticket.task} did not end within {self.timeout} s; their agents are still at work")
            return group_record([run.ended for run in runs if run.ended is not None], self.schema, branch=self.branch)
        finally:
            # The calls of agents that are still at work are aborted, and their keys are worth nothing any more.
            for run in runs:
                run.discard()

    def _seed(self, task: int, attempt: int) -> int | None:
        if self.seed is None:
            return None
        return int.from_bytes(hashlib.sha256(f"{self.seed} {task} {attempt}".encode()).digest()[:7], "big")


class _Run:
    def __init__(self, attempt: Callable[[Session], float], session: Session) -> None:
        self.session = session
        self.ended: EndedSession | None = None
        self.error: BaseException | None = None
        self._attempt = attempt
        self.thread = threading.Thread(target=self._run, name=f"echo-rl-attempt-{session.attempt}", daemon=True)

    def _run(self) -> None:
        try:
            self.ended = self.session.end(self._attempt(self.session))
        except BaseException as error:
            self.error = error

    def discard(self) -> None:
        if self.ended is None:
            try:
                self.session.end(discard=True)
            except (ApiError, TimeoutError):
                pass  # It has ended meanwhile.
