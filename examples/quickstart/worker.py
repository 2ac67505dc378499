"""A rollout worker: run as many of these as you like, on this machine or others.

python examples/quickstart/worker.py
"""

from __future__ import annotations

import numpy as np

from echo_core import JobEnded, TcpClient

example = {
    "obs": np.zeros((4,), dtype=np.float32),
    "reward": np.zeros((1,), dtype=np.float32),
}


def main() -> None:
    """Send a thousand samples. Leaving the block delivers those that are still on their way."""
    with TcpClient("localhost", 50051, example) as client:
        for _ in range(1000):
            client.send(
                {
                    "obs": np.random.randn(4).astype(np.float32),
                    "reward": np.array([1.0], dtype=np.float32),
                }
            )


if __name__ == "__main__":
    try:
        main()
    except JobEnded as error:
        print(error)
