"""Actions of operators on an attempt of this node: signals, and commands beside it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from agent.core.state import AgentState, Attempt
from agent.host.host_pids import pids_of
from agent.host.ownership import credentials
from agent.host.regular_files import read_start
from agent.inside.launcher import environ
from agent.inside.launcher.mask import Masker
from agent.inside.processes import fence
from agent.logs.task_logs import AttemptFiles
from agent.secret_masks import TaskSecrets
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Clock, Logger
from supervisor.contract.errors import NotFound, Refused, UserError
from supervisor.contract.ids import TaskId
from supervisor.contract.views.jobs import Accepted, ExecChunk, ExecRequest, SignalRequest

INSIDE = Path(__file__).resolve().parent / "inside"
ROOT = Path(__file__).resolve().parents[1]
CHUNK_BYTES = 64 * 1024
SIGN_OF_LIFE_S = 1.0
KILL_S = 5.0
LOOK_S = 0.01
SWEEP_S = 0.005
LONGEST_EXEC_MS = 24 * 3_600_000
MOST_COMMANDS = 16
LONGEST_WORD_BYTES = 128 * 1024
COMMAND_VARIABLE = "TFSUP_COMMAND"
"""The variable with a command's name on this node, in its environment and so in that of its children."""

ATTEMPT_GONE = 125
MOST_ENVIRON_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The directory and environment of a command beside an attempt."""

    cwd: str
    env: dict[str, str]


class Operator:
    """Acts on the attempts of `state()`. `launchers` holds a directory for each launcher, by its id.

    `inside`: for containers, the command that runs a command in a launcher's container
    (`agent.runtimes.docker_exec`). `foreign`: launchers are plain processes of other users. `task_secrets`
    are masked in the output of commands, and are not in their environment.
    """

    def __init__(
        self,
        launchers: Path,
        files: AttemptFiles,
        state: Callable[[], AgentState],
        clock: Clock,
        sink: Logger,
        inside: Callable[[str], tuple[str, ...]] | None = None,
        *,
        foreign: bool = False,
        task_secrets: TaskSecrets | None = None,
    ) -> None:
        self._launchers = launchers
        self._files = files
        self._state = state
        self._clock = clock
        self._sink = sink
        self._inside = inside
        self._foreign = foreign
        self._task_secrets = task_secrets or TaskSecrets()
        self._commands = 0

    def signal(self, request: SignalRequest) -> Accepted:
        """Send a signal to the main process. If the attempt ends soon, its report names the signal.

        Raises NotFound (no attempt runs), UserError (no such signal), Refused (no right to signal it).
        """
        if request.number not in signal.valid_signals():
            raise UserError(f"there is no signal {request.number}")
        attempt = self._running(request.task)
        self._files.note_signal(attempt.job_uuid, attempt.id, request.number, self._clock.now_ms())
        try:
            pidfd = os.pidfd_open(attempt.pid)
        except ProcessLookupError as error:
            raise NotFound(f"{request.task} has just ended") from error
        try:
            found = fence.read_process(attempt.pid)
            if found is None or found.start_ticks != attempt.start_ticks:
                raise NotFound(f"{request.task} has just ended")
            with effect("operate.signal"):
                signal.pidfd_send_signal(pidfd, request.number)
        except ProcessLookupError as error:
            raise NotFound(f"{request.task} has just ended") from error
        except PermissionError as error:
            raise Refused(f"this agent may not signal {request.task}: it runs as another user") from error
        finally:
            os.close(pidfd)
        self._sink.info(
            "an operator sent a signal", attempt=str(attempt.id), signal=request.number, by=request.by[:100]
        )
        return Accepted(attempt.id.task.job, f"sent to {attempt.id}, pid {attempt.pid}")

    async def run(self, request: ExecRequest) -> AsyncGenerator[ExecChunk, None]:
        """Run a command. It is dead when this generator has ended, in whatever way.

        Raises NotFound (no attempt runs, or its directory and environment are unknown), Refused (too many
        commands run on this node), UserError.
        """
        if not request.argv or not all(request.argv) or not 0 < request.timeout_ms <= LONGEST_EXEC_MS:
            raise UserError("exec needs a command, and a timeout of at most a day")
        _check_words(request.argv)
        attempt = self._running(request.task)
        self._check_secrets(attempt)
        if self._commands >= MOST_COMMANDS:
            raise Refused(f"{MOST_COMMANDS} commands run on this node already; wait until one has ended")
        self._commands += 1
        try:
            async with aclosing(self._run(request, attempt)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._commands -= 1

    async def _run(self, request: ExecRequest, attempt: Attempt) -> AsyncGenerator[ExecChunk, None]:
        around = await asyncio.to_thread(self._surroundings, attempt)
        name = str(attempt.id)
        mark = secrets.token_hex(8)
        # The arguments may hold what nobody else should read.
        self._sink.info(
            "an operator runs a command", attempt=name, program=request.argv[0], by=request.by[:100]
        )
        marked = {**around.env, COMMAND_VARIABLE: mark}
        ticks = str(attempt.start_ticks)
        if self._inside is None:
            how = [sys.executable, "-I", "-S", str(INSIDE), "--beside", str(attempt.pid), ticks]
            cwd, env = around.cwd, marked
        else:
            # The client runs here, as this agent: nothing of the task's may be in its environment.
            pid = (pids_of(attempt.pid) or (0,))[-1]
            how = [*self._inside(attempt.launcher_id), str(pid), ticks]
            cwd, env = str(ROOT), {**os.environ, COMMAND_VARIABLE: mark}
        try:
            with effect("operate.run"):
                process = await asyncio.create_subprocess_exec(
                    *how,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    cwd=cwd,
                    env=env,
                    start_new_session=True,
                    **credentials(self._user_of(attempt)),
                )
        except (OSError, ValueError) as error:
            # Too long, or no text for the kernel; or no process or descriptor is left on this node.
            raise UserError(f"cannot run the command: {error}") from error
        assert process.stdin is not None
        if self._inside is not None:
            process.stdin.write(json.dumps({"cwd": around.cwd, "env": marked}).encode() + b"\n")
        # Not as arguments: those of a process can be read by everybody on this machine.
        process.stdin.write(json.dumps(request.argv).encode() + b"\n")
        maskers = {stream: self._task_secrets.masker(name) for stream in ("out", "err")}
        command = _Command(process, name, mark, maskers)
        try:
            async for chunk in command.chunks(request.timeout_ms / 1000):
                yield chunk
        finally:
            await command.kill()
            self._sink.info("an operator's command is over", attempt=name, code=process.returncode)

    def _user_of(self, attempt: Attempt) -> tuple[int, int] | None:
        """The owner of an attempt's launcher's directory; raises OSError when that is gone."""
        if not self._foreign:
            return None
        found = (self._launchers / attempt.launcher_id).lstat()
        return found.st_uid, found.st_gid

    def _running(self, text: str) -> Attempt:
        task = TaskId.parse(text)
        for attempt in self._state().attempts.values():
            if attempt.id.task == task and attempt.pid and attempt.end is None:
                return attempt
        raise NotFound(f"{task} does not run on this node at the moment")

    def _check_secrets(self, attempt: Attempt) -> None:
        """Raise NotFound while the secrets to mask are unknown: a launcher sends them in its Hello."""
        view = self._state().view
        if view is None:
            raise NotFound(f"it is not known yet what a command beside {attempt.id} may show; try again")
        has_some = any(each.attempt_id == attempt.id and each.secrets for each in view.assignments)
        if has_some and not self._task_secrets.of(str(attempt.id)):
            raise NotFound(f"the launcher of {attempt.id} has not come to this agent yet; try again")

    def _surroundings(self, attempt: Attempt) -> _Surroundings:
        """The attempt's directory and environment, from the launcher's file; raises NotFound."""
        path = self._launchers / attempt.launcher_id / environ.FILE
        try:
            body = json.loads(read_start(path, MOST_ENVIRON_BYTES))
            name, around = body["attempt"], _Surroundings(str(body["cwd"]), dict(body["env"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            # In a container it is the task's own file: what is in it is its user's affair.
            raise NotFound(f"the environment of {attempt.id} is not known on this node") from error
        if name != str(attempt.id):
            raise NotFound(f"the environment of {attempt.id} is not known yet; try again")
        if self._inside is None and not Path(around.cwd).is_dir():
            raise NotFound(f"the working directory of {attempt.id} is gone: {around.cwd}")
        return around


def _check_words(argv: Sequence[str]) -> None:
    """Raise UserError for words that the kernel does not accept."""
    for word in argv:
        try:
            raw = os.fsencode(word)
        except ValueError as error:
            raise UserError(f"cannot run the command: {error}") from error
        if b"\0" in raw or len(raw) >= LONGEST_WORD_BYTES:
            most = LONGEST_WORD_BYTES // 1024
            raise UserError(f"cannot run the command: one of its words has a NUL, or {most} KiB or more")


class _Command:
    """A command under its guard (`agent.inside.beside`), which ends when its standard input does."""

    def __init__(
        self, process: asyncio.subprocess.Process, attempt: str, mark: str, maskers: Mapping[str, Masker]
    ) -> None:
        self._maskers = maskers
        self._process = process
        self._attempt = attempt
        self._mark = mark
        self._pieces: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(16)
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            asyncio.create_task(self._read("out", process.stdout)),
            asyncio.create_task(self._read("err", process.stderr)),
        ]

    async def chunks(self, timeout_s: float) -> AsyncGenerator[ExecChunk, None]:
        """Its output, signs of life, and its end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        yield ExecChunk(attempt=self._attempt)
        open_streams = len(self._readers)
        while open_streams:
            left_s = deadline - loop.time()
            if left_s <= 0:
                async for sign in self._killed():
                    yield sign
                yield ExecChunk(code=128 + signal.SIGKILL, attempt=self._attempt, timed_out=True)
                return
            try:
                async with asyncio.timeout(min(left_s, SIGN_OF_LIFE_S)):
                    stream, data = await self._pieces.get()
            except TimeoutError:
                if self._orphaned:
                    await self._sweep()  # they hold its streams open
                yield ExecChunk(attempt=self._attempt)
                continue
            masker = self._maskers[stream]
            # Values that a launcher tells may be many: not on the loop.
            shown = await asyncio.to_thread(masker.feed, data) if data else masker.end()
            if shown:
                yield ExecChunk(stream, base64.b64encode(shown).decode(), attempt=self._attempt)
            if not data:
                open_streams -= 1
        code = await self._process.wait()
        yield ExecChunk(code=128 - code if code < 0 else code, attempt=self._attempt)

    async def _killed(self) -> AsyncGenerator[ExecChunk, None]:
        """Signs of life until the command is killed: a stopped guard takes longer than callers wait in
        silence.
        """
        killing = asyncio.create_task(self.kill())
        try:
            while not (await asyncio.wait({killing}, timeout=SIGN_OF_LIFE_S))[0]:
                yield ExecChunk(attempt=self._attempt)
        finally:
            await killing

    async def kill(self) -> None:
        """Kill it; returns when it is dead with all its children, or cannot be killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        for reader in self._readers:
            reader.cancel()
        try:
            async with asyncio.timeout(KILL_S):
                await self._ended()
        except TimeoutError:
            with effect("operate.kill"):
                self._process.kill()
            await self._ended()
        if self._orphaned:
            await self._sweep()

    async def _ended(self) -> None:
        """Wait for its end. `Process.wait` would also wait for its pipes, which its living children hold
        open.
        """
        while True:
            if self._process.returncode is not None:
                return
            await asyncio.sleep(LOOK_S)

    @property
    def _orphaned(self) -> bool:
        """Whether the guard itself was killed, by us or by the OOM killer, and has left its descendants
        alive.
        """
        return self._process.returncode is not None and self._process.returncode < 0

    async def _sweep(self) -> None:
        await asyncio.to_thread(_sweep, self._mark)

    async def _read(self, name: str, stream: asyncio.StreamReader) -> None:
        while True:
            data = await stream.read(CHUNK_BYTES)
            await self._pieces.put((name, data))
            if not data:
                return


def _sweep(mark: str) -> None:
    """Kill all processes with this mark until none is left, or none dies any more."""
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        found = [pid for pid in fence.pids() if fence.shows(pid, COMMAND_VARIABLE, mark)]
        if not found:
            return
        for process in filter(None, map(fence.read_process, found)):
            with effect("operate.sweep"):
                fence.kill(process)
        time.sleep(SWEEP_S)
