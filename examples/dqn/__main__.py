"""`python -m examples.dqn`: see `options` for its command line."""

from __future__ import annotations

import os
import sys

# numpy's linear algebra gets one thread per process, because the networks are tiny. numpy reads this when it is imported; workers inherit it.
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
        print(f"dqn: {error}; install Echo (docs/install.md), and run: pip install gymnasium matplotlib", file=sys.stderr)
        return 2
    return int(run(options))


if __name__ == "__main__":  # worker processes import this module again and must not run it
    sys.exit(main())
