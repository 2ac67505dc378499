"""Install distributions of this repository, as wheels, into the Python that runs this, as a user would.

    python tools/install.py "echo-core[tcp]" ...
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> None:
    build = subprocess.run([sys.executable, str(Path(__file__).with_name("wheels.py"))], check=True, stdout=subprocess.PIPE, text=True)
    wheels = Path(build.stdout.split("\n")[-2])
    command = ["uv", "pip", "install", "--quiet", "--python", sys.executable, "--find-links", str(wheels), "--no-cache-dir"]
    # Reinstalled each time: the version stays the same while the sources change.
    for wheel in sorted(wheels.glob("*.whl")):
        command += ["--reinstall-package", wheel.name.partition("-")[0].replace("_", "-")]
    subprocess.run([*command, *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
