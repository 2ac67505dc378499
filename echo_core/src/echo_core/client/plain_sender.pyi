from collections.abc import Callable
from typing import Any

from typing_extensions import disjoint_base

from ..base.errors import EchoTimeoutError
from ..store.steps.steps import StepStreams
from ..wire.transport import Connection

@disjoint_base
class PlainSender:
    def __init__(
        self,
        client: object,
        connection: Connection | StepStreams,
        steps: bool,
        explain: Callable[[EchoTimeoutError, float | None], None] | None,
    ) -> None: ...
    def send(
        self,
        sample: Any,
        timeout: float | None = None,
        *,
        table: str | None = None,
        priority: float | None = None,
        policy_version: int | None = None,
        end: str | None = None,
        stream: int | None = None,
    ) -> None: ...
    def send_batch(
        self,
        samples: Any,
        timeout: float | None = None,
        *,
        table: str | None = None,
        priorities: Any = None,
        policy_version: int | None = None,
        ends: Any = None,
        stream: int | None = None,
        streams: Any = None,
    ) -> None: ...
