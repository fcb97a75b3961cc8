"""One attempt in its launcher, from the fork to the proof that no process of it is left."""

from __future__ import annotations

import os
import signal

from .. import protocol
from ..child import warm
from ..clock import now_ms
from ..failpoints import effect
from ..processes import fence, priority
from . import pump
from .peers import Peers

REPORT_UNCONFIRMED_MS = 5_000
# A pass over /proc costs some milliseconds of a processor that the dying need. The main process is killed
# without one, its end wakes us, and what it leaves is looked for then.
_FIRST_PAUSE_MS = 20
_LONGEST_PAUSE_MS = 50


class Attempt:
    """The main process `pid` and all its descendants. The launcher's loop calls `step`.

    `kill_reason` is empty until the launcher kills it.
    """

    def __init__(
        self,
        start: protocol.Start,
        pid: int,
        port: int | None,
        output: pump.Pump,
        status_fd: int,
        weight: priority.Weight,
        peers: Peers,
        *,
        is_wrapped: bool = False,
    ) -> None:
        self.start = start
        self.pid = pid
        self.port = port
        self.output = output
        self.peers = peers
        process = fence.read_process(pid)
        # A zombie still has its row in /proc; only a process that was never there has none.
        self.start_ticks = process.start_ticks if process is not None else 0
        self.started_ms = now_ms()
        self.kill_reason = ""
        self._kill_detail = ""
        self.reported = False
        self.settled = False
        self.terminated = False
        self._status_fd = status_fd
        self._weight = weight
        self._is_wrapped = is_wrapped
        own = fence.read_process(os.getpid())
        self._launcher = (os.getpid(), own.start_ticks if own is not None else 0)
        self._wait_status: int | None = None
        self._ended_ms = 0
        self._ending_since_ms = 0
        self._next_sweep_ms = 0
        self._pause_ms = _FIRST_PAUSE_MS
        self._survivors = 0
        self._failure = ""
        os.set_blocking(status_fd, False)

    @property
    def ending(self) -> bool:
        """Whether the main process has ended, or is being killed."""
        return self._wait_status is not None or bool(self.kill_reason)

    @property
    def wake_ms(self) -> int | None:
        """The time of the next call of `step`; None if none is needed."""
        return self._next_sweep_ms if self.ending else None

    def leaders(self) -> tuple[int, ...]:
        """The processes of it that lead a session or a group of ours: the main process; with a wrapper, its
        children, too.
        """
        return (self.pid, *fence.children(self.pid)) if self._is_wrapped else (self.pid,)

    def running(self) -> protocol.RunningAttempt:
        """Its entry in the Hello."""
        return protocol.RunningAttempt(
            self.start.attempt,
            self.pid,
            self.start_ticks,
            self.port,
            self.start.incarnation,
            warm.tensorflow_version(),
            self.start.secrets,
            self.peers.fd >= 0,
        )

    def kill(self, reason: str, now: int, detail: str = "") -> None:
        """SIGKILL the main process at once; `step` kills the rest."""
        if self.ending:
            return
        self.kill_reason = reason
        self._kill_detail = detail
        self._ending_since_ms = now
        self._next_sweep_ms = now + _FIRST_PAUSE_MS
        self._weight.raise_()
        with effect("launcher.kill"):
            os.kill(self.pid, signal.SIGKILL)  # ours and not reaped, so the pid cannot be another's
        # A hundred threads have to run once more to end: they must not queue behind those that train.
        priority.hasten(self.pid)

    def terminate(self) -> None:
        """Send SIGTERM to the main process, once. Its end after that counts as its own."""
        if not self.ending and not self.terminated:
            self.terminated = True
            with effect("launcher.terminate"):
                os.kill(self.pid, signal.SIGTERM)  # not reaped, so the pid cannot be another's

    def suspend(self, marker: str) -> None:
        """SIGSTOP all its processes: they stay stopped until they are killed."""
        if not self.ending:
            with effect("launcher.suspend"):
                os.kill(self.pid, signal.SIGSTOP)  # not reaped, so the pid cannot be another's
            for process in fence.members(marker, (self._launcher,), spare=(self._launcher[0],)):
                fence.kill(process, signal.SIGSTOP)

    def reap(self, now: int) -> bool:
        """Reap dead children. True if none is left: a subreaper without children has no descendants."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            self._next_sweep_ms = now
            if pid == self.pid:
                if not self.kill_reason:
                    self._ending_since_ms = now
                self._wait_status, self._ended_ms = status, now

    def step(self, marker: str, now: int) -> bool:
        """Fence the rest of an ending attempt. True if it is confirmed dead."""
        if self.reap(now):
            self._survivors = 0
            return True
        if self.ending and now >= self._next_sweep_ms:
            self._weight.raise_()
            with effect("launcher.sweep"):
                self._survivors = len(fence.sweep(marker, (self._launcher,), spare=(self._launcher[0],)))
            self._next_sweep_ms = now + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
        return False

    def overdue(self, now: int) -> bool:
        """Whether the agent should be told now that the kill is not confirmed."""
        return self.ending and not self.reported and now - self._ending_since_ms >= REPORT_UNCONFIRMED_MS

    def exited(self, *, confirmed_dead: bool, now: int) -> protocol.Exited:
        """The exit message for the agent.

        Before the main process is reaped, its end is assumed to be by SIGKILL.
        """
        status = signal.SIGKILL if self._wait_status is None else self._wait_status
        by_signal = os.WIFSIGNALED(status)
        failure = self._read_failure()
        details = [each for each in (failure, self._kill_detail) if each]
        if self.output.dropped_bytes:
            details.append(f"{self.output.dropped_bytes} bytes of output lost ({self.output.error})")
        return protocol.Exited(
            attempt=self.start.attempt,
            code=None if by_signal else os.WEXITSTATUS(status),
            signal=os.WTERMSIG(status) if by_signal else None,
            at_ms=self._ended_ms or now,
            reason="start_failed" if failure else self.kill_reason or "exit",
            confirmed_dead=confirmed_dead,
            survivors=0 if confirmed_dead else max(1, self._survivors),
            detail="; ".join(details),
            port=self.port,
            total_bytes=self.output.total_bytes,
        )

    def close(self) -> None:
        """Close the descriptors."""
        self.output.close()
        self.peers.close()
        os.close(self._status_fd)
        self._weight.restore()

    def _read_failure(self) -> str:
        try:
            self._failure += os.read(self._status_fd, 4096).decode(errors="replace")
        except BlockingIOError:
            pass
        return self._failure
