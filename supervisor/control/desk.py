"""What operators ask of the leader: each request is validated, then one fenced transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from recovery.checkpoints.lineage import on_lineage
from recovery.collect import StoreScan, scan_store
from recovery.decide.rules import objection
from supervisor.contract import keys
from supervisor.contract.boundaries import (
    Absent,
    CheckpointStore,
    Clock,
    Compare,
    Coordination,
    Delete,
    DeletePrefix,
    Op,
)
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.code import CodePart, CodeState
from supervisor.contract.desired import (
    JobPhase,
    JobSwitch,
    LeaderRecord,
    Ledger,
)
from supervisor.contract.errors import Conflict, NotFound, Unreachable, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.job import CodeRef, JobIntent, JobRecord, JobSpec, Wanted
from supervisor.contract.views import Accepted, SubmitMode, SubmitRequest
from supervisor.control import base
from supervisor.control.placement import NodeOffer, place
from supervisor.control.plan import put, unchanged
from supervisor.control.shelf import Shelf
from supervisor.control.sizes import check_sizes
from supervisor.control.snapshot import JobPicture, Snapshot

MAX_TASKS = 1000
SEEN_MS = 5_000
SEEN_LOOK_S = 0.02
ENDED_AFTER = 2


class Desk:
    """Serves the API. Only the leader's desk is open; the others say who leads."""

    def __init__(
        self,
        coordination: Coordination,
        open_store: Callable[[str], CheckpointStore],
        clock: Clock,
        new_id: Callable[[], str],
        leader: Callable[[], LeaderRecord | None],
        snapshot: Callable[[], Snapshot | None],
    ) -> None:
        self._coordination = coordination
        self._open_store = open_store
        self._clock = clock
        self._new_id = new_id
        self._leader = leader
        self._snapshot = snapshot
        self._shelf = Shelf(coordination, self._leading)

    def leader(self) -> LeaderRecord | None:
        """Who leads, as far as this supervisor knows."""
        return self._leader()

    def snapshot(self) -> Snapshot | None:
        """The present picture; None when this supervisor does not lead."""
        return self._snapshot()

    async def validate(self, request: SubmitRequest) -> Accepted:
        """Check a job as `submit` would, and change nothing."""
        snap = self._leading()
        _check_spec(request.spec)
        check_sizes(snap, request.spec)
        waits = _check_fits(snap, request.spec)
        return Accepted(request.spec.name, waits or f"{len(request.spec.tasks())} tasks fit this cluster")

    async def submit(self, request: SubmitRequest) -> Accepted:
        """Record a new job, or a new life of one that has ended.

        Raises:
            UserError: the job can never run here, or its checkpoint directory cannot be used.
            Conflict: its name or checkpoint URI is taken (rule 12).
        """
        spec = request.spec
        snap = self._leading()
        _check_spec(spec)
        check_sizes(snap, spec)
        waits = _check_fits(snap, spec)
        before = snap.jobs.get(spec.name)
        _check_free(snap, spec, before, request.mode)
        _check_over(snap, before)
        scan = await self._scan(spec)
        resumed = before is not None and request.mode is SubmitMode.RESUME
        if before is None and request.mode is SubmitMode.NEW and scan.found:
            raise Conflict(
                f"{spec.checkpoint.uri} already holds {len(scan.found)} checkpoints of another job; "
                "use another checkpoint.uri, or --fresh to start from scratch beside them"
            ).about("checkpoint", "uri")
        if request.mode is SubmitMode.RESUME and before is None:
            raise NotFound(f"there is no job {spec.name!r} to resume; submit it without --resume")
        floor = max(scan.max_generation, before.switch.value.generation if before is not None else 0)
        uuid = before.record.value.uuid if before is not None and resumed else self._new_id()
        needs = (await self._shelf.require(spec.code),) if spec.code is not None else ()
        await self._record(spec, before, uuid, floor, needs, resumed=resumed)
        submitted = f"submitted; its first generation is {floor + 1}"
        return Accepted(spec.name, f"{submitted}; {waits}" if waits else submitted)

    async def find_code(self, ref: CodeRef) -> CodeState:
        """Whether this archive need not be uploaded."""
        return await self._shelf.find(ref)

    async def put_code(self, part: CodePart) -> CodeState:
        """Take one chunk of an archive."""
        return await self._shelf.put(part)

    async def stop(self, job: str, *, save: bool = False) -> Accepted:
        """Ask for a stop; an ended job is left alone. `save`: SIGTERM and time to save come first."""
        picture = self._job(job)
        switch = picture.switch.value
        if switch.phase.ended:
            return Accepted(job, f"it has already ended: {switch.phase.value}")
        if save and switch.phase is JobPhase.STOPPING and not switch.save_grace_ms:
            return Accepted(job, "it is being stopped already, without time to save")
        await self._write_intent(picture, replace(picture.intent.value, wanted=Wanted.STOP, save=save))
        if not save:
            return Accepted(job, "it is being stopped; its last finished checkpoint is committed first")
        grace_ms = picture.record.value.spec.limits.save_grace_ms
        return Accepted(job, f"it gets SIGTERM and {grace_ms} ms to save; what it saves is committed")

    async def start(self, job: str) -> Accepted:
        """Start an ended job again from its newest checkpoint."""
        picture = self._job(job)
        if not picture.switch.value.phase.ended:
            return Accepted(job, f"it has not ended: {picture.switch.value.phase.value}")
        await self._write_intent(picture, JobIntent(Wanted.RUN, _next_serial(picture)))
        return Accepted(job, "it is started again from its newest checkpoint")

    async def restart(self, job: str, member: str = "", from_ref: CheckpointRef | None = None) -> Accepted:
        """Restart a job, or one task of it (`ROLE.INDEX`), or the whole job from an older checkpoint.

        `from_ref` may have generation 0: then it is the step alone that is asked for (`find_checkpoint`).
        With it, an ended job is started again.

        Raises:
            NotFound: no such job, task or checkpoint.
            Conflict: the job has ended, or that checkpoint cannot be restored any more.
            UserError: a checkpoint for one task alone.
        """
        picture = self._job(job)
        if picture.switch.value.phase.ended and from_ref is None:
            raise Conflict(f"job {job} has ended; use `supervisorctl start {job}`")
        members = {task.member for task in picture.record.value.spec.tasks()}
        if member and member not in members:
            raise NotFound(f"job {job} has no task {member!r}; it has {', '.join(sorted(members))}")
        if from_ref is None:
            await self._write_intent(picture, JobIntent(Wanted.RUN, _next_serial(picture), member))
            return Accepted(job, "a restart is recorded")
        if member:
            raise UserError("--from restarts the whole job: its tasks share one checkpoint; name no task")
        record = find_checkpoint(picture, from_ref)
        _check_restorable(record)
        await self._write_intent(picture, JobIntent(Wanted.RUN, _next_serial(picture), "", record.ref))
        return Accepted(job, f"a restart from checkpoint {record.ref} is recorded")

    async def pin(self, job: str, ref: CheckpointRef, *, pinned: bool) -> Accepted:
        """Keep a checkpoint from being collected, or let it go again. `ref`: as in `restart`.

        Raises NotFound when there is none, Conflict when it is being collected already.
        """
        picture = self._job(job)
        record = find_checkpoint(picture, ref)
        if record.state is CommitState.COLLECTING:
            raise Conflict(f"checkpoint {record.ref} is being collected already")
        word = "pinned" if pinned else "not pinned"
        if record.pinned is pinned:
            return Accepted(job, f"checkpoint {record.ref} is {word} already")
        held = picture.commits[record.ref]
        await self._write(
            [unchanged(held), base.head_unchanged(picture)],
            [
                put(held.key, replace(record, pinned=pinned)),
                put(keys.head(job), base.next_head(picture)),
            ],
            job,
        )
        return Accepted(job, f"checkpoint {record.ref} is {word}")

    def _leading(self) -> Snapshot:
        snap = self._snapshot()
        if snap is None:
            raise Unreachable("this supervisor does not lead")
        return snap

    def _job(self, name: str) -> JobPicture:
        snap = self._leading()
        picture = snap.jobs.get(name)
        if picture is None:
            known = ", ".join(sorted(snap.jobs)) or "none"
            raise NotFound(f"there is no job {name!r}; known jobs: {known}")
        return picture

    async def _scan(self, spec: JobSpec) -> StoreScan:
        store = self._open_store(spec.checkpoint.uri)
        await store.prepare()
        return await scan_store(store)

    async def _write_intent(self, picture: JobPicture, intent: JobIntent) -> None:
        await self._write([unchanged(picture.intent)], [put(picture.intent.key, intent)], picture.name)

    async def _record(
        self,
        spec: JobSpec,
        before: JobPicture | None,
        uuid: str,
        floor: int,
        needs: tuple[Compare, ...],
        *,
        resumed: bool,
    ) -> None:
        name = spec.name
        record = JobRecord(spec, uuid, self._clock.wall_ms(), floor)
        switch = JobSwitch(name, uuid, JobPhase.WAITING, floor)
        intent = JobIntent()
        ops: list[Op] = []
        compares: list[Compare] = [Absent(keys.job_record(name))]
        if before is not None:
            compares = [unchanged(before.record), unchanged(before.switch), unchanged(before.intent)]
            serial = max(before.intent.value.restart_serial, before.switch.value.restart_serial)
            base = before.switch.value.base if resumed else None
            switch = replace(switch, base=base, restart_serial=serial, ledger=Ledger())
            intent = JobIntent(restart_serial=serial)
            ops.append(DeletePrefix(keys.incidents_of(name)))
            if not resumed:
                ops += [DeletePrefix(keys.commits_of(name)), Delete(keys.head(name))]
        ops += [
            put(keys.job_record(name), record),
            put(keys.switch(name), switch),
            put(keys.intent(name), intent),
        ]
        await self._write([*compares, *needs], ops, name)

    async def _write(self, compares: list[Compare], ops: list[Op], job: str) -> None:
        token = self._leading().token
        result = await self._coordination.txn([token.compare(), *compares], ops)
        if not result.succeeded:
            raise Conflict(
                f"job {job} changed at the same moment; see `supervisorctl status`, then try again"
            )
        await self._seen(result.revision)

    async def _seen(self, revision: int) -> None:
        """Wait, for a while, until this leader's own picture has what was written: the next to ask finds it.

        The picture follows etcd by a watch, which on a loaded machine is late.
        """
        until_ms = self._clock.now_ms() + SEEN_MS
        while self._clock.now_ms() < until_ms:
            snap = self._snapshot()
            if snap is None or snap.revision >= revision:
                return
            await asyncio.sleep(SEEN_LOOK_S)


def find_checkpoint(picture: JobPicture, ref: CheckpointRef) -> CommitRecord:
    """The record of `ref`; with generation 0, of its step: the one on the lineage, else the newest.

    Raises NotFound, which names the steps that there are.
    """
    mine = [
        held.value
        for held in picture.commits.values()
        if held.value.job_uuid == picture.switch.value.job_uuid
        and held.value.state is not CommitState.COLLECTING
    ]
    found = {record.ref: record for record in mine if ref in (record.ref, CheckpointRef(0, record.ref.step))}
    if not found:
        what = f"step {ref.step}" if ref.generation == 0 else str(ref)
        have = ", ".join(str(record.ref.step) for record in sorted(mine, key=lambda each: each.ref))
        raise NotFound(
            f"job {picture.name} has no checkpoint of {what}; "
            + (f"it has those of the steps {have}" if have else "none is committed yet")
        )
    switch = picture.switch.value
    lineage = on_lineage(mine, switch.job_uuid, switch.generation, switch.base)
    preferred = [record for record in lineage if record.ref in found]
    return preferred[0] if preferred else found[max(found)]


def _check_restorable(record: CommitRecord) -> None:
    if record.state is CommitState.QUARANTINED:
        raise Conflict(f"checkpoint {record.ref} is quarantined: {record.reason}")


def _next_serial(picture: JobPicture) -> int:
    return max(picture.intent.value.restart_serial, picture.switch.value.restart_serial) + 1


def _check_spec(spec: JobSpec) -> None:
    """What any client must respect, also one that is not `supervisorctl`."""
    check_name("job", spec.name)
    if not spec.roles:
        raise UserError(f"job {spec.name} has no role")
    seen: set[str] = set()
    for role in spec.roles:
        check_name("role", role.name)
        if role.name in seen:
            raise UserError(f"role {role.name} appears twice")
        seen.add(role.name)
        if role.count < 1 or not role.command:
            raise UserError(f"role {role.name} needs a count of at least 1 and a command")
    if len(spec.tasks()) > MAX_TASKS:
        raise UserError(f"job {spec.name} has {len(spec.tasks())} tasks; at most {MAX_TASKS} are allowed")
    for cause in spec.restart.rules:
        if why := objection(cause):
            raise UserError(why).about("restart", "rules", cause)
    if not spec.workdir.startswith("/"):
        raise UserError(f"workdir {spec.workdir!r} must be an absolute path")


def _check_fits(snap: Snapshot, spec: JobSpec) -> str:
    """Refuse at once what could not run even on an empty cluster; a busy one is waited for.

    Returns what cannot be told yet, empty if all can.
    """
    offers = tuple(
        NodeOffer(node.node, node.incarnation.value.incarnation, node.incarnation.value.resources)
        for node in snap.nodes.values()
        if node.incarnation is not None
    )
    if not offers:
        return "it waits for a node: no agent is registered"
    result = place(spec, offers, {})
    if result.waiting_for:
        error = UserError(f"job {spec.name} can never run here, on all nodes empty: {result.waiting_for}")
        raise error.about("roles", result.role, "resources")
    return ""


def _check_over(snap: Snapshot, before: JobPicture | None) -> None:
    """The record of the job's placements is about to be replaced: nothing of it may run by then (rule 3)."""
    if before is None:
        return
    left_ms = before.switch.seen_ms + ENDED_AFTER * snap.timing.d_ms - snap.now_ms
    alive = [
        attempt
        for attempt, held in before.attempts.items()
        if held.value.exit is None or not held.value.exit.confirmed_dead
    ]
    if alive and left_ms > 0:
        raise Conflict(
            f"{alive[0]} of the job's last life may still be running; submit again in {left_ms // 1000 + 1} s"
        )


def _check_free(snap: Snapshot, spec: JobSpec, before: JobPicture | None, mode: SubmitMode) -> None:
    if before is not None:
        phase = before.switch.value.phase
        if not phase.ended:
            raise Conflict(f"job {spec.name} is {phase.value}; stop it first, or submit under another name")
        if mode is SubmitMode.NEW:
            raise Conflict(
                f"job {spec.name} exists ({phase.value}); submit with --resume to go on from its checkpoints "
                "or with --fresh to start from scratch"
            )
    for other in snap.jobs.values():
        if other.name != spec.name and other.record.value.spec.checkpoint.uri == spec.checkpoint.uri:
            raise Conflict(
                f"{spec.checkpoint.uri} belongs to job {other.name}; two jobs cannot share one"
            ).about("checkpoint", "uri")
