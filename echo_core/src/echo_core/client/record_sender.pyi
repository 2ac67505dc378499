from collections.abc import Callable
from typing import Any, final

from ..spec.ragged import RaggedSpec

@final
class RecordSender:
    def __new__(
        cls, spec: RaggedSpec, send_batch: Callable[..., Any], unacknowledged: Callable[[], int], client_id: str, held: Any
    ) -> RecordSender: ...
    def send(self, sample: Any, timeout: float | None = None, priority: float | None = None, policy_version: int | None = None) -> None: ...
    def send_batch(
        self,
        samples: Any,
        timeout: float | None = None,
        priorities: Any = None,
        policy_version: int | None = None,
        labels: bytes | None = None,
    ) -> None: ...
    def counted(self, stats: dict[str, Any]) -> dict[str, Any]: ...
