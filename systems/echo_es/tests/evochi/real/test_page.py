"""The worker of docs/coming-from-evochi.md that has Evochi's client works for our server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from echo_es import ESServer

PAGE = Path(__file__).resolve().parents[5] / "docs" / "coming-from-evochi.md"
(PROGRAM,) = re.findall(r"^```python rival=evochi\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def test_evochis_own_worker_runs(client_folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(client_folder)}
    with ESServer(10, evochi="127.0.0.1:0", max_epochs=3) as server:
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(server.evochi_port)], env=env, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        assert server.wait(60) and server.rewards is not None
        assert server.rewards[0] == 3 and server.rewards[1].tolist() == [float(i) for i in range(10)]
