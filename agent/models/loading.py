"""Loading a model in a child process, as the job's user, off the training's way."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agent.boundaries import ENVIRONMENT, Environments, NoEnvironments
from agent.core.instructions import Recipe
from agent.host.ownership import TASK_UMASK
from agent.host.task_users import User
from agent.models.publisher import MAX_WHY, NotTried
from agent.runtimes.process import INSIDE, find_interpreters, job_environment
from recovery.io.files import mapped_errors
from recovery.io.trees import space_below
from supervisor.adapters.children import bounded
from supervisor.adapters.children.bounded import Child, Ended
from supervisor.contract.errors import BadCheckpoint, TfSupervisorError, UserError
from supervisor.contract.job.serving import Exports
from supervisor.contract.job.spec import ModelCheck

LOAD_S = 300.0
MOST_OUTPUT = 64 << 10
OWN_MEMORY, MEMORY_PER_BYTE, MOST_FILES = 4 << 30, 4, 100_000
"""The memory of a trial: TensorFlow's own, and so many times the size of the model."""
PRELOADED = ("tensorflow",)
NICELY = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
}
"""No GPU, one thread, and no chatter."""


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
        with mapped_errors(f"measure {directory}"):
            size = await asyncio.to_thread(space_below, directory, MOST_FILES)
        memory = OWN_MEMORY + MEMORY_PER_BYTE * size
        what = "call" if exports.serving.check is ModelCheck.CALL else "load"
        trial = Child(
            command=(str(INSIDE / "model_check.py"), what),
            env={**env, **NICELY},
            cwd=str(directory),
            user=user,
            umask=TASK_UMASK,
            limit_s=self._load_s,
            memory=memory,
            kept=MOST_OUTPUT,
            nice=19,
            oom_score_adj=1000,
        )
        try:
            ended = await _first(find_interpreters(recipe, env), trial)
        except UserError as error:
            raise BadCheckpoint(f"it cannot be loaded: {error}") from error
        except OSError as error:
            raise NotTried(f"it cannot be loaded on this node: {error}") from error
        if ended.late:
            return f"that takes longer than {self._load_s:g} s"
        if ended.over_memory:
            return f"that takes more than {memory / (1 << 30):.1f} GiB of memory"
        if ended.code == -signal.SIGKILL:
            # Not for its own sake: memory was short, or its job's processes were ended beside it.
            raise NotTried("loading it was killed by signal 9 again and again")
        return _why(ended.code, ended.output)


async def _first(pythons: Iterable[str], trial: Child) -> Ended:
    """Run the first Python that is for the job's user, or the last one. Raises OSError."""
    *wrapped, last = pythons
    for python in wrapped:
        with suppress(PermissionError):
            return await _run(python, trial)
    return await _run(last, trial)


async def _run(python: str, trial: Child) -> Ended:
    return await bounded.run(replace(trial, command=(python, *trial.command)))


def _why(code: int, output: bytes) -> str:
    if code == 0:
        return ""
    lines = output.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
    text = "".join(each if each.isprintable() else " " for each in lines[-1])[:MAX_WHY]
    return text if code > 0 else f"signal {-code}; {text}"
