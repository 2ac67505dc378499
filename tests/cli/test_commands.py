"""plugins, config, token, bench, init."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from echo_core.base.installing import how_to_install
from echo_testing.processes import until

pytestmark = pytest.mark.needs("echo-tcp", "echo-samplers", "click", "rich")


def test_without_the_extra_it_says_what_to_install(python, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')")
    done = python(
        """
        import io, sys
        sys.path.insert(0, ".")
        from contextlib import redirect_stderr
        from echoctl import main
        with redirect_stderr(io.StringIO()) as said:
            assert main() == 2
        from echo_core.base.installing import how_to_install
        assert how_to_install("echo-core[cli]") in said.getvalue()
        """
    )
    assert done.returncode == 0


def test_every_command_has_help(echoctl) -> None:
    done = echoctl("--help")
    assert done.code == 0
    for name in ("serve", "top", "tap", "doctor", "bench", "plugins", "config", "token", "init"):
        assert name in done.out and echoctl(name, "--help").code == 0
    assert echoctl("--version").out.startswith("echoctl 0.")
    alone = echoctl()
    assert alone.code == 2 and alone.err.count("Usage:") == 1 and alone.err.strip() == done.out.strip()
    wrong = echoctl("sevre")
    assert wrong.code == 2 and "sevre" in wrong.err


def test_plugins_are_listed_with_what_is_missing_and_broken(echoctl, tmp_path: Path) -> None:
    done = echoctl("plugins", "list", "--json")
    rows = {(row["kind"], row["name"]): row for row in done.json}
    assert rows["transport", "tcp"]["state"] == "ok" and rows["transport", "tcp"]["api"] == 1
    assert rows["sampler", "fifo"]["distribution"] == "echo-samplers"
    if rows["transport", "rdma"]["state"] == "missing":
        assert rows["transport", "rdma"]["note"] == how_to_install("echo-core[rdma]")
    disabled = echoctl("plugins", "list", ECHO_DISABLE_PLUGINS="tcp")
    assert disabled.code == 0 and "ECHO_DISABLE_PLUGINS" in disabled.out
    info = tmp_path / "site" / "echo_broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[echo.transports]\nbroken = no_such_module\n")
    broken = echoctl("plugins", "list", "--json", PYTHONPATH=os.pathsep.join([str(info.parent), os.environ.get("PYTHONPATH", "")]))
    (row,) = [row for row in broken.json if row["state"] == "broken"]
    assert broken.code == 1 and row["name"] == "broken" and "no_such_module" in row["note"]


def test_a_misspelt_command_is_guessed(echoctl) -> None:
    guessed, lost = echoctl("tpo"), echoctl("nonsense")
    assert guessed.code == lost.code == 2
    assert "did you mean 'top'?" in guessed.err and "echoctl --help" in lost.err


def test_a_plugin_is_shown_with_its_options(echoctl) -> None:
    (shown,) = echoctl("plugins", "show", "tcp", "--json").json
    assert shown["options"]["properties"]["port"] == {"type": "integer", "default": 50051}
    assert "window_bytes" in shown["connect_options"]["properties"]
    assert "max_connections" in echoctl("plugins", "show", "tcp").out
    missing = echoctl("plugins", "show", "tpc")
    assert missing.code == 3 and "did you mean 'tcp'?" in missing.err


def test_a_configuration_is_shown_with_origins_and_checked(echoctl, tmp_path: Path) -> None:
    (tmp_path / "echo.toml").write_text('[server]\nbatch_size = 8\n[security]\ntoken = "a secret nobody should see"\n')
    (tmp_path / "echo.toml").chmod(0o600)
    done = echoctl("config", "show", "-c", "echo.toml", "server.num_buffers=5", "--json", ECHO_CLIENT__TIMEOUT="3")
    assert done.json["server.batch_size"] == {"value": 8, "origin": "echo.toml"}
    assert done.json["server.num_buffers"] == {"value": 5, "origin": "command line"} or done.json["server.num_buffers"]["value"] == "5"
    assert done.json["client.timeout"]["origin"] == "environment variable ECHO_CLIENT__TIMEOUT"
    assert done.json["server.lease_timeout"]["origin"] == "default"
    assert "secret" not in done.out + echoctl("config", "show", "-c", "echo.toml").out
    assert echoctl("config", "validate", "-c", "echo.toml", "--json").json == {"valid": True}
    wrong = echoctl("config", "validate", "server.transport=tcp://127.0.0.1:0?prot=1")
    assert wrong.code == 2 and "did you mean 'port'?" in wrong.err


def test_a_file_needs_no_option_and_two_ends_that_do_not_fit_are_noticed(echoctl, tmp_path: Path) -> None:
    (tmp_path / "echo.toml").write_text('[shared]\naddress = "tcp://learner:5555"\nlisten_host = "0.0.0.0"\n[server]\nbatch_size = 8\n')
    assert (echoctl("config", "validate", "echo.toml").code, echoctl("config", "validate", "echo.toml", "server.batch_size=9").out) == (0, "valid\n")
    shown = echoctl("config", "show", "echo.toml", "--json").json
    assert shown["server.transport.host"] == {"value": "0.0.0.0", "origin": "echo.toml"}
    assert shown["server.transport.max_connections"] == {"value": 4096, "origin": "default"}
    assert shown["client.reconnect"] == {"value": True, "origin": "default"}
    apart = echoctl("config", "validate", "echo.toml", "client.address=tcp://learner:6666", "--json")
    assert apart.code == 1 and "listens on port 5555, and the client connects to port 6666" in apart.json["disagreement"]
    assert echoctl("config", "validate", "echo.toml", "client.address=tcp://learner:6666", "--proxied").code == 0
    missing = echoctl("config", "validate", "ecko.toml")
    assert missing.code == 2 and "ecko.toml: cannot be read" in missing.err


def test_the_schema_is_one_and_knows_the_plugins(echoctl, tmp_path: Path) -> None:
    schema = echoctl("config", "schema", "--json").json
    one = schema["properties"]["server"]["properties"]["transport"]["anyOf"][0]["anyOf"]
    (tcp,) = [choice for choice in one if choice.get("properties", {}).get("type") == {"const": "tcp"}]
    assert tcp["properties"]["host"]["type"] == "string" and tcp["required"] == ["type"]
    client = schema["properties"]["client"]["properties"]
    assert "tcp" in client["window_bytes"]["description"] and "token" not in client
    assert {form["type"] for form in client["window_bytes"].get("anyOf", [client["window_bytes"]])} == {"integer"}
    for name in ("tcp", "shm", "grpc"):  # what each transport takes when connecting can be written under [client]
        if ("transport", name) in {(row["kind"], row["name"]) for row in echoctl("plugins", "list", "--json").json if row["state"] == "ok"}:
            (shown,) = echoctl("plugins", "show", name, "--json").json
            assert set(shown["connect_options"]["properties"]) - {"token"} <= set(client), name
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema)
    good = {"server": {"batch_size": 4, "transport": {"type": "tcp", "port": 0}, "sampler": "fifo"}, "client": {"window_bytes": 5}}
    jsonschema.validate(good, schema)
    for bad in ({"sever": {}}, {"server": {"batch_size": "4"}}, {"server": {"transport": {"type": "tcp", "prot": 0}}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


def test_tokens_are_made_for_their_owner_only(echoctl, tmp_path: Path) -> None:
    made = echoctl("token", "create", "--json")
    path = Path(made.json["file"])
    assert made.code == 0 and stat.S_IMODE(path.stat().st_mode) == 0o600 and len(path.read_text().strip()) == 64
    before = path.read_text()
    again = echoctl("token", "create")
    assert again.code == 2 and "--force" in again.err and path.read_text() == before
    assert echoctl("token", "create", "--force").code == 0 and path.read_text() != before
    assert len(echoctl("token", "create", "--print").out.strip()) == 64
    assert echoctl("token", "create", "--file", tmp_path / "other").code == 0 and (tmp_path / "other").exists()
    assert sorted(item.name for item in path.parent.iterdir()) == ["token"], "nothing else is left there"


def test_bench_measures_compares_and_saves(echoctl, tmp_path: Path) -> None:
    case = ["bench", "--transport", "tcp", "--bytes", 64, "--workers", 2, "--seconds", 0.3]
    first = echoctl(*case, "--save", "before.json", "--json")
    (row,) = first.json
    assert row["samples_per_s"] > 0 and row["dwell_p99_us"] >= row["dwell_p50_us"] >= 0 and row["cpu"] > 0
    assert json.loads((tmp_path / "before.json").read_text()) == first.json
    second = echoctl(*case, "--compare", "before.json")
    assert second.code == 0 and "×" in second.out


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("uv") is None, reason="packages are installed with uv")
@pytest.mark.parametrize(("kind", "name"), [("sampler", "evenly"), ("transport", "my_pipe")])
def test_a_new_plugin_keeps_its_contract_as_generated(echoctl, tmp_path: Path, kind: str, name: str) -> None:
    pytest.importorskip("setuptools")
    made = echoctl("init", "plugin", kind, name, "--json").json
    folder, site = tmp_path / made["folder"], tmp_path / "site"
    command = [
        "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        sys.executable,
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(site),
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    assert "https://github.com/echo-rl/echo/blob/main/docs/install.md" in (folder / "README.md").read_text(), "it names an address"
    listed = echoctl("plugins", "show", name, "--json", PYTHONPATH=path)
    assert listed.json[0]["distribution"] == f"echo-{name.replace('_', '-')}", listed.err
    kit = [sys.executable, "-m", "pytest", "-q", str(folder)]
    env = {**os.environ, "PYTHONPATH": path}
    tests = subprocess.run(kit, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert tests.returncode == 0 and " passed" in tests.stdout, tests.stdout[-3000:]
    checked = echoctl(
        "plugins", "check", f"echo-{name.replace('_', '-')}", "-k", "it or options or arrives", "--json", PYTHONPATH=path, timeout=300
    )
    assert checked.code == 0 and checked.json["passed"] > 0 and not checked.json["failed"], checked.out
    assert echoctl("init", "plugin", kind, name).code == 2, "what is there is not overwritten"
    assert echoctl("init", "plugin", kind, "My-Pipe").code == 2


def test_check_fails_for_a_plugin_that_breaks_its_contract(echoctl, tmp_path: Path) -> None:
    echoctl("init", "plugin", "sampler", "faulty")
    site = tmp_path / "echo-faulty" / "src"
    source = site / "echo_faulty" / "sampler.py"
    source.write_text(source.read_text().replace("np.full(n, 1 / held)", "np.full(n, 0.5 / held)"))
    info = site / "echo_faulty-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-faulty\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[echo.samplers]\nfaulty = echo_faulty\n")
    done = echoctl("plugins", "check", "echo-faulty", "--json", PYTHONPATH=os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    assert done.code == 1 and done.json["failed"] and done.json["passed"] > 0
    nobody = echoctl("plugins", "check", "echo-nobody")
    assert nobody.code == 3 and "no package named 'echo-nobody' is installed" in nobody.err and "pip" not in nobody.err
    assert "did you mean 'echo-tcp'?" in echoctl("plugins", "check", "echo-tpc").err
    assert "'tcp' is a plugin of echo-tcp; run: echoctl plugins check echo-tcp" in echoctl("plugins", "check", "tcp").err
    assert echoctl("plugins", "check", "echo-core").code == 3


def test_a_check_that_runs_out_of_time_names_the_clause_that_hung(echoctl, tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text("""
import subprocess, time

class TestSlow:
    def test_first(self): pass
    def test_second(self): assert 1 == 2
    def test_third(self):
        with open("children", "w") as file:
            file.write(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(600)
    def test_fourth(self): pass
""")
    done = echoctl("plugins", "check", "echo-tcp", "--tests", "test_slow.py", "--timeout", 8, "--json")
    assert done.code == 1
    assert (done.json["passed"], done.json["skipped"], done.json["not_run"]) == (1, 0, 1)
    assert [failure["clause"] for failure in done.json["failed"]] == ["TestSlow.test_second"]
    assert done.json["hung"] == "stopped after 8 s (--timeout): TestSlow.test_third was running"
    child = int((tmp_path / "children").read_text())
    until(lambda: has_ended(child), "what the clause started ends")
    shown = echoctl("plugins", "check", "echo-tcp", "--tests", "test_slow.py", "--timeout", 8)
    assert shown.code == 1 and "TestSlow.test_third was running" in shown.out and "1 clause passed, 1 failed" in shown.out


def has_ended(pid: int) -> bool:
    """A killed process needs a moment to end, and is a zombie until its parent asks for it."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_check_that_is_ended_takes_its_children_along(tmp_path: Path, number: int) -> None:
    (tmp_path / "test_slow.py").write_text("""
import os, subprocess, time

class TestSlow:
    def test_it(self):
        child = subprocess.Popen(["sleep", "600"])
        with open("children.part", "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        os.rename("children.part", "children")
        time.sleep(600)
""")
    command = [sys.executable, "-m", "echoctl", "plugins", "check", "echo-tcp", "--tests", "test_slow.py"]
    check = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until((tmp_path / "children").exists, "the kit runs")
    check.send_signal(number)
    assert check.wait(60) != 0
    for child in (tmp_path / "children").read_text().split():
        until(lambda child=child: has_ended(int(child)), f"process {child}, which it started, ends")


def made_transport(echoctl, tmp_path: Path, before: str, after: str) -> str:
    """The scaffold's transport with one change, as if installed; returns the PYTHONPATH for it."""
    echoctl("init", "plugin", "transport", "faulty")
    site = tmp_path / "echo-faulty" / "src"
    source = site / "echo_faulty" / "transport.py"
    assert before in source.read_text()
    source.write_text(source.read_text().replace(before, after))
    info = site / "echo_faulty-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-faulty\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[echo.transports]\nfaulty = echo_faulty\n")
    return os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("return FaultyChannel(self._sock.accept()[0])", "raise KeyError('lost')", "cannot accept clients: KeyError('lost')"),
        ("self._sock.sendall(buffer)", "raise ValueError('nothing goes')", "nothing goes"),
        ('scheme = "faulty"', 'scheme = "fualty"', ""),  # found before anything runs
    ],
)
def test_a_transport_by_which_nothing_arrives_fails_in_one_clause_that_says_why(echoctl, tmp_path: Path, before: str, after: str, why: str) -> None:
    path = made_transport(echoctl, tmp_path, before, after)
    done = echoctl("plugins", "check", "echo-faulty", "--json", PYTHONPATH=path)
    if not why:
        assert done.code == 3 and "write scheme = 'faulty'" in done.out + done.err
        return
    (failure,) = done.json["failed"]
    assert done.code == 1 and failure["clause"] == "TestFaulty.test_a_sample_arrives"
    assert "no sample arrives: " in failure["why"] and why in failure["why"]
    assert done.json["passed"] == 0 and done.json["skipped"] == 0 and done.json["not_run"] > 100
    shown = echoctl("plugins", "check", "echo-faulty", PYTHONPATH=path)
    assert f"{done.json['not_run']} not run" in shown.out and why in " ".join(shown.out.split())


def test_the_scaffolds_name_modules_that_exist_and_use_the_helpers_of_the_guide() -> None:
    from echoctl.scaffold import CONTRACTS, SAMPLER, SHARED, TRANSPORT

    for kind, files in (("transport", TRANSPORT), ("sampler", SAMPLER)):
        text = "\n".join([*SHARED.values(), *files.values()]).replace("@contract@", CONTRACTS[kind])
        named = set(re.findall(r"echo_core(?:\.[a-z_]+)+", text))
        assert CONTRACTS[kind] in named
        for name in named:
            import_module(name)
    guide = (Path(__file__).parents[2] / "docs" / "plugins" / "sampler.md").read_text()
    helpers = set(re.findall(r"check_[a-z]+", guide))
    assert helpers and helpers <= set(re.findall(r"check_[a-z]+", "".join(SAMPLER.values())))


def test_a_kit_whose_process_dies_names_the_clause(echoctl, tmp_path: Path) -> None:
    (tmp_path / "test_dying.py").write_text("import os\n\nclass TestDying:\n    def test_it(self): os.abort()\n")
    done = echoctl("plugins", "check", "echo-tcp", "--tests", "test_dying.py", "--json")
    assert done.code == 1 and done.json["hung"] == "the kit's process died in TestDying.test_it" and done.json["passed"] == 0


@pytest.mark.parametrize("arguments", [("token", "create", "--file", "full/token"), ("init", "plugin", "sampler", "mine", "--dir", "full/mine")])
def test_a_file_that_cannot_be_written_is_named(arguments: tuple[str, ...], tmp_path: Path) -> None:
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); from echoctl.command import run; sys.exit(run(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", limit, *arguments, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)
    assert said["type"] == "FileWriteError" and done.returncode == said["exit_code"] != 0
    assert re.match(rf"\[Errno 27\] cannot write {arguments[-1]}\S*: File too large; raise this process's limit of file sizes", said["error"])
    assert [path for path in (tmp_path / "full").rglob("*") if path.name.startswith(".")] == []
