from collections.abc import Callable
from typing import Any

from typing_extensions import disjoint_base

from ..base.errors import EchoTimeoutError
from .outlets import Outlet

@disjoint_base
class Sender:
    def _begin(
        self,
        outlet: Callable[[str | None], Outlet],
        send: Callable[..., Any],
        send_batch: Callable[..., Any],
        explain: Callable[[EchoTimeoutError, float | None], None],
        labels: bool,
    ) -> None: ...
    def _set_version(self, version: int | None) -> None: ...
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
