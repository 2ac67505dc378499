from typing import final

@final
class Patience:
    def __init__(self, timeout: float | None) -> None: ...
