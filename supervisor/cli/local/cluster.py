"""`LocalCluster`: an embedded cluster as an object, for the command line, demonstrations and tests."""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from recovery.mount.points import take_away_below
from supervisor.adapters.files.hadoop import inherited_environment
from supervisor.api.client import ControlClient
from supervisor.cli.local import processes
from supervisor.cli.local.layout import Layout, LocalDocker, LocalSettings
from supervisor.cli.local.lives import Lives, file_errors
from supervisor.cli.local.member import LEASH, ROOT
from supervisor.cli.local.reachable import ETCD
from supervisor.cli.local.separate import objection
from supervisor.cli.options import Globals
from supervisor.cli.target import find_target
from supervisor.contract.errors import Conflict, NotFound, TfSupervisorError, Unreachable, UserError
from supervisor.contract.timing import PROFILES

UP_DEADLINE_S = 60.0
DOWN_DEADLINE_S = 30.0
GIVE_UP_AFTER_FAILURES = 4
_POLL_S = 0.02
_REQUEST_S = 20.0


@dataclass(frozen=True, slots=True)
class MemberView:
    """One kept process. `state` is running, restarting or stopped; `pid` is 0 when it does not run."""

    member: str
    state: str
    pid: int
    restarts: int
    failures: int
    since_wall_ms: int
    last_exit: str


@dataclass(frozen=True, slots=True)
class LocalStatus:
    """An embedded cluster; without a keeper nothing of it runs.

    `page`: the address of the page of a supervisor that runs, with the token that lets a browser in.
    `elsewhere`: the machine on which it runs, or ran without an end, if that is another one.
    """

    state: str
    running: bool
    keeper_pid: int
    members: tuple[MemberView, ...]
    page: str = ""
    elsewhere: str = ""


class LocalCluster:
    """One embedded cluster, named by its state directory.

    As a context manager it is up inside the block and down after it.

    Attributes:
        secrets: name -> file of a secret, for jobs once the cluster is up.
        advertise: where other machines reach the cluster once it is up; empty: they do not.
        scratch: a directory that each of these machines has to itself.
    """

    def __init__(
        self,
        state: Path,
        *,
        nodes: int = 3,
        supervisors: int = 2,
        profile: str = "fast",
        docker: LocalDocker | None = None,
        promise_for_ms: int = 0,
        separate: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.layout = Layout.of(state)
        self.secrets: Mapping[str, str] = {}
        self.advertise = ""
        self.scratch = tempfile.gettempdir()
        self._leash: IO[bytes] | None = None
        self._keeper_pid = 0
        self._settings = LocalSettings(
            cluster="local",
            nodes=nodes,
            supervisors=supervisors,
            profile=profile,
            docker=docker,
            promise_for_ms=promise_for_ms,
            separate=separate,
        )
        self._progress = progress or (lambda _: None)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def client(self, deadline_s: float = 10.0) -> ControlClient:
        """A client of this cluster; raises NotFound if there never was one here."""
        return replace(find_target(Globals(self.layout.state)), remedy="").client(deadline_s)

    @file_errors()
    def up(self, deadline_s: float = UP_DEADLINE_S, *, leashed: bool = False) -> LocalStatus:
        """Start all members; returns when a supervisor leads and every agent is registered.

        `leashed`: they end when this process does, however.

        Raises:
            Conflict: a cluster runs in this directory already.
            UserError: etcd is missing, or a directory cannot be used.
            NotFound: there is no default image.
            Unreachable: it did not start in time; the message has the last lines of a member's log.
        """
        settings = replace(
            self._settings,
            secrets=self.secrets,
            http=self._http_ports(),
            advertise=self.advertise,
            scratch=self.scratch,
        ).check()
        if settings.profile not in PROFILES:
            raise UserError(f"--profile {settings.profile!r}: use one of {', '.join(PROFILES)}")
        if shutil.which("etcd") is None:
            raise UserError(
                "etcd is not in PATH; install Debian's package (apt-get install etcd-server) "
                "or run `make setup`"
            )
        if settings.docker is not None:
            importlib.import_module("supervisor.cli.local.containers").check(
                settings.docker, self.layout.state
            )
        self._check_kind(settings)
        self.layout.make()
        if settings.separate:
            with tempfile.TemporaryDirectory(dir=self.layout.state) as scratch:
                if why := objection(Path(scratch)):
                    raise UserError(why)
        lock, since_s = self._take_lock(settings), 0.0
        try:
            if settings.advertise:
                settings, since_s = self._open(settings)
            else:
                self.layout.write(settings)
            self._start_keeper(lock, settings.life, since_s, leashed=leashed)
        finally:
            os.close(lock)
        status: LocalStatus | None = None
        try:
            if settings.advertise:
                self._wait_for_members()
                self._admit(settings, time.monotonic() + deadline_s)
            status = asyncio.run(self._wait_ready(settings, time.monotonic() + deadline_s))
        finally:
            # Also after Ctrl-C: what did not come up as asked must not stay in the background.
            if status is None:
                self.down()
        return status

    @file_errors()
    def down(self, deadline_s: float = DOWN_DEADLINE_S) -> list[int]:
        """Stop all processes and wait until they are gone; returns their pids.

        Returns an empty list if none runs. Raises Unreachable if a process could not be killed, Conflict if
        they are on another machine.
        """
        status = self.status()
        if status.elsewhere:
            raise Conflict(f"the cluster in {self.layout.state} runs on {status.elsewhere}: end it there")
        if not status.running:
            self._remove_containers()
            return []
        if status.keeper_pid == 0:
            # Descendants of pid 0 would be every process of the machine.
            raise Unreachable(f"the cluster in {self.layout.state} is just being started; try again")
        pids = [status.keeper_pid, *processes.descendants(status.keeper_pid)]
        try:
            self._request({"do": "down"})
        except Unreachable:
            # A keeper that does not answer is killed; its members go with it by PDEATHSIG.
            for pid in reversed(pids):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + deadline_s
        settings = self.layout.read()
        while (left := [pid for pid in pids if _alive(pid)]) or self._locked(settings):
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"still alive after {deadline_s:g} s: pids {left}; see {self.layout.log('keeper')}"
                )
            time.sleep(_POLL_S)
        # If this very process started the keeper, it is its zombie's parent.
        with suppress(ChildProcessError):
            os.waitpid(status.keeper_pid, os.WNOHANG)
        self._remove_containers()
        # Mounts were served by what has just been killed.
        take_away_below(self.layout.state)
        if self.layout.run.parent != self.layout.state:
            shutil.rmtree(self.layout.run, ignore_errors=True)
        return pids

    @file_errors()
    def status(self) -> LocalStatus:
        """The cluster's processes; raises NotFound if there never was a cluster here."""
        settings = self.layout.read()
        elsewhere = self._elsewhere()
        if elsewhere or not self._locked(settings):
            return LocalStatus(str(self.layout.state), False, 0, (), elsewhere=elsewhere)
        try:
            reply = self._request({"do": "status"})
        except Unreachable:
            return LocalStatus(str(self.layout.state), True, self._lock_holder(settings), ())
        entries = reply["members"]
        assert isinstance(entries, list)
        members = tuple(_member_view(entry) for entry in entries)
        pages = (self.layout.page(settings, each.member) for each in members if each.pid)
        page = next(filter(None, pages), "")
        return LocalStatus(str(self.layout.state), True, int(str(reply["pid"])), members, page)

    def member(self, name: str) -> MemberView:
        """One member; raises NotFound."""
        for member in self.status().members:
            if member.member == name:
                return member
        raise NotFound(f"no member {name!r} runs here")

    def stop_member(self, name: str, number: int = signal.SIGTERM) -> MemberView:
        """End a member with a signal; it stays ended until `start_member`. Returns when it is dead."""
        return _member_view(self._request({"do": "stop-member", "name": name, "signal": int(number)}))

    def start_member(self, name: str) -> MemberView:
        """Start a stopped member again."""
        return _member_view(self._request({"do": "start-member", "name": name}))

    def kill_member(self, name: str, number: int = signal.SIGKILL) -> MemberView:
        """Send a member a signal; the keeper restarts it if it dies of that."""
        return _member_view(self._request({"do": "kill-member", "name": name, "signal": int(number)}))

    def attend(self) -> None:
        """Wait for the end of a cluster that this process has started, which is never if nobody ends it.

        Raises Unreachable.
        """
        # Its state may be out of reach for a while: the kernel alone is asked.
        os.waitid(os.P_PID, self._keeper_pid, os.WEXITED | os.WNOWAIT)
        raise Unreachable(f"the cluster has ended:\n{_last_lines(self.layout.log('keeper'))}")

    def _http_ports(self) -> dict[str, int]:
        """A port for the HTTP door of each daemon: the one of the last time, if it is free."""
        before = self._before()
        names = (*self.layout.supervisors(self._settings), *self.layout.agents(self._settings))
        return _free_ports(names, "127.0.0.1", before.http if before is not None else {})

    def _before(self) -> LocalSettings | None:
        """The options of the last time; None if there was none."""
        with suppress(NotFound, UserError):
            return self.layout.read()
        return None

    def _check_kind(self, settings: LocalSettings) -> None:
        """Raise UserError where etcd's data are of the other kind of cluster, with users or without."""
        before = self._before()
        if before is None and not self._has_data():
            return
        reached = bool(before.advertise) if before is not None else self.layout.lives.exists()
        if reached != bool(settings.advertise):
            was = "with" if reached else "without"
            raise UserError(
                f"the cluster in {self.layout.state} was made {was} --advertise, and stays so: use another "
                "--state"
            )

    def _has_data(self) -> bool:
        """Whether an etcd has run here."""
        etcd = self.layout.state / "etcd"
        return etcd.is_dir() and any(etcd.iterdir())

    def _open(self, settings: LocalSettings) -> tuple[LocalSettings, float]:
        """Begin a life of a cluster that other machines reach, and write its files.

        Returns its settings, and since when it is a life of this machine.
        """
        before, lives, names = self._before(), Lives(self.layout.lives), self.layout.supervisors(settings)
        was_here = bool(before.life) if before is not None else self._has_data()
        if was_here and lives.newest() is None:
            raise UserError(
                f"{lives.directory} is empty, but a cluster was here: bring it back, or choose another "
                "--state"
            )
        self.layout.reachable(settings).check()
        claim = lives.claim()
        try:
            settings = replace(settings, life=claim.life.number, data=claim.life.data)
            listen = self.layout.reachable(settings).listen
            ports = _free_ports((ETCD, *names), listen, before.doors if before is not None else {})
            settings = replace(settings, doors=ports)
            reach = self.layout.reachable(settings)
            reach.certify(names)
            lives.check(claim.life, claim.since_s)
            self.layout.write(settings)
            reach.forget_before()
        except BaseException:
            with suppress(TfSupervisorError):
                lives.give_back(claim)
            raise
        return settings, claim.since_s

    def _wait_for_members(self) -> None:
        """Wait until the keeper has taken over etcd's data, however long that copies. Raises Unreachable."""
        while not (status := self.status()).members:
            self._check_members(status)
            time.sleep(_POLL_S)

    def _admit(self, settings: LocalSettings, deadline: float) -> None:
        """Make the supervisors users of etcd, as soon as it answers."""
        reach, names = self.layout.reachable(settings), self.layout.supervisors(settings)
        while True:
            try:
                reach.admit(self.layout.config(names[0]), [f"supervisor:{name}" for name in names])
                return
            except Unreachable:
                self._check_members(self.status())
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)

    def _elsewhere(self) -> str:
        """The machine whose cluster this is, if that has not said that it has ended; empty: no other."""
        lives = Lives(self.layout.lives)
        newest = lives.newest()
        return "" if newest is None or newest.ended or lives.is_here(newest) else newest.host

    def _remove_containers(self) -> None:
        """Remove the containers that are left when no agent controls them."""
        docker = self.layout.read().docker
        if docker is not None:
            # Without docker nobody pays for loading its SDK.
            importlib.import_module("supervisor.cli.local.containers").remove(docker, self.layout.state)

    def _take_lock(self, settings: LocalSettings) -> int:
        lock = os.open(self.layout.lock(settings), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not self._try_lock(lock):
            os.close(lock)
            raise Conflict(
                f"a cluster runs in {self.layout.state} already; use it, stop it with "
                f"`supervisorctl local down --state {self.layout.state}`, or choose another --state"
            )
        # The pid in it is of a keeper that has ended; by now it may be anybody's.
        os.ftruncate(lock, 0)
        return lock

    def _locked(self, settings: LocalSettings) -> bool:
        try:
            lock = os.open(self.layout.lock(settings), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not self._try_lock(lock)
        finally:
            os.close(lock)

    def _try_lock(self, lock: int) -> bool:
        """Take the lock; False if another process has it. Raises Unreachable."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Unreachable(
                f"{self.layout.state} must be on a file system that has locks: {error.strerror}"
            ) from error
        return True

    def _start_keeper(self, lock: int, life: int, since_s: float, *, leashed: bool) -> None:
        """Start the keeper. It inherits the lock, so that there is no moment without a holder."""
        more = (LEASH,) if leashed else ()
        command = (sys.executable, "-P", f"{ROOT}/supervisor/cli/local/member.py", "keeper")
        with self.layout.log("keeper").open("ab") as log:
            keeper = subprocess.Popen(
                [*command, str(self.layout.state), str(life), str(since_s), *more],
                cwd=self.layout.state,
                env=inherited_environment(),
                stdin=subprocess.PIPE if leashed else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
            )
        self._leash, self._keeper_pid = keeper.stdin, keeper.pid
        os.pwrite(lock, f"{keeper.pid}\n".encode(), 0)
        # Its exit is noticed by the lock; Popen would warn that nobody waits for it.
        keeper.returncode = 0

    def _lock_holder(self, settings: LocalSettings) -> int:
        text = self.layout.lock(settings).read_text(errors="replace").strip()
        return int(text) if text.isdigit() else 0

    async def _wait_ready(self, settings: LocalSettings, deadline: float) -> LocalStatus:
        said: set[str] = set()
        async with self.client(deadline_s=0.5) as client:
            while True:
                status = self.status()
                self._check_members(status)
                missing = await self._missing(client, settings, said)
                if not missing and status.members:
                    return status
                if time.monotonic() > deadline:
                    raise Unreachable(f"the cluster did not come up: {missing}; logs: {self.layout.log('*')}")
                await asyncio.sleep(_POLL_S)

    async def _missing(self, client: ControlClient, settings: LocalSettings, said: set[str]) -> str:
        try:
            leader = (await client.status()).supervisors
            nodes = (await client.nodes()).nodes
        except Unreachable as error:
            return str(error)
        if not leader:
            return "no supervisor leads"
        ready = sum(node.state == "ready" for node in nodes)
        for line in (f"{leader[0].supervisor} leads", f"{ready} of {settings.nodes} agents are ready"):
            if line not in said:
                said.add(line)
                self._progress(line)
        wanted = {f"node-{index}" for index in range(settings.nodes)}
        late = wanted - {node.node for node in nodes if node.state == "ready"}
        return f"waiting for {', '.join(sorted(late))}" if late else ""

    def _check_members(self, status: LocalStatus) -> None:
        if not status.running:
            raise Unreachable(f"the keeper ended at once:\n{_last_lines(self.layout.log('keeper'))}")
        for member in status.members:
            if member.failures >= GIVE_UP_AFTER_FAILURES:
                lines = _last_lines(self.layout.log(member.member))
                full = _NO_SPACE.search(lines)
                why = f"{full[0]}; make room on that disk" if full else f"\n{lines}"
                raise Unreachable(f"{member.member} does not start ({member.last_exit}): {why}")

    def _request(self, body: dict[str, object]) -> dict[str, object]:
        """Ask the keeper; raises Unreachable, or NotFound with its answer."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_REQUEST_S)
                connection.connect(str(self.layout.keeper_socket))
                connection.sendall(json.dumps(body).encode() + b"\n")
                with connection.makefile("rb") as stream:
                    reply = json.loads(stream.readline() or b"{}")
        except (OSError, ValueError) as error:
            raise Unreachable(f"the cluster's keeper does not answer: {error}") from error
        assert isinstance(reply, dict)
        if "error" in reply:
            raise NotFound(str(reply["error"]))
        return reply


def _free_ports(names: Sequence[str], host: str, wanted: Mapping[str, int]) -> dict[str, int]:
    """A free port of an address of this machine for each name, the wanted one if it is free."""
    with ExitStack() as held:
        return {name: _free_port(held, host, wanted.get(name, 0)) for name in names}


def _free_port(held: ExitStack, host: str, wanted: int) -> int:
    """A free port, `wanted` if it is free; no other call gets it while `held` is open."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (wanted, 0):
        holder = held.enter_context(socket.socket(family))
        if port:
            # Connections of the last time may still wait for their end. The kernel's choice is free of them.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            holder.bind((host, port))
            return int(holder.getsockname()[1])
    raise Unreachable(f"no port of {host} is free, or this machine has no such address")


def _member_view(entry: dict[str, object]) -> MemberView:
    numbers = {name: int(str(entry[name])) for name in ("pid", "restarts", "failures", "since_wall_ms")}
    return MemberView(
        str(entry["member"]),
        str(entry["state"]),
        numbers["pid"],
        numbers["restarts"],
        numbers["failures"],
        numbers["since_wall_ms"],
        str(entry["last_exit"]),
    )


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


_NO_SPACE = re.compile(r"[^\"\n]*no space left on device", re.IGNORECASE)


def _last_lines(path: Path, count: int = 15) -> str:
    try:
        return "\n".join(path.read_text(errors="replace")[-8192:].splitlines()[-count:])
    except OSError:
        return ""
