from typing import final

@final
class PythonSampler: ...
