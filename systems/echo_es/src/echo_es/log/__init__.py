"""The epoch log: an append-only file from which a killed server goes on with the same rewards, and the newest state beside it.

The file begins with a mark and the number of the format. Records follow, each with a checksum: a JSON object and an array of bytes, usually float64
rewards. Nothing is pickled. The kinds of records:

    search    what is searched: it has to be the same when the log is used again
    part      rewards of some individuals of an epoch that is not complete
    epoch     the rewards of a whole epoch
    seen      the merged statistics of observations after an epoch
    test      the rewards of a test

When `EpochLog.epoch`, `test` or `state` returns, its data is on the disk (fdatasync), and only then do workers hear of it. Parts are written about once
a second, so a killed server has the individuals of its last second evaluated again. Nobody has heard of these.

A server that is killed while it writes leaves half a record at the end. `EpochLog` cuts it off. A damaged record with whole records after it is
never cut off: that is an error, because rewards would be lost without a word.
"""

from .contents import Contents, read_log
from .epoch_log import FLUSH_SECONDS, EpochLog

__all__ = ["FLUSH_SECONDS", "Contents", "EpochLog", "read_log"]
