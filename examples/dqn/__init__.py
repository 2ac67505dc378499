"""DQN with a replay table: worker processes fill it over TCP, a learner draws from it by priority.

    python -m examples.dqn
    python -m examples.dqn --compare

The modules, in reading order: `options` (the command line), `transitions` (what a sample is, and playing), `worker` (a worker process),
`agent` (the learning), `job` (the learner's loop: the place to see how Echo is used), `compare` (several samplers and seeds) and `plot`.
Networks, optimiser and the keeping of worker processes are those of `examples.cartpole`.
"""
