from typing import final

from ...base.waiting import LOG_AFTER as LOG_AFTER

@final
class Patience:
    def __init__(self, timeout: float | None) -> None: ...
