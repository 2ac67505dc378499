"""Shared memory between a learner and its collectors, `echo_ipc`, beside unilab.ipc: ``python -m benchmarks.ipc``.

    pip install torch                        # next to echo-ipc; the CPU's is enough
    pip install --no-deps unilab-rl==0.2.0   # the rival of weights and rollouts
    git clone https://github.com/unilabsim/UniLab && git -C UniLab checkout 9aa57115
    python -m benchmarks.ipc --unilab UniLab # the rival of replay: the source of 2026-05-31

Without a rival, its column stays empty. Both sides have the API of unilab.ipc and run in turn, in slices of a fraction of a second, with one thread of
torch. A ratio is taken of two slices that follow each other, so what else the machine does affects both; the table shows the median of the ratios and, as
their spread, the quartiles. It prints the table, and writes JSON with `--out`.

| mode | figure |
|---|---|
| `weights` | weights of 0.76, 10 and 100 MB in 14 tensors, written and read in one process: GB/s |
| `fresh` | read in one process what another has just written: GB/s |
| `ping` | a small rollout there and one back between two processes: microseconds for one way, the median of half the round trips |
| `stream` | rollouts of 6.5 MB from one process to another, each copied in and copied out: GB/s; none may be lost or mixed |
| `replay` | rows of 444 bytes in a table of a million, added and sampled in batches of 256 and 4096: rows/s |

The rival's weights go through its lock, as its users' do. Its ring never waits for the consumer; for `stream` its producer therefore waits until there is
room, as ours does by its policy. `ping` is measured with the default, in which both sides spin for as long as a wake-up would take, and without spinning,
which is what the kernel's wake-ups of two processes allow.
"""
