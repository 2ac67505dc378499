"""Workers for a server of Evochi's protocol: write `import echo_es.evochi.v1 as evochi` for `import evochi.v1 as evochi`."""

from __future__ import annotations

from ...workers.evaluation import Eval
from ...workers.worker import Worker

__all__ = ["Eval", "Worker"]
