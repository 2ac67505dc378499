from .stream import Stream

TAKES_NONE: str

class NoSamples(Stream):
    def __init__(self, *args: object, **kwargs: object) -> None: ...  # it takes none
