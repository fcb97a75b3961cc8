"""The tests' own dockerd: what the tests of containers rely on."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.container_image import IMAGE, USER_ID, site_packages
from chaos.dockerd import Dockerd
from chaos.dockerd_guard import processes


def _pid(daemon: Dockerd, container: str) -> int:
    return int(daemon.cli("inspect", "--format", "{{.State.Pid}}", container))


def _sleeper(daemon: Dockerd, *options: str) -> str:
    return daemon.cli("run", "--detach", "--network=none", *options, IMAGE, "sleep", "1000")


def _left(directory: Path, name: str) -> list[object]:
    cgroups = [*Path("/sys/fs/cgroup").glob(f"*/{name}"), *Path("/sys/fs/cgroup").glob(name)]
    mounts = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(directory) in line
    ]
    bridges = [*Path("/sys/class/net").glob(f"{name}*")]
    files = [directory] if directory.exists() else []
    return [*processes(directory, name).items(), *cgroups, *mounts, *bridges, *files]


def test_python_in_the_image_imports_tensorflow_from_the_mounted_packages(dockerd: Dockerd) -> None:
    packages = site_packages()
    said = dockerd.cli(
        *("run", "--rm", "--network=host", f"--user={USER_ID}", "--read-only", "--tmpfs=/tmp"),
        *("--mount", f"type=bind,source={packages},target={packages},readonly"),
        *("--env", f"PYTHONPATH={packages}", IMAGE, "python"),
        *("-c", "import tensorflow, sqlite3, ssl, lzma, getpass; print(getpass.getuser())"),
    )
    assert said == "trainer"


def test_containers_outlive_a_killed_daemon_with_live_restore(dockerd_of_my_own: Dockerd) -> None:
    container = _sleeper(dockerd_of_my_own)
    pid = _pid(dockerd_of_my_own, container)
    dockerd_of_my_own.kill()
    assert Path(f"/proc/{pid}").exists()
    dockerd_of_my_own.restart()
    assert _pid(dockerd_of_my_own, container) == pid


def test_containers_end_with_their_daemon_without_it() -> None:
    with Dockerd(live_restore=False) as daemon:
        container = _sleeper(daemon, "--stop-signal=SIGKILL")
        daemon.restart()
        assert _pid(daemon, container) == 0


def test_a_frozen_daemon_takes_connections_and_answers_nothing(dockerd_of_my_own: Dockerd) -> None:
    with dockerd_of_my_own.frozen(), pytest.raises(subprocess.TimeoutExpired):
        dockerd_of_my_own.attempt("version", timeout_s=1)
    dockerd_of_my_own.cli("version")


def test_nothing_is_left_of_it() -> None:
    with Dockerd() as daemon:
        daemon.cli("pause", _sleeper(daemon))
        daemon.cli("run", "--detach", "--network", daemon.network(), IMAGE, "sleep", "1000")
        daemon.freeze()
        assert {"container", "dockerd", "containerd"} <= {*processes(daemon.directory, daemon.name).values()}
        directory, name = daemon.directory, daemon.name
    assert _left(directory, name) == []


def test_nothing_is_left_of_it_when_its_owner_is_killed() -> None:
    program = (
        "import time\n"
        "from chaos.dockerd import *\n"
        "with Dockerd() as daemon:\n"
        "    daemon.cli('run', '--detach', '--network=none', IMAGE, 'sleep', '1000')\n"
        "    print(daemon.directory, daemon.name, daemon._guard.pid, flush=True)\n"
        "    time.sleep(1000)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        directory, name, guard = owner.stdout.readline().split()
        ended = _pidfd(int(guard))
        owner.send_signal(signal.SIGKILL)
        owner.wait(timeout=10)
    ended()
    assert _left(Path(directory), name) == []


def _pidfd(pid: int) -> Callable[[], None]:
    """A wait for the end of a process that is not our child."""
    descriptor = os.pidfd_open(pid)

    def wait() -> None:
        readable, _, _ = select.select([descriptor], [], [], 90)
        os.close(descriptor)
        assert readable, f"the guard {pid} does not end"

    return wait
