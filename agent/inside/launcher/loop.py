"""The launcher: parent of one task's attempts, in one thread and one loop.

It outlives its agent: it looks for a successor on the same socket, goes on until the deadline that it was
last granted (rule 4), and then kills the attempt. Each turn of the loop looks at the deadline first.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from .. import failpoints, protocol
from ..child import program, warm
from ..clock import boot_id, now_ms
from ..processes import fence, priority, spawn, zygote
from . import devices, environ, link, mask, peers, ports, pump, remains, surroundings, wrapper
from .attempt import Attempt
from .deadman import DeadMan
from .exits import ExitRecords
from .reservations import Reservations

_OUTPUT_EVERY_MS = 20
_OUTPUT_PER_TURN = 4 << 20
_BACKLOG_FOR_OUTPUT = 1 << 16
# epoll's clock stands still while the machine is suspended, the deadline's does not: look this often.
_LONGEST_SLEEP_MS = 100


class Launcher:
    """One launcher process; `marker` is in its environment since it was exec'd."""

    def __init__(self, config: protocol.LauncherConfig, marker: str) -> None:
        self._config = config
        self._marker = marker
        self._link = link.Link(config.socket)
        self._selector = selectors.DefaultSelector()
        self._exits = ExitRecords(config.state_dir)
        self._reservations = Reservations(os.path.join(config.state_dir, "ports"))
        self._attempt: Attempt | None = None
        self._devices = devices.Guard(self._selector, self._on_devices_lost)
        self._waiting: protocol.Start | None = None
        self._deadman = DeadMan()
        self._incarnation: str | None = None
        self._warm = False
        self._preloaded = warm.Preloaded()
        self._preloaded_fds: frozenset[int] = frozenset()
        self._quiet_ms = now_ms()
        self._output_told = (0, 0)
        self._leaving = False
        self._yielding = False
        self._weight = priority.Weight()
        self._remains = remains.Remains(config.clears)

    def run(self) -> None:
        """Serve until the agent ends it or its linger is over; raises ProgramStarts in forked children."""
        spawn.become_subreaper()
        self._connect(now_ms())
        self._preload()
        self._watch_signals()
        while not (self._leaving and self._attempt is None):
            events = self._selector.select(self._sleep_s(now_ms()))
            now = now_ms()
            self._enforce_deadline(now)
            for key, _ in events:
                callback: Callable[[int], None] = key.data
                callback(now)
            self._tick(now_ms())
        self._link.flush()

    def _preload(self) -> None:
        began = now_ms()
        before = spawn.open_fds()
        if os.getsid(0) == os.getpid():
            # Half-way between what starts, which must not notice that a spare is made, and what trains.
            self._yielding = priority.weigh_session(os.getpid(), self._config.task_nice // 2)
        self._remains.importing()
        with warm.within(self._config.preload_ms):
            preloaded = warm.preload(self._config.preload, self._config.env)
        self._remains.imported()
        if spawn.has_children():
            # Killed with the first attempt, and missed by every later one: better cold than half warm.
            preloaded = warm.Preloaded("preloading left processes running")
        self._preloaded = preloaded
        self._preloaded_fds = spawn.open_fds() - before
        self._warm = preloaded.error is None
        self._quiet_ms = now_ms()
        self._link.send(protocol.Warm(self._quiet_ms - began, preloaded.error))

    def _watch_signals(self) -> None:
        reader, self._wakeup = socket.socketpair()
        reader.setblocking(False)
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        self._selector.register(reader, selectors.EVENT_READ, lambda now: self._on_signals(reader, now))

    def _on_signals(self, reader: socket.socket, now: int) -> None:
        try:
            numbers = reader.recv(4096)
        except BlockingIOError:
            return
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._shut_down(now, "lost", self._told_to_end(numbers))

    # Time.

    def _sleep_s(self, now: int) -> float:
        due = [now + _LONGEST_SLEEP_MS if self._attempt or self._waiting else now + self._config.idle_pull_ms]
        if self._link.retry_ms is not None:
            due.append(self._link.retry_ms)
        elif self._incarnation is not None:
            due.append(self._deadman.next_pull_ms(self._pull_every_ms()) or due[0])
        if self._attempt is not None:
            due.append(self._attempt.wake_ms or due[0])
            due.append(self._deadman.deadline_ms or due[0])
            if self._attempt.output.total_bytes != self._output_told[0]:
                due.append(self._output_told[1] + _OUTPUT_EVERY_MS)
        return max(0, min(due) - now) / 1000

    def _pull_every_ms(self) -> int:
        if self._waiting is not None:
            return 1
        return self._config.pull_ms if self._attempt is not None else self._config.idle_pull_ms

    def _enforce_deadline(self, now: int) -> None:
        if self._attempt is not None and self._deadman.expired(now):
            self._attempt.kill("deadline", now)

    def _tick(self, now: int) -> None:
        self._enforce_deadline(now)
        if self._yielding:
            self._yielding = not priority.weigh_session(os.getpid(), 0)
        if self._link.retry_ms is not None and now >= self._link.retry_ms:
            self._connect(now)
        if self._attempt is not None:
            self._step_attempt(self._attempt, now)
        current = self._attempt
        self._devices.tend(current.start if current is not None and not current.ending else None, now)
        self._pull(now)
        if self._waiting is not None and not self._deadman.expired(now):
            start, self._waiting = self._waiting, None
            self._begin(start)
        self._tell_output(now)
        if self._link.sock is not None and not self._link.flush():
            self._lose_agent(now)
        if self._attempt is None and now >= self._quiet_ms + self._config.linger_ms:
            self._leaving = True

    def _pull(self, now: int) -> None:
        due = self._deadman.next_pull_ms(self._pull_every_ms())
        if self._incarnation is None or due is None or now < due:
            return
        self._deadman = self._deadman.pulled(now)
        current = self._attempt.start if self._attempt is not None else None
        self._link.send(
            protocol.Pull(
                stamp_ms=now,
                incarnation=current.incarnation if current else self._incarnation,
                attempt=current.attempt if current else None,
            )
        )

    # The agent.

    def _connect(self, now: int) -> None:
        if not self._link.connect(now) or self._link.sock is None:
            return
        self._selector.register(self._link.sock, selectors.EVENT_READ, self._on_agent)
        own = fence.read_process(os.getpid())
        self._link.send(
            protocol.Hello(
                protocol=protocol.PROTOCOL,
                launcher_id=self._config.launcher_id,
                job=self._config.job,
                pid=os.getpid(),
                start_ticks=own.start_ticks if own else 0,
                boot_id=boot_id(),
                warm=self._warm,
                reservations=self._reservations.held(),
                attempt=self._attempt.running() if self._attempt else None,
                exits=self._exits.unacknowledged(),
                marker=self._marker,
                adopts=True,
                keeps_secrets=True,
                joins=True,
                adds_workers=True,
                drops_workers=True,
            )
        )

    def _on_agent(self, now: int) -> None:
        messages = self._link.receive()
        if messages is None:
            self._lose_agent(now)
            return
        for message in messages:
            self._handle(message, now)

    def _handle(self, message: object, now: int) -> None:
        if isinstance(message, protocol.Welcome):
            self._incarnation = message.incarnation
            self._link.welcomed()
        elif isinstance(message, protocol.Refuse):
            self._lose_agent(now)
        elif isinstance(message, protocol.Grant):
            self._on_grant(message)
        elif isinstance(message, protocol.Reserve):
            self._link.send(self._reservations.reserve(message))
        elif isinstance(message, protocol.Release):
            self._reservations.release(message.reservation)
        elif isinstance(message, protocol.Weight):
            self._on_weight(message)
        elif isinstance(message, protocol.Shutdown):
            self._shut_down(now)
        else:
            self._handle_attempt(message, now)

    def _handle_attempt(self, message: object, now: int) -> None:
        if isinstance(message, protocol.Start):
            self._on_start(message)
        elif isinstance(message, protocol.Kill):
            self._on_kill(message, now)
        elif isinstance(message, protocol.Terminate):
            self._on_terminate(message)
        elif isinstance(message, protocol.Suspend):
            self._on_suspend(message)
        elif isinstance(message, protocol.Peers):
            self._on_peers(message, now)
        elif isinstance(message, protocol.AckExit):
            self._exits.forget(message.attempt)

    def _lose_agent(self, now: int) -> None:
        if self._link.sock is None:
            return
        self._selector.unregister(self._link.sock)
        self._link.close(now)
        if self._incarnation is not None:
            # Only an agent that had welcomed us is waited for anew; one that refuses must not keep us alive.
            self._quiet_ms = max(self._quiet_ms, now)
        self._incarnation = None
        self._waiting = None  # whoever comes next sees in the hello that it was not started
        self._deadman = self._deadman.disconnected(running=self._attempt is not None)

    def _on_grant(self, message: protocol.Grant) -> None:
        if message.incarnation != self._incarnation:
            return
        self._deadman = self._deadman.granted(message.stamp_ms, message.remaining_ms)
        self._quiet_ms = max(self._quiet_ms, self._deadman.deadline_ms or 0)
        if self._waiting is not None and message.remaining_ms <= 0:
            self._link.send(protocol.StartFailed(self._waiting.attempt, "the agent grants no time"))
            self._waiting = None

    # Attempts.

    def _on_start(self, message: protocol.Start) -> None:
        current = self._attempt
        if current is not None and current.start.attempt == message.attempt:
            return
        if self._exits.resend(message.attempt, self._link.send):
            return
        reason = ""
        if current is not None:
            reason = f"attempt {current.start.attempt} is not confirmed dead"
        elif self._leaving:
            reason = "the launcher is leaving"
        elif message.incarnation != self._incarnation:
            reason = f"incarnation {message.incarnation} is not the one that serves this launcher"
        elif message.reservation is not None and self._reservations.of(message.reservation) is None:
            reason = f"no port is held for reservation {message.reservation}"
        if reason:
            self._link.send(protocol.StartFailed(message.attempt, reason))
        else:
            self._waiting = message

    def _begin(self, start: protocol.Start) -> None:
        claim = self._reservations.of(start.reservation)
        fds: list[int] = []
        output = None
        try:
            fds += (*os.pipe2(os.O_CLOEXEC), *os.pipe2(os.O_CLOEXEC))
            output_read, output_write, status_read, status_write = fds
            masker = mask.Masker(start.secrets.values())
            output = pump.Pump(output_read, start.attempt_dir, start.log_max_bytes, start.log_files, masker)
            order = self._order(start, claim, output_write, status_write)
            peers_fd = -1
            if order.warm_program is not None:
                peers_fd, child_fd = peers.pair()
                fds += (peers_fd, child_fd)
                order = replace(order, peers_fd=child_fd)
            elif start.joins:
                raise OSError(errno.ENOTSUP, "a program that is started cold joins no running cluster")
            if claim is not None and start.alone:
                claim.make_room()
            pid = spawn.spawn(order)
            if order.listener is not None:
                order.listener.close()
        except OSError as error:
            if claim is not None:
                claim.hold_again()
            if output is not None:
                output.close()
                fds.remove(output.fd)
            for fd in fds:
                os.close(fd)
            self._link.send(protocol.StartFailed(start.attempt, f"cannot start: {error}"))
            return
        for fd in set(fds) - {output_read, status_read, peers_fd}:
            os.close(fd)
        told = peers.Peers(peers_fd)
        if told.fd >= 0:
            self._selector.register(told.fd, selectors.EVENT_READ, self._on_answer)
        is_wrapped, port = order.listener is not None, claim.port if claim else None
        attempt = Attempt(start, pid, port, output, status_read, self._weight, told, is_wrapped=is_wrapped)
        self._attempt = attempt
        self._output_told = (0, 0)
        self._selector.register(output_read, selectors.EVENT_READ, self._on_output)
        running, warmly = attempt.running(), order.warm_program is not None or is_wrapped
        self._link.send(
            protocol.Started(
                start.attempt,
                pid,
                running.start_ticks,
                attempt.started_ms,
                warmly,
                running.tensorflow,
                running.takes_addresses,
            )
        )
        kept = {name: value for name, value in order.cold_env.items() if name not in start.secrets}
        if is_wrapped:
            # An operator's command is none of the attempt.
            kept["PATH"] = wrapper.without(self._config.state_dir, kept["PATH"])
        environ.keep(self._config.state_dir, start.attempt, start.cwd, kept)

    def _order(
        self, start: protocol.Start, claim: ports.Claim | None, output_fd: int, status_fd: int
    ) -> spawn.Order:
        step_file = os.path.join(start.attempt_dir, "step")
        env = {"TFSUP_STEP_FILE": step_file, **start.secrets, **start.env}
        env["TFSUP_ATTEMPT"] = start.attempt
        if claim is not None and not start.alone:
            env["TF_GRPC_REUSE_PORT"] = "true"
        env.update(environ.unproxied({**self._config.env, **env}, start.hosts))
        chosen, offered = None, None
        if start.warm and self._warm:
            chosen = program.warm_program(start.argv, start.cwd, env)
        cold_env = {**self._config.env, fence.MARKER_VARIABLE: self._marker, **env}
        if program.is_python(start.argv):
            cold_env.setdefault("PYTHONUNBUFFERED", "1")
        elif start.warm and self._warm and self._config.preload:
            offered = wrapper.offer(self._config.state_dir, cold_env)
        if offered is not None:
            cold_env["PATH"] = offered.path
        return spawn.Order(
            argv=start.argv if chosen else program.cold_command(start.argv, cold_env),
            cwd=start.cwd,
            env=env,
            cold_env=cold_env,
            job_env=self._config.env,
            warm_program=chosen,
            preloaded=self._preloaded,
            output_fd=output_fd,
            status_fd=status_fd,
            lock_fd=claim.lock_fd if claim else -1,
            keep_fds=self._preloaded_fds if chosen or offered else frozenset(),
            oom_score_adj=self._config.oom_score_adj,
            wait_for=start.wait_for,
            wait_ms=start.wait_ms,
            must_see=start.must_see,
            adopt=start.adopt,
            see_ms=start.see_ms,
            attempt_dir=start.attempt_dir,
            secrets=tuple(start.secrets.values()),
            nice=self._config.task_nice // 2 if start.yields else 0,
            contained=self._config.inherits,
            listener=offered.listener if offered else None,
            joins=start.joins,
        )

    def _on_output(self, _now: int) -> None:
        if self._attempt is not None and self._attempt.output.read_some(_OUTPUT_PER_TURN):
            self._selector.unregister(self._attempt.output.fd)

    def _on_answer(self, _now: int) -> None:
        if self._attempt is not None:
            fd = self._attempt.peers.fd
            self._peers_failed(self._attempt, self._attempt.peers.heard())
            if self._attempt.peers.fd < 0:
                self._selector.unregister(fd)

    def _peers_failed(self, attempt: Attempt, reason: str) -> None:
        if reason and not attempt.ending:
            self._link.send(protocol.PeersFailed(attempt.start.attempt, reason))

    def _on_devices_lost(self, missing: str, now: int) -> None:
        if self._attempt is not None:
            self._attempt.kill("devices_lost", now, missing)
            # A container that has lost them gets them back by no restart of the program.
            self._leaving = True

    def _tell_output(self, now: int) -> None:
        total, told_ms = self._output_told
        attempt = self._attempt
        if attempt is None or attempt.output.total_bytes == total or now < told_ms + _OUTPUT_EVERY_MS:
            return
        self._output_told = (attempt.output.total_bytes, now)
        if self._link.backlog < _BACKLOG_FOR_OUTPUT:
            self._link.send(protocol.Output(attempt.start.attempt, attempt.output.total_bytes, now))

    def _step_attempt(self, attempt: Attempt, now: int) -> None:
        if not (attempt.settled or attempt.ending) and now >= attempt.started_ms + self._config.settle_ms:
            attempt.settled = True
            for pid in attempt.leaders():
                priority.lower(pid, self._config.task_nice, contained=self._config.inherits)
        self._peers_failed(attempt, attempt.peers.overdue(now))
        if attempt.step(self._marker, now):
            # Every writer is dead, so this ends; the log is whole before the exit is told.
            attempt.output.read_some(sys.maxsize)
            claim = self._reservations.of(attempt.start.reservation)
            if claim is not None:
                claim.hold_again()
            exited = self._explained(attempt.exited(confirmed_dead=True, now=now))
            self._remains.clear()
            self._report(exited)
            for fd in {attempt.output.fd, attempt.peers.fd} & set(self._selector.get_map()):
                self._selector.unregister(fd)
            attempt.close()
            environ.forget(self._config.state_dir)
            self._attempt = None
            self._quiet_ms = max(self._quiet_ms, now)
        elif attempt.overdue(now):
            attempt.reported = True
            self._report(attempt.exited(confirmed_dead=False, now=now))

    def _explained(self, exited: protocol.Exited) -> protocol.Exited:
        """The end of a program that failed, with who listens on its port, and which memory it has filled."""
        if exited.reason != "exit" or exited.code == 0:
            return exited
        listener = ports.listener_on(exited.port) if exited.port is not None else ""
        said = f"{listener} listens on its port {exited.port}" if listener else ""
        return replace(exited, detail="; ".join(filter(None, (exited.detail, said, self._remains.full()))))

    def _report(self, exited: protocol.Exited) -> None:
        self._exits.keep(exited)
        self._link.send(exited)

    def _on_kill(self, message: protocol.Kill, now: int) -> None:
        if self._waiting is not None and self._waiting.attempt == message.attempt:
            self._waiting = None
            self._link.send(protocol.StartFailed(message.attempt, "killed before it was started"))
        elif self._attempt is not None and self._attempt.start.attempt == message.attempt:
            self._attempt.kill("killed", now)
        else:
            self._exits.resend(message.attempt, self._link.send)

    def _on_terminate(self, message: protocol.Terminate) -> None:
        if self._waiting is not None and self._waiting.attempt == message.attempt:
            self._waiting = None
            self._link.send(protocol.StartFailed(message.attempt, "asked to end before it was started"))
        elif self._attempt is not None and self._attempt.start.attempt == message.attempt:
            self._attempt.terminate()
        else:
            self._exits.resend(message.attempt, self._link.send)

    def _on_weight(self, message: protocol.Weight) -> None:
        fd = self._link.take_descriptor()
        if fd >= 0:
            self._weight.given(fd, message.first, message.usual)

    def _on_suspend(self, message: protocol.Suspend) -> None:
        if self._attempt is not None and self._attempt.start.attempt == message.attempt:
            self._attempt.suspend(self._marker)

    def _on_peers(self, message: protocol.Peers, now: int) -> None:
        if self._attempt is not None and self._attempt.start.attempt == message.attempt:
            self._peers_failed(self._attempt, self._attempt.peers.tell(message.cluster, now))

    def _shut_down(self, now: int, reason: str = "killed", detail: str = "") -> None:
        self._leaving = True
        if self._attempt is not None:
            self._attempt.kill(reason, now, detail)

    def _told_to_end(self, numbers: bytes) -> str:
        name = signal.Signals(signal.SIGTERM if signal.SIGTERM in numbers else signal.SIGINT).name
        who = "; docker does so when it ends or starts without live-restore" if self._config.inherits else ""
        return f"its launcher was told to end by {name}{who}"


def main(config_path: str) -> None:
    """Run a launcher (`python .../agent/inside CONFIG`); in a forked child, the program, and end with it."""
    with open(config_path, "rb") as file:
        config = protocol.from_plain(protocol.LauncherConfig, json.load(file))
    config, marker = surroundings.take(config)
    failpoints.arm(os.environ)
    launcher = Launcher(config, marker)
    starts = None
    try:
        launcher.run()
    except spawn.ProgramStarts as start:
        starts = start.order, start.wrapper
    if starts is not None:
        # Not inside `except`: the program's exceptions would be chained to ours. `launcher` and `server` stay
        # referenced, for their sockets would otherwise close descriptors that by then are the program's.
        order, wrapped = starts
        chosen, server = order.warm_program, None
        if chosen is not None:
            program.run(chosen, order.attempt_dir, partial(mask.masked, values=order.secrets))
        else:
            # Of a script's programs nobody knows which has ended it.
            server = zygote.Zygote(order, wrapped)
            program.run(server.run())
    os._exit(0)
