"""Tells a learner that breaks the protocol from a path that damages bytes once in a while: `BrokenLinks`."""

from __future__ import annotations

__all__ = ["MOST", "BrokenLinks"]

MOST = 3  # links in a row


class BrokenLinks:
    """Counts the links of one connection that ended because the learner broke the protocol.

    One damaged byte breaks a link, and what it damaged arrives whole over the next one. If it does not arrive over any of `MOST` links in a row, the
    learner is at fault, or the path damages so much that nothing will ever pass.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # by what was broken: the progress until then, and how many links broke since

    def believed(self, what: str, progress: int) -> bool:
        """A link broke: whether another one would break in the same way.

        Args:
            what: names the kind of message that was broken. Each kind is counted by itself.
            progress: a number that rises with each message of this kind that arrives whole.
        """
        before, links = self._seen.get(what, (progress, 0))
        links = links + 1 if progress == before else 1
        self._seen[what] = progress, links
        return links >= MOST
