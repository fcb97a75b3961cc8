"""Real etcd servers for tests: started on free addresses, frozen, killed and restarted at will."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from aetcd import rpc

from chaos.processes import Freezable
from supervisor.adapters.certificates.tls import TlsFiles
from tests.support.ports import free_port

START_TIMEOUT_S = 60.0
_REPOSITORY = Path(__file__).resolve().parents[2]


def etcd_binaries() -> dict[str, Path]:
    """The etcd releases that this machine has, by a name for test ids."""
    found = {}
    packaged = shutil.which("etcd")
    if packaged:
        found["etcd-packaged"] = Path(packaged)
    current = _REPOSITORY / "var" / "etcd-3.7" / "etcd"
    if current.exists():
        found["etcd-3.7"] = current
    return found


@dataclass
class EtcdServer(Freezable):
    """One etcd process with its own directory; a context manager that leaves nothing behind.

    It listens on a unix socket unless `tcp` (or `tls`) asks for a loopback port; `initial_cluster` makes it a
    member of a larger cluster, see EtcdCluster. `syncs`: it waits for its disk, as in production.
    """

    binary: Path | None = None
    tcp: bool = False
    tls: TlsFiles | None = None
    name: str = "solo"
    peer_port: int | None = None
    initial_cluster: str | None = None
    flags: tuple[str, ...] = ()
    syncs: bool = False
    directory: Path = field(init=False)
    endpoint: str = field(init=False)
    process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.binary = self.binary or next(iter(etcd_binaries().values()))
        self.directory = Path(tempfile.mkdtemp(prefix="etcd-"))
        scheme = "https" if self.tls else "http"
        if self.tcp or self.tls:
            self._client_url = f"{scheme}://127.0.0.1:{free_port()}"
            self.endpoint = self._client_url
        else:
            # etcd insists on host:port and makes a socket of that very name in its working directory.
            self._client_url = "unix://client:0"
            self.endpoint = f"unix:{self.directory}/client:0"

    def __enter__(self) -> Self:
        self.start()
        self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def log(self) -> str:
        """The log of etcd so far."""
        return (self.directory / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start the process without waiting; on the old data if there is some."""
        assert self.process is None
        for stale in ("client:0", "peer:0"):
            # etcd 3.4 takes a killed predecessor's socket file for a server that still runs.
            (self.directory / stale).unlink(missing_ok=True)
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command(), cwd=self.directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def wait_ready(self) -> None:
        """Return when a linearizable read has been answered; fail with etcd's log after a deadline."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                break
            with self._channel() as channel, contextlib.suppress(grpc.RpcError):
                rpc.KVStub(channel).Range(rpc.RangeRequest(key=b"x"), timeout=1.0)
                return
            time.sleep(0.02)
        raise AssertionError(f"etcd did not become ready:\n{self.log[-3000:]}")

    def kill(self) -> None:
        """SIGKILL, also when it is frozen; its data stay."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=60)
            self.process = None

    @property
    def pid(self) -> int:
        """Its process id; fails when it does not run."""
        assert self.process is not None, "etcd does not run"
        return self.process.pid

    def restart(self) -> None:
        """Kill, start on the same data, wait until it answers."""
        self.kill()
        self.start()
        self.wait_ready()

    def back_up(self) -> None:
        """Kill, copy the data, start again, wait until it answers."""
        self.kill()
        shutil.copytree(self.directory / "data", self.directory / "backup")
        self.start()
        self.wait_ready()

    def restore(self) -> None:
        """Kill, start on the data that were copied, wait until it answers."""
        self.kill()
        shutil.rmtree(self.directory / "data")
        (self.directory / "backup").rename(self.directory / "data")
        self.start()
        self.wait_ready()

    def lose(self) -> None:
        """Kill, start without data, wait until it answers."""
        self.kill()
        shutil.rmtree(self.directory / "data")
        self.start()
        self.wait_ready()

    def compact(self, revision: int) -> None:
        """Forget history before `revision`."""
        with self._channel() as channel:
            rpc.KVStub(channel).Compact(rpc.CompactionRequest(revision=revision, physical=True), timeout=60)

    def fill(self) -> None:
        """Write until etcd takes no writes."""
        with self._channel() as channel, contextlib.suppress(grpc.RpcError):
            for _ in range(1000):
                rpc.KVStub(channel).Put(rpc.PutRequest(key=b"fill", value=bytes(1_000_000)), timeout=60)
            raise AssertionError("etcd never was full")

    def is_leader(self) -> bool:
        """Whether this member leads its cluster."""
        with self._channel() as channel:
            status = rpc.MaintenanceStub(channel).Status(rpc.StatusRequest(), timeout=60)
        return bool(status.leader == status.header.member_id)

    def _channel(self) -> grpc.Channel:
        target = self.endpoint.removeprefix("https://").removeprefix("http://")
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
        if self.tls is None:
            return grpc.insecure_channel(target, options=options)
        return grpc.secure_channel(target, self.tls.load().client_credentials(), options=options)

    def _command(self) -> list[str]:
        # A single member talks to no peer: its advertised peer URL is never dialled and its socket is local.
        peer_listen, peer_url = "unix://peer:0", "http://localhost:1"
        if self.peer_port is not None:
            peer_listen = peer_url = f"http://127.0.0.1:{self.peer_port}"
        command = [
            *(str(self.binary), "--name", self.name, "--data-dir", "data"),
            *("--listen-client-urls", self._client_url, "--advertise-client-urls", self._client_url),
            *("--listen-peer-urls", peer_listen, "--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", self.initial_cluster or f"{self.name}={peer_url}"),
            *("--heartbeat-interval", "50", "--election-timeout", "500", "--pre-vote=true"),
            *self.flags,
        ]
        if self.tls is not None:
            command += ["--client-cert-auth", "--trusted-ca-file", str(self.tls.ca)]
            command += ["--cert-file", str(self.tls.cert), "--key-file", str(self.tls.key)]
        if not self.syncs and _has_unsafe_no_fsync(self.binary):
            command.append("--unsafe-no-fsync")
        return command


class EtcdCluster:
    """Several members on one machine; a context manager."""

    def __init__(self, size: int = 3, binary: Path | None = None) -> None:
        ports = [free_port() for _ in range(size)]
        peers = ",".join(f"m{index}=http://127.0.0.1:{port}" for index, port in enumerate(ports))
        self.members = [
            EtcdServer(binary=binary, name=f"m{index}", peer_port=port, initial_cluster=peers)
            for index, port in enumerate(ports)
        ]

    @property
    def endpoints(self) -> list[str]:
        """Every member's endpoint, in order."""
        return [member.endpoint for member in self.members]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for member in self.members:
                stack.push(member)
                member.start()
            for member in self.members:
                member.wait_ready()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.__exit__(kind, error, trace)


@functools.cache
def _has_unsafe_no_fsync(binary: Path | None) -> bool:
    assert binary is not None
    helped = subprocess.run([str(binary), "--help"], capture_output=True, text=True, timeout=60, check=False)
    return "--unsafe-no-fsync" in helped.stdout + helped.stderr
