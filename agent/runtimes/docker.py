"""Launchers as the first processes of containers, the runtime for production (docs/docker.md).

dockerd only makes and removes containers, and finds images. The state of a launcher, the death of all its
processes and the end of an attempt are known without it, from the kernel and from the launcher's files.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet

from agent.boundaries import Post, Process
from agent.core.events import Event, LauncherGone
from agent.core.instructions import Reach, Recipe
from agent.host.host_pids import peer, pids_of
from agent.host.ownership import TaskDirectories, give
from agent.inside import protocol
from agent.runtimes.docker_container import (
    check,
    check_joined,
    cleared,
    container,
    environment,
    interpreter,
)
from agent.runtimes.docker_engine import Container, Engine, Image
from agent.runtimes.docker_images import Images
from agent.runtimes.docker_node import LAUNCHER, DockerNode, container_name, spec_of
from agent.runtimes.launcher_log import LOG, how_it_ended, words
from agent.runtimes.local import SOCKET, LocalLaunchers, write_config
from agent.runtimes.weights import Weights
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import NotFound, Refused, TfSupervisorError, UserError
from supervisor.contract.job.spec import ContainerSpec
from supervisor.contract.timing import Timing

FIRST_PID = 1
ONE_MACHINE = "bridge"
"""The driver of networks whose addresses are valid on one machine only."""
SETTLE_S = protocol.LauncherConfig.settle_ms / 1000
_IS_REMOVED = "removing"
"""The state of a container that docker has killed in order to remove it."""
_NO_PROGRAM = ("executable file not found", "no such file or directory", "permission denied")
SOON_S = 0.25
"""How long a launcher that may have an attempt is not told of, for docker to say how it ended."""
_REMOVED = "its container was removed by somebody else, as `docker rm -f` does"
_UNKNOWN = "docker does not say how it ended; it ends containers when it is restarted without live-restore"
_BY_SIGNAL = 128
"""docker adds it to the signal that ended a container's first process."""
_NO_DRIVER = "could not select device driver"


class DockerRuntime(LocalLaunchers):
    """`Runtime` over dockerd."""

    def __init__(
        self, node: DockerNode, engine: Engine, timing: Timing, sink: Logger, task_nice: int = 0
    ) -> None:
        super().__init__(node.homes, node.marks, node.users)
        self._believes = _is_first
        self._node = node
        self._engine = engine
        self._timing = timing
        self._sink = sink
        self._task_nice = task_nice
        self._processes: dict[str, Process] = {}
        self._met: set[str] = set()
        self._reach: dict[str, Reach] = {}
        self._fenced: set[str] = set()
        self._weights = Weights()
        self._lends_nothing = False
        self._settling: dict[str, asyncio.TimerHandle] = {}
        self._images = Images(node, engine, sink)
        self._tasks: set[asyncio.Task[None]] = set()

    async def bring_in(self, container: ContainerSpec, plan_id: str) -> None:
        """Fetch the image by the job's pull policy. Raises Unreachable, UserError, Refused."""
        await self._segment(container)
        await self._images.bring_in(container, plan_id)

    async def spawn(self, launcher_id: str, recipe: Recipe) -> Process:
        """Make and start a container. Raises UserError, Refused, Unreachable, NoRoom (no user is free)."""
        check(recipe)
        segment = await self._segment(spec_of(recipe))
        image = await self._images.find(spec_of(recipe))
        env = environment(recipe, image)
        runtimes = await self._engine.runtimes() if recipe.gpus else frozenset[str]()
        try:
            await asyncio.to_thread(self._make_directories, launcher_id, recipe, env, image)
        except ValueError as error:
            raise UserError(f"the job's environment is no text: {error}") from error
        except OSError as error:
            raise Refused(f"cannot prepare a container: {error}") from error
        body = await asyncio.to_thread(container, launcher_id, recipe, self._node, image, env, runtimes)
        ident = await self._engine.create(container_name(self._node.node, launcher_id), body)
        try:
            return await self._start(ident, launcher_id, recipe, segment)
        except TfSupervisorError:
            self._begin(self._remove(launcher_id))
            raise

    def reach(self, launcher_id: str) -> Reach | None:
        """The address that docker reported at the start."""
        return self._reach.get(launcher_id)

    def watch(self, launcher_id: str, process: Process, post: Post) -> None:
        """Post LauncherGone once the process has ended, and docker has said how.

        If an attempt may have run, it does not wait long for docker.
        """
        if launcher_id not in self._processes:
            self._met.add(launcher_id)  # by an earlier life of this agent
        self._processes[launcher_id] = process

        def gone(_: Event) -> None:
            if launcher_id in self._fenced:
                # Killed by this agent: dockerd has better things to do than to say so.
                self._fenced.discard(launcher_id)
                post(LauncherGone(launcher_id))
            else:
                self._begin(self._explain(launcher_id, post))

        super().watch(launcher_id, process, gone)

    def launching(self, launcher_id: str, *, yields: bool) -> None:
        """Give its container the full weight from now on, and less once the attempt trains."""
        process = self._processes.get(launcher_id)
        if process is None or not self.is_alive(process):
            return
        self._nearby.launching(process.pid)
        if self._task_nice:
            self._weights.weigh(process.pid, self._task_nice // 2 if yields else 0)
            settle = asyncio.get_running_loop().call_later(SETTLE_S, self._settle, launcher_id, process)
            if launcher_id in self._settling:
                self._settling[launcher_id].cancel()
            self._settling[launcher_id] = settle

    def lend(self, who: Process) -> tuple[int, protocol.Weight] | None:
        """The descriptor by which a launcher raises the weight of killed processes when this agent may be
        gone; the caller closes it.
        """
        lent = self._weights.lend(who.pid)
        if lent is None and not self._lends_nothing:
            self._lends_nothing = True
            self._sink.info(
                "this agent may not set the weights of containers: a task that is killed waits for a "
                "processor like those that train; run the agent as root"
            )
        return lent

    async def vouch(self, launcher_id: str, who: Process) -> bool:
        """Whether this process is that launcher: it must be the first process of its container."""
        known = self._processes.get(launcher_id)
        if known is None and pids_of(who.pid)[-1:] == (FIRST_PID,):
            # Only then: tasks can say hello as often as they like, and dockerd has better things to do.
            known = await self._find(launcher_id)
        if known == who:
            self._met.add(launcher_id)
        return known == who

    async def fence(self, launcher_id: str, processes: tuple[Process, ...]) -> int:
        """Kill all processes of the launcher; then its container is removed in the background.

        The end of the first process of a pid namespace ends all others in it before.
        """
        known = self._processes.get(launcher_id)
        if known is not None and self.is_alive(known):
            self._fenced.add(launcher_id)
            self._weights.hasten(known.pid)
        roots = {*processes, known} if known is not None else {*processes}
        survivors = await self._kill_all(launcher_id, tuple(roots))
        if not survivors:
            self._processes.pop(launcher_id, None)
            self._met.discard(launcher_id)
            self._reach.pop(launcher_id, None)
            with effect("runtime.remove_home"):
                await asyncio.to_thread(self._remove_home, launcher_id)
            self._begin(self._remove(launcher_id))
        return survivors

    async def tidy(self, known: Callable[[], AbstractSet[str]]) -> None:
        """Remove this agent's containers (by label) of unknown launchers, and their files."""
        try:
            found = await self._engine.list(self._node.labels)
            wanted = known()
            for each in found:
                if each.labels.get(LAUNCHER, "") not in wanted:
                    self._sink.info(
                        "removing a container that belongs to no task",
                        container=each.id[:12],
                        labels=str(each.labels),
                    )
                    await self._engine.remove(each.id)
        except TfSupervisorError as error:
            self._sink.debug("cannot look for leftover containers; trying again", reason=str(error))
        await super().tidy(known)

    async def close(self) -> None:
        """Stop watching; containers live on."""
        for settle in self._settling.values():
            settle.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._images.close()
        await super().close()
        self._engine.close()

    # Networks.

    async def _segment(self, spec: ContainerSpec) -> str:
        """The `Reach.segment` of a job's network.

        Raises UserError for a network that its tasks cannot join.
        """
        check_joined(spec, self._node)
        if not spec.networked:
            return ""
        try:
            network = await self._engine.network(spec.network)
        except NotFound:
            raise UserError(
                f"docker on node {self._node.node} has no network {spec.network}: make it there with "
                "`docker network create`"
            ).about("container", "network") from None
        return network.id if network.driver == ONE_MACHINE else ""

    # Containers.

    async def _start(self, ident: str, launcher_id: str, recipe: Recipe, segment: str) -> Process:
        try:
            await self._engine.start(ident)
        except (NotFound, Refused) as error:
            raise self._not_started(recipe, str(error)) from error
        found = await self._engine.inspect(ident)
        process = peer(found.pid) if found.pid else None
        if process is None:
            ended = _gone(launcher_id, await self._engine.ended(ident), await self._engine.output(ident))
            raise Refused(f"the launcher ended at once: {ended.reason}")
        if recipe.networked:
            name = spec_of(recipe).network
            address = found.addresses.get(name)
            if not address:
                raise Refused(f"docker has given the container no IPv4 address in network {name}")
            self._reach[launcher_id] = Reach(address, segment)
        self._processes[launcher_id] = process
        # It imports: half-way between what starts and what trains.
        self._weights.weigh(process.pid, self._task_nice // 2)
        return process

    def _not_started(self, recipe: Recipe, said: str) -> TfSupervisorError:
        program = interpreter(recipe, self._node)
        if _NO_DRIVER in said:
            return Refused(
                "docker on this node cannot give GPUs to containers: install nvidia-container-toolkit, "
                f"and restart docker ({said})"
            )
        if any(each in said for each in _NO_PROGRAM) and program in said:
            image = self._node.image_of(spec_of(recipe))
            return UserError(
                f"image {image} cannot run {program}, which tasks need (Python 3.8 or later): name it in "
                f"`container.python`, or take another image ({said})"
            ).about("container", "python")
        return Refused(f"docker cannot start the container: {said}")

    async def _find(self, launcher_id: str) -> Process | None:
        """The launcher's process, found by its container's label; None if no such container runs."""
        for each in await self._engine.list({**self._node.labels, LAUNCHER: launcher_id}):
            pid = (await self._engine.inspect(each.id)).pid
            return peer(pid) if pid else None
        return None

    async def _explain(self, launcher_id: str, post: Post) -> None:
        """Post the end of a launcher, which only docker knows.

        What it printed before its first Hello, when its own log was not open yet, only docker has, too.
        """
        met, end = launcher_id in self._met, LauncherGone(launcher_id, _UNKNOWN)
        removed = LauncherGone(launcher_id, _REMOVED, -signal.SIGKILL)
        try:
            async with asyncio.timeout(SOON_S if met else None):
                containers = await self._engine.list({**self._node.labels, LAUNCHER: launcher_id})
                end = end if containers else removed
                for each in containers:
                    found = await self._engine.ended(each.id)
                    end = _gone(launcher_id, found, b"" if met else await self._engine.output(each.id))
        except TimeoutError:
            pass
        except NotFound:
            end = removed
        except TfSupervisorError as error:
            end = LauncherGone(launcher_id, f"{_UNKNOWN} ({error})")
        post(end)

    async def _remove(self, launcher_id: str) -> None:
        """Remove a container. If that fails, `tidy` finds it later."""
        try:
            for each in await self._engine.list({**self._node.labels, LAUNCHER: launcher_id}):
                await self._engine.remove(each.id)
        except TfSupervisorError as error:
            self._sink.debug("a container cannot be removed yet", launcher=launcher_id, reason=str(error))

    def _settle(self, launcher_id: str, process: Process) -> None:
        self._settling.pop(launcher_id, None)
        if self.is_alive(process):
            self._weights.weigh(process.pid, self._task_nice)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Directories.

    def _make_directories(self, launcher_id: str, recipe: Recipe, env: dict[str, str], image: Image) -> None:
        """Make the directories, and give exactly those that the container's user writes to to that user.

        Raises OSError, ValueError.
        """
        node, home = self._node, self._home(launcher_id)
        user = node.users.of(recipe.job_uuid)
        config = protocol.LauncherConfig(
            protocol=protocol.PROTOCOL,
            launcher_id=launcher_id,
            job=recipe.job,
            socket=str(node.tasks / SOCKET),
            state_dir=str(home),
            preload=recipe.preload,
            preload_ms=recipe.import_ms or 0,
            env=env,
            pull_ms=self._timing.pull_ms,
            linger_ms=self._timing.launcher_linger_ms,
            task_nice=self._task_nice,
            inherits=True,
            log=str(home / LOG),
            clears=cleared(launcher_id, recipe, node, image),
        )
        with effect("runtime.configure"):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            give(write_config(home, config), user)
            give(home, user)
        directories = TaskDirectories(node.users, node.attempts, node.checkpoints, node.lock_dir)
        directories.make(recipe.job_uuid, user)


def _gone(launcher_id: str, found: Container, printed: bytes) -> LauncherGone:
    """The end of a launcher by docker's record of its container. With nothing `printed` its log says more."""
    by_signal = _BY_SIGNAL < found.code < _BY_SIGNAL + signal.NSIG
    code = _BY_SIGNAL - found.code if by_signal else found.code
    how = _REMOVED if found.status == _IS_REMOVED else how_it_ended(code)
    why = "; ".join(filter(None, (how, found.error)))
    return LauncherGone(launcher_id, why, code, words(printed) if printed.strip() else "")


def _is_first(pid: int) -> bool:
    """Whether a process is the first of its container.

    Tasks can choose any mark, but the first process has dockerd's environment.
    """
    levels = pids_of(pid)
    return len(levels) > 1 and levels[-1] == FIRST_PID
