"""Install distributions of this repository, as wheels, into the Python that runs this, as a user would.

    python tools/install.py "echo-core[tcp]" ...
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> None:
    wheels = subprocess.run([sys.executable, str(Path(__file__).with_name("wheels.py"))], check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")[-2]
    # Reinstalled each time: the version stays the same while the sources change.
    ours = ["echo-core", "echo-samplers", "echo-adapters", "echo-shm", "echo-tcp", "echo-grpc", "echo-rdma"]
    command = ["uv", "pip", "install", "--quiet", "--python", sys.executable, "--find-links", wheels]
    for name in ours:
        command += ["--reinstall-package", name, "--no-cache-dir"] if name == ours[0] else ["--reinstall-package", name]
    subprocess.run([*command, *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
