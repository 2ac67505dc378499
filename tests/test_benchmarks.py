"""The benchmark harness: every installed system runs, hangs are survived, files can be read."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # benchmarks is not installed

psutil = pytest.importorskip("psutil")

from benchmarks import adapters, bars, harness, report  # noqa: E402
from benchmarks.__main__ import main  # noqa: E402
from benchmarks.attack import __main__ as attack  # noqa: E402
from benchmarks.attack.strangers import UNHEARING  # noqa: E402
from benchmarks.cases import CASES, select  # noqa: E402
from benchmarks.harness import Settings  # noqa: E402
from benchmarks.payloads import PAYLOADS  # noqa: E402
from benchmarks.processes import environment  # noqa: E402
from benchmarks.replay import adapters as replay_adapters  # noqa: E402
from benchmarks.replay import bars as replay_bars  # noqa: E402
from benchmarks.replay import cases as replay_cases  # noqa: E402
from benchmarks.results import Results, Spread  # noqa: E402
from benchmarks.scale import report as scale_report  # noqa: E402
from benchmarks.scale.model import Constants, Job, breaking, first, loads  # noqa: E402
from benchmarks.systems import Entry  # noqa: E402

TINY = Settings(repeat=1, seconds=0.05, warmup=0.05)
PATIENT = Settings(repeat=1, seconds=0.05, warmup=0.05, patience=90.0)  # importing some systems alone takes many seconds
PROGRAMS = {"ucx-perftest", "ucx-perftest-eager", "ucx-copies", "relay", "relay-readv"}  # that measure themselves
REPLAY_CASES = replay_cases.CASES


def test_the_strategies_are_measured_beside_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("echo_es")
    from benchmarks.es import strategies

    for mode in ("time", "table", "curves"):
        assert strategies.main(["--quick", "--modes", mode, "--out", str(tmp_path / mode), "--plot", str(tmp_path / "curves.png")]) == 0
        assert mode in json.loads((tmp_path / mode).read_text())
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    for search in (("SepCMAES", "cmaes.SepCMA"), ("CMAES", "cmaes.CMA", "pycma")):
        runs = [strategies.converge(system, strategies.PROBLEMS["sphere"], 1, to_target=True) for system in search]
        assert max(runs) < 2 * min(runs)
    assert "cmaes.SepCMA" in capsys.readouterr().out


def test_the_model_of_scale_finds_what_breaks_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: 100 MB every 30 s are 3.33 MB/s for a worker, of which 1.17 GB/s carry 351."""
    rates = {"weights": 4e9, "inserts": 2e5, "draws": 5e4, "requests": 4e3}
    for_each = {"handshake_server": 1e-3, "handshake_client": 1e-2, "memory_server": 4e3, "memory_client": 1e5, "idle_server": 1e-6}
    measured = Constants(**rates, **for_each, descriptors_server=1.0, descriptors_client=2.0, threads_client=2.0, item_bytes=28_000)
    job = Job()
    one = {load.key: load for load in loads(measured, job, 6_400, 1)}
    ten = {load.key: load for load in loads(measured, job, 6_400, 10)}
    assert one["weights-cpu"].amount == pytest.approx(6_400 * 100e6 / 30 / 4e9)
    assert one["relays-network"].amount == pytest.approx(100 * 100e6 / 30)  # 64 workers to a relay
    assert one["connections"].amount == 12_800 and ten["connections"].amount == 1_280
    assert one["door"].amount == pytest.approx((12_800 - 1_000) / 250) and one["handshakes"].amount == pytest.approx(12.8)
    assert ten["door"].amount == pytest.approx(280 / 250)
    assert ten["intake"].use == one["intake"].use == pytest.approx(6_400 * 10 * 28_000 / 1.17e9)  # shards do not help one learner
    assert ten["experience-cpu"].amount == pytest.approx(6_400 / 10 * 10 / 2e5)
    assert first(one.values(), relays=False).key == first(ten.values(), relays=False).key == "weights-network"
    assert first(one.values(), relays=True).key == "descriptors" and first(ten.values(), relays=True).key == "intake"
    assert breaking(measured, job, "weights-network") == 351 and breaking(measured, job, "learner-weights") == 351
    assert breaking(measured, job, "connections") == 2_048 and breaking(measured, job, "experience-cpu") == 20_000
    assert breaking(measured, replace(job, connection_rate=0), "door") == float("inf")
    for key, found in one.items():  # the limit that is told agrees with the load
        if key not in ("learner-weights", "intake") and (most := breaking(measured, job, key)) < 1e6:
            uses = [{load.key: load.use for load in loads(measured, job, int(workers), 1)}[key] for workers in (most, most + 1)]
            assert uses[0] <= 1 < uses[1], found.title
    with pytest.raises(ValueError, match="at least 1, not 0 and 1"):
        loads(measured, job, 0, 1)
    file = tmp_path / "scale.json"
    file.write_text(json.dumps({"constants": {**asdict(measured), "draws": -1}}))
    command = ["scale", "--constants", str(file), "--out", str(tmp_path)]
    assert main(command) == 2 and "draws must be a number of at least 0" in capsys.readouterr().err
    file.write_text(json.dumps({"constants": asdict(measured)}))
    assert main([*command, "--items", "0"]) == 2 and "--items must be above 0" in capsys.readouterr().err
    assert main(["scale", "--check", "0"]) == 2 and "--check 0" in capsys.readouterr().err
    assert "| experience in: CPU | 1 core | 0.1 cores (10%) |" in scale_report.text(measured, replace(job, items=20.0))


def need(system: str) -> None:
    try:
        adapters.version(system)
    except PackageNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")


@pytest.mark.parametrize("system", list(adapters.SYSTEMS))
def test_every_installed_system_delivers_over_tcp(system: str) -> None:
    need(system)
    can = harness.abilities("stream", system, [])
    case = next(f"{mode}/20B/1w" for mode, needs in (("tcp", "tcp"), ("shm", "shm"), ("ucx-tcp", "ucx-tcp"), ("ucx-tcp", "ucx")) if needs in can)
    settings = TINY if case.startswith("tcp") else PATIENT
    # A busy machine may let a worker wait for a processor all through a short window, while the learner reads what the kernel has kept.
    for seconds in (settings.seconds, 1.0, 10.0):
        result = harness.run_once(CASES[case], system, replace(settings, seconds=seconds))
        assert result["status"] == "ok", result
        assert result["figures"]["rate"] > 0
        if system in PROGRAMS or result["figures"]["worker_cpu_us"] > 0:
            return
    pytest.fail(f"the workers' processor time was not measured: {result}")


def test_a_program_that_is_missing_is_skipped_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(adapters.SYSTEMS, "gone", adapters.Entry("benchmarks.adapters.gone:Gone", (), program="no-such-program", hint="apt install it"))
    content = harness.run([CASES["ucx-tcp/20B/1w"]], ["gone"], TINY)
    assert "gone is skipped: no-such-program is not installed; apt install it" in content["notes"]


@pytest.mark.parametrize("case", ["inproc/20B", "inproc-2t/20B", "submit/20B"])
def test_in_process_cases_run(case: str) -> None:
    need("pyzmq")
    result = harness.run_once(CASES[case], "pyzmq", TINY)
    assert result["status"] == "ok", result


def test_a_file_becomes_a_table_a_picture_and_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    need("pyzmq")
    run = ["run", "--cases", "tcp/20B/1w", "latency", "--systems", "pyzmq", "--repeat", "1"]
    assert main([*run, "--seconds", "0.05", "--out", str(tmp_path)]) == 0
    file = tmp_path / "selected.json"
    content = json.loads(file.read_text())
    assert content["format"] == "echo-benchmarks"
    assert "node" not in content["machine"] and "host" not in content["machine"]
    assert (tmp_path / "selected.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(["table", str(file)]) == 0
    assert "20 B, 1 worker" in capsys.readouterr().out
    assert main(["compare", str(file), str(file)]) == 0
    assert "1.00×" in capsys.readouterr().out


def test_a_run_that_hangs_is_killed_with_its_workers() -> None:
    """A worker that is stopped before it is connected keeps its learner waiting for ever."""
    need("pyzmq")
    results: list[harness.Result] = []
    settings = Settings(repeat=1, seconds=0.05, warmup=0.05, patience=4.0)
    case = CASES["tcp/20B/1w"]
    run = threading.Thread(target=lambda: results.append(harness.run_once(case, "pyzmq", settings)))
    run.start()
    stopped = None
    while stopped is None and run.is_alive():
        stopped = next((p for p in workers_of(os.getpid()) if p.is_running()), None)
        time.sleep(0.01)
    assert stopped is not None
    stopped.suspend()
    run.join()
    assert results[0] == {"status": "hung", "reason": "silent in phase 'start'"}
    assert ended(stopped)


def workers_of(pid: int) -> list[psutil.Process]:
    """The worker processes below a process."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "benchmarks.worker" in process.cmdline():
                found.append(process)
    return found


def ended(process: psutil.Process) -> bool:
    """Whether a killed process is gone, or only waits for its parent to take note."""
    for _ in range(200):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("system", ["echo", "echo-grpcs"])  # the others differ in their transport alone
def test_workers_are_served_under_attack(system: str) -> None:
    need(system.removesuffix("s").replace("echo-tcp", "echo"))
    command = [sys.executable, "-m", "benchmarks.attack", "--systems", system, "--workers", "1", "--seconds", "0.2", "--settle", "0.1", "--rounds", "1"]
    said = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr[-2000:]
    rows = [line.strip("| ").split(" | ") for line in said.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == ["none", *(attack.CERTIFIED_ATTACKS if system.endswith("s") else attack.ATTACKS)]
    assert all(row[2] != "0×" and row[1] != "0" for row in rows)
    assert all(row[3] != "0×" and bool(row[4].strip()) == (row[0] in UNHEARING) for row in rows[1:]), "each beside its controls"


def test_what_is_missing_is_skipped_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = adapters.Entry("benchmarks.adapters.gone:Gone", ("no-such-distribution",))
    monkeypatch.setitem(adapters.SYSTEMS, "gone", gone)
    content = harness.run([CASES["tcp/20B/1w"]], ["gone"], TINY)
    assert "gone is skipped: no-such-distribution is not installed" in content["notes"]
    assert "no-such-distribution" in report.table(Results(content))


def test_names_select_cases() -> None:
    assert [case.name for case in select(["tcp/20B"], quick=False)] == [
        "tcp/20B/1w",
        "tcp/20B/4w",
        "tcp/20B/16w",
    ]
    assert {case.name for case in select(["tcp/1MB/*"], False)} == {"tcp/1MB/1w", "tcp/1MB/4w"}
    assert 0 < len(select(None, quick=True)) < len(select(None, quick=False))
    with pytest.raises(ValueError, match=r"'tpc'.*benchmarks cases"):
        select(["tpc"], False)


def test_every_bar_is_about_a_case() -> None:
    assert set(bars.BARS) <= set(CASES)
    assert {bars.stand_in(name) for name in CASES} <= set(CASES)


@pytest.mark.parametrize(
    ("ours", "theirs", "ok"), [(2100.0, 100.0, True), (1900.0, 100.0, False), (None, 100.0, None)]
)
def test_bars_judge_ratios(ours: float | None, theirs: float, ok: bool | None) -> None:
    def runs(rate: float | None) -> list[dict[str, object]]:
        if rate is None:
            return [{"status": "hung", "reason": "silent in phase 'measure'"}]
        return [{"status": "ok", "figures": {"rate": rate}}]

    content = {
        "format": "echo-benchmarks",
        "cases": [CASES["tcp/20B/1w"].describe()],
        "systems": {"echo": "1", "id-echo": "2"},
        "results": [
            {"case": "tcp/20B/1w", "system": "echo", "runs": runs(ours)},
            {"case": "tcp/20B/1w", "system": "id-echo", "runs": runs(theirs)},
        ],
    }
    assert [v.ok for v in bars.check(Results(content), "tcp/20B/1w")] == [ok]


def test_a_bar_of_another_transport_is_judged_where_that_was_measured() -> None:
    case = "tcp/28KB/1w"

    def judged(**rates: float) -> list[tuple[bool | None, bool]]:
        content = {
            "format": "echo-benchmarks",
            "cases": [CASES[case].describe()],
            "systems": {name.replace("_", "-"): "1" for name in rates},
            "results": [
                {"case": case, "system": name.replace("_", "-"), "runs": [{"status": "ok", "figures": {"rate": rate}}]}
                for name, rate in rates.items()
            ],
        }
        return [(v.ok, "echo-shm" in v.text) for v in bars.check(Results(content), case)]

    assert judged(echo=400.0, id_echo=100.0) == [(True, False)]
    assert judged(echo_shm=900.0, id_echo=100.0) == [(False, True)]
    assert judged(echo=200.0, echo_shm=1100.0, id_echo=100.0) == [(False, False), (True, True)]


def test_absolute_bars_are_judged_in_their_own_figure() -> None:
    case = "ucx-shm/28KB/2w"

    def judged(bytes_per_s: float) -> bars.Verdict:
        figures = {"rate": 1.0, "bytes_per_s": bytes_per_s}
        results = [{"case": case, "system": "echo-rdma", "runs": [{"status": "ok", "figures": figures}]}]
        content = {"format": "echo-benchmarks", "cases": [CASES[case].describe()], "systems": {"echo-rdma": "1"}, "results": results}
        verdict, of_ceiling = bars.check(Results(content), case)
        assert of_ceiling.ok is None  # was not measured
        return verdict

    assert judged(12e9) == bars.Verdict(True, "echo-rdma ok ≥ 10 GB/s (1.2×)")
    assert judged(8e9) == bars.Verdict(False, "echo-rdma **missed** ≥ 10 GB/s by 20 %")


def test_a_floor_holds_unless_another_does_not_reach_it_either() -> None:
    bar = bars.Reaches(3e9, "3 GB/s", "bytes_per_s", "echo-grpc", unless="grpcio-bytes")
    case = "tcp/1MB/1w"

    def judged(**rates: float) -> bars.Verdict:
        names = {name.replace("_", "-"): "1" for name in rates}
        results = [
            {"case": case, "system": name, "runs": [{"status": "ok", "figures": {"bytes_per_s": rate}}]}
            for name, rate in zip(names, rates.values(), strict=True)
        ]
        content = {"format": "echo-benchmarks", "cases": [CASES[case].describe()], "systems": names, "results": results}
        return bar.check(Results(content), case)

    assert judged(echo_grpc=2.8e9, grpcio_bytes=4e9) == bars.Verdict(False, "echo-grpc **missed** ≥ 3 GB/s or grpcio-bytes by 7 %")
    assert judged(echo_grpc=2.493e9, grpcio_bytes=2.5e9) == bars.Verdict(False, "echo-grpc **missed** ≥ 3 GB/s or grpcio-bytes by 0.3 %")
    assert judged(echo_grpc=2.8e9, grpcio_bytes=2.5e9) == bars.Verdict(True, "echo-grpc ok ≥ 3 GB/s or grpcio-bytes (1.12×)")
    assert judged(echo_grpc=3.3e9) == bars.Verdict(True, "echo-grpc ok ≥ 3 GB/s or grpcio-bytes (1.1×)")
    assert judged(echo_grpc=2.8e9).ok is None  # it may be the ceiling
    assert judged(grpcio_bytes=2.5e9).ok is None


def test_a_bar_of_shared_memory_shows_what_the_machine_does_itself() -> None:
    case = "shm/1MB/1w"

    def judged(**systems: tuple[float, float]) -> list[bars.Verdict]:
        def runs(rate: float, cpu: float) -> list[dict[str, object]]:
            return [{"status": "ok", "figures": {"rate": 1.0, "bytes_per_s": rate, "learner_cpu_us": cpu}}]

        results = [{"case": case, "system": name.replace("_", "-"), "runs": runs(*figures)} for name, figures in systems.items()]
        names = {name.replace("_", "-"): "1" for name in systems}
        return bars.check(Results({"format": "echo-benchmarks", "cases": [CASES[case].describe()], "systems": names, "results": results}), case)

    assert judged(echo_shm=(9e9, 2.0), memcpy=(10e9, 0.75)) == [
        bars.Verdict(False, "echo-shm **missed** ≥ 12 GB/s by 25 % (memcpy: 10 GB/s)"),
        bars.Verdict(False, "echo-shm **missed** ≤ 0.2 µs of the learner by 900 % (memcpy: 0.75)"),
    ]
    assert judged(echo_shm=(18e9, 0.1)) == [
        bars.Verdict(True, "echo-shm ok ≥ 12 GB/s (1.5×)"),
        bars.Verdict(True, "echo-shm ok ≤ 0.2 µs of the learner"),
    ]


def test_bars_of_other_systems_name_them() -> None:
    def result(system: str, rate: float) -> dict[str, object]:
        return {"case": "tcp/20B/1w", "system": system, "runs": [{"status": "ok", "figures": {"rate": rate}}]}

    content = {"format": "echo-benchmarks", "cases": [CASES["tcp/20B/1w"].describe()], "systems": {"echo-grpc": "1", "grpcio": "2"}}
    met, missed = ({**content, "results": [result("echo-grpc", rate), result("grpcio", 10.0)]} for rate in (300.0, 150.0))
    assert bars.check(Results(met), "tcp/20B/1w") == [bars.Verdict(True, "echo-grpc ok ≥ 20× grpcio (30×)")]
    assert bars.check(Results(missed), "tcp/20B/1w") == [bars.Verdict(False, "echo-grpc **missed** ≥ 20× grpcio by 25 %")]
    alone = {**content, "systems": {"grpcio": "2"}, "results": [result("grpcio", 10.0)]}
    assert bars.check(Results(alone), "tcp/20B/1w") == []


def test_payloads_have_the_sizes_they_are_named_after() -> None:
    sizes = {name: (len(p.leaves), p.sample_bytes) for name, p in PAYLOADS.items()}
    assert sizes == {
        "20B": (2, 20),
        "1KB": (5, 1024),
        "28KB": (4, 84 * 84 * 4 + 9),
        "28KB-42": (42, 84 * 84 * 4),
        "220KB-43": (43, 220 * 1024),
        "1MB": (2, 1024 * 1024 + 256),
    }
    for payload in PAYLOADS.values():
        (sample,) = payload.samples(1)
        assert len(payload.pack(sample)) == payload.sample_bytes
        assert payload.arrays(payload.stacked(3))[0].shape[0] == 3


def test_spread_is_median_and_quartiles() -> None:
    spread = Spread.of([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (spread.median, spread.q1, spread.q3, spread.low, spread.high) == (3, 2, 4, 1, 5)
    assert [report.number(v) for v in (0.0781, 78.4, 1234.0, 999_999.0, 4.56e6)] == [
        "0.0781",
        "78.4",
        "1.23 k",
        "1 M",
        "4.56 M",
    ]


# ---- replay tables ----------------------------------------------------------------------------------------------------------------


def need_replay(system: str) -> None:
    try:
        replay_adapters.version(system)
    except PackageNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")


@pytest.mark.parametrize("system", list(replay_adapters.SYSTEMS))
def test_every_installed_replay_system_does_what_it_says_it_can(system: str) -> None:
    """Each mode on a small table, its batches compared to what was inserted."""
    need_replay(system)
    can = harness.abilities("replay", system, [])
    able = [case for case in REPLAY_CASES.values() if replay_cases.MODES[case.mode].needs in can]
    cases = {case.mode: replace(case, capacity=2000, payload="41B") for case in able}
    assert cases
    for case in cases.values():
        result = harness.run_once(case, system, PATIENT, "replay")
        assert result["status"] == "ok", (case.name, result)
        assert case.mode == "memory" or result["figures"][case.metric.key] > 0


def test_a_replay_file_becomes_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    need_replay("echo")
    run = ["replay", "--cases", "insert-batch", "uniform/41B", "--systems", "echo", "memcpy", "--repeat", "1", "--seconds", "0.05"]
    assert main([*run, "--out", str(tmp_path)]) == 0
    file = tmp_path / "replay-selected.json"
    assert json.loads(file.read_text())["suite"] == "replay"
    assert (tmp_path / "replay-selected.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(["table", str(file)]) == 0
    told = capsys.readouterr().out
    assert "Uniform batches of 256; 41 B, 1 M items" in told and "? ≥ 4× cpprb" in told
    assert main(["compare", str(file), str(file)]) == 0
    assert "1.00×" in capsys.readouterr().out


def test_a_system_in_another_interpreter_is_asked_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = Entry("benchmarks.replay.adapters.memcpy:Memcpy", ("numpy",), interpreter="BENCH_TEST_PYTHON")
    monkeypatch.setenv("BENCH_TEST_PYTHON", str(tmp_path / "python"))
    with pytest.raises(PackageNotFoundError, match="BENCH_TEST_PYTHON: No such file"):
        entry.version()
    (tmp_path / "python").symlink_to("/bin/false")
    with pytest.raises(PackageNotFoundError, match="numpy"):
        entry.version()


def test_replay_bars_judge_ratios_and_what_a_table_keeps() -> None:
    def file(**rates: float) -> Results:
        figures = {"pair/41B/1M": {"echo": rates["small"], "cpprb": 100.0}, "pair/41B/10M": {"echo": rates["large"]}}
        return Results(
            {
                "format": "echo-benchmarks",
                "suite": "replay",
                "cases": [REPLAY_CASES[name].describe() for name in figures],
                "systems": {"echo": "1", "cpprb": "2"},
                "results": [
                    {"case": name, "system": system, "runs": [{"status": "ok", "figures": {"rate": rate}}]}
                    for name, systems in figures.items()
                    for system, rate in systems.items()
                ],
            }
        )

    def verdicts(results: Results, case: str) -> list[bool | None]:
        return [verdict.ok for verdict in replay_bars.check(results, case)]

    assert set(replay_bars.BARS) <= set(REPLAY_CASES)
    good, bad = file(small=1001, large=501), file(small=999, large=499)
    assert verdicts(good, "pair/41B/1M") == [True] and verdicts(bad, "pair/41B/1M") == [False]
    assert verdicts(good, "pair/41B/10M") == [True] and verdicts(bad, "pair/41B/10M") == [False]


def test_parts_of_a_run_become_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def part(case: str, system: str, seconds: float = 1.0, **changes: object) -> Path:
        described = {"machine": {"cpu": "a", "cores": 2, "load": seconds}, "git": {"revision": "f" * 40, "dirty": False}, "created": str(seconds)}
        content = {
            "format": "echo-benchmarks", "version": 1, "suite": "replay", **described, "systems": {system: "1"},
            "settings": {"repeat": 1, "seconds": seconds, "warmup": 0.1, "patience": 1}, "notes": [f"{system} was seen"],
            "cases": [REPLAY_CASES[case].describe()],
            "results": [{"case": case, "system": system, "runs": [{"status": "ok", "figures": {"rate": seconds}}]}],
        }  # fmt: skip
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps({**content, **changes}))
        return path

    whole = tmp_path / "whole.json"
    first, second = part("pair/41B/1M", "echo"), part("insert/41B/1M", "cpprb", 2.0)
    assert main(["merge", str(first), str(second), "--out", str(whole)]) == 0
    results = Results.load(whole)
    assert list(results.cases) == ["pair/41B/1M", "insert/41B/1M"] and results.systems == ["echo", "cpprb"]
    assert [results.main_figure(case, system).median for case, system in (("pair/41B/1M", "echo"), ("insert/41B/1M", "cpprb"))] == [1.0, 2.0]
    notes = "\n".join(results.content["notes"])
    assert "insert/41B/1M: 1 run of 2 s" in notes and "pair/41B/1M: " not in notes and "load of the machine was up to 2.0" in notes
    for bad, words in (
        (part("pair/41B/1M", "cpprb"), "case pair/41B/1M is in two parts"),
        (part("insert/41B/1M", "echo", systems={"echo": "2"}), "echo is 1 in one part and 2 in another"),
        (part("insert/41B/1M", "echo", machine={"cpu": "b", "cores": 2, "load": 0}), "one machine"),
        (part("insert/41B/1M", "echo", suite="stream"), "same suite"),
    ):
        capsys.readouterr()
        assert main(["merge", str(first), str(bad), "--out", str(tmp_path / "never.json")]) == 2
        assert words in capsys.readouterr().err and not (tmp_path / "never.json").exists()
