"""Use all parts of Echo that are installed in the Python that runs this: every module, transport, sampler and command.

It gets their names from the installation. It prints one line about the used parts; an exception ends it with exit code 1.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import subprocess
import sys
import tempfile
from importlib.metadata import distributions, requires
from pathlib import Path
from typing import Any

import numpy as np

from echo_core import Client, PluginError, Server, SpecError
from echo_core.base.installing import OWN, how_to_install
from echo_core.client.observer import Observer
from echo_core.plugins import discovery

EXAMPLE = {"obs": np.zeros(3, np.float32), "step": np.int64(0)}
#: What modules import that only an extra brings, as `echo-es[evochi]` brings zstandard, or echoctl, which alone loads the modules of commands.
OPTIONAL = {"pytest", "hypothesis", "click", "rich", "cryptography", "torch", "jax", "gymnasium", "stable_baselines3", "libucx", "google", "grpc", "zstandard"}


def samples(n: int) -> dict[str, Any]:
    steps = np.arange(n)
    return {"obs": np.repeat(steps[:, None], 3, 1).astype(np.float32), "step": steps}


def own() -> set[str]:
    """The distributions of Echo that are installed here."""
    return {d.name for d in distributions()} & OWN


def modules() -> int:
    """Import every module. A module may report that it needs a library of an extra that is not installed."""
    count = 0
    for package in sorted(name.replace("-", "_") for name in own()):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.", onerror=lambda name: None):
            if module.name.endswith("__main__"):
                continue
            try:
                importlib.import_module(module.name)
                count += 1
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] not in OPTIONAL and "echo-core[" not in str(error):
                    raise
    return count


def place(name: str) -> dict[str, Any]:
    """A free address of this machine for a transport, as its options."""
    fields = {field.name for field in dataclasses.fields(discovery.transport_class(name).Options)}
    wanted = {"host": "127.0.0.1", "port": 0, "path": str(Path(tempfile.mkdtemp(), "socket"))}
    return {"type": name, **{key: value for key, value in wanted.items() if key in fields}}


def transport(name: str) -> None:
    """Use a transport: send samples, publish weights, send a request, tap samples, and check a refusal."""
    with Server(EXAMPLE, 4, place(name)) as server:
        server.publish({"w": np.arange(3.0)})
        with Client(server.address, EXAMPLE) as client, Observer(server.address) as observer:
            client.send_batch(samples(7))
            client.send({"obs": np.full(3, 7, np.float32), "step": np.int64(7)})
            client.wait(30)
            assert client.weights(30).params["w"].tolist() == [0, 1, 2]
            assert [int(seen["step"]) for seen in observer.tap(2).samples] == [6, 7]
            steps = [int(step) for _ in range(2) for step in server.sample(30).batch["step"]]
            assert steps == list(range(8)), steps
        try:
            Client(server.address, {"obs": np.zeros(3)}).close()
        except SpecError:
            pass
        else:
            raise AssertionError(f"{name}: a client with another spec was accepted")


def sampler(name: str) -> None:
    if discovery.sampler_class(name).storage == "replay":
        with Server(EXAMPLE, 4, sampler={"type": name, "capacity": 100}) as server:
            server.submit_batch(samples(50))
            drawn = server.sample(30)
            assert (drawn.batch["obs"][:, 0] == drawn.batch["step"]).all() and len(set(drawn.keys.tolist())) >= 1
            server.update_priorities(drawn.keys, np.ones(4))
    else:
        with Server(EXAMPLE, 4, sampler=name) as server:
            server.submit_batch(samples(4))
            assert server.sample(30).batch["step"].tolist() == [0, 1, 2, 3]


def missing(names: dict[str, list[str]]) -> None:
    """Check that errors about missing plugins name the command that installs them."""
    if "tcp" not in names[discovery.TRANSPORTS]:
        try:
            discovery.transport_class("tcp")
        except PluginError as error:
            assert how_to_install("echo-core[tcp]") in str(error), error


def command() -> None:
    """Check that `echoctl` runs. It is a distribution of its own, so core alone does not bring it."""
    done = subprocess.run([sys.executable, "-m", "echoctl", "plugins", "list"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def main() -> None:
    assert requires("echo-core")
    names = {}
    for group in (discovery.TRANSPORTS, discovery.SAMPLERS):
        records = discovery.default.examine(group)
        assert not [record for record in records if record.error], [record.error for record in records]
        names[group] = [record.name for record in records]
    count = modules()
    missing(names)
    if names[discovery.SAMPLERS]:
        for name in names[discovery.SAMPLERS]:
            sampler(name)
        for name in names[discovery.TRANSPORTS]:
            if not (name.endswith("s") and name[:-1] in names[discovery.TRANSPORTS]):  # the variant with TLS needs a certificate
                transport(name)
    there = f"transports {', '.join(names[discovery.TRANSPORTS]) or 'none'}; {len(names[discovery.SAMPLERS])} samplers"
    if "echoctl" in own():
        command()
    print(f"{count} modules; {there}; echoctl {'runs' if 'echoctl' in own() else 'is not installed'}")


if __name__ == "__main__":
    main()
