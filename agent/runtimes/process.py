"""Launchers as plain processes of this machine: the embedded default, no root and no docker needed."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from agent.boundaries import ENVIRONMENT, Process
from agent.core.events import LauncherGone
from agent.core.instructions import Recipe
from agent.host.ownership import TaskDirectories, credentials, give
from agent.host.task_users import user_named
from agent.inside import protocol
from agent.inside.child import program, warm
from agent.inside.launcher.remains import OF_IPC
from agent.inside.processes import fence
from agent.runtimes.launcher_log import LOG, how_it_ended
from agent.runtimes.local import LocalLaunchers, write_config
from agent.runtimes.marks import Marks, owner
from agent.runtimes.strays import Strays
from supervisor.adapters import failpoints
from supervisor.adapters.failpoints import effect
from supervisor.contract.errors import Refused, UserError
from supervisor.contract.job.bounds import workdir_objection
from supervisor.contract.job.spec import ContainerSpec
from supervisor.contract.timing import Timing

INSIDE = Path(__file__).resolve().parents[1] / "inside"
# All that a job inherits from the agent: where programs and files are, and the language of messages.
OF_A_USER = ("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR")
_VERSION = re.compile(r"python3\.(\d+)")
_LEAST_MINOR = 8
_NO_CHILD = "how it ended is not known, as an earlier process of this agent had started it"
INHERITED = (*OF_A_USER, "PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV")


class ProcessRuntime(LocalLaunchers):
    """`Runtime` by fork and exec. Each launcher has `DIRECTORY/ID/` for its configuration, log and exits.

    `marks`: those of this agent; without them processes of an earlier agent are not found. `tasks`: the
    directories of launchers and tasks of another user than the agent. `strays`: ends processes that leave
    their launcher; without it they are not ended.
    """

    def __init__(
        self,
        directory: Path,
        socket: Path,
        timing: Timing,
        task_nice: int = 0,
        marks: Marks | None = None,
        tasks: TaskDirectories | None = None,
        strays: Strays | None = None,
    ) -> None:
        super().__init__(
            directory, marks or Marks(owner("", directory)), tasks.users if tasks is not None else None
        )
        self._tasks = tasks
        self._strays = strays
        self._socket = socket
        self._timing = timing
        self._task_nice = task_nice
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    async def bring_in(self, container: ContainerSpec, plan_id: str) -> None:
        """Do nothing: these launchers are no containers."""

    async def spawn(self, launcher_id: str, recipe: Recipe) -> Process:
        """Start a launcher under the job's interpreter. Raises UserError, Refused, NoRoom (no user)."""
        try:
            return await asyncio.to_thread(self._spawn, launcher_id, recipe)
        except ValueError as error:
            # The leader takes what clients send; only what the kernel takes can be started.
            raise UserError(f"the job's command, workdir or environment is no text: {error}") from error

    async def vouch(self, launcher_id: str, who: Process) -> bool:
        """Whether this process was started for that launcher: no other process of its user can have the
        mark.
        """
        if self._user_of(launcher_id) != fence.user_of(who.pid):
            return False
        return await asyncio.to_thread(self._marks.launcher_of, who.pid) == launcher_id

    async def fence(self, launcher_id: str, processes: tuple[Process, ...]) -> int:
        """Kill all processes with the launcher's marker, and all descendants of `processes`."""
        survivors = await self._kill_all(launcher_id, processes)
        for child in [self._children.get(each.pid) for each in processes]:
            if child is not None:
                child.poll()  # no zombie is left; `watch` tells of the end
        user = self._user_of(launcher_id)
        if not survivors and user is not None and self._strays is not None:
            survivors = await self._strays.end(user, self._home(launcher_id), set(self._children))
        if not survivors:
            with effect("runtime.remove_home"):
                await asyncio.to_thread(self._remove_home, launcher_id)
        return survivors

    async def close(self) -> None:
        """Stop watching; launchers live on."""
        await super().close()
        if self._strays is not None:
            self._strays.close()

    def _waits_for(self, launcher_id: str) -> int | None:
        return self._user_of(launcher_id)

    def _gone(self, launcher_id: str, process: Process) -> LauncherGone:
        """The end of a child, which is reaped."""
        child = self._children.get(process.pid)
        if child is None:
            return LauncherGone(launcher_id, _NO_CHILD)
        code = child.poll()
        if code is None:
            return LauncherGone(launcher_id)
        del self._children[process.pid]
        return LauncherGone(launcher_id, how_it_ended(code), code)

    def _spawn(self, launcher_id: str, recipe: Recipe) -> Process:
        tasks = self._tasks
        user = tasks.users.of(recipe.job_uuid) if tasks is not None else None
        env = job_environment(recipe, user[0] if user is not None else None)
        _check_workdir(recipe.workdir)
        *wrapped, interpreter = find_interpreters(recipe, env)
        home = self._home(launcher_id)
        config = protocol.LauncherConfig(
            protocol=protocol.PROTOCOL,
            launcher_id=launcher_id,
            job=recipe.job,
            socket=str(self._socket),
            state_dir=str(home),
            preload=recipe.preload,
            preload_ms=recipe.import_ms or 0,
            env=env,
            pull_ms=self._timing.pull_ms,
            linger_ms=self._timing.launcher_linger_ms,
            task_nice=self._task_nice,
            clears=OF_IPC if tasks is not None and user is not None and _is_jobs_own(tasks, user[0]) else (),
        )
        environ = {
            **warm.launcher_environment(env),
            fence.MARKER_VARIABLE: self._marks.of(launcher_id),
        }
        if failpoints.VARIABLE in os.environ:
            environ[failpoints.VARIABLE] = os.environ[failpoints.VARIABLE]
        try:
            with effect("runtime.configure"):
                home.mkdir(parents=True, exist_ok=True, mode=0o700)
                path = write_config(home, config)
            with (home / LOG).open("ab") as log, effect("runtime.spawn"):
                if tasks is not None and user is not None:
                    tasks.make(recipe.job_uuid, user)
                    give(path, user)
                    give(home, user)

                def execute(python: str) -> subprocess.Popen[bytes]:
                    return subprocess.Popen(
                        [python, str(INSIDE), str(path)],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd=recipe.workdir,
                        env=environ,
                        start_new_session=True,
                        **credentials(user),
                    )

                child = None
                for python in wrapped:
                    with suppress(PermissionError):  # a Python that is not for the tasks' user
                        child = execute(python)
                        break
                child = child or execute(interpreter)
        except OSError as error:
            if user is not None and isinstance(error, PermissionError) and error.filename == interpreter:
                raise UserError(
                    f"command: {interpreter} cannot be executed by this node's tasks, which run as user "
                    f"{user[0]}: let others pass the directories above it, or name another Python"
                ) from error
            if isinstance(error, FileNotFoundError) and error.filename == interpreter:
                raise UserError(
                    f"command: {interpreter} cannot be executed on this node: the interpreter that its first "
                    "line names, or the loader that it needs, is not there"
                ) from error
            raise Refused(f"cannot start a launcher: {error}") from error
        self._children[child.pid] = child
        found = fence.read_process(child.pid)
        return Process(child.pid, found.start_ticks if found else 0)


def _is_jobs_own(tasks: TaskDirectories, uid: int) -> bool:
    """Whether nobody but this job's tasks has the uid, on the whole machine."""
    return tasks.users.is_of_one_job(uid) and not user_named(uid)


def _check_workdir(workdir: str) -> None:
    """Raise UserError for a directory in which nothing can be started."""
    if wrong := workdir_objection(os.path.realpath(workdir)):
        raise UserError(f"workdir {workdir!r}: {wrong}")
    try:
        found = Path(workdir).is_dir()
    except OSError as error:
        raise UserError(f"workdir {workdir!r} cannot be reached on this node: {error.strerror}") from error
    if not found:
        raise UserError(f"workdir {workdir!r} is not a directory on this node")


def job_environment(recipe: Recipe, uid: int | None = None) -> dict[str, str]:
    """The job's whole environment: a few harmless variables of ours, and its own.

    `uid`: the user of the tasks, if that is not the agent's; it has a home and a name of its own.
    """
    ours = {name: os.environ[name] for name in INHERITED if name in os.environ}
    if uid is not None:
        ours = {name: value for name, value in ours.items() if name not in OF_A_USER} | identity(uid)
    env = {**ours, **recipe.env}
    if recipe.environment is not None:
        # Its Python and its programs are found first, by whatever the job runs.
        env["PATH"] = f"{recipe.env[ENVIRONMENT]}/bin{os.pathsep}{env.get('PATH', os.defpath)}"
    return env


def identity(uid: int) -> dict[str, str]:
    """The variables for a user's home and name. A uid without an entry gets plain ones."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return {"HOME": "/", "USER": str(uid), "LOGNAME": str(uid)}
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}


def find_interpreters(recipe: Recipe, env: dict[str, str]) -> tuple[str, ...]:
    """The Python that the job's command names. Raises UserError when it does not exist.

    For other commands our own, the last one; first those that a wrapper finds, if modules are preloaded for
    its program.
    """
    if program.is_python((recipe.program,)):
        return (_named_interpreter(recipe, env),)
    return (*_wrapped_interpreters(env), sys.executable) if recipe.preload else (sys.executable,)


def _wrapped_interpreters(env: dict[str, str]) -> list[str]:
    """Those of our names in PATH that are known to be new enough for a launcher."""
    found = (shutil.which(name, path=env.get("PATH", os.defpath)) for name in ("python", "python3"))
    versions = {path: _VERSION.fullmatch(Path(path).resolve().name) for path in found if path}
    return [path for path, version in versions.items() if version and int(version[1]) >= _LEAST_MINOR]


def _named_interpreter(recipe: Recipe, env: dict[str, str]) -> str:
    if "/" in recipe.program:
        found = os.path.normpath(Path(recipe.workdir) / recipe.program)
        if not os.access(found, os.X_OK):
            raise UserError(f"command: {found} does not exist on this node, or cannot be executed")
        return found
    on_path = shutil.which(recipe.program, path=env.get("PATH", os.defpath))
    if on_path is None:
        raise UserError(
            f"command: no {recipe.program!r} in the PATH of this node's agent or the job's `env:`"
        )
    if recipe.environment is not None and Path(on_path).parent != Path(env[ENVIRONMENT], "bin"):
        raise UserError(f"command: the job's environment has no {recipe.program!r}; write python")
    return on_path
