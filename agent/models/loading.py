"""Loading a model in a child process, as the job's user, off the training's way."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from agent.boundaries import ENVIRONMENT, Environments, NoEnvironments
from agent.core.instructions import Recipe
from agent.host.ownership import credentials
from agent.host.task_users import User
from agent.inside.processes import fence
from agent.models.publisher import MAX_WHY, NotTried
from agent.runtimes.process import INSIDE, find_interpreters, job_environment
from supervisor.adapters.failpoints import effect
from supervisor.contract.errors import BadCheckpoint, TfSupervisorError, UserError
from supervisor.contract.job.serving import Exports
from supervisor.contract.job.spec import ModelCheck

LOAD_S = 300.0
MOST_OUTPUT = 64 << 10
MOST_READ = 16 << 20
PRELOADED = ("tensorflow",)
NICELY = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
}
"""No GPU, one thread, and no chatter."""
Start = Callable[[str], Awaitable[asyncio.subprocess.Process]]


class ModelLoader:
    """Loads models with the Python of their jobs. `user`: the user of a job's tasks; None: the agent's."""

    def __init__(
        self,
        user: Callable[[str], User | None],
        load_s: float = LOAD_S,
        environments: Environments | None = None,
    ) -> None:
        self._user = user
        self._environments = environments or NoEnvironments()
        self._load_s = load_s

    async def load(self, job_uuid: str, exports: Exports, directory: Path) -> str:
        """Why the model cannot be loaded; empty if it can. Raises NotTried, BadCheckpoint (no Python).

        The child's working directory is the model: it needs no right to the directories above it.
        """
        user = await asyncio.to_thread(self._user, job_uuid)
        given = exports.env
        if exports.environment is not None:
            try:
                made = await self._environments.ensure(exports.environment, exports.workdir)
            except TfSupervisorError as error:
                raise NotTried(f"the environment of its job is not here: {error}") from error
            given = {**given, ENVIRONMENT: made}
        recipe = Recipe(
            "",
            job_uuid,
            exports.workdir,
            exports.program,
            PRELOADED,
            given,
            environment=exports.environment,
        )
        env = job_environment(recipe, user[0] if user is not None else None)
        what = "call" if exports.serving.check is ModelCheck.CALL else "load"
        marker = f"model-check#{secrets.token_hex(16)}"
        child_env = {**env, **NICELY, fence.MARKER_VARIABLE: marker}
        with _Output() as output:
            start = partial(_start, what, directory, child_env, user, output.pipe)
            try:
                process = await _first(find_interpreters(recipe, env), start)
            except UserError as error:
                raise BadCheckpoint(f"it cannot be loaded: {error}") from error
            except OSError as error:
                raise NotTried(f"it cannot be loaded on this node: {error}") from error
            try:
                async with asyncio.timeout(self._load_s):
                    code = await process.wait()
            except TimeoutError:
                return f"that takes longer than {self._load_s:g} s"
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError), effect("models.kill"):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
                # Also what has left its session: nothing of a job runs beside its tasks.
                owner = user[0] if user is not None else None
                await asyncio.to_thread(partial(fence.fence, marker, user=owner))
            said = output.read()
        if code == -signal.SIGKILL:
            # Not for its own sake: memory was short, or its job's processes were ended beside it.
            raise NotTried("loading it was killed by signal 9 again and again")
        return _why(code, said)


class _Output:
    """The end of what a child prints. Other processes may hold the pipe, and print without end.

    So it is no pipe of asyncio's process, which has not ended before its pipes have. Beyond `MOST_READ` it is
    read no more, and the child waits for its end.
    """

    def __init__(self) -> None:
        self._fd, self.pipe = os.pipe()
        os.set_blocking(self._fd, False)
        self._kept, self._left = b"", MOST_READ

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._fd, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        os.close(self.pipe)

    def read(self) -> bytes:
        """The end of it, once the child is dead."""
        while self._take():
            pass
        return self._kept

    def _take(self) -> bool:
        if self._left <= 0:
            return False
        try:
            more = os.read(self._fd, MOST_OUTPUT)
        except BlockingIOError:
            return False
        self._kept = (self._kept + more)[-MOST_OUTPUT:]
        self._left -= len(more)
        if self._left <= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
        return True


async def _first(pythons: Iterable[str], start: Start) -> asyncio.subprocess.Process:
    """Start the first Python that is for the job's user, or the last one. Raises OSError."""
    *wrapped, last = pythons
    for python in wrapped:
        with suppress(PermissionError):
            return await start(python)
    return await start(last)


async def _start(
    what: str, directory: Path, env: dict[str, str], user: User | None, pipe: int, python: str
) -> asyncio.subprocess.Process:
    with effect("models.load"):
        return await asyncio.create_subprocess_exec(
            *(python, str(INSIDE / "model_check.py"), what, str(os.getpid())),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            cwd=directory,
            env=env,
            start_new_session=True,
            **credentials(user),
        )


def _why(code: int, output: bytes) -> str:
    if code == 0:
        return ""
    lines = output.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
    text = "".join(each if each.isprintable() else " " for each in lines[-1])[:MAX_WHY]
    return text if code > 0 else f"signal {-code}; {text}"
