"""Replay tables in configuration files: read, checked, told where from, and made."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from echo_core import ConfigError, FrameStack, NStep, Queue, SampleToInsertRatio, Sequences, Server, Slices, Table
from echo_core.config.config import load
from echo_core.config.schema import configuration_schema
from echo_core.plugins import discovery
from echo_core.plugins.sampler_choice import make_sampler

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.every_python]

EXAMPLE = {"x": np.zeros(3, np.float32)}
OTHER = {"frame": np.zeros((2, 2), np.uint8)}

TEXT = """
[server]
batch_size = 16

[[server.tables]]
name = "replay"
capacity = 1_000
sampler = { type = "prioritized", alpha = 0.7 }
rate_limiter = { type = "SampleToInsertRatio", samples_per_insert = 4, min_size_to_sample = 100, error_buffer = 300 }
max_policy_lag = 20
seed = 1

[[server.tables]]
name = "queue"
capacity = 64
sampler = "fifo"
rate_limiter = { type = "Queue", size = 64 }
lease_timeout = 30.0
"""


STEPS = """
[server]
batch_size = 2

[[server.tables]]
name = "dqn"
capacity = 100
sampler = "prioritized"
items = { type = "NStep", n = 3, gamma = 0.9 }
stack = { leaf = "obs", n = 4 }

[[server.tables]]
name = "offline"
capacity = 50
sampler = "uniform"
items = { type = "Slices", length = 4, by = "episodes" }
stack = [{ leaf = "obs", n = 2, fill = "zeros" }]
"""
STEP = {"obs": np.zeros(3, np.float32), "reward": np.float32(0)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "echo.toml"
    path.write_text(TEXT)
    return path


def test_a_server_of_the_tables_a_file_describes(file: Path) -> None:
    server = Server.from_config(file, EXAMPLE, examples={"queue": OTHER})
    replay, queue = server.tables["replay"], server.tables["queue"]
    assert list(server.tables) == ["replay", "queue"] and server.batch_size == 16
    assert replay.capacity == 1000 and replay.spec.sample_bytes == 12 and replay.sampler.options.alpha == 0.7
    assert replay.limiter == SampleToInsertRatio(4, 100, 300) and replay.lags.most == 20
    assert queue.limiter == Queue(64) and queue.max_times_sampled == 1 and queue.lease_timeout == 30 and queue.spec.sample_bytes == 4
    server.submit_batch({"frame": np.zeros((16, 2, 2), np.uint8)}, table="queue")
    assert server.ack(server.sample(5, table="queue").keys, table="queue") == 16


def test_single_keys_can_be_changed_and_tell_where_they_come_from(file: Path) -> None:
    variable = "ECHO_SERVER__TABLES__1__CAPACITY"
    config = load(file, env={variable: "128"}, command_line=["server.tables.0.sampler=uniform", "server.tables.0.max_bytes=6000"])
    replay, queue = config.server.tables
    assert (replay.sampler.type, dict(replay.sampler.options), replay.max_bytes) == ("uniform", {}, 6000)
    assert queue.capacity == 128
    lines = {key: (value, origin) for key, value, origin in config.explain()}
    assert lines["server.tables.1.capacity"] == ("128", f"environment variable {variable}")
    assert lines["server.tables.0.sampler.type"] == ("uniform", "command line")
    assert lines["server.tables.0.rate_limiter.error_buffer"] == (300, str(file))
    assert "server.tables.0.sampler.alpha" not in lines  # the options of one sampler mean nothing to another
    config.check()
    assert Server.from_config(config, EXAMPLE).tables["replay"].capacity == 500


def test_a_later_list_replaces_the_whole_one_before(file: Path) -> None:
    config = load(file, {"server": {"tables": [{"name": "only", "capacity": 10, "sampler": "lifo", "remover": "fifo"}]}})
    assert [table.name for table in config.server.tables] == ["only"]
    assert config.server.tables[0].remover == "fifo"


def test_tables_given_by_code_win(file: Path) -> None:
    tables = [Table("mine", EXAMPLE, capacity=32, sampler="uniform")]
    assert list(Server.from_config(file, tables=tables).tables) == ["mine"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('capacity = "many"', r"server\.tables\.0\.capacity: must be a whole number, not 'many'"),
        ("capacty = 3", r"server\.tables\.0\.capacty: unknown key; did you mean 'capacity'\?"),
        ("where = 3", r"server\.tables\.0\.where: unknown key"),
        ("sampler = 3", r'server\.tables\.0\.sampler: the key "type" is missing'),
        ('sampler = { type = "uniform", alhpa = 1 }', r"server\.tables\.0\.sampler\.alhpa: unknown key"),
        ('sampler = "unifrom"', r"no sampler named 'unifrom'.*did you mean 'uniform'"),
        ('rate_limiter = "Queu"', r"server\.tables\.0\.rate_limiter\.type: no rate limiter 'Queu'; did you mean 'Queue'\?"),
        ('rate_limiter = { type = "Queue" }', r"server\.tables\.0\.rate_limiter\.size: missing"),
        ('rate_limiter = { type = "MinSize", min_size_to_sample = 0 }', r"server\.tables\.0\.rate_limiter: MinSize: min_size_to_sample"),
        ('rate_limiter = { type = "MinSize", min_size_to_sample = 11 }', r"could never give a batch of \d+: MinSize\(11\) waits for 11 items"),
        ("lag_weight = 2.0", r"server\.tables\.0: table 'one': lag_weight must be"),
        ("lease_timeout = 1.0", r"server\.tables\.0: table 'one': lease_timeout works only if items are sampled once"),
    ],
)
def test_mistakes_name_file_and_key(tmp_path: Path, change: str, said: str) -> None:
    path = tmp_path / "echo.toml"
    keys = {"name": '"one"', "capacity": "10", "sampler": '"uniform"'}
    key, _, value = change.partition(" = ")
    lines = [f"{name} = {text}" for name, text in {**keys, key: value}.items()]
    path.write_text("\n".join(["[server]", "batch_size = 2", "[[server.tables]]", *lines]))
    with pytest.raises((ConfigError, ImportError), match=said) as caught:
        Server.from_config(path, EXAMPLE)
    assert str(path) in str(caught.value) or "could never" in said or "missing" in said


def test_items_over_steps(tmp_path: Path) -> None:
    path = tmp_path / "echo.toml"
    path.write_text(STEPS)
    server = Server.from_config(path, STEP)
    assert server.tables["dqn"].layout.items == NStep(3, gamma=0.9) and server.tables["offline"].layout.items == Slices(4, by="episodes")
    writer = server.tables["dqn"].writer()
    for t in range(8):
        writer.send({"obs": np.full(3, t, np.float32), "reward": np.float32(1)}, end="terminated" if t == 7 else None)
    sample = server.sample(timeout=10)
    assert sample.batch["obs"].shape == (2, 4, 3)
    steps = np.minimum(3, 8 - sample.batch["obs"][:, -1, 0])
    assert np.allclose(sample.returns, (1 - 0.9**steps) / (1 - 0.9))
    config = load(path, command_line=["server.tables.0.items.n=5", "server.tables.1.items={type='Sequences', length=6, period=3}"])
    dqn, offline = config.server.tables
    assert dqn.items == NStep(5, gamma=0.9) and dqn.stack == FrameStack(4, "obs")
    assert offline.items == Sequences(6, period=3) and offline.stack == (FrameStack(2, "obs", fill="zeros"),)
    assert ("server.tables.1.items.period", 3, "command line") in config.explain()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("items=Slces", r"command line: server\.tables\.0\.items\.type: no kind of items 'Slces'; did you mean 'Slices'\?"),
        ("items.lenth=5", r"command line: server\.tables\.0\.items\.lenth: unknown key"),
        ("items.n=0", r"command line: server\.tables\.0\.items: NStep: n must be a whole number from 1"),
        ("items={type='Sequences'}", r"server\.tables\.0\.items\.length: missing"),
        ("stack.n=0", r"command line: server\.tables\.0\.stack: FrameStack: n must be a whole number from 1"),
        ("stack.fill=ones", r"command line: server\.tables\.0\.stack\.fill: must be 'first' or 'zeros'"),
        ("stack={leaf='osb', n=2}", r"server\.tables\.0: table 'dqn': FrameStack: leaf 'osb' is not a leaf of the step.*did you mean 'obs'"),
        ("items.n=2000", r"server\.tables\.0: table 'dqn': one item has 2004 steps, more than capacity=100"),
    ],
)
def test_mistakes_of_items_name_the_key(tmp_path: Path, change: str, said: str) -> None:
    path = tmp_path / "echo.toml"
    path.write_text(STEPS)
    with pytest.raises(ConfigError, match=said):
        Server.from_config(load(path, command_line=[f"server.tables.0.{change}"]), STEP)


def test_what_does_not_go_together(file: Path) -> None:
    with pytest.raises(ConfigError, match="each of \\[\\[server.tables\\]\\] has its own sampler"):
        load(file, command_line=["server.sampler=uniform"])
    with pytest.raises(ConfigError, match="server.tables.0 already has the name 'replay'"):
        load(file, command_line=["server.tables.1.name=replay"])
    with pytest.raises(ConfigError, match="table 'replay' has no example"):
        Server.from_config(file, examples={"queue": OTHER})
    with pytest.raises(ConfigError, match="examples has a table 'queu'.*did you mean 'queue'"):
        Server.from_config(file, EXAMPLE, examples={"queu": OTHER})
    with pytest.raises(ConfigError, match="server.tables"):
        load({"server": {"batch_size": 1, "tables": 3}})


def test_what_belongs_into_each_table_is_refused_beside_them() -> None:
    table = Table("a", EXAMPLE, capacity=8, sampler="uniform")
    with pytest.raises(ConfigError, match="rate_limiter and seed belong in each Table"):
        Server(tables=[table], batch_size=2, seed=3, rate_limiter=Queue(4))
    with pytest.raises(ConfigError, match="example belong"):
        Server(np.zeros(4), tables=[table], batch_size=2)
    for wrong in ([], table):
        with pytest.raises(ConfigError, match="a list of at least one Table"):
            Server(tables=wrong, batch_size=2)  # type: ignore[arg-type]


def test_a_sampler_object_serves_one_table() -> None:
    own = make_sampler({"type": "prioritized"}, discovery.default, 8)
    own.__class__ = type("Prioritized", (type(own),), {"__eq__": lambda self, other: self is other, "__hash__": None})  # as a dataclass would be
    table = Table("a", EXAMPLE, capacity=8, sampler=own)
    first = Server(tables=[table], batch_size=2)
    with pytest.raises(ConfigError, match="Prioritized object already serves a table; make one for each table"):
        Server(tables=[table], batch_size=2)
    first.submit_batch({"x": np.zeros((4, 3), np.float32)})
    assert first.sample().batch["x"].shape == (2, 3)
    del first
    gc.collect()
    with pytest.raises(ConfigError, match="already serves a table"):  # what it knows is of the other's rows
        Server(tables=[table], batch_size=2)


def test_the_schema_knows_tables(file: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    import tomllib

    schema = configuration_schema()
    good = tomllib.loads(TEXT)
    jsonschema.validate(good, schema)
    mistakes = {"capacity": "3", "capacty": 3, "rate_limiter": {"type": "Queue"}, "sampler": {"type": "uniform", "alpha": 1}}
    for key, value in mistakes.items():
        bad = tomllib.loads(TEXT)
        bad["server"]["tables"][0][key] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)
    jsonschema.validate(tomllib.loads(STEPS), schema)
    for key, value in {"items": {"type": "NStep", "length": 3}, "stack": {"leaf": "obs"}}.items():
        bad = tomllib.loads(STEPS)
        bad["server"]["tables"][0][key] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)
