"""`python -m examples.cartpole`: see `options` for its command line."""

from __future__ import annotations

import os
import sys

# numpy's linear algebra gets one thread per process: the networks are tiny, and with one process
# per worker, more threads would only compete for the cores. numpy reads the variables once, when it
# is imported, so they are set before any other import. Worker processes inherit them.
for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


def main() -> int:
    """Run the job and return the exit code."""
    from .options import parse

    options = parse()
    try:
        from .job import run
    except ImportError as error:
        print(
            f"cartpole: {error}; `./dev demo` installs everything, or install Echo (docs/install.md) and run: pip install gymnasium rich matplotlib",
            file=sys.stderr,
        )
        return 2
    return run(options).exit_code


if __name__ == "__main__":  # worker processes import this module again and must not run it
    sys.exit(main())
