"""The requests of operators about checkpoints in a store: answers are read there, changes are fenced writes.

Reading back takes as long as the store does. It happens in the leader while the caller listens. It ends with
the caller's connection, and findings up to then are recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from recovery.formats.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest, parse_manifest
from recovery.formats.paths import stored_ref
from recovery.io.deadline import Motion, until, while_moving
from recovery.retention.audit import audit, audit_files
from recovery.retention.collect import scan_store
from recovery.retention.pins import is_marked, mark
from supervisor.contract.boundaries import CheckpointStore, Clock, Coordination, Moved
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState, Verify
from supervisor.contract.errors import (
    BadCheckpoint,
    Conflict,
    IncompatibleRecord,
    NotFound,
    Refused,
    StoreUnreachable,
    TfSupervisorError,
    UserError,
)
from supervisor.contract.views.checkpoints import (
    AdoptRequest,
    CheckProgress,
    CheckView,
    CollectItem,
    CollectReport,
    CollectRequest,
    Finding,
    FindRequest,
    FoundCheckpoint,
    ImportPlace,
    ImportRequest,
    Thing,
    VerifyRequest,
)
from supervisor.contract.views.jobs import Accepted, JobRequest
from supervisor.control.decide.checkpoints import commit_list
from supervisor.control.decide.checkpoints.adoption import (
    Read,
    adopt,
    check_idle,
    next_generation,
    rebuild,
    record_of,
)
from supervisor.control.decide.checkpoints.collecting import fates_of
from supervisor.control.decide.facts.cluster_time import ages
from supervisor.control.decide.facts.history import find_checkpoint
from supervisor.control.decide.jobs.admission import MAX_GENERATION_SEEN, check_records
from supervisor.control.decide.plan import Action, short, unchanged
from supervisor.control.decide.snapshot import JobState
from supervisor.control.decide.switch import Transition, turn
from supervisor.control.loop.sweep import Place, look_over
from supervisor.control.services.context import LeaderContext

T = TypeVar("T")
SIGN_S = 0.5
"""How often the caller hears how far it is."""

TRIES = 4
QUIET_MS = 60_000
"""Reading is given up when nothing has come for so long: that says nothing of the checkpoint."""

NOTE_MS = 5_000
"""So long a pin may take to be noted in the store."""

ReadBack = Callable[[Moved], Awaitable[object]]


@dataclass(slots=True)
class ReadProgress:
    """The progress of reading.

    Several threads count without a lock: the sum is for people, and may be too low.
    """

    count: int
    total: int
    number: int = 0
    moved: int = 0

    def add(self, more: int) -> None:
        """Count `more` bytes that were read."""
        self.moved += more

    def progress(self, found: CheckView | None = None, end: str = "") -> CheckProgress:
        """The progress as a message to the caller."""
        return CheckProgress(self.number, self.count, self.moved, self.total, found, end)


class CheckpointService:
    """Serves `supervisorctl checkpoints JOB ...`. Any call may raise the store's errors."""

    def __init__(
        self,
        context: LeaderContext,
        coordination: Coordination,
        open_store: Callable[[str], CheckpointStore],
        clock: Clock,
    ) -> None:
        self._context = context
        self._coordination = coordination
        self._open_store = open_store
        self._clock = clock

    async def find(self, request: FindRequest) -> FoundCheckpoint:
        """The checkpoint that is meant, and its store."""
        job = self._context.job(request.job)
        return FoundCheckpoint(job.name, _uri(job), find_checkpoint(job, request.ref))

    async def collect(self, request: CollectRequest) -> CollectReport:
        """Tell what is in the store, what goes and why; unless it is a dry run, remove that now.

        Checkpoints that may go are collected by the leader's own loop, all the time; what others have left is
        removed here.
        """
        snap, job = self._context.leading(), self._context.job(request.job)
        place = Place(job.name, job.switch.value.job_uuid, self._store(job))
        kept = [
            CollectItem(
                Thing.CHECKPOINT,
                fate.record.path,
                fate.goes,
                fate.why.value,
                fate.record.ref,
                fate.record.size,
            )
            for fate in fates_of(snap, job)
        ]
        known, delete = ages(snap), not request.dry_run
        others = await look_over(self._coordination, snap.token, place, ages=known, delete=delete)
        left = [CollectItem(o.thing, o.path, o.goes, o.why, o.ref, o.size) for o in others]
        return CollectReport(job.name, _uri(job), request.dry_run, (*kept, *left))

    async def verify(self, request: VerifyRequest) -> AsyncGenerator[CheckProgress, None]:
        """Read checkpoints back, the newest first. A bad one is quarantined; an unreadable one is not."""
        job = self._context.job(request.job)
        check_records(job)
        if request.refs:
            records = [find_checkpoint(job, ref) for ref in request.refs]
        else:
            mine = [held.value for held in job.commits.values() if held.value.state is not _COLLECTING]
            records = sorted(mine, key=lambda each: each.ref, reverse=True)
        if not records:
            raise NotFound(f"job {job.name} has no checkpoint: none is committed yet")
        store = self._store(job)
        meter = ReadProgress(len(records), sum(record.size for record in records))
        done = 0
        for meter.number, record in enumerate(records, 1):
            began_ms = self._clock.now_ms()
            work = self._begin(meter, str(record.ref), partial(audit, store, record))
            async with aclosing(_watched(work, meter)) as signs:
                async for sign in signs:
                    yield sign
            finding, detail = await self._conclude(job.name, record, work.result())
            done += record.size
            meter.moved = done
            took_ms = self._clock.now_ms() - began_ms
            view = CheckView(record.ref, record.path, finding, detail, record.size, record.tensors, took_ms)
            yield meter.progress(view)
        yield meter.progress(end=f"{len(records)} checkpoints were read back")

    async def place(self, request: ImportRequest) -> ImportPlace:
        """The place for a checkpoint that was made elsewhere: it is put there before `adopt`."""
        job = self._context.job(request.job)
        check_idle(job, "import")
        check_records(job)
        seen = (await scan_store(self._store(job))).max_generation
        ref = CheckpointRef(next_generation(job, seen), request.step)
        return ImportPlace(job.name, job.record.value.uuid, _uri(job), ref)

    async def adopt(self, request: AdoptRequest) -> AsyncGenerator[CheckProgress, None]:
        """Read back what was put there, and make it the checkpoint that the next start begins from.

        Raises BadCheckpoint when it is not whole, or not this job's; then nothing is recorded.
        """
        job = self._context.job(request.job)
        check_idle(job, "import")
        check_records(job)
        store = self._store(job)
        manifest = await _import_of(store, job, request.path)
        meter = ReadProgress(1, manifest.size, 1)
        work = self._begin(meter, request.path, partial(audit_files, store, request.path, manifest))
        async with aclosing(_watched(work, meter)) as signs:
            async for sign in signs:
                yield sign
        failure = work.result()
        if failure is not None:
            raise failure
        job = self._still(job)
        check_idle(job, "import")
        if next_generation(job) > manifest.ref.generation:
            raise Conflict(f"job {job.name} has begun another generation meanwhile; import it again")
        await self._context.run(adopt(job, Read(request.path, manifest), self._clock.wall_ms()))
        yield meter.progress(end=f"the next start of {job.name} begins from {manifest.ref}")

    async def rebuild(self, request: JobRequest) -> AsyncGenerator[CheckProgress, None]:
        """Record again what the store holds of a job whose records are lost, each read back first.

        If all of etcd was lost, the job's tasks may still run on nodes that do not know of it: it begins when
        none can any more.

        Raises Conflict when the job has records; NotFound when its store holds nothing of it. A checkpoint
        that cannot be read ends this with nothing recorded: unknown is neither good nor bad.
        """
        job = self._context.job(request.job)
        check_idle(job, "rebuild")
        if job.head is not None:
            raise Conflict(
                f"job {job.name} has its records; `supervisorctl checkpoints {job.name}` shows them"
            )
        while waits_ms := self._context.leading().former_ms():
            yield CheckProgress(0, 0, 0, 0, waits_ms=waits_ms)
            await asyncio.sleep(min(SIGN_S, waits_ms / 1000))
        store = self._store(job)
        scan = await scan_store(store)
        mine = [one for one in scan.found if one.manifest.job_uuid == job.record.value.uuid]
        if not mine:
            raise NotFound(f"{_uri(job)} holds no checkpoint of job {job.name} ({job.record.value.uuid})")
        mine.sort(key=lambda one: one.manifest.ref, reverse=True)
        meter = ReadProgress(len(mine), sum(one.manifest.size for one in mine))
        records: dict[CheckpointRef, CommitRecord] = {}
        done = 0
        for meter.number, one in enumerate(mine, 1):
            began_ms = self._clock.now_ms()
            work = self._begin(meter, one.path, partial(audit_files, store, one.path, one.manifest))
            async with aclosing(_watched(work, meter)) as signs:
                async for sign in signs:
                    yield sign
            failure = work.result()
            if failure is not None and not isinstance(failure, BadCheckpoint):
                raise failure
            record = record_of(Read(one.path, one.manifest, str(failure or "")), Verify.READBACK)
            record = replace(record, pinned=await is_marked(store, one.path))
            # A commit that was repeated left two directories of one checkpoint: a good one counts.
            if record.ref not in records or failure is None:
                records[record.ref] = record
            done += record.size
            meter.moved = done
            finding = Finding.GOOD if failure is None else Finding.BAD
            took_ms = self._clock.now_ms() - began_ms
            yield meter.progress(
                CheckView(
                    record.ref, one.path, finding, str(failure or ""), record.size, record.tensors, took_ms
                )
            )
        job = self._still(job)
        check_idle(job, "rebuild")
        for action in rebuild(job, tuple(records.values()), scan.max_generation):
            await self._context.run(action)
        base = self._context.job(job.name).switch.value.base
        told = f"{len(records)} checkpoints are recorded; `supervisorctl start {job.name}` begins from {base}"
        yield meter.progress(end=told)

    async def pin(self, job: str, ref: CheckpointRef, *, pinned: bool) -> Accepted:
        """Keep a checkpoint from being collected, or let it go again. `ref`: as in `JobService.restart`.

        It is noted in the store, too, where `rebuild` finds it; repeated, that is made up for.

        Raises NotFound when there is none, Conflict when it is being collected already.
        """
        picture = self._context.job(job)
        check_records(picture)
        record = find_checkpoint(picture, ref)
        if record.state is CommitState.COLLECTING:
            raise Conflict(f"checkpoint {record.ref} is being collected already")
        word = "pinned" if pinned else "not pinned"
        if record.pinned is pinned:
            noted = await self._note_pin(picture, record.path, pinned=pinned)
            return Accepted(job, f"checkpoint {record.ref} is {word} already{noted}")
        compares, ops = commit_list.changed(picture, replace(record, pinned=pinned))
        await self._context.run(
            Action(
                "checkpoint_pinned" if pinned else "checkpoint_unpinned",
                job,
                f"an operator asked that checkpoint {record.ref} be {word}",
                compares,
                ops,
                {"checkpoint": str(record.ref)},
            )
        )
        noted = await self._note_pin(picture, record.path, pinned=pinned)
        return Accepted(job, f"checkpoint {record.ref} is {word}{noted}")

    async def _note_pin(self, picture: JobState, path: str, *, pinned: bool) -> str:
        """Note a pin in the store; what to say if that cannot be done now. The record counts in any case."""
        store = self._store(picture)
        try:
            async with until(self._clock, self._clock.now_ms() + NOTE_MS, f"noting it beside {path}"):
                await mark(store, path, pinned=pinned)
        except TfSupervisorError as error:
            return f"; a `rebuild` after a loss of etcd would not know of it: {error}"
        return ""

    def _store(self, job: JobState) -> CheckpointStore:
        return self._open_store(job.record.value.store_uri)

    def _begin(self, meter: ReadProgress, what: str, read: ReadBack) -> asyncio.Future[Exception | None]:
        """Read back in the background. None: it is whole; else what is wrong, or in the way."""

        async def work() -> Exception | None:
            motion = Motion(self._clock)

            def moved(more: int = 0) -> None:
                meter.add(more)
                motion(more)

            try:
                async with while_moving(motion, self._clock, QUIET_MS, f"reading {what} back"):
                    await read(moved)
            except (BadCheckpoint, StoreUnreachable, Refused, IncompatibleRecord) as error:
                return error
            return None

        return asyncio.ensure_future(work())

    def _still(self, before: JobState) -> JobState:
        """The job as it is now; raises Conflict when what was read for it may be another's meanwhile."""
        job = self._context.job(before.name)
        if job.record.mod_revision != before.record.mod_revision:
            raise Conflict(f"job {job.name} was submitted anew meanwhile; ask again")
        return job

    async def _conclude(
        self, name: str, record: CommitRecord, failure: Exception | None
    ) -> tuple[Finding, str]:
        """Record what was found, unless the checkpoint is being collected or its job began anew meanwhile."""
        if failure is not None and not isinstance(failure, BadCheckpoint):
            return Finding.UNKNOWN, str(failure)
        for left in reversed(range(TRIES)):
            job = self._context.job(name)
            held = job.commits.get(record.ref)
            if held is None or held.value.path != record.path or held.value.state is _COLLECTING:
                return Finding.GONE, "it was collected meanwhile"
            changed, said = _changed(held.value, failure)
            if changed == held.value:
                return Finding.BAD if failure else Finding.GOOD, said
            compares, ops = commit_list.changed(job, changed)
            closing = job.switch.value.closing
            if failure is not None and closing is not None and closing.base == record.ref:
                # A switch that is closed for this base is opened, so that the next close takes another.
                ops = (*ops, turn(job.switch, Transition.REOPEN, closing=None))
            kind, text = "checkpoint_quarantined", ""
            if failure is not None:
                text = f"checkpoint {record.ref} is bad and will not be restored: {failure}"
            elif said:
                kind, text = (
                    "checkpoint_released",
                    f"checkpoint {record.ref} was read back and is whole: {said}",
                )
            fields = {"checkpoint": str(record.ref), "detail": str(failure or said)}
            try:
                await self._context.run(
                    Action(kind, name, text, (*compares, unchanged(job.switch)), ops, fields)
                )
            except Conflict:
                if not left:
                    raise
                continue
            return Finding.BAD if failure else Finding.GOOD, said
        raise AssertionError("the last try returns or raises")


_COLLECTING = CommitState.COLLECTING


def _uri(job: JobState) -> str:
    return job.record.value.spec.checkpoint.uri


def _changed(record: CommitRecord, failure: Exception | None) -> tuple[CommitRecord, str]:
    """The record after it was read back, and what to say of it."""
    if failure is not None:
        reason = short(f"failed verification: {failure}")
        known = record.state is CommitState.QUARANTINED and not record.suspected
        bad = replace(record, state=CommitState.QUARANTINED, reason=reason, suspected=False)
        return (record if known else bad), f"it is quarantined: {failure}"
    if record.suspected and record.state is CommitState.QUARANTINED:
        return record, f"its files are whole, but it stays quarantined: {record.reason}"
    was = f"it can be restored again; it was quarantined: {record.reason}" if record.reason else ""
    return replace(record, state=CommitState.COMMITTED, reason="", verified=Verify.READBACK), was


async def _watched(work: asyncio.Future[T], meter: ReadProgress) -> AsyncGenerator[CheckProgress, None]:
    """Signs of life until the work is done; it is stopped when nobody listens any more."""
    try:
        while not (await asyncio.wait({work}, timeout=SIGN_S))[0]:
            yield meter.progress()
    finally:
        if not work.done():
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work


async def _import_of(store: CheckpointStore, job: JobState, path: str) -> Manifest:
    """The manifest of a directory that a client says is complete; raises BadCheckpoint if not this job's."""
    ref = stored_ref(path)
    if ref is None or ref.generation > MAX_GENERATION_SEEN:
        raise UserError(f"{path!r} is not the directory of an import")
    try:
        manifest = parse_manifest(await store.read_bytes(f"{path}/{MANIFEST_FILE}", MAX_MANIFEST_BYTES))
    except NotFound as error:
        raise BadCheckpoint(f"{path} has no {MANIFEST_FILE}") from error
    expected = (job.record.value.uuid, job.name, ref)
    if (manifest.job_uuid, manifest.job, manifest.ref) != expected:
        raise BadCheckpoint(
            f"{path} describes {manifest.ref} of job {manifest.job} ({manifest.job_uuid}), not {ref} of "
            f"{job.name} ({job.record.value.uuid})"
        )
    return manifest
