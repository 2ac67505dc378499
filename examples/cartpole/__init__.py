"""Echo's main example: a learner and several worker processes play CartPole, and you can watch.

    python -m examples.cartpole

Experience travels up and weights travel down through Echo. The modules, in reading order:

* `options`: the command line.
* `rollout`: the content of a sample.
* `worker` and `fleet`: a worker process, and all of them, which are respawned when they die.
* `network` and `algorithm`: the learning.
* `job`: the learner's loop, which shows best how Echo is used.
* `monitor`: the measurements.
* `figures`: the measurements of the server, for Prometheus.
* `view`, `chart` and `plot`: the display.
"""
