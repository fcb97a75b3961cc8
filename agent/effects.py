"""The execution of the core's instructions. A long one runs as a task whose result is an event."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import NoReturn

from agent.attempt_reports import AGAIN_S, AttemptReports
from agent.boundaries import ENVIRONMENT, Outside, Post, Process
from agent.core import set_aside
from agent.core.compose import start_message
from agent.core.events import (
    BroughtIn,
    Drained,
    Fenced,
    FirewallSet,
    GpusTold,
    LauncherSaid,
    OutputsReady,
    SecretsFetched,
    Spawned,
    SpawnFailed,
    SpecRead,
    StageDone,
    Unstaged,
    Written,
)
from agent.core.instructions import (
    AskPromises,
    BringIn,
    Clean,
    Cleared,
    Commit,
    Drain,
    Dump,
    Fence,
    FetchSecrets,
    Follow,
    FollowCommits,
    Instruction,
    KeepCode,
    KeepData,
    Launch,
    LookAtGpus,
    Note,
    PrepareOutputs,
    ReadSpec,
    Report,
    Say,
    SetFirewall,
    Spawn,
    Stage,
    StopCommit,
    StopFollowing,
    TellGpus,
    Unfollow,
    Write,
)
from agent.core.state import AgentState
from agent.inside import protocol
from agent.membership import Membership
from agent.settings import AgentSettings
from recovery.mount.layout import MOUNTED, SIGN
from supervisor.adapters.failpoints import effect
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Get, Put, as_read
from supervisor.contract.containment import contained, told
from supervisor.contract.desired import ClusterSpec
from supervisor.contract.errors import (
    BadArchive,
    BadCheckpoint,
    CoordinationUnreachable,
    NoRoom,
    Refused,
    TfSupervisorError,
)
from supervisor.contract.ids import TaskId
from supervisor.contract.observed import LINK_PROTOCOL
from supervisor.contract.promise import PromiseRequest
from supervisor.contract.secret import SecretsRequest, missing

BROKEN_AGAIN_S = 1.0
MAX_UNCOMMITTED = 300

Lasting = (
    Spawn
    | FetchSecrets
    | Fence
    | ReadSpec
    | Write
    | Report
    | Stage
    | PrepareOutputs
    | Drain
    | Clean
    | Dump
    | BringIn
    | KeepCode
    | KeepData
    | SetFirewall
)
"""Instructions that take time. Each runs as a task of its own."""


class Effects:
    """Executes the agent's instructions."""

    def __init__(self, settings: AgentSettings, outside: Outside, post: Post, membership: Membership) -> None:
        self._settings = settings
        self._out = outside
        self._post = post
        self._membership = membership
        self._reports = AttemptReports(outside, post, membership)
        self._group: asyncio.TaskGroup | None = None
        self._waiting: list[Coroutine[None, None, None]] = []
        self._tensorflow: dict[tuple[TaskId, int], str] = {}

    async def run(self) -> NoReturn:
        """Own the running tasks. An error that is not in our tree ends the daemon."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for each in self._waiting:
                group.create_task(each)
            self._waiting.clear()
            await asyncio.Event().wait()
        raise AssertionError("unreachable")

    def perform(self, instruction: Instruction, state: AgentState) -> None:
        """Execute an instruction, or begin to.

        An unexpected error affects only the instruction's launcher, attempt or job.
        """
        with contained(lambda error: self._broken(instruction, error)):
            self._perform(instruction, state)

    def _broken(self, instruction: Instruction, error: Exception) -> None:
        what, why = type(instruction).__name__, told(error)
        self._out.sink.error(
            "an instruction failed with an unexpected error; its task or job is set aside",
            what=what,
            error=why,
        )
        event = set_aside.answer_of(instruction, why)
        if event is not None:
            self._post(event)

    def _perform(self, instruction: Instruction, state: AgentState) -> None:
        match instruction:
            case Say():
                with effect(f"agent.say_{type(instruction.message).__name__}"):
                    self._out.launchers.send(instruction.launcher_id, instruction.message)
            case Launch():
                self._launch(instruction, state)
            case Note():
                log = self._out.sink.warning if instruction.level == "warning" else self._out.sink.info
                log(instruction.event, **instruction.fields)
            case Cleared():
                self._membership.cleared()
            case FollowCommits():
                self._out.checkpoints.follow(instruction)
            case StopFollowing():
                self._out.checkpoints.stop_following(instruction.job_uuid, instruction.generation)
            case Follow() | Unfollow() | Commit() | StopCommit():
                self._perform_local(instruction, state)
            case FetchSecrets():
                known = {*state.attempts, *state.secrets}
                self._out.secrets.keep([str(each) for each in known])
                self._begin(self._work(instruction))
            case TellGpus():
                self._begin(self._tell_gpus(instruction))
            case LookAtGpus():
                self._out.gpus.look()
            case AskPromises():
                request = PromiseRequest(LINK_PROTOCOL, self._settings.node, state.life, instruction.serial)
                self._out.links.ask(request, instruction.sent_ms)
            case _:
                self._begin(self._work(instruction))

    def refuse(self, instruction: Instruction, reason: str) -> bool:
        """Answer an instruction that needs a saved state, while the state cannot be saved.

        False: the instruction is safe without a saved state. Rule 12 requires the intent on disk before a
        start, and a launcher keeps an exit record until it is on disk here.
        """
        match instruction:
            case Spawn():
                self._post(SpawnFailed(instruction.launcher_id, reason, unknown=True))
            case Launch():
                failure = protocol.StartFailed(str(instruction.assignment.attempt_id), reason)
                self._post(LauncherSaid(instruction.launcher_id, failure))
            case Say(_, protocol.AckExit()):
                pass
            case _:
                return False
        return True

    def _perform_local(self, instruction: Follow | Unfollow | Commit | StopCommit, state: AgentState) -> None:
        files, checkpoints = self._out.files, self._out.checkpoints
        match instruction:
            case Follow():
                files.follow(instruction)
                attempt = instruction.attempt
                self._tensorflow[attempt.task, attempt.generation] = instruction.tensorflow
                if instruction.pid:
                    self._out.runtime.began(Process(instruction.pid, instruction.start_ticks))
            case Unfollow(attempt):
                files.unfollow(attempt)
                old = [
                    key for key in self._tensorflow if key[0] == attempt.task and key[1] < attempt.generation
                ]
                for key in old:
                    del self._tensorflow[key]
                self._begin(files.tidy())
                self._out.outputs.over(attempt)
                self._out.secrets.forget(str(attempt))
            case Commit():
                checkpoints.commit(
                    instruction,
                    lambda: self._membership.fence,
                    state.life,
                    lambda: files.newest_step(instruction.saver, instruction.generation),
                    lambda: self._tensorflow.get((instruction.saver, instruction.generation), ""),
                    partial(files.note_commit, instruction.saver, instruction.generation),
                )
            case StopCommit():
                checkpoints.stop_commit(instruction.job_uuid, instruction.generation)

    async def _work(self, instruction: Lasting) -> None:
        """Execute a long instruction. An unexpected error is answered as a failure of the instruction."""
        errors: list[Exception] = []
        with contained(errors.append):
            await self._do(instruction)
        if errors:
            if isinstance(instruction, Fence | ReadSpec | Write | Report):
                await asyncio.sleep(BROKEN_AGAIN_S)
            self._broken(instruction, errors[0])

    async def _do(self, instruction: Lasting) -> None:
        match instruction:
            case Spawn():
                await self._spawn(instruction)
            case Fence():
                await self._fence(instruction)
            case Stage() | PrepareOutputs() | Drain() | Clean():
                await self._keep_files(instruction)
            case ReadSpec():
                await self._read_spec(instruction)
            case Write():
                await self._write(instruction)
            case Report():
                await self._reports.send(instruction)
            case Dump():
                await self._dump(instruction)
            case BringIn():
                await self._bring_in(instruction)
            case KeepCode() | KeepData():
                await self._keep_used(instruction)
            case SetFirewall():
                await self._set_firewall(instruction)
            case FetchSecrets():
                await self._fetch_secrets(instruction)

    async def _keep_files(self, instruction: Stage | PrepareOutputs | Drain | Clean) -> None:
        match instruction:
            case Stage():
                await self._stage(instruction)
            case PrepareOutputs():
                await self._out.outputs.prepare(instruction)
                self._post(OutputsReady(instruction.attempt))
            case Drain():
                await self._drain(instruction)
            case Clean():
                await self._clean(instruction)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        if self._group is None:
            self._waiting.append(work)
        else:
            self._group.create_task(work)

    def _launch(self, launch: Launch, state: AgentState) -> None:
        attempt_id, uuid = launch.assignment.attempt_id, launch.assignment.job_uuid
        attempt_dir = self._out.files.directory(uuid, attempt_id)
        checkpoint_dir = self._out.checkpoints.directory(uuid, launch.assignment.generation)
        code = launch.assignment.code
        code_dir = self._out.code.directory(code) if code is not None else ""
        must_see = f"{checkpoint_dir}/{SIGN}" if launch.assignment.checkpoint_mode == MOUNTED else ""
        wanted = launch.assignment.data
        outputs = self._out.outputs.directories(uuid, launch.assignment.task)
        secrets = self._out.secrets.of(str(attempt_id))
        if missing(launch.assignment.secrets, secrets):
            # The next attempt asks for them again.
            self._post(
                LauncherSaid(
                    launch.launcher_id, protocol.StartFailed(str(attempt_id), "its secrets are gone")
                )
            )
            return
        try:
            message = start_message(
                launch,
                state.life,
                attempt_dir,
                checkpoint_dir,
                code_dir,
                must_see or self._out.data.sign(uuid, wanted, SIGN),
                replace(outputs, data=self._out.data.directories(uuid, wanted)),
                secrets,
            )
            if self._settings.nvml:
                message = replace(message, nvml=self._settings.nvml)
            protocol.encode(message)
        except (KeyError, IndexError) as error:
            self._cannot_start(launch, f"the ClusterSpec lacks {error}")
            return
        except TfSupervisorError as error:
            self._cannot_start(launch, str(error))
            return
        except protocol.ProtocolError as error:
            advice = "let the program read TF_CONFIG instead of placeholders such as {worker_hosts}"
            self._cannot_start(launch, f"its command and environment are too long ({error}); {advice}")
            return
        self._out.runtime.launching(launch.launcher_id, yields=message.yields)
        with effect("agent.launch"):
            self._out.launchers.send(launch.launcher_id, message)

    def _cannot_start(self, launch: Launch, why: str) -> None:
        failure = protocol.StartFailed(str(launch.assignment.attempt_id), f"cannot start: {why}")
        self._post(LauncherSaid(launch.launcher_id, failure))

    async def _fetch_secrets(self, fetch: FetchSecrets) -> None:
        """Fetch secrets from the leader. They stay in memory, and are sent to the attempt's launcher."""
        attempt = fetch.attempt
        request = SecretsRequest(LINK_PROTOCOL, self._settings.node, str(attempt.task), fetch.plan_id)
        try:
            answer = await self._out.links.secrets(request)
        except TfSupervisorError as error:
            self._post(SecretsFetched(attempt, delay=f"it waits for its secrets: {error}"))
            return
        if name := missing([name for _, name in fetch.secrets], answer.values):
            self._post(
                SecretsFetched(
                    attempt, delay=f"it waits for its secrets: {name} is not among those that came"
                )
            )
        else:
            values = {variable: answer.values[name] for variable, name in fetch.secrets}
            self._out.secrets.learn(str(attempt), values)
            self._post(SecretsFetched(attempt))

    async def _spawn(self, spawn: Spawn) -> None:
        recipe = spawn.recipe
        try:
            if recipe.code is not None:
                recipe = replace(recipe, workdir=await self._out.code.ensure(recipe.code))
            if recipe.environment is not None:
                made = await self._out.environments.ensure(recipe.environment, recipe.workdir)
                recipe = replace(recipe, env={**recipe.env, ENVIRONMENT: made})
            if recipe.data:
                await self._out.data.ensure(recipe.job, recipe.job_uuid, recipe.data)
                recipe = replace(recipe, data=self._out.data.binds(recipe.job_uuid, recipe.data))
        except TfSupervisorError as error:
            self._post(SpawnFailed(spawn.launcher_id, str(error), unknown=error.retryable))
            return
        try:
            with effect("agent.spawn", Refused):
                process = await self._out.runtime.spawn(spawn.launcher_id, recipe)
        except NoRoom as error:
            self._post(SpawnFailed(spawn.launcher_id, str(error), unknown=True, full=True))
            return
        except TfSupervisorError as error:
            self._post(SpawnFailed(spawn.launcher_id, str(error), unknown=error.retryable))
            return
        reach = self._out.runtime.reach(spawn.launcher_id)
        self._post(Spawned(spawn.launcher_id, process.pid, process.start_ticks, reach))
        self._out.runtime.watch(spawn.launcher_id, process, self._post)

    async def _fence(self, fence: Fence) -> None:
        processes = tuple(Process(*each) for each in fence.processes)
        with effect("agent.fence"):
            survivors = await self._out.runtime.fence(fence.launcher_id, processes)
        self._post(Fenced(fence.launcher_id, survivors))

    async def _read_spec(self, read: ReadSpec) -> None:
        spec = None
        try:
            found = await self._out.coordination.get(keys.cluster_spec(read.job, read.plan_id))
            spec = codec.decode(ClusterSpec, found.value) if found is not None else None
        except TfSupervisorError as error:
            self._out.sink.warning(
                "cannot read the ClusterSpec of a generation yet", job=read.job, reason=str(error)
            )
        self._post(SpecRead(read.plan_id, spec))

    async def _write(self, write: Write) -> None:
        try:
            read = await self._out.coordination.txn((), [Get(write.requires), Get(write.key)])
            required, before = (next(iter(each), None) for each in read.reads)
            if required is None:
                self._post(Written(write.tag, ok=False, moot=True))
                return
            # Without the last an answer that was given up could still arrive after the next one.
            compares = [
                self._membership.fence,
                as_read(write.requires, required),
                as_read(write.key, before),
            ]
            put = Put(write.key, codec.encode(write.record))
            with effect(f"agent.write_{type(write.record).__name__}", CoordinationUnreachable):
                result = await self._out.coordination.txn(compares, [put])
            ok = result.succeeded
        except TfSupervisorError as error:
            self._out.sink.warning(
                "cannot write a record to etcd yet; trying again", key=write.key, reason=str(error)
            )
            ok = False
        if not ok:
            await asyncio.sleep(AGAIN_S)
        self._post(Written(write.tag, ok=ok))

    async def _tell_gpus(self, tell: TellGpus) -> None:
        put = Put(keys.gpus(tell.report.node), codec.encode(tell.report))
        try:
            with effect("agent.tell_gpus", CoordinationUnreachable):
                ok = (await self._out.coordination.txn([self._membership.fence], [put])).succeeded
        except TfSupervisorError as error:
            self._out.sink.warning("cannot report the GPUs to etcd yet; trying again", reason=str(error))
            ok = False
        if not ok:
            await asyncio.sleep(AGAIN_S)
        self._post(GpusTold(tell.report, ok))

    async def _stage(self, stage: Stage) -> None:
        failure, detail = None, ""
        try:
            await self._out.checkpoints.stage(stage)
        except TfSupervisorError as error:
            failure, detail = _unstaged(error), str(error)
        if failure is not None:
            self._out.sink.warning(
                "a generation's base is not staged here; the leader is told",
                job=stage.job,
                base=str(stage.base),
                reason=detail,
            )
        self._post(StageDone(stage.job, stage.plan_id, stage.base, failure, detail))

    async def _bring_in(self, wanted: BringIn) -> None:
        failure, unknown, hopeless, what = "", False, False, "its code is not here"
        try:
            workdir = wanted.workdir
            if wanted.code is not None:
                workdir = await self._out.code.ensure(wanted.code)
            what = "its environment cannot be made here"
            if wanted.environment is not None:
                await self._out.environments.ensure(wanted.environment, workdir)
            what = "its data is not here"
            await self._out.data.ensure(wanted.job, wanted.job_uuid, wanted.data)
            what = "its container cannot be made here"
            if wanted.container is not None:
                await self._out.runtime.bring_in(wanted.container, wanted.plan_id)
        except TfSupervisorError as error:
            failure, unknown, hopeless = f"{what}: {error}", error.retryable, isinstance(error, BadArchive)
            self._out.sink.warning(
                "a plan's code, environment, data or image is not ready here; the leader is told",
                plan=wanted.plan_id,
                reason=failure,
            )
        self._post(BroughtIn(wanted.plan_id, failure, unknown, hopeless))

    async def _set_firewall(self, wanted: SetFirewall) -> None:
        try:
            done = await self._out.firewall.set(wanted.openings)
        except TfSupervisorError as error:
            done = FirewallSet(wanted.openings, str(error))
        self._post(done)

    async def _keep_used(self, keep: KeepCode | KeepData) -> None:
        if isinstance(keep, KeepData):
            self._out.data.keep(keep.used)
            return
        for kept in (self._out.code, self._out.environments):
            try:
                await kept.keep(keep.digests)
            except TfSupervisorError as error:
                self._out.sink.warning("old code or environments cannot be removed", reason=str(error))

    async def _drain(self, drain: Drain) -> None:
        checkpoints, generation = self._out.checkpoints, drain.attempt.generation
        try:
            if drain.aside is not None:
                step = self._out.files.newest_step(drain.attempt.task, generation)
                left = await checkpoints.look_aside(
                    drain.aside, drain.life, step, drain.timeout_ms, clean=drain.clean
                )
            else:
                left = await checkpoints.drain(
                    drain.job_uuid, generation, drain.timeout_ms, clean=drain.clean
                )
        except TfSupervisorError as error:
            self._out.sink.warning(
                "an attempt's last save is not committed", attempt=str(drain.attempt), reason=str(error)
            )
            left = f"the last save ({error})"
        self._post(Drained(drain.attempt, drain.look, left[:MAX_UNCOMMITTED]))

    async def _dump(self, dump: Dump) -> None:
        attempt = str(dump.attempt)
        if await self._out.files.dump(dump.attempt):
            self._out.sink.warning("attempt may hang: the stacks of its threads are kept", attempt=attempt)

    async def _clean(self, clean: Clean) -> None:
        try:
            await self._out.checkpoints.clean(clean.job, clean.job_uuid, clean.generation, ended=clean.ended)
            if clean.ended:
                self._out.outputs.job_ended(clean.job_uuid)
        except TfSupervisorError as error:
            self._out.sink.warning(
                "old checkpoint directories cannot be removed", job=clean.job, reason=str(error)
            )


def _unstaged(error: TfSupervisorError) -> Unstaged:
    match error:
        case BadCheckpoint():
            return Unstaged.BAD
        case CoordinationUnreachable():
            return Unstaged.UNASKED
        case NoRoom():
            return Unstaged.NO_ROOM
        case _:
            return Unstaged.UNREADABLE
