"""`NodeCheckpoints`: staging bases, committing on the saver's node, removing old directories."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agent.boundaries import Fence, StoreOpener
from agent.checkpoints.adopted import forget, forget_shared
from agent.checkpoints.allowed import Places
from agent.checkpoints.follower import CommitFollower
from agent.checkpoints.local_copies import UNLIMITED, LocalCopies, LocalDisk
from agent.checkpoints.mounts import NodeMounts
from agent.checkpoints.saver import Saver, SaverSite, base_of, newest_save, watcher_of
from agent.core.instructions import Commit, FollowCommits, Stage
from agent.host.ownership import give, give_tree
from agent.host.task_users import TaskUsers
from agent.outputs.directories import ASIDE, OWN, OWNER
from agent.outputs.leftover_work import NodeWork
from agent.retry_log import Tell, raise_it
from recovery.commit.follow import mark_saver, saved_here, unmark_saver
from recovery.commit.outbox import SavingJob, TakenCheckpoint, generation_directory, newest_taken
from recovery.commit.stage import Stager, clean_parent
from recovery.io.deadline import until, while_moving
from recovery.io.files import mapped_errors
from recovery.io.trees import remove_tree
from recovery.mount.base import stage_live
from recovery.mount.layout import MOUNTED
from recovery.mount.take import MountedGeneration
from supervisor.adapters.failpoints import effect
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Clock, Coordination, Logger
from supervisor.contract.checkpoint import CommitHead, CommitRecord
from supervisor.contract.containment import contained
from supervisor.contract.desired import JobSwitch
from supervisor.contract.errors import (
    BadCheckpoint,
    NoRoom,
    OutOfSpace,
    StoreUnreachable,
    TfSupervisorError,
    UserError,
)
from supervisor.contract.job.spec import JobRecord, Mount
from supervisor.contract.observed import SaverBeat, Staged

STAGE_QUIET_MS = 60_000
SETTLE_MS = 5_000
STAGE_MOUNTED_MS = 600_000


@dataclass(slots=True)
class _Turn:
    """The lock for staging a generation; `users` is the number of calls that hold it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class NodeCheckpoints:
    """`Checkpoints` over `recovery`, with a job's directories below `PARENT/JOB_UUID`.

    Attributes:
        mounts: the mounts of this node; None if it supports none.
        work: keeps files that are in no store; None: they are not kept.
        places: checks whether a job may use its store; None: the opener's check is enough.
        users: the users of tasks, if they are others than the agent's.
        shared: directories of this machine that all tasks see.
        committed, staged: told of the milliseconds that each commit and each staging has taken.
    """

    def __init__(
        self,
        node: str,
        parent: Path,
        coordination: Coordination,
        opener: StoreOpener,
        clock: Clock,
        sink: Logger,
        new_id: Callable[[], str],
        disk: LocalDisk = UNLIMITED,
    ) -> None:
        self._node = node
        self._parent = parent
        self._coordination = coordination
        self._opener = opener
        self._clock = clock
        self._sink = sink
        self._new_id = new_id
        self._savers: dict[tuple[str, int], Saver] = {}
        self._followers: dict[tuple[str, int], CommitFollower] = {}
        self._staging: dict[tuple[str, int], _Turn] = {}
        self._disk = disk
        self._copies = LocalCopies(parent, disk.budget_bytes)
        self._given_up: dict[str, TakenCheckpoint] = {}
        self._brought: set[tuple[str, int]] = set()
        self._own: set[str] = set()
        self.mounts: NodeMounts | None = None
        self.users: TaskUsers | None = None
        self.shared: tuple[Mount, ...] = ()
        self.work: NodeWork | None = None
        self.places: Places | None = None
        self.committed: Callable[[int], None] = lambda _ms: None
        self.staged: Callable[[int], None] = lambda _ms: None
        self._mounting: set[asyncio.Task[None]] = set()

    def directory(self, job_uuid: str, generation: int) -> str:
        """CHECKPOINT_DIR of a generation."""
        return str(generation_directory(self._parent / job_uuid, generation))

    async def found(self) -> frozenset[str]:
        """UUIDs of the jobs that have directories here; empty if that cannot be read."""
        try:
            return frozenset(await asyncio.to_thread(os.listdir, self._parent))
        except OSError:
            return frozenset()

    async def stage(self, stage: Stage) -> None:
        """Stage the base. Raises BadCheckpoint, NoRoom; any other error of our tree means unknown.

        One call at a time for a generation: a plan that lost must not move away the directory in which tasks
        of the plan in force have begun to write.
        """
        key = (stage.job_uuid, stage.generation)
        turn = self._staging.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                if not await self._answered(stage):
                    began_ms = self._clock.now_ms()
                    await self._stage(stage)
                    self.staged(self._clock.now_ms() - began_ms)
        finally:
            turn.users -= 1
            if not turn.users:
                del self._staging[key]

    async def _stage(self, stage: Stage) -> None:
        if self.places is not None:
            await self.places.check(stage.job, stage.job_uuid, stage.uri)
        record = None
        if stage.base is not None:
            found = await self._coordination.get(keys.commit(stage.job, stage.base))
            if found is None:
                raise BadCheckpoint(f"{stage.base} has no commit record")
            record = codec.decode(CommitRecord, found.value)
        if stage.mode == MOUNTED:
            await self._stage_mounted(stage, record)
            return
        parent, threads = self._parent / stage.job_uuid, self._disk.executor
        stager = Stager(self._opener(stage.uri), parent, self._clock, threads)
        owner = f"{self._node}-{self._new_id()[:8]}"
        with _needing_room(record):
            try:
                await stager.stage_base(record, stage.generation, owner, STAGE_QUIET_MS, fresh=True)
            except OutOfSpace:
                # The disk may be full of copies: this base is needed more.
                if not await self._copies.make_room():
                    raise
                self._sink.warning(
                    "local copies of checkpoints removed: a generation's base did not fit", job=stage.job
                )
                await stager.stage_base(record, stage.generation, owner, STAGE_QUIET_MS, fresh=True)
        if self.users is not None:
            directory = generation_directory(parent, stage.generation)
            user = await asyncio.to_thread(self.users.of, stage.job_uuid)
            with mapped_errors(f"give {directory} to the user of tasks"):
                await asyncio.to_thread(give_tree, directory, user)

    async def _stage_mounted(self, stage: Stage, record: CommitRecord | None) -> None:
        mounts = self._require_mounts()
        live = mounts.live(stage.uri, stage.generation, stage.plan_id)
        limit = f"staging {record.ref if record else 'an empty base'} into {live.root}"
        async with until(self._clock, self._clock.now_ms() + STAGE_MOUNTED_MS, limit):
            await stage_live(self._opener(stage.uri), live, record, self._node)
        await mounts.mount(stage.job, stage.job_uuid, stage.generation, stage.uri, stage.plan_id)

    def _require_mounts(self) -> NodeMounts:
        if self.mounts is None:
            raise UserError("checkpoint.mode: mounted: this agent does not mount")
        return self.mounts

    async def _answered(self, stage: Stage) -> bool:
        """Whether an earlier life has staged it.

        Then it is left alone, as the program may be writing there already.

        A base that was staged before the machine's last boot may be missing on the disk (decision 0018).
        """
        found = await self._coordination.get(keys.staged(stage.job, stage.plan_id, self._node))
        if found is not None:
            answer = codec.decode(Staged, found.value)
            if (answer.base, answer.failure, answer.boot_id) == (stage.base, None, stage.boot_id):
                return True
        switch = await self._coordination.get(keys.switch(stage.job))
        if switch is None or codec.decode(JobSwitch, switch.value).generation >= stage.generation:
            raise StoreUnreachable(f"generation {stage.generation} is not in preparation any more")
        return False

    def commit(
        self,
        commit: Commit,
        fence: Fence,
        incarnation: str,
        newest_step: Callable[[], int],
        tensorflow: Callable[[], str] = lambda: "",
        took: Callable[[int, int], None] = lambda _, __: None,
    ) -> None:
        """Commit in the background; again for the same generation does nothing."""
        key = (commit.job_uuid, commit.generation)
        if key in self._savers:
            return
        try:
            store = self._opener(commit.uri)
            mounted = self._mounted(commit)
        except UserError as error:
            self._sink.error(
                "saves of this job are not committed: its store cannot be used",
                job=commit.job,
                reason=str(error),
            )
            return
        try:
            mark_saver(self._parent / commit.job_uuid, commit.generation, self._node)
        except TfSupervisorError as error:
            self._sink.warning(
                "cannot mark the saver's directory: a follower may copy into it",
                job=commit.job,
                reason=str(error),
            )

        def committed(ms: int, seen_ms: int) -> None:
            took(ms, seen_ms)
            self.committed(ms)

        site = SaverSite(
            self._node,
            incarnation,
            self._parent / commit.job_uuid,
            store,
            self._coordination,
            self._clock,
            self._sink,
            fence,
            self._new_id,
            newest_step,
            self._copies,
            mounted,
            self._disk.executor,
            tensorflow,
            committed,
        )
        self._given_up.pop(commit.job_uuid, None)
        self._own.add(commit.job_uuid)
        self._savers[key] = saver = Saver(commit, site)
        saver.start()

    def follow(self, following: FollowCommits) -> None:
        """Fetch new commits; again for the same generation does nothing."""
        key = (following.job_uuid, following.generation)
        if key in self._followers:
            return
        if following.mode == MOUNTED:
            # Every mount shows what is saved; a task that has moved here needs one.
            self._mount_later(following)
            return
        try:
            store = self._opener(following.uri)
        except UserError as error:
            self._sink.error(
                "new checkpoints are not copied to this node: the store cannot be used",
                job=following.job,
                reason=str(error),
            )
            return
        parent = self._parent / following.job_uuid
        stager = Stager(store, parent, self._clock, self._disk.executor)
        follower = CommitFollower(
            following, parent, stager, self._coordination, self._clock, self._sink, self._new_id
        )
        self._followers[key] = follower
        if following.brings:
            self._brought.add(key)
        follower.start(partial(self._make_for_tasks, following))

    def _make_for_tasks(self, following: FollowCommits) -> None:
        """Make the directory for a task that has moved here: its container's user cannot make it.

        It blocks, possibly until another agent of this machine has assigned a user to a job.
        """
        if self.users is None and following.brings:
            return
        directory = Path(self.directory(following.job_uuid, following.generation))
        user = self.users.of(following.job_uuid) if self.users is not None else None
        with mapped_errors(f"make {directory}"), effect("checkpoints.make"):
            directory.mkdir(parents=True, exist_ok=True)
            if user is not None:
                give(directory, user)

    def _mounted(self, commit: Commit) -> MountedGeneration | None:
        if commit.mode != MOUNTED:
            return None
        live = self._require_mounts().live(commit.uri, commit.generation, commit.plan_id)
        directory = Path(self.directory(commit.job_uuid, commit.generation))
        return MountedGeneration(live, directory, commit.generation, commit.base)

    def _mount_later(self, what: FollowCommits) -> None:
        async def mount() -> None:
            try:
                await self._require_mounts().mount(
                    what.job, what.job_uuid, what.generation, what.uri, what.plan_id
                )
            except TfSupervisorError as error:
                self._sink.error(
                    "a follower's checkpoint directory is not mounted", job=what.job, reason=str(error)
                )

        task = asyncio.get_running_loop().create_task(mount())
        self._mounting.add(task)
        task.add_done_callback(self._mounting.discard)

    def stop_following(self, job_uuid: str, generation: int) -> None:
        """Stop fetching commits of this generation."""
        follower = self._followers.pop((job_uuid, generation), None)
        if follower is not None:
            follower.stop()

    async def drain(self, job_uuid: str, generation: int, timeout_ms: int, *, clean: bool) -> str:
        """Commit the newest finished save; returns the save that could not be committed, empty for none."""
        saver = self._savers.get((job_uuid, generation))
        if saver is None:
            return "the last save (its node cannot commit it: see the log of the agent there)"
        return await saver.drain(timeout_ms, clean=clean)

    async def look_aside(
        self, commit: Commit, incarnation: str, step: int, timeout_ms: int, *, clean: bool
    ) -> str:
        """Keep the newest finished save of a task that is not the saver; returns it if it is newer than all
        commits, empty for none.

        Where commits are brought in, a file's name or its tensors must give the step.
        """
        job_uuid, generation, parent = commit.job_uuid, commit.generation, self._parent / commit.job_uuid
        if commit.mode == MOUNTED or await asyncio.to_thread(saved_here, parent, generation):
            return ""
        who = SavingJob(job_uuid, commit.job, self._node, incarnation, adopt=commit.adopt)
        base = await base_of(parent, generation)
        watcher = watcher_of(commit, parent, who, base, self._clock, self._disk.executor)
        step = -1 if (job_uuid, generation) in self._brought else step
        async with while_moving(watcher.motion, self._clock, timeout_ms, "looking for the last save"):
            taken = await newest_save(watcher, step, clean=clean)
        newer = await self._last_save(commit.job, taken)
        if newer is None:
            return ""
        self._given_up[job_uuid] = newer
        self._sink.warning(
            "a save of a task that is not the saver is not committed: it stays on this node",
            job=commit.job,
            checkpoint=str(newer.manifest.ref),
            kept=str(newer.directory),
        )
        return str(newer.manifest.ref)

    def beats(self, tell: Tell = raise_it) -> tuple[SaverBeat, ...]:
        """The state of this node's commits. `tell` gets errors that ended a job's background work.

        Raises the error that ended the work of all mounts.
        """
        for (job_uuid, _), follower in self._followers.items():
            with contained(partial(tell, job_uuid)):
                follower.check()
        if self.mounts is not None:
            self.mounts.check()
        beats = []
        for (job_uuid, _), saver in self._savers.items():
            with contained(partial(tell, job_uuid)):
                beats.append(saver.beat())
        return tuple(beats)

    def store_failed_ms(self, job_uuid: str, generation: int) -> int:
        """The time at which the store last failed a program that saves into a mount; -1: never."""
        return self.mounts.failed_ms(job_uuid, generation) if self.mounts is not None else -1

    async def settle(self) -> None:
        """Before the agent ends: allow a few seconds for waiting commits. A successor goes on."""
        await asyncio.gather(*(saver.settle(SETTLE_MS) for saver in self._savers.values()))

    def stop_commit(self, job_uuid: str, generation: int) -> None:
        """Stop committing saves of this generation."""
        saver = self._savers.pop((job_uuid, generation), None)
        if saver is None:
            return
        saver.stop()
        try:
            unmark_saver(self._parent / job_uuid, generation, self._node)
        except TfSupervisorError as error:
            self._sink.warning(
                "cannot remove the mark of the saver's directory", job=job_uuid, reason=str(error)
            )
        if saver.pending is not None and not saver.mounted:
            self._given_up[job_uuid] = saver.pending

    async def clean(self, job: str, job_uuid: str, generation: int, *, ended: bool) -> None:
        """Remove old generations; for an ended job everything, if etcd confirms that it has ended."""
        parent = self._parent / job_uuid
        found = await self._coordination.get(keys.switch(job))
        switch = codec.decode(JobSwitch, found.value) if found is not None else None
        same = switch is not None and switch.job_uuid == job_uuid
        if not ended and same:
            keep = (generation, generation + 1, generation + 2)
            if self.mounts is not None:
                await self.mounts.end_but(job_uuid, keep)
            kept = await self._keep_work(job, job_uuid, keep, ended=False)
            await asyncio.to_thread(clean_parent, parent, keep, kept)
        elif ended and (not same or (switch is not None and switch.phase.ended)):
            self._copies.forget(job_uuid)
            if self.mounts is not None:
                await self.mounts.end_but(job_uuid, ())
            given_up = self._given_up.pop(job_uuid, None)
            if job_uuid not in self._own:
                # An earlier life may have given something up, or another agent of this machine.
                given_up = await asyncio.to_thread(newest_taken, parent)
            self._own.discard(job_uuid)
            self._brought = {each for each in self._brought if each[0] != job_uuid}
            await self._forget_adopted(job, parent)
            last = await self._last_save(job, given_up)
            kept = await self._keep_work(job, job_uuid, (), ended=True)
            await asyncio.to_thread(_remove, parent, last.directory if last is not None else None, kept)

    async def _forget_adopted(self, job: str, parent: Path) -> None:
        if self.users is None:
            await asyncio.to_thread(forget, parent)
            return
        found = await self._coordination.get(keys.job_record(job))
        record = codec.decode(JobRecord, found.value) if found is not None else None
        if record is not None and record.uuid == parent.name:
            await asyncio.to_thread(forget_shared, record.spec, self.shared, parent)

    async def _keep_work(
        self, job: str, job_uuid: str, keep: tuple[int, ...], *, ended: bool
    ) -> frozenset[str]:
        """Names in the job's directory that stay, because files below them are in no store."""
        if self.work is None:
            return frozenset()
        await self.work.clean(job, job_uuid, keep, ended=ended)
        return await self.work.kept_names(job_uuid)

    async def _last_save(self, job: str, given_up: TakenCheckpoint | None) -> TakenCheckpoint | None:
        """The checkpoint that was given up, unless the job went on and committed a newer one.

        There is no other copy of a job's last save, and an operator may still import it.
        """
        if given_up is None:
            return None
        found = await self._coordination.get(keys.head(job))
        newest = codec.decode(CommitHead, found.value).newest if found is not None else None
        return given_up if newest is None or newest < given_up.manifest.ref else None

    async def close(self) -> None:
        """Stop all background work."""
        for saver in self._savers.values():
            saver.stop()
        for follower in self._followers.values():
            follower.stop()
        for task in self._mounting:
            task.cancel()
        if self.mounts is not None:
            await self.mounts.close()
        self._savers.clear()
        self._followers.clear()


@contextmanager
def _needing_room(record: CommitRecord | None) -> Iterator[None]:
    """Turn OutOfSpace into NoRoom: a base is only read from the store, so this machine lacks the space.

    Without a base a directory is made in the store, which may lack the space itself.
    """
    try:
        yield
    except OutOfSpace as error:
        if record is None:
            raise
        raise NoRoom(str(error)) from error


def _remove(parent: Path, but: Path | None, stay: frozenset[str] = frozenset()) -> None:
    """Remove everything except `but`, `stay`, and outputs: `agent.outputs.sender` removes those once they are
    sent.
    """
    with mapped_errors(f"remove {parent}"), suppress(FileNotFoundError), effect("checkpoints.remove"):
        beside = tuple(but.parent.iterdir()) if but is not None else ()
        for entry in (*parent.iterdir(), *beside):
            if entry in {but, but.parent if but is not None else None}:
                continue
            if entry.parent == parent and (entry.name in stay or entry.name.startswith((OWN, OWNER, ASIDE))):
                continue
            if entry.is_dir() and not entry.is_symlink():
                remove_tree(entry)
            else:
                entry.unlink(missing_ok=True)
        with suppress(OSError):
            parent.rmdir()
