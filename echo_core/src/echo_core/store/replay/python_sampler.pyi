from typing import final

@final
class ToldSampler: ...
