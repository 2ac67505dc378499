"""`python -m examples.cartpole`: see `options` for what it can be told."""

from __future__ import annotations

import os
import sys

# One thread per process for numpy's linear algebra: the networks are tiny, and with a process
# per worker more threads only take the cores from each other. Read once, when numpy is imported,
# hence before any other import here; worker processes inherit it.
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
            f'cartpole: {error}; run: pip install "echo-core[tcp]" gymnasium numpy rich matplotlib',
            file=sys.stderr,
        )
        return 2
    return run(options).exit_code


if __name__ == "__main__":  # not in the worker processes, which import this module again
    sys.exit(main())
