"""`python -m examples.dqn`: see `options` for what it can be told."""

from __future__ import annotations

import os
import sys

# One thread per process for numpy's linear algebra: the networks are tiny. Read once, when numpy is imported; workers inherit it.
for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


def main() -> int:
    """Run the job, or the comparison, and return the exit code."""
    from .options import parse

    options = parse()
    try:
        if options.compare:
            from .compare import run
        else:
            from .job import run
    except ImportError as error:
        print(f'dqn: {error}; run: pip install "echo-core[tcp]" gymnasium numpy matplotlib', file=sys.stderr)
        return 2
    return int(run(options))


if __name__ == "__main__":  # not in the worker processes, which import this module again
    sys.exit(main())
