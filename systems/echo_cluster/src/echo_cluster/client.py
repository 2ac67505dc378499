"""A worker of a cluster: it sends to one shard, its home, and moves to another when that is gone."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import optree

from echo_core import (
    Address,
    Client,
    ClosedError,
    ConfigError,
    ConnectionClosedError,
    EchoError,
    EchoTimeoutError,
    JobEnded,
    Ragged,
    SecurityError,
    SpecError,
    Steps,
)
from echo_core.base.waiting import shown

from .members import Member, find_members
from .near import address_from_here, is_here

if TYPE_CHECKING:
    from echo_core import Weights

__all__ = ["ClusterClient", "preferred"]

_log = logging.getLogger("echo")
T = TypeVar("T")

LOOK_SECONDS = 0.2
DIAL_SECONDS = 3.0  # for one shard, before the next one is tried
AGAIN_SECONDS = 0.3  # between two rounds over all shards
END_SECONDS = 2.0  # without any shard, after the home was closed on purpose, until the job counts as ended


def preferred(members: list[Member], worker: str) -> list[Member]:
    """The members in the order in which a worker tries them: those on its host first, and each group by rendezvous hash (Thaler and Ravishankar
    1998), so that workers spread evenly, and few of them move when a shard comes or goes."""

    def weight(member: Member) -> tuple[bool, bytes]:
        return not is_here(member.addresses, member.host), hashlib.sha256(f"{worker}\0{member.name}".encode()).digest()

    return sorted(members, key=weight)


def handed_out(example: Any) -> bool:
    """Whether a closed client hands out the samples of such an example that were not acknowledged, so that another home can get them."""
    return not isinstance(example, Steps) and not any(isinstance(leaf, Ragged) for leaf in optree.tree_leaves(example))


class ClusterClient:
    """A worker's connection to a cluster. It has the calls of `Client`, which go to one shard, the worker's home.

    If the home is gone for `rehome_after` seconds, or is drained, the worker gets a new home: a new `Client`, because a client keeps its transport.
    Samples that the former home has not acknowledged are sent to the new one, with their priorities and policy versions. If the former
    home had stored some of them and died before it said so, they are there twice once it is restored: at least once across the death of a shard.

    Args:
        members: who is there; see `members.find_members`.
        example, table, tables, token, auth, **options: as `Client` takes them.
        name: of this worker, also for its choice of a home; None is the client's own name.
        near: "auto" prefers shards of this host, over shared memory if they offer it; "never" treats all alike, over the network.
        timeout: seconds, as in `Client`.
        rehome_after: seconds without a connection until the worker moves.

    Raises:
        As `Client`; EchoTimeoutError: no shard was reached in time. ConfigError: an argument is invalid.

    Steps belong to episodes that only their home knows, and of samples of varying length (`Ragged`) the first may be with its home in part. So a
    worker that sends either does not move: it waits for its home as `Client` does, also at another address that the members name.
    """

    def __init__(
        self,
        members: Any,
        example: Any,
        *,
        table: str | None = None,
        tables: Any = None,
        near: str = "auto",
        name: str | None = None,
        timeout: float = 30.0,
        token: Any = None,
        auth: bool = True,
        rehome_after: float = 5.0,
        **options: Any,
    ) -> None:
        if near not in ("auto", "never"):
            raise ConfigError(f'near must be "auto" or "never", not {near!r}')
        if not hasattr(rehome_after, "__float__") or not rehome_after > 0:
            raise ConfigError(f"rehome_after must be a number of seconds above 0, not {rehome_after!r}")
        self._find = find_members(members, auth=auth)
        self._known: list[Member] | None = None  # as they were found last
        self._unfound = ""  # why they are not found now
        self._near, self._timeout, self._rehome_after = near == "auto", timeout, rehome_after
        self._stays = not all(handed_out(one) for one in (example, *(tables or {}).values()))
        self._worker = name or hashlib.sha256(f"{id(self)}{time.time_ns()}".encode()).hexdigest()

        def connect(member: Member, address: Address, seconds: float) -> Client:
            more = {"connect_timeout": seconds, **options}
            if self._stays:
                more.setdefault("resolve", partial(self._now, member.name))
            return Client(address, example, name=name, timeout=timeout, token=token, auth=auth, table=table, tables=tables, **more)

        self._connect = connect
        self._moving = threading.Lock()
        self._closed = threading.Event()
        self._abandoned = False  # this was closed, and `close` did not wait for the end of a move
        self._reasons: dict[str, EchoError] = {}  # why shards were not reached in the last search
        self.moves = 0
        self._over = self._end_told = False  # the job has ended; a call has raised JobEnded
        self._home, self._client = self._find_home(timeout, None)
        self._watch: threading.Thread | None = None
        if not self._stays:
            self._watch = threading.Thread(target=self._look, name="echo-cluster-home", daemon=True)
            self._watch.start()

    # ---- the home ---------------------------------------------------------------------------------------------------------

    @property
    def shard(self) -> str:
        """The name of the home among the members."""
        return self._home.name

    @property
    def address(self) -> Address:
        """The address of the home."""
        return self._client.address

    def _find_home(self, seconds: float, left: Member | None, ended: bool = False) -> tuple[Member, Client]:
        """Dial the members in order until one answers; the one that was `left` comes last. If that one has `ended` the job, the search is short.

        While a worker moves, no dial takes longer than DIAL_SECONDS, so that the thread that moves it notices soon that it was closed.
        """
        began = time.monotonic()
        ends = began + seconds
        reasons = self._reasons = {}
        while True:
            members = preferred(self._members(), self._worker)
            members.sort(key=lambda member: left is not None and member.name == left.name)
            for member in members:
                remaining = ends - time.monotonic()
                if self._closed.is_set():
                    raise ClosedError("this client is closed")
                if remaining <= 0 and reasons:
                    break
                address = address_from_here(member.addresses, member.host if self._near else "-")
                try:
                    # A shard that is gone must not take the time of the others.
                    most = DIAL_SECONDS if len(members) > 1 or left is not None else remaining
                    return member, self._connect(member, address, max(min(most, remaining), 0.1))
                except (SecurityError, SpecError, ConfigError):
                    raise  # the same at every shard
                except (EchoError, OSError) as error:
                    reasons[member.name] = error if isinstance(error, EchoError) else ConnectionClosedError(str(error))
            if ended and time.monotonic() - began > END_SECONDS:
                raise JobEnded(f"the job has ended: shard {left.name if left else ''} was closed on purpose, and no other shard answers")
            if time.monotonic() >= ends:
                raise EchoTimeoutError(f"no shard was reached within {shown(seconds)} s: {self._why()}")
            self._closed.wait(min(AGAIN_SECONDS, max(0.0, ends - time.monotonic())))

    def _why(self) -> str:
        why = [f"{name}: {error}" for name, error in dict(self._reasons).items()]
        if self._unfound:
            why.append(f"the members could not be found ({self._unfound})")
        return "; ".join(why) or "the members name no shard yet"

    def _now(self, name: str, address: Address) -> Address | None:
        """Where this member is now, by the transport of `address`, which a client keeps. None: it is not up."""
        found = [one for member in self._members() if member.name == name for one in member.addresses if one.scheme == address.scheme]
        return found[0] if found else None

    def _members(self) -> list[Member]:
        """Who is there. If that cannot be found out later on, those known stay, as for a learner, and the log says so once: a disk or a name server may
        fail for a while, and a function of the user may raise anything. Before the first home, mistakes are raised."""
        try:
            self._known = self._find()
            self._unfound = ""
        except Exception as error:
            if self._known is None:
                raise
            why = str(error) or type(error).__name__
            if why != self._unfound:
                _log.warning("the members of the cluster could not be found, those known stay: %s", why)
            self._unfound = why
        return self._known

    def _look(self) -> None:
        """Move when the home is gone for too long."""
        seen, said = time.monotonic(), ""
        while not self._closed.wait(LOOK_SECONDS):
            client = self._client
            try:
                if client.stats()["connected"]:
                    seen, said = time.monotonic(), ""
                elif self._over:
                    continue
                elif client.ended or time.monotonic() - seen > self._rehome_after:
                    self._move(client, self._timeout)
                    seen = time.monotonic()
            except JobEnded as error:
                self._over = True  # calls find out for themselves
                _log.info("%s", error)
            except Exception as error:  # the calls of this client raise it; this thread must not end, because nobody else moves an idle worker
                if self._closed.is_set():
                    return
                if str(error) != said:  # once for each error
                    said = str(error)
                    _log.warning("this worker found no new home: %s", error)

    def _move(self, former: Client, seconds: float) -> None:
        """Get a new home instead of `former`, and send the samples there that `former` still has. Raises the errors of `_find_home`."""
        ends = time.monotonic() + seconds
        if not self._moving.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):  # another thread moves, and may have more time than this call
            raise EchoTimeoutError(f"no shard was reached within {shown(seconds)} s: {self._why()}")
        try:
            if self._client is not former:
                return  # another thread has moved meanwhile
            if self._closed.is_set():
                raise ClosedError("this client is closed")
            home, client = self._find_home(max(0.0, ends - time.monotonic()), self._home, former.ended)
            try:
                if self._abandoned:
                    raise ClosedError("this client is closed")
                if former.policy_version is not None:
                    client.policy_version = former.policy_version
                for leftover in former.close(0, leftovers=True):
                    client.send_again(leftover, max(0.0, ends - time.monotonic()))
            except BaseException:
                client.close(0)
                raise
            _log.info("this worker has left shard %s for %s", self._home.name, home.name)
            self._home, self._client = home, client
            self.moves += 1
            if self._abandoned:  # `close` may have closed the former client only
                client.close(0)
        finally:
            self._moving.release()

    def _call(self, call: Callable[[Client, float | None], T], timeout: float | None) -> T:
        """Call the home's client, and a new home's if that one is closed meanwhile."""
        ends = time.monotonic() + (self._timeout if timeout is None else timeout)
        while True:
            client = self._client
            try:
                return call(client, timeout)
            except (ConnectionClosedError, ClosedError):
                if self._closed.is_set() or self._stays:
                    raise
                left = ends - time.monotonic()
                if self._client is client:
                    if left <= 0 or (client.stats()["connected"] and not client.ended):
                        raise
                    try:
                        self._move(client, left)
                    except JobEnded:
                        self._end_told = True
                        raise
                timeout = max(0.0, ends - time.monotonic())

    # ---- the calls of Client ----------------------------------------------------------------------------------------------

    def send(self, sample: Any, timeout: float | None = None, **more: Any) -> None:
        """See `Client.send`."""
        self._call(lambda client, left: client.send(sample, left, **more), timeout)

    def send_batch(self, samples: Any, timeout: float | None = None, **more: Any) -> None:
        """See `Client.send_batch`. If the home is lost while this waits for room, the part that was taken before may be sent twice."""
        self._call(lambda client, left: client.send_batch(samples, left, **more), timeout)

    def flush(self, timeout: float | None = None) -> None:
        """See `Client.flush`."""
        self._call(lambda client, left: client.flush(left), timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Return when all samples are committed, at whichever shard."""
        self._call(lambda client, left: client.wait(left), timeout)

    def weights(self, timeout: float | None = None, newer_than: int | None = None, like: Any = None) -> Weights:
        """See `Client.weights`: from the home, which passes on the learner's."""
        return self._call(lambda client, left: client.weights(left, newer_than, like), timeout)

    def request(self, op: str, body: dict[str, Any] | None = None, blob: bytes = b"", timeout: float | None = None) -> tuple[dict[str, Any], bytes]:
        """See `Client.request`. It may be carried out twice if the home is lost meanwhile."""
        return self._call(lambda client, left: client.request(op, body, blob, left), timeout)

    def __getattr__(self, name: str) -> Any:
        """The other calls of `Client`, such as `reserve` and `table`: of the home that it has now."""
        if name.startswith("_"):
            raise AttributeError(f"ClusterClient has no attribute {name!r}")
        return getattr(self._client, name)

    @property
    def policy_version(self) -> int | None:
        """See `Client`."""
        return self._client.policy_version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        self._client.policy_version = version

    def stats(self) -> dict[str, Any]:
        """The counters of the home's client, and `moves`, how often this worker got a new home."""
        return {**self._client.stats(), "moves": self.moves}

    def close(self, timeout: float | None = None) -> None:
        """Deliver all samples, then close. If the home is gone, they go to a new one first. Idempotent. It raises the errors of `Client.close`."""
        if self._closed.is_set():
            return
        ends = time.monotonic() + (self._timeout if timeout is None else timeout)
        try:
            if not self._end_told:
                self._call(lambda client, left: client.wait(left) if client.unacknowledged else None, timeout)
        finally:
            self._closed.set()  # no move begins any more
            if self._moving.acquire(timeout=min(max(0.0, ends - time.monotonic()), threading.TIMEOUT_MAX)):
                self._moving.release()
                if self._watch is not None:
                    self._watch.join()
            else:
                self._abandoned = True  # the thread that moves ends when its dial has ended
            try:
                self._client.close(0 if self._end_told else max(0.0, ends - time.monotonic()))
            except (ConnectionError, TimeoutError):
                if not self._end_told:
                    raise

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close(0 if kind is not None and issubclass(kind, KeyboardInterrupt) else None)
        except (ConnectionError, TimeoutError):
            if kind is None and not self._client.ended:
                raise

    def __repr__(self) -> str:
        return f"<ClusterClient of {self.shard} at {self.address}>"
