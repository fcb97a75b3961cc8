"""A dockerd of the tests' own, beside any that is there: killed, frozen, restarted at will, gone at the end.

    def test_x(dockerd: Dockerd) -> None:              # shared by the whole run: leave it as you found it
        dockerd.url                                    # unix:///tmp/dockerd-.../docker.sock
        dockerd.cli("run", "--rm", "--network=host", IMAGE, "python3", "-V")

    def test_y(dockerd_of_my_own: Dockerd) -> None:    # for one test, to break; live-restore is on
        dockerd_of_my_own.kill()                       # SIGKILL, of its containerd too; also freeze() thaw()
        dockerd_of_my_own.restart()                    # with live-restore, containers have lived on

Both fixtures are in tests/conftest.py; the image `IMAGE` of `container_image` is in it. It needs root. It has
its own data, sockets and cgroup, no bridge, and leaves iptables alone: containers are run with
`--network=host` or `none`, or in a `network()`; with `apart` those are in a network namespace of their own,
and so is what `--network=host` means. Tests with it get `pytest.mark.timeout(180)`. When this
process ends, however it ends, the daemons and containers are killed and all that they made is removed.
All calls block: async tests use `asyncio.to_thread`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.container_image import IMAGE, rootfs
from chaos.processes import Freezable, state

START_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 120.0
SHARES = 16 * 1024
"""CPU shares of all containers of tests that share a machine with others; a session has 1024."""
_NETWORK = "network"
_GUARD = Path(__file__).with_name("dockerd_guard.py")
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Dockerd(Freezable):
    """One dockerd with its containerd; a context manager.

    Attributes:
        live_restore: whether containers outlive the daemon; a change counts from the next start.
        settings: more of daemon.json, for example {"runtimes": {"nvidia": {"path": ...}}}; the same.
        env: variables of the daemon, for example a PATH in which it finds a prestart hook.
        room_bytes: so large is the file system of its data; None: that of this machine.
        shares: of the processors, for all of its containers; a session of this machine has 1024.
        apart: it has a network namespace of its own: its bridges are none of this machine's.
        name: its cgroup below each hierarchy's root, and the beginning of its bridges' names.
    """

    def __init__(
        self,
        *,
        live_restore: bool = True,
        settings: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        room_bytes: int | None = None,
        shares: int = SHARES,
        apart: bool = False,
    ) -> None:
        self.live_restore = live_restore
        self.settings = dict(settings or {})
        self.env = dict(env or {})
        self.room_bytes = room_bytes
        self.shares = shares
        self.apart = apart
        self.name = f"tfs{secrets.token_hex(3)}"
        self.directory = Path(tempfile.gettempdir()) / f"dockerd-{os.getpid()}-{self.name}"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[str] | None = None
        self._networks = 0

    def __enter__(self) -> Self:
        self.directory.mkdir(mode=0o711)
        self._guard = subprocess.Popen(
            [sys.executable, "-S", str(_GUARD), str(self.directory), self.name],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self._make_room()
            self._keep_apart()
            self.start()
            self.import_image(rootfs(), IMAGE)
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    @property
    def socket(self) -> Path:
        """The socket of its API."""
        return self.directory / "docker.sock"

    @property
    def url(self) -> str:
        """The same, as DOCKER_HOST has it."""
        return f"unix://{self.socket}"

    @property
    def data(self) -> Path:
        """Its data root."""
        return self.directory / "data"

    @property
    def client(self) -> str:
        """The program `docker` beside the daemon: one of another release may refuse to talk to it."""
        found = shutil.which("docker", path=f"{_SYSTEM_PATH}:{os.environ['PATH']}")
        assert found is not None
        return found

    @property
    def pid(self) -> int:
        """The daemon's process id; fails when it does not run."""
        assert self._daemon is not None, "dockerd does not run"
        return self._daemon.pid

    @property
    def log(self) -> str:
        """Its log so far, of all its lives."""
        return (self.directory / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it on the data that are there and wait until it answers."""
        assert self._daemon is None
        self._weigh()
        config = {
            "data-root": str(self.data),
            "exec-root": str(self.directory / "exec"),
            "pidfile": str(self.directory / "dockerd.pid"),
            "hosts": [self.url],
            "bridge": "none",
            "iptables": False,
            "ip-forward": False,
            "cgroup-parent": f"/{self.name}",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "live-restore": self.live_restore,
        }
        (self.directory / "daemon.json").write_text(json.dumps(config | self.settings))
        # What a life that was killed has left would be taken for a daemon that still runs, zombie or not.
        for stale in ("dockerd.pid", "docker.sock", "exec/containerd/containerd.pid"):
            (self.directory / stale).unlink(missing_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._daemon = subprocess.Popen(
                [*self._there(), "dockerd", "--config-file", str(self.directory / "daemon.json")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"PATH": f"{os.environ['PATH']}:{_SYSTEM_PATH}"} | self.env,
            )
        self.wait_ready()

    def wait_ready(self) -> None:
        """Return when it answers; fail with its log after a deadline."""
        self._wait(self._answers, START_TIMEOUT_S, "dockerd does not answer")

    def kill(self) -> None:
        """SIGKILL, also when frozen, and of its containerd; with live-restore the containers live on."""
        containerd = self.containerd_pid()
        if self._daemon is not None:
            self._daemon.kill()
        if containerd is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(containerd, signal.SIGKILL)
            self._wait(lambda: _gone(containerd), 60, "containerd does not die")
        self._reap()

    def terminate(self) -> None:
        """SIGTERM, and wait until it is gone: without live-restore it ends the containers first."""
        assert self._daemon is not None
        self._daemon.terminate()
        self._reap()

    def restart(self) -> None:
        """Kill it if it runs, start it on the same data, wait until it answers."""
        if self._daemon is not None:
            self.kill()
        self.start()

    def containerd_pid(self) -> int | None:
        """Its containerd's process id; None when that does not run."""
        file = self.directory / "exec" / "containerd" / "containerd.pid"
        if not file.exists():
            return None
        pid = int(file.read_text())
        return None if _gone(pid) else pid

    def cli(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run `docker ARGUMENTS` on it; what was printed, stripped. Its failure is the test's."""
        done = self.attempt(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def attempt(
        self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """The same, and its failure is the caller's to look at."""
        return subprocess.run(
            [self.client, "--host", self.url, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=os.environ | {"DOCKER_CONFIG": str(self.directory / "client")},
        )

    def import_image(self, tarball: Path, image: str) -> None:
        """Make an image of a root file system."""
        self.cli("import", str(tarball), image)

    def network(self) -> str:
        """The name of a new bridge network, without a way out of this machine."""
        self._networks += 1
        bridge = f"{self.name}n{self._networks}"
        option = f"com.docker.network.bridge.name={bridge}"
        self.cli("network", "create", "--internal", "--opt", option, bridge)
        return bridge

    def remove(self) -> None:
        """Kill everything and remove its files, cgroups, mounts and bridges; fails if that fails."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        _, said = guard.communicate(timeout=120)
        self._reap()
        assert guard.returncode == 0, said
        assert not self.directory.exists()

    def _make_room(self) -> None:
        self.data.mkdir(mode=0o710)
        if self.room_bytes is not None:
            size = f"size={self.room_bytes}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self.data)], check=True)

    def _keep_apart(self) -> None:
        """A namespace that outlives the daemon's restarts: the guard unmounts it."""
        if self.apart:
            (self.directory / _NETWORK).touch()
            subprocess.run(["unshare", f"--net={self.directory / _NETWORK}", "true"], check=True)

    def _there(self) -> list[str]:
        return ["nsenter", f"--net={self.directory / _NETWORK}"] if self.apart else []

    def _weigh(self) -> None:
        """All containers together would get no more of the processors than one session of this machine."""
        for root in Path("/sys/fs/cgroup").glob("*/cpu.shares"):
            cgroup = root.parent / self.name
            cgroup.mkdir(exist_ok=True)
            (cgroup / root.name).write_text(str(self.shares))

    def _answers(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.poll() is None, f"dockerd ended:\n{self.log[-3000:]}"
        try:
            with contextlib.closing(_Connection(self.socket)) as connection:
                connection.request("GET", "/_ping", headers={"Host": "docker"})
                return connection.getresponse().read() == b"OK"
        except (OSError, http.client.HTTPException):
            return False

    def _reap(self) -> None:
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.wait(timeout=60)

    def _wait(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < deadline, f"{what} after {timeout_s:.0f} s:\n{self.log[-3000:]}"
            time.sleep(0.02)


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("docker", timeout=5)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _gone(pid: int) -> bool:
    """Whether it is no more, or a zombie that only its parent's neglect keeps."""
    return state(Path(f"/proc/{pid}")) in "ZX"
