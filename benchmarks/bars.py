"""What Echo must reach, as checks on a result file: ratios to id-echo or another system, and absolute limits."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.results import Results

OURS = "echo"
BASELINE = "id-echo"

#: Modes that id-echo lacks are measured against the nearest thing it has.
STAND_INS = {"tcp-batch": "tcp", "shm-batch": "shm", "inproc-batch-2t": "inproc-2t", "submit-batch": "submit"}


@dataclass(frozen=True)
class Verdict:
    """``ok`` is None where a figure is missing; ``text`` goes into the table."""

    ok: bool | None
    text: str


CEILING = "memcpy"


def _percent(share: float) -> str:
    return f"{share:.1f}" if share < 1 else f"{share:.0f}"  # what is missed is never missed by nothing


def _beside(results: Results, case: str, key: str, ceiling: bool) -> str:
    """What the machine itself does, without us: for a bar that nobody can pass."""
    figure = results.figure(case, CEILING, key) if ceiling else None
    if figure is None:
        return ""
    scale, unit = (1e9, " GB/s") if key.endswith("bytes_per_s") else (1, "")
    return f" ({CEILING}: {figure.median / scale:.3g}{unit})"


@dataclass(frozen=True)
class AtLeast:
    """So many times ``baseline``, by the case's own figure. The text names systems that are not the usual two."""

    factor: float
    moonshot: float | None = None
    ours: str = OURS
    baseline: str = BASELINE

    def check(self, results: Results, case: str) -> Verdict:
        factor = ratio(results, case, self.ours, self.baseline)
        who = "" if self.ours == OURS else f"{self.ours} "
        than = "" if self.ours == OURS and self.baseline == BASELINE else f" {self.baseline}"
        if factor is None:
            return Verdict(None, f"{who}? ≥ {self.factor:g}×{than}")
        if self.moonshot is not None and factor >= self.moonshot:
            return Verdict(True, f"{who}ok, moonshot ≥ {self.moonshot:g}×{than}")
        if factor >= self.factor:
            times = "" if self.baseline == BASELINE else f" ({factor:.3g}×)"  # the columns show ratios to id-echo only
            return Verdict(True, f"{who}ok ≥ {self.factor:g}×{than}{times}")
        short = 100 * (1 - factor / self.factor)
        return Verdict(False, f"{who}**missed** ≥ {self.factor:g}×{than} by {_percent(short)} %")


@dataclass(frozen=True)
class AtMost:
    """An absolute limit for Echo, in the unit of the case's own figure or of ``key``, if it is asked for with the `ceiling` of the machine."""

    limit: float
    unit: str
    key: str | None = None
    ours: str = OURS
    ceiling: bool = False

    def check(self, results: Results, case: str) -> Verdict:
        key = self.key or results.metric(case).key
        figure = results.figure(case, self.ours, key)
        who = "" if self.ours == OURS else f"{self.ours} "
        if figure is None:
            return Verdict(None, f"{who}? ≤ {self.limit:g} {self.unit}")
        beside = _beside(results, case, key, self.ceiling)
        if figure.median <= self.limit:
            return Verdict(True, f"{who}ok ≤ {self.limit:g} {self.unit}{beside}")
        over = 100 * (figure.median / self.limit - 1)
        return Verdict(False, f"{who}**missed** ≤ {self.limit:g} {self.unit} by {_percent(over)} %{beside}")


@dataclass(frozen=True)
class Reaches:
    """An absolute floor, in the case's own figure or that of ``key``, with a word for people, and the `ceiling` of the machine if asked for.

    Where the system ``unless`` does not reach it in the same run either, its figure is the floor.
    """

    limit: float
    title: str
    key: str | None = None
    ours: str = OURS
    ceiling: bool = False
    unless: str | None = None

    def check(self, results: Results, case: str) -> Verdict:
        key = self.key or results.metric(case).key
        figure = results.figure(case, self.ours, key)
        other = results.figure(case, self.unless, key) if self.unless else None
        title, limit = self.title, self.limit
        if self.unless:
            title += f" or {self.unless}"
        if figure is None or (self.unless and other is None and figure.median < limit):
            return Verdict(None, f"{self.ours} ? ≥ {title}")
        if other is not None:
            limit = min(limit, other.median)
        beside = _beside(results, case, key, self.ceiling)
        if figure.median >= limit:
            return Verdict(True, f"{self.ours} ok ≥ {title} ({figure.median / limit:.3g}×){beside}")
        short = 100 * (1 - figure.median / limit)
        return Verdict(False, f"{self.ours} **missed** ≥ {title} by {_percent(short)} %{beside}")


@dataclass(frozen=True)
class Below:
    """One of our figures below ``factor`` times one of id-echo's."""

    key: str
    factor: float
    title: str
    moonshot_key: str | None = None
    ours = OURS

    def check(self, results: Results, case: str) -> Verdict:
        ours = results.figure(case, OURS, self.key)
        theirs = results.figure(case, BASELINE, self.key)
        if ours is None or theirs is None:
            return Verdict(None, f"? {self.title}")
        limit = self.factor * theirs.median
        if self.moonshot_key is not None:
            moonshot = results.figure(case, BASELINE, self.moonshot_key)
            if moonshot is not None and ours.median < moonshot.median:
                return Verdict(True, f"ok {self.title}, moonshot < its {self.moonshot_key[:3]}")
        if ours.median <= limit:
            return Verdict(True, f"ok {self.title}")
        over = 100 * (ours.median / limit - 1)
        return Verdict(False, f"**missed** {self.title} by {_percent(over)} %")


Bar = AtLeast | AtMost | Below | Reaches


def _grpc(factor: float, baseline: str) -> AtLeast:
    return AtLeast(factor, ours="echo-grpc", baseline=baseline)


def _shm(factor: float) -> AtLeast:
    """Against id-echo over TCP, which it replaces on one machine."""
    return AtLeast(factor, ours="echo-shm")


def _shm_reaches(limit: float, title: str, key: str = "bytes_per_s") -> Reaches:
    return Reaches(limit, title, key, "echo-shm", ceiling=True)


def _grpc_large(ours: str) -> Reaches:
    return Reaches(3e9, "3 GB/s", "bytes_per_s", ours, unless="grpcio-bytes")


OF_GRPC_LARGE = (_grpc(1, "grpcio"), _grpc(0.9, "grpcio-bytes"), _grpc(0.9, "grpcio-handed"))

#: It copies nothing, and wakes once for each batch.
SHM_LEARNER = AtMost(0.2, "µs of the learner", "learner_cpu_us", "echo-shm", ceiling=True)


def _rdma(factor: float, baseline: str) -> AtLeast:
    return AtLeast(factor, ours="echo-rdma", baseline=baseline)


#: A message a sample, as ucx_perftest has it.
EACH = AtLeast(0.8, ours="echo-rdma-each", baseline="ucx-perftest")
#: A message a sample, and large ones as messages too: over TCP nobody is given an address to write to.
EACH_EAGER = AtLeast(0.8, ours="echo-rdma-each", baseline="ucx-perftest-eager")
#: A message a sample, with the two copies that delivery takes and ucx_perftest does not make.
OF_UCX_COPIES = AtLeast(0.8, ours="echo-rdma-each", baseline="ucx-copies")
#: Bare processes that copy as often: what the machine has to give while other programs work on it.
OF_COPIES = AtLeast(0.9, ours="echo-rdma", baseline="relay")

BARS: dict[str, tuple[Bar, ...]] = {
    "inproc/20B": (AtLeast(15),),
    "inproc-2t/20B": (AtLeast(15),),
    "inproc/28KB-42": (AtLeast(8),),
    "inproc-2t/28KB-42": (AtLeast(8),),
    "ready/20B": (AtMost(1, "µs"),),
    "ready/28KB-42": (AtMost(6, "µs"),),
    # Over gRPC: many times a plain stream of one message per sample, and never less than the original over TCP. Where grpcio itself, with the
    # two copies that nobody is spared, carries less than that, near what it does.
    "tcp/20B/1w": (AtLeast(20, moonshot=60), _grpc(20, "grpcio"), _shm(50)),
    "tcp/20B/4w": (AtLeast(20, moonshot=60), _grpc(20, "grpcio"), _shm(50)),
    "tcp/1KB/1w": (_grpc(20, "grpcio"),),
    "tcp/1KB/4w": (_grpc(20, "grpcio"),),
    "tcp/28KB/1w": (AtLeast(3), _grpc(1, "id-echo"), _grpc(0.9, "grpcio-kept"), _grpc(0.9, "grpcio-handed"), _shm(10)),
    "tcp/28KB/4w": (AtLeast(3), _grpc(1, "id-echo"), _grpc(0.9, "grpcio-kept"), _grpc(0.9, "grpcio-handed"), _shm(10)),
    "tcp/28KB/16w": (AtLeast(3),),
    "tcp/28KB-42/1w": (AtLeast(5),),
    # A message a megabyte is all that grpcio can do: a plain stream of raw bytes is the ceiling.
    # With samples that are made in place it is like against like: those who send raw bytes have theirs made beforehand.
    "tcp/1MB/1w": (AtLeast(3), _grpc_large("echo-grpc"), _grpc_large("echo-grpc-inplace"), *OF_GRPC_LARGE),
    "tcp/1MB/4w": (AtLeast(3),),
    "tcp-batch/20B/1w": (AtLeast(80),),
    "tcp-batch/20B/4w": (AtLeast(80),),
    "tcp-batch/20B/16w": (AtLeast(80),),
    "latency/20B/1w": (
        Below("p50_us", 0.5, "p50 ≤ ½ of id-echo's"),
        Below("p99_us", 1.0, "p99 < id-echo's", moonshot_key="p50_us"),
    ),
    # The harness itself, asleep, wakes often enough to cost about 0.02 %.
    "idle/20B/4w": (AtMost(0.1, "% of a core"),),
    "crowd/1KB/500c": (AtMost(2, "times"),),
    "shm/20B/1w": (_shm(50), SHM_LEARNER),
    "shm/20B/2w": (Reaches(5e6, "5 M/s", ours="echo-shm"), _shm(50), SHM_LEARNER),
    "shm-batch/20B/2w": (Reaches(40e6, "40 M/s", ours="echo-shm"), SHM_LEARNER),
    "shm/28KB/1w": (_shm_reaches(12e9, "12 GB/s"), _shm(10), SHM_LEARNER),
    "shm/28KB/4w": (_shm_reaches(20e9, "20 GB/s"), _shm(10), SHM_LEARNER),
    "shm/1MB/1w": (_shm_reaches(12e9, "12 GB/s"), SHM_LEARNER),
    "weights/20B/1w": (AtMost(1000, "µs", ours="echo-shm", ceiling=True),),
    "publish/20B/1w": (_shm_reaches(10e9, "publish 10 GB/s", "publish_bytes_per_s"), _shm_reaches(10e9, "read 10 GB/s", "read_bytes_per_s")),
    "ucx-shm/20B/2w": (Reaches(3e6, "3 M/s", ours="echo-rdma"), _rdma(20, "ucxx")),
    "ucx-shm/1KB/2w": (_rdma(20, "ucxx"),),
    "ucx-shm/28KB/2w": (Reaches(10e9, "10 GB/s", "bytes_per_s", "echo-rdma"), OF_COPIES),
    "ucx-shm/1MB/2w": (Reaches(7e9, "7 GB/s", "bytes_per_s", "echo-rdma"), OF_COPIES),
    "ucx-tcp/20B/1w": (EACH, OF_UCX_COPIES, _rdma(5, "ucx-perftest")),
    "ucx-tcp/1KB/1w": (EACH, OF_UCX_COPIES),
    "ucx-tcp/28KB/1w": (EACH, OF_UCX_COPIES),
    "ucx-tcp/1MB/1w": (EACH, EACH_EAGER, OF_UCX_COPIES),
}


def ratio(results: Results, case: str, system: str, baseline: str = BASELINE) -> float | None:
    """How many times better than ``baseline`` a system is in a case, by medians; None if unknown."""
    ours = results.main_figure(case, system)
    theirs = results.main_figure(stand_in(case), baseline) if stand_in(case) in results.cases else None
    if ours is None or theirs is None or not ours.median or not theirs.median:
        return None
    factor = ours.median / theirs.median
    return factor if results.metric(case).more_is_better else 1 / factor


def stand_in(case: str) -> str:
    """The case whose id-echo figure a case is compared to: itself, or the nearest thing."""
    mode, slash, rest = case.partition("/")
    return STAND_INS.get(mode, mode) + slash + rest


def check(results: Results, case: str) -> list[Verdict]:
    """The verdicts on a case; none where nothing was promised, or who promised was not measured."""
    return [bar.check(results, case) for bar in BARS.get(case, ()) if bar.ours in results.systems]
