"""The keeper: parent of every process of an embedded cluster. It restarts dead ones and answers `local`.

It holds the lock of the state directory as long as it lives. Members die with it by PDEATHSIG, so that no
process stays when it is killed (launchers end by their dead-man's switch).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from supervisor.cli.local import processes
from supervisor.cli.local.layout import Layout, LocalSettings
from supervisor.cli.local.lives import Hold, Lives, file_errors
from supervisor.cli.local.member import LEASH, ROOT
from supervisor.contract.errors import Conflict, TfSupervisorError

RESTART_MAX_S = 5.0
HEALTHY_AFTER_S = 3.0
TERM_GRACE_S = 8.0
"""Seconds between SIGTERM and SIGKILL. An agent uses up to five of them for commits that wait."""
KILL_GRACE_S = 10.0
LAST_WORD_S = 2.0
"""How long the last line of a keeper may take whose disk may be gone."""
_REQUEST_BYTES = 4096


@dataclass(slots=True)
class Member:
    """One kept process."""

    name: str
    argv: tuple[str, ...]
    cwd: Path
    sockets: tuple[str, ...] = ()
    wanted: bool = True
    pid: int = 0
    started_s: float = 0.0
    started_wall_ms: int = 0
    restarts: int = 0
    failures: int = 0
    last_exit: str = ""
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    def view(self) -> dict[str, object]:
        """The member's line in `local status`."""
        state = "running" if self.pid else "restarting" if self.wanted else "stopped"
        return {
            "member": self.name,
            "state": state,
            "pid": self.pid,
            "restarts": self.restarts,
            "failures": self.failures,
            "since_wall_ms": self.started_wall_ms if self.pid else 0,
            "last_exit": self.last_exit,
        }


class Keeper:
    """Runs the members until it is asked to stop."""

    def __init__(self, layout: Layout, settings: LocalSettings, number: int, since_s: float) -> None:
        """Raises Conflict where another start has written the files since."""
        if settings.life != number:
            raise Conflict(f"another machine has just started the cluster in {layout.state}")
        self._layout, self._settings = layout, settings
        self._env = member_environment()
        self._done = asyncio.Event()
        self._members = {member.name: member for member in members(layout, settings)}
        self._hold: Hold | None = None
        if number:
            lives = Lives(layout.lives)
            life = lives.read(number)
            lives.check(life, since_s)
            self._hold = Hold(lives, life, since_s, self._give_up, partial(layout.write, settings))

    async def run(self, *, leashed: bool) -> None:
        """Start all members, keep them running, and end them. `leashed`: also when standard input ends.

        Raises Unreachable, Conflict if etcd's data cannot be taken over.
        """
        processes.become_subreaper()
        loop = asyncio.get_running_loop()
        if leashed:
            loop.add_reader(sys.stdin.fileno(), self._unleashed)
        loop.add_signal_handler(signal.SIGCHLD, self._children_ended)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._done.set)
        if self._hold is not None:
            self._hold.start()
            # Copies take their time. Whoever does not wait for them ends a keeper that does not answer.
            self._hold.take_over(self._layout.state / "etcd")
            self._layout.forget_locks(self._settings)
        socket = self._layout.keeper_socket
        socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, path=socket, limit=_REQUEST_BYTES)
        socket.chmod(0o600)
        for member in self._members.values():
            self._start(member)
        await self._done.wait()
        gone = await self._stop_all()
        server.close()
        socket.unlink(missing_ok=True)
        if self._hold is not None and gone:
            self._hold.close()

    def _unleashed(self) -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._done.set()

    def _give_up(self) -> None:
        """Kill everything at once, in another thread: a machine that shares the directory may have begun."""
        for member in self._members.values():
            member.wanted = False
        processes.kill_descendants(os.getpid(), KILL_GRACE_S)
        threading.Timer(LAST_WORD_S, os._exit, (1,)).start()
        _say(f"{self._layout.lives} could not be written, or another machine has begun there: all is killed")
        os._exit(1)

    def _start(self, member: Member) -> None:
        member.timer = None
        if member.pid or not member.wanted:
            return
        for name in member.sockets:
            # What a killed etcd leaves behind it takes for another etcd.
            (member.cwd / name).unlink(missing_ok=True)
        try:
            member.pid = processes.spawn(member.argv, member.cwd, self._env, self._layout.log(member.name))
        except OSError as error:
            member.last_exit = str(error)
            member.failures += 1
            self._start_later(member)
            return
        member.started_s = time.monotonic()
        member.started_wall_ms = time.time_ns() // 1_000_000

    def _start_later(self, member: Member) -> None:
        """Start a member again: at once the first time, with growing delays while it dies soon after each
        start.
        """
        delay_s = 0.0 if member.failures <= 1 else min(RESTART_MAX_S, 0.1 * 2 ** (member.failures - 2))
        member.timer = asyncio.get_running_loop().call_later(delay_s, self._start, member)

    def _children_ended(self) -> None:
        by_pid = {member.pid: member for member in self._members.values() if member.pid}
        for pid, code in processes.reap():
            member = by_pid.get(pid)
            if member is None:
                continue
            young = time.monotonic() - member.started_s < HEALTHY_AFTER_S
            member.failures = member.failures + 1 if young else 1
            member.pid = 0
            member.last_exit = f"signal {-code}" if code < 0 else f"exit code {code}"
            _say(f"{member.name} (pid {pid}) ended: {member.last_exit}")
            if member.wanted and not self._done.is_set():
                member.restarts += 1
                self._start_later(member)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(5):
                line = await reader.readline()
            try:
                request = json.loads(line)
                reply = await self._answer(str(request["do"]), str(request.get("name", "")), request)
            except (ValueError, KeyError, TypeError) as error:
                reply = {"error": f"not a request: {error}"}
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _answer(self, verb: str, name: str, request: dict[str, object]) -> dict[str, object]:
        if verb == "status":
            return {"pid": os.getpid(), "members": [member.view() for member in self._members.values()]}
        if verb == "down":
            self._done.set()
            return {"pid": os.getpid()}
        member = self._members.get(name)
        if member is None:
            return {"error": f"no member {name!r}; members: {', '.join(self._members)}"}
        if verb == "start-member":
            member.wanted, member.failures = True, 0
            self._start(member)
        elif verb in ("stop-member", "kill-member"):
            member.wanted = verb == "kill-member"
            number = int(str(request.get("signal", int(signal.SIGTERM))))
            await self._signal(member, number, wait=verb == "stop-member")
        else:
            return {"error": f"unknown request {verb!r}"}
        return member.view()

    async def _signal(self, member: Member, number: int, *, wait: bool) -> None:
        if member.timer is not None and not member.wanted:
            member.timer.cancel()
        if not member.pid:
            return
        pid = member.pid
        os.kill(pid, number)
        if wait and not await _until(lambda: member.pid != pid, TERM_GRACE_S):
            os.kill(pid, signal.SIGKILL)
            await _until(lambda: member.pid != pid, KILL_GRACE_S)

    async def _stop_all(self) -> bool:
        """Stop agents and supervisors first, so that they can still write to etcd; then all other
        processes. False if one of them is still there.
        """
        for member in self._members.values():
            member.wanted = False
            if member.timer is not None:
                member.timer.cancel()
        late = [member for member in self._members.values() if member.name == "etcd"]
        await _terminate([member for member in self._members.values() if member not in late])
        self._kill_rest(keep={member.pid for member in late})
        await _terminate(late)
        left = processes.kill_descendants(os.getpid(), KILL_GRACE_S)
        if left:
            _say(f"still alive after SIGKILL: {left}")
        return not left

    def _kill_rest(self, keep: set[int]) -> None:
        for pid in processes.descendants(os.getpid()):
            if pid not in keep:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _say(text: str) -> None:
    """Write a line to the log, if its disk has room: a disk that is full keeps no member from its restart."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def members(layout: Layout, settings: LocalSettings) -> list[Member]:
    """Every member, in the order of their start."""
    python = (sys.executable, "-P", f"{ROOT}/supervisor/cli/local/member.py")
    found = [Member("etcd", etcd_argv(layout, settings), layout.run, ("client:0", "peer:0"))]
    for kind, names in (("supervisor", layout.supervisors(settings)), ("agent", layout.agents(settings))):
        for name in names:
            separate: tuple[str, ...] = ()
            if settings.separate and kind == "agent":
                separate = ("--separate", str(layout.own_tasks(name)), str(layout.tasks), str(os.getpid()))
            argv = (*python, *separate, kind, "--config", str(layout.config(name)))
            found.append(Member(name, argv, layout.state))
    return found


def etcd_argv(layout: Layout, settings: LocalSettings) -> tuple[str, ...]:
    """The command of one etcd, on a Unix socket unless other machines reach it.

    Its peer address is never used; its peer socket is private too.
    """
    peer = "http://localhost:1"
    here = ("--listen-client-urls", "unix://client:0", "--advertise-client-urls", "unix://client:0")
    return (
        *("etcd", "--name", "local", "--data-dir", str(layout.etcd_data(settings))),
        *(layout.reachable(settings).etcd_flags() if settings.advertise else here),
        *("--listen-peer-urls", "unix://peer:0", "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"local={peer}", "--heartbeat-interval", "50", "--election-timeout", "500"),
        *("--pre-vote=true", "--auto-compaction-retention", "10m", "--logger", "zap"),
    )


def member_environment() -> dict[str, str]:
    """Our environment with this Python's programs first in PATH: `python` in a job is the one that runs the
    cluster.
    """
    env = dict(os.environ)
    env["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), env.get("PATH", os.defpath)))
    env["PYTHONUNBUFFERED"] = "1"
    return env


async def _terminate(group: list[Member]) -> None:
    for member in group:
        if member.pid:
            os.kill(member.pid, signal.SIGTERM)
    await _until(lambda: not any(member.pid for member in group), TERM_GRACE_S)


async def _until(condition: Callable[[], bool], deadline_s: float) -> bool:
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def main() -> None:
    """Run `keeper STATE LIFE SINCE [--leash]`; LIFE is 0 where machines share nothing.

    The parent process has made and locked the state directory, and begun this life at SINCE.
    """
    os.umask(0o077)
    state, number, since_s, *more = sys.argv[1:]
    layout = Layout.of(Path(state))
    try:
        with file_errors():
            keeper = Keeper(layout, layout.read(), int(number), float(since_s))
            asyncio.run(keeper.run(leashed=LEASH in more))
    except TfSupervisorError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
