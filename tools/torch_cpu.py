"""Install PyTorch for the CPU into the environment whose Python runs this. Other builds bring gigabytes of CUDA's libraries.

    python tools/torch_cpu.py

Pip's own indexes and folders come first; only if they lack this build, it comes from the index of PyTorch.
"""

from __future__ import annotations

import os
import subprocess
import sys

from wheels import uv_program

TORCH = "torch==2.13.0+cpu"
INDEX = "https://download.pytorch.org/whl/cpu"


def main() -> int:
    subprocess.run([uv_program(), "pip", "install", "--quiet", "--python", sys.executable, "pip"], check=True)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", TORCH]
    # Tests have an XDG_CONFIG_HOME of their own, in which pip would not find its user's configuration.
    environment = {name: value for name, value in os.environ.items() if name != "XDG_CONFIG_HOME"}
    if subprocess.run(install, check=False, stderr=subprocess.DEVNULL, env=environment).returncode == 0:
        return 0
    return subprocess.run([*install, "--extra-index-url", INDEX], check=False, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
