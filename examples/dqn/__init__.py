"""DQN with a replay table: worker processes fill it over TCP, and a learner draws from it by priority.

    python -m examples.dqn
    python -m examples.dqn --compare

The modules, in reading order:

* `options`: the command line.
* `transitions`: the content of a sample, and playing.
* `worker`: a worker process.
* `agent`: the learning.
* `job`: the learner's loop, which shows best how Echo is used.
* `compare` and `plot`: several samplers and seeds.

Networks, the optimiser and the management of worker processes come from `examples.cartpole`.
"""
