"""A small model of `agent/inside/launcher/loop.py`, over the same messages and the same dead-man's switch.

One thread: while it preloads or is frozen it hears nothing. It outlives its agent, looks for a successor on
the node's socket, goes on until the deadline that it was last granted, and then kills its attempt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from agent.inside import protocol
from agent.inside.child.waiting import NEVER_READY
from agent.inside.launcher.deadman import DeadMan
from chaos.sim.cluster.machine import Machine, MachineProcess, Ports
from chaos.sim.cluster.node_socket import Connection, Socket

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 50, 250
IDLE_PULL_MS = 1_000
OVERDUE_MS = 5_000
OUTPUT_EVERY_MS = 100


class Programs(Protocol):
    """Starts the user's program for an attempt."""

    def start(self, launcher: SimLauncher, start: protocol.Start, port: int | None) -> MachineProcess:
        """Fork it; its process is the launcher's child."""

    def terminate(self, row: MachineProcess) -> None:
        """SIGTERM."""

    def tensorflow(self, job: str) -> str:
        """The version that launchers of a job import."""

    def tell_peers(self, row: MachineProcess, cluster: dict[str, list[str]]) -> str:
        """Tell a program where others are now; returns why it cannot be told, if it cannot."""


@dataclass(eq=False, slots=True)
class RunningChild:
    """The launcher's one attempt."""

    start: protocol.Start
    row: MachineProcess
    port: int | None
    kill_reason: str = ""
    killed_ms: int = -1
    reported: bool = False
    lines: int = 0
    tensorflow: str = ""


class SimLauncher:
    """One launcher process, from its exec to its end. Its tasks are reached at `host`."""

    def __init__(
        self, machine: Machine, socket: Socket, programs: Programs, launcher_id: str, job: str, pull_ms: int
    ) -> None:
        self.machine = machine
        self.launcher_id = launcher_id
        self.job = job
        self.row = machine.fork(f"launcher-{launcher_id[-6:]}")
        self.child: RunningChild | None = None
        self.claims: dict[str, int] = {}
        self.host, self.ports = machine.host, machine.ports
        self.linger_ms = 30_000
        self._socket = socket
        self._programs = programs
        self._pull_ms = pull_ms
        self._connection: Connection | None = None
        self._retry_ms = 0
        self._pause_ms = FIRST_PAUSE_MS
        self._incarnation: str | None = None
        self._waiting: protocol.Start | None = None
        self._deadman = DeadMan()
        self._warm = False
        self._exits: dict[str, protocol.Exited] = {}
        self._leaving = False
        self._quiet_ms = self._now()
        self._told = (0, 0)
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = asyncio.Event()
        self.row.at_end.append(self._die)
        machine.loop.begin(self.row.process, self._run())

    def move_to(self, address: str) -> None:
        """It has an address of its own, where all ports are free."""
        self.host, self.ports = address, Ports()

    def last_words(self, attempt: str) -> protocol.Exited | None:
        """The record of an attempt's end that the agent has not yet acknowledged; None without one."""
        return self._exits.get(attempt)

    def arrived(self, connection: Connection, message: object) -> None:
        """Something from the agent is in the socket."""
        self._inbox.append(lambda: self._handle(connection, message))
        self._wake.set()

    def ended(self, connection: Connection) -> None:
        """The connection has ended."""
        self._inbox.append(lambda: self._lose_agent(connection))
        self._wake.set()

    def wrote(self, child: RunningChild) -> None:
        """The attempt has written a line."""
        child.lines += 1
        if self._now() >= self._told[1] + OUTPUT_EVERY_MS:
            self._wake.set()

    def _now(self) -> int:
        return self.machine.clock.now_ms()

    def _die(self) -> None:
        """The kernel cleans up: the child gets PDEATHSIG, the socket and the locks are closed."""
        if self.child is not None:
            self.machine.kill(self.child.row)
        if self._connection is not None:
            self._connection.close()
        for port in self.claims.values():
            self.ports.leave(port, self)

    async def _run(self) -> None:
        self._connect()
        await asyncio.sleep(self.machine.rng.uniform(0.15, 0.9))
        self._warm = True
        self._quiet_ms = self._now()
        self._send(protocol.Warm(500))
        while not (self._leaving and self.child is None):
            try:
                async with asyncio.timeout(self._sleep_s()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            self._enforce_deadline()
            while self._inbox:
                self._inbox.popleft()()
            self._tick()
        self.machine.exit(self.row, 0)

    # Time.

    def _sleep_s(self) -> float:
        now = self._now()
        due = [now + IDLE_PULL_MS]
        if self._connection is None:
            due.append(self._retry_ms)
        elif self._incarnation is not None:
            due.append(self._deadman.next_pull_ms(self._pull_every_ms()) or due[0])
        if self.child is not None:
            due += self._due_of_child(self.child)
        return max(1, min(due) - now) / 1000

    def _due_of_child(self, child: RunningChild) -> Iterator[int]:
        if not child.kill_reason:
            yield self._deadman.deadline_ms or self._now()
        elif not child.reported:
            yield child.killed_ms + OVERDUE_MS
        if child.lines != self._told[0]:
            yield self._told[1] + OUTPUT_EVERY_MS

    def _pull_every_ms(self) -> int:
        if self._waiting is not None:
            return 1
        return self._pull_ms if self.child is not None else IDLE_PULL_MS

    def _enforce_deadline(self) -> None:
        if self.child is not None and self._deadman.expired(self._now()):
            self._kill_child("deadline")

    def _tick(self) -> None:
        now = self._now()
        self._enforce_deadline()
        if self._connection is None and now >= self._retry_ms:
            self._connect()
        if self.child is not None:
            self._step_child(self.child, now)
        self._pull(now)
        if self._waiting is not None and not self._deadman.expired(now):
            start, self._waiting = self._waiting, None
            self._begin(start)
        self._tell_output(now)
        if self.child is None and now >= self._quiet_ms + self.linger_ms:
            self._leaving = True

    def _pull(self, now: int) -> None:
        due = self._deadman.next_pull_ms(self._pull_every_ms())
        if self._incarnation is None or due is None or now < due:
            return
        self._deadman = self._deadman.pulled(now)
        current = self.child.start if self.child is not None else None
        incarnation = current.incarnation if current else self._incarnation
        self._send(protocol.Pull(now, incarnation, current.attempt if current else None))

    # The agent.

    def _send(self, message: object) -> None:
        if self._connection is not None:
            self._connection.to_agent(message)

    def _connect(self) -> None:
        server = self._socket.server
        if server is None:
            self._later()
            return
        self._connection = Connection(self.machine, self, server)
        self._socket.connections.append(self._connection)
        child = self.child
        running = None
        if child is not None:
            row = child.row
            running = protocol.RunningAttempt(
                child.start.attempt,
                row.pid,
                row.start_ticks,
                child.port,
                child.start.incarnation,
                child.tensorflow,
                takes_addresses=bool(child.tensorflow),
            )
        self._send(
            protocol.Hello(
                protocol=protocol.PROTOCOL,
                launcher_id=self.launcher_id,
                job=self.job,
                pid=self.row.pid,
                start_ticks=self.row.start_ticks,
                boot_id=self.machine.boot_id,
                warm=self._warm,
                reservations=tuple(protocol.HeldPort(name, port) for name, port in self.claims.items()),
                attempt=running,
                exits=tuple(self._exits.values()),
                joins=True,
                adds_workers=True,
                drops_workers=True,
            )
        )

    def _later(self) -> None:
        self._retry_ms = self._now() + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, LONGEST_PAUSE_MS)

    def _lose_agent(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._later()
        if self._incarnation is not None:
            self._quiet_ms = max(self._quiet_ms, self._now())
        self._incarnation = None
        self._waiting = None
        self._deadman = self._deadman.disconnected(running=self.child is not None)

    def _handle(self, connection: Connection, message: object) -> None:
        if connection is not self._connection:
            return
        match message:
            case protocol.Welcome():
                self._incarnation = message.incarnation
                self._pause_ms = FIRST_PAUSE_MS
            case protocol.Refuse():
                connection.close()
                self._lose_agent(connection)
            case protocol.Grant():
                self._on_grant(message)
            case protocol.Reserve():
                self._on_reserve(message)
            case protocol.Release():
                self._on_release(message)
            case protocol.Start():
                self._on_start(message)
            case protocol.Kill() | protocol.Terminate():
                self._on_end(message)
            case protocol.Suspend() | protocol.Peers():
                self._on_word(message)
            case protocol.AckExit():
                self._exits.pop(message.attempt, None)
            case protocol.Shutdown():
                self._leaving = True
                self._kill_child("killed")
            case _:
                raise AssertionError(f"no agent says {message}")

    def _on_grant(self, message: protocol.Grant) -> None:
        if message.incarnation != self._incarnation:
            return
        self._deadman = self._deadman.granted(message.stamp_ms, message.remaining_ms)
        self._quiet_ms = max(self._quiet_ms, self._deadman.deadline_ms or 0)
        if self._waiting is not None and message.remaining_ms <= 0:
            self._send(protocol.StartFailed(self._waiting.attempt, "the agent grants no time"))
            self._waiting = None

    def _on_reserve(self, message: protocol.Reserve) -> None:
        port = self.claims.get(message.reservation, -1)
        if port < 0 and message.reuse is not None:
            held = [name for name, each in self.claims.items() if each == message.reuse]
            port = self.claims.pop(held[0]) if held else -1
        if port < 0:
            port = self.ports.claim(message.low, message.high, message.avoid, message.reuse, self)
        if port < 0:
            self._send(protocol.ReserveFailed(message.reservation, "no free port"))
            return
        self.claims[message.reservation] = port
        self._send(protocol.Reserved(message.reservation, port))

    def _on_release(self, message: protocol.Release) -> None:
        port = self.claims.pop(message.reservation, None)
        if port is not None:
            self.ports.leave(port, self)

    # Attempts.

    def _on_word(self, message: protocol.Suspend | protocol.Peers) -> None:
        child = self.child
        if child is None or child.start.attempt != message.attempt or child.kill_reason:
            return
        if isinstance(message, protocol.Suspend):
            self.machine.freeze(child.row, stuck=False)
        elif why := self._programs.tell_peers(child.row, message.cluster):
            self._send(protocol.PeersFailed(message.attempt, why))

    def _on_start(self, message: protocol.Start) -> None:
        current = self.child
        if current is not None and current.start.attempt == message.attempt:
            return
        if message.attempt in self._exits:
            self._send(self._exits[message.attempt])
            return
        reason = ""
        if current is not None:
            reason = f"attempt {current.start.attempt} is not confirmed dead"
        elif self._leaving:
            reason = "the launcher is leaving"
        elif message.incarnation != self._incarnation:
            reason = f"incarnation {message.incarnation} is not the one that serves this launcher"
        elif message.reservation is not None and message.reservation not in self.claims:
            reason = f"no port is held for reservation {message.reservation}"
        if reason:
            self._send(protocol.StartFailed(message.attempt, reason))
        else:
            self._waiting = message

    def _begin(self, start: protocol.Start) -> None:
        port = self.claims.get(start.reservation) if start.reservation is not None else None
        row = self._programs.start(self, start, port)
        if port is not None:
            self.ports.share(port, row)
            row.at_end.append(lambda: self.ports.leave(port, row))
        # The launcher's waitpid; while it is frozen it does not look.
        row.at_end.append(lambda: self.machine.loop.post(self.row.process, 0.0001, self._wake.set))
        imported = self._programs.tensorflow(self.job) if self._warm and start.warm else ""
        self.child = RunningChild(start, row, port, tensorflow=imported)
        self._told = (0, 0)
        self._send(
            protocol.Started(
                start.attempt,
                row.pid,
                row.start_ticks,
                self._now(),
                warm=self._warm,
                tensorflow=imported,
                takes_addresses=bool(imported),
            )
        )

    def _kill_child(self, reason: str) -> None:
        child = self.child
        if child is not None and not child.kill_reason and not child.row.gone:
            child.kill_reason = reason
            child.killed_ms = self._now()
            self.machine.kill(child.row)

    def _step_child(self, child: RunningChild, now: int) -> None:
        if child.row.gone:
            self._report(child, confirmed_dead=True)
            self.child = None
            self._quiet_ms = max(self._quiet_ms, now)
        elif child.kill_reason and not child.reported and now - child.killed_ms >= OVERDUE_MS:
            child.reported = True
            self._report(child, confirmed_dead=False)

    def _report(self, child: RunningChild, *, confirmed_dead: bool) -> None:
        row = child.row
        by_signal = row.code is None
        unready = row.code == NEVER_READY
        exited = protocol.Exited(
            attempt=child.start.attempt,
            code=row.code,
            signal=(row.signal or 9) if by_signal else None,
            at_ms=self._now(),
            reason="start_failed" if unready else child.kill_reason or "exit",
            detail="never ready" if unready else "",
            confirmed_dead=confirmed_dead,
            survivors=0 if confirmed_dead else 1,
            port=child.port,
            total_bytes=child.lines,
        )
        self._exits[child.start.attempt] = exited
        self._send(exited)

    def _on_end(self, message: protocol.Kill | protocol.Terminate) -> None:
        if self._waiting is not None and self._waiting.attempt == message.attempt:
            self._waiting = None
            self._send(protocol.StartFailed(message.attempt, "killed before it was started"))
        elif self.child is not None and self.child.start.attempt == message.attempt:
            if isinstance(message, protocol.Kill):
                self._kill_child("killed")
            else:
                self._programs.terminate(self.child.row)
        elif message.attempt in self._exits:
            self._send(self._exits[message.attempt])

    def _tell_output(self, now: int) -> None:
        total, told_ms = self._told
        child = self.child
        if child is not None and child.lines != total and now >= told_ms + OUTPUT_EVERY_MS:
            self._told = (child.lines, now)
            self._send(protocol.Output(child.start.attempt, child.lines, now))
