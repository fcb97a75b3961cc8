"""A dockerd on a node: its command, and the image that it begins with."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from chaos import nvidia_docker
from chaos.cluster.enter import SYSTEM_PATH
from chaos.cluster.node import Node
from chaos.cluster.program import REPOSITORY, Program
from chaos.container_image import IMAGE, rootfs, site_packages

DAEMON = "dockerd"
UP_S = 120.0
_COMMAND_S = 120.0
PYTHON = "/usr/bin/python3"
# A pid file that a lost life has left may name another process by now.
_CLEAN = 'rm -f "$0/docker.pid" "$0/docker.sock"; exec "$@"'


def socket_of(disk: Path) -> Path:
    """The socket of its API."""
    return disk / "run" / "docker.sock"


def program(disk: Path, cgroup: str, env: dict[str, str], gpus: Path | None = None) -> Program:
    """dockerd, with its data on the node's own disk and containers below `cgroup`; live-restore is on.

    `gpus`: the directory of `chaos.nvml` whose GPUs nvidia-docker gives to containers.
    """
    run = disk / "run"
    flags = {
        "data-root": disk / "docker",
        "exec-root": run / "docker",
        "pidfile": run / "docker.pid",
        "host": f"unix://{socket_of(disk)}",
        "bridge": "none",
        "iptables": "false",
        "ip-forward": "false",
        "cgroup-parent": cgroup,
        "exec-opt": "native.cgroupdriver=cgroupfs",
        "live-restore": "true",
    }
    if gpus is not None:
        flags["add-runtime"] = f"{nvidia_docker.RUNTIME}={nvidia_docker.runtime(gpus)}"
    command = ("dockerd", *(f"--{name}={value}" for name, value in flags.items()))
    return Program(DAEMON, ("/bin/sh", "-c", _CLEAN, str(run), *command), env)


def settings(disk: Path, mounts: tuple[Path, ...], user: str) -> dict[str, object]:
    """An agent's `docker` section: containers see the project and TensorFlow, and may write to `mounts`."""
    always: list[dict[str, object]] = [
        {"source": str(source), "read_only": read_only, "always": True}
        for sources, read_only in ((_sources(), True), (mounts, False))
        for source in sources
    ]
    return {
        "socket": str(socket_of(disk)),
        "image": IMAGE,
        "user": user,
        "python": PYTHON,
        "mounts": always,
    }


def _sources() -> tuple[Path, ...]:
    packages = site_packages()
    return (REPOSITORY,) if packages.is_relative_to(REPOSITORY) else (REPOSITORY, packages)


def docker(node: Node, disk: Path, *words: str) -> str:
    """Run `docker WORDS` on a node's own dockerd; what it printed.

    Raises:
        AssertionError: it failed; the text is what it said.
    """
    done = _run(node, disk, *words)
    assert done.returncode == 0, f"docker {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def begin(node: Node, disk: Path) -> None:
    """Wait until its dockerd answers, and give it the image."""
    deadline = time.monotonic() + UP_S
    while (done := _run(node, disk, "version")).returncode != 0:
        assert time.monotonic() < deadline, f"dockerd of {node.name} does not answer: {done.stderr}"
        time.sleep(0.1)
    docker(node, disk, "import", str(rootfs()), IMAGE)


def _run(node: Node, disk: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = node.inside("docker", "--host", f"unix://{socket_of(disk)}", *words)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
        check=False,
        env={"PATH": f"/usr/bin:/bin:{SYSTEM_PATH}", "HOME": "/root"},
    )
