"""Echo's main job: a learner and several worker processes play CartPole, and you can watch.

    python -m examples.cartpole

Experience travels up and weights travel down through Echo. The modules, in reading order:
`options` (the command line), `rollout` (what a sample is), `worker` (a worker process), `fleet`
(all of them, respawned when they die), `network` and `algorithm` (the learning), `job` (the
learner's loop: the place to see how Echo is used), `monitor` (what is measured), `view`, `chart`
and `plot` (what is shown).
"""
