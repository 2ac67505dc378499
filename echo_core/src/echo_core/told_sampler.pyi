from typing import final

from .sampler import Keys

@final
class ToldSampler:
    def fill(self, keys: Keys, start: int) -> None: ...
