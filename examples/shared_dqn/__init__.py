"""DQN on one machine: collectors fill a replay buffer in shared memory, and no server is needed.

    python -m examples.shared_dqn

* `runner`: the collector, and the learner as an `echo_ipc.AsyncRunner`.

The network and the learning are those of `examples.dqn`, which shows the same with a server, priorities and steps.
"""
