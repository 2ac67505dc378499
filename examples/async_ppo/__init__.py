"""Asynchronous PPO on one machine: a learner and the collectors that it spawns share memory, and no server is needed.

    python -m examples.async_ppo

* `runner`: the collector, and the learner as an `echo_ipc.AsyncRunner`.

The network and the learning are those of `examples.cartpole`.
"""
