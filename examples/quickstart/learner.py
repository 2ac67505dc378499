"""The learner: start this first, then one or more `worker.py`.

python examples/quickstart/learner.py
"""

from __future__ import annotations

import numpy as np

from echo_core import Server, TcpTransport

example = {
    "obs": np.zeros((4,), dtype=np.float32),
    "reward": np.zeros((1,), dtype=np.float32),
}


def main() -> None:
    """Print the content of each batch until Ctrl-C."""
    with Server(example, batch_size=32, transport=TcpTransport(port=50051)) as server:
        print(f"listening at {server.address}; Ctrl-C ends", flush=True)
        for count, sample in enumerate(server.dataset_iter(), start=1):
            batch = sample.batch  # {"obs": (32, 4), "reward": (32, 1)}
            mean = float(batch["obs"].mean())
            print(f"batch {count}: obs {batch['obs'].shape}, mean {mean:+.3f}", flush=True)
            # ... use it in a training step


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
