"""Run the tests of echo_rdma over real verbs without RDMA hardware: with a Debian kernel and SoftRoCE (rdma_rxe) in an emulated machine.

    python tools/rdma_vm [PYTEST ARGUMENTS]

The emulated machine is made once, in build/rdma_vm, from Debian's packages: qemu, a kernel with its modules, and Debian's UCX, which has
verbs. It sees the host's file system read-only, with that UCX over it and a layer in memory over both. It boots in about ten seconds.
Measurements in it are meaningless. It needs Debian, and root to install missing packages. UCX is only unpacked, because other tests would
use an installed one. ECHO_TEST_SLOWER is the factor by which tests may wait longer there. On a busy machine, run one group of tests at a
time (`-k`).
"""

from __future__ import annotations

import gzip
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "build" / "rdma_vm"
PACKAGES = ["qemu-system-x86", "busybox-static", "kmod", "cpio", "iproute2", "ibverbs-providers", "librdmacm1", "libnuma1"]
UNPACKED = ["libucx0"]
MODULES = ["virtio_pci", "9pnet_virtio", "9p", "virtio_net", "crc32c_generic", "crc32_generic", "overlay", "ib_uverbs", "rdma_ucm", "rdma_rxe"]
LANES = {
    "UCX_TLS": "rc_verbs",
    "UCX_NET_DEVICES": "rxe0:1",
    "UCX_RNDV_THRESH": "64k",  # by default UCX never uses a rendezvous on this device, but the rendezvous is to be tested
    "UCX_RC_VERBS_TIMEOUT": "10s",  # a machine that pauses for seconds must not count as a lost peer
    "ECHO_RDMA_HOST": "10.0.2.15",
    "ECHO_RDMA_LANES": "rc_verbs",
}

DEFAULT = [f"plugins/echo_rdma/tests/{name}" for name in ("test_contract.py::TestOverVerbs", "test_deaths.py", "test_verbs.py")]
SLOWER = "20"  # how many times slower than a real machine it is if nothing else runs; ECHO_TEST_SLOWER overrides it


def run(*command: str, **options: object) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout  # type: ignore[call-overload,no-any-return]


def missing() -> list[str]:
    known = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Status}\n", *PACKAGES], capture_output=True, text=True, check=False).stdout
    there = {line.split()[0] for line in known.splitlines() if line.endswith("install ok installed")}
    return [name for name in PACKAGES if name not in there]


def unpack(package: str, folder: Path) -> None:
    if not (archives := list(OUT.glob(f"{package}_*.deb"))):
        run("apt-get", "download", package, cwd=OUT)
        archives = list(OUT.glob(f"{package}_*.deb"))
    run("dpkg", "-x", str(archives[0]), str(folder))


def build() -> None:
    """Make the kernel and its first file system."""
    OUT.mkdir(parents=True, exist_ok=True)
    if wanted := missing():
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-q", "--no-install-recommends", *wanted)
    kernel = OUT / "kernel"
    if not kernel.exists():
        depends = run("apt-cache", "depends", "linux-image-amd64")
        unpack(next(line.split()[-1] for line in depends.splitlines() if "Depends:" in line), kernel)
    if not (OUT / "over").exists():
        for package in UNPACKED:
            unpack(package, OUT / "over")
    (modules,) = (kernel / "lib" / "modules").iterdir()
    run("depmod", "-b", str(kernel), modules.name)
    # It has another name until it is complete, because another emulated machine may be booting from the previous one.
    first = OUT / f"first-{os.getpid()}"
    for name in ("bin", "proc", "sys", "dev", "modules"):
        (first / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "/bin/busybox", first / "bin" / "busybox")
    shutil.copy(HERE / "init", first / "init")
    order = in_order(modules)
    for path in order:
        shutil.copy(modules / path, first / "modules")
    (first / "modules" / "order").write_text("\n".join(Path(path).name for path in order) + "\n")
    names = "\n".join(str(path.relative_to(first)) for path in sorted(first.rglob("*"))) + "\n"
    archive_bytes = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], input=names.encode(), stdout=subprocess.PIPE, cwd=first, check=True).stdout
    shutil.rmtree(first)
    whole = OUT / f"initramfs-{os.getpid()}"
    whole.write_bytes(gzip.compress(archive_bytes, 1))
    whole.replace(OUT / "initramfs.gz")


def in_order(modules: Path) -> list[str]:
    """The modules and their dependencies, each after the modules that it needs."""
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[path] = others.split()
    by_name = {Path(path).name.partition(".")[0].replace("-", "_"): path for path in needs}
    order: list[str] = []
    for name in MODULES:
        if (path := by_name.get(name)) is not None:  # modules without a path are built into the kernel
            order += [one for one in [*reversed(needs[path]), path] if one not in order]
    return order


def main() -> int:
    build()
    place = OUT / f"run-{os.getpid()}"  # each machine has its own folder and reads it after booting, because several may run at the same time
    place.mkdir(exist_ok=True)
    try:
        return boot(place, sys.argv[1:] or DEFAULT)
    finally:
        shutil.rmtree(place)


def boot(place: Path, tests: list[str]) -> int:
    """Run pytest with these arguments in an emulated machine; returns its exit status."""
    guest = place / "guest"
    shutil.copy(HERE / "guest", guest)
    # Python files are compiled here, which takes a hundredth of the time that every process would need inside.
    folders = [sysconfig.get_path("purelib"), *(str(ROOT / name) for name in ("echo_core", "echo_net", "echo_replay", "echo_testing", "plugins", "samplers"))]
    subprocess.run([sys.executable, "-m", "compileall", "-qq", *folders], check=False)  # some files of other projects are not valid Python
    slower = os.environ.get("ECHO_TEST_SLOWER", SLOWER)
    values = {**LANES, "ECHO_TEST_SLOWER": slower, "ECHO_ROOT": str(ROOT), "ECHO_PYTHON": sys.executable}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    lines.append(f"ECHO_TESTS=({' '.join(map(shlex.quote, tests))})")
    (place / "environment").write_text("\n".join(lines) + "\n")
    (linux,) = (OUT / "kernel" / "boot").glob("vmlinuz-*")
    command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3072", "-nographic", "-no-reboot"]
    command += ["-kernel", str(linux), "-initrd", str(OUT / "initramfs.gz")]
    command += ["-append", f"console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off no_timer_check guest={guest}"]
    for name, path in {"host": "/", "over": str(OUT / "over")}.items():
        command += ["-fsdev", f"local,id={name},path={path},security_model=none,readonly=on,multidevs=remap"]
        command += ["-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"]
    command += ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace") as machine:
        status = 1
        assert machine.stdout is not None
        for line in machine.stdout:
            if line.startswith("GUEST_STATUS"):
                status = int(line.split()[1])
            else:
                print(line, end="", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
