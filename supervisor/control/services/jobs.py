"""The requests of operators about jobs: each is validated, then one fenced transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from recovery.io.deadline import until
from recovery.mount.layout import MOUNTED
from recovery.retention.claims import read_claims, take_claim, withdraw_claim
from recovery.retention.collect import StoreScan, scan_store
from recovery.retention.pins import mark
from recovery.stores.allowed import ANYWHERE, AllowedStores
from recovery.stores.open import NOT_MOUNTED, normal_uri
from supervisor.adapters.caller import CALLER
from supervisor.adapters.failpoints import effect
from supervisor.adapters.files.store_uri import StoreUri, parse_record_uri, parse_uri
from supervisor.adapters.secret_sources import SecretSources
from supervisor.contract.boundaries import CheckpointStore, Clock, Compare, Coordination, Delete, Op
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.code import CodePart, CodeState
from supervisor.contract.desired import JobPhase, LeaderRecord
from supervisor.contract.errors import (
    Conflict,
    CoordinationUnreachable,
    StoreUnreachable,
    TfSupervisorError,
    Unreachable,
    UserError,
    nothing_named,
)
from supervisor.contract.job.spec import CodeRef, JobIntent, JobSpec, Wanted, as_hdfs_user, resized
from supervisor.contract.secret import uses
from supervisor.contract.views.jobs import Accepted, SubmitMode, SubmitRequest
from supervisor.control.decide import parking
from supervisor.control.decide.assess import sizing
from supervisor.control.decide.assess.progress import out_of_time
from supervisor.control.decide.checkpoints import commit_list
from supervisor.control.decide.facts import hold
from supervisor.control.decide.facts.cluster_time import ages
from supervisor.control.decide.facts.history import find_checkpoint, no_task
from supervisor.control.decide.goodput import ledger
from supervisor.control.decide.jobs import admission, deletion, resizing
from supervisor.control.decide.jobs.sizes import check_sizes
from supervisor.control.decide.plan import Action, put, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot
from supervisor.control.decide.switch import Transition, turn
from supervisor.control.services.checkpoints import CheckpointService, LeaderContext
from supervisor.control.services.code_uploads import CodeUploads
from supervisor.control.services.nodes import NodeService
from supervisor.control.services.pauses import PauseService
from supervisor.control.services.pools import PoolService

SEEN_MS = 5_000
SEEN_LOOK_S = 0.02
NOTE_MS = 5_000


class JobService:
    """The requests of operators about jobs. Each raises Unreachable while this supervisor does not lead.

    Attributes:
        secrets: those that jobs may name.
        targets: of notifications, those that jobs may name.
        uploads: the archives of code.
        etcd_lines: what operators must know of etcd.
        open_logs: opens the store of a job's logs; raises UserError.
        stacks_wanted: tells the attempts on a node whose stacks are wanted; None while this supervisor does
            not lead.
    """

    def __init__(
        self,
        coordination: Coordination,
        open_store: Callable[[str], CheckpointStore],
        clock: Clock,
        new_id: Callable[[], str],
        leader: Callable[[], LeaderRecord | None],
        snapshot: Callable[[], Snapshot | None],
        event: Callable[[Action], tuple[Op, ...]] = lambda _action: (),
        allowed: AllowedStores = ANYWHERE,
    ) -> None:
        self._coordination = coordination
        self._open_store = open_store
        self._clock = clock
        self._new_id = new_id
        self._leader = leader
        self._snapshot = snapshot
        self._event = event
        self._allowed = allowed
        self.secrets = SecretSources()
        self.targets: frozenset[str] = frozenset()
        self.etcd_lines: Callable[[], tuple[str, ...]] = tuple
        self.open_logs: Callable[[str], CheckpointStore] = open_store
        self.stacks_wanted: Callable[[str], tuple[str, ...] | None] = lambda _node: None
        self.uploads = CodeUploads(coordination, self._leading, open_store, new_id)
        self.nodes = NodeService(self._leading, self._run)
        self.pauses = PauseService(self._leading, self._job, self._run, clock)
        self.pools = PoolService(self._leading, self._run, clock, new_id)
        self.checkpoints = CheckpointService(
            LeaderContext(self._leading, self._job, self._run), coordination, open_store, clock
        )

    def leader(self) -> LeaderRecord | None:
        """The leader, as far as this supervisor knows; None if it knows of none."""
        return self._leader()

    def snapshot(self) -> Snapshot | None:
        """The present snapshot; None when this supervisor does not lead."""
        return self._snapshot()

    async def validate(self, request: SubmitRequest) -> Accepted:
        """Check a job as `submit` would, and change nothing."""
        snap = self._leading()
        admission.check_spec(request.spec)
        owner, group = _owner(snap.jobs.get(request.spec.name))
        self._store_user(request.spec, owner)
        self._check_secrets(request.spec, owner, group)
        self._check_targets(request.spec)
        check_sizes(snap, request.spec)
        self._check_directory_free(snap, request.spec)
        waits = admission.check_fits(snap, request.spec)
        told = waits or f"{len(request.spec.tasks())} tasks fit this cluster"
        return Accepted(request.spec.name, told, admission.cautions(snap, request.spec))

    async def submit(self, request: SubmitRequest) -> Accepted:
        """Record a new job, or a new life of one that has ended.

        Raises:
            UserError: the job can never run here, or its checkpoint directory cannot be used.
            Conflict: its name or checkpoint URI is taken (rule 12).
        """
        spec = request.spec
        snap = self._leading()
        admission.check_spec(spec)
        before = snap.jobs.get(spec.name)
        owner, group = _owner(before)
        whose = admission.Owner(owner, group, self._store_user(spec, owner))
        uri = as_hdfs_user(spec.checkpoint.uri, whose.hdfs_user)
        self._check_secrets(spec, owner, group)
        self._check_targets(spec)
        check_sizes(snap, spec)
        waits = admission.check_fits(snap, spec)
        _check_not_aside(snap, spec.name)
        deletion.check_kept(snap, spec.name)
        admission.check_name_free(spec, before, request.mode)
        self._check_directory_free(snap, spec)
        admission.check_over(snap, before)
        store = self._open_store(uri)
        scan = await self._scan(store, request, before)
        claims = await read_claims(store)
        deleted = snap.deleted.get(spec.name)
        known = {claim.job_uuid: claim.job for claim in claims}
        if deleted is not None:
            known.pop(deleted.value.job_uuid, None)
        traces = admission.Traces(
            tuple(one.manifest for one in scan.found),
            len(scan.unreadable),
            max(scan.max_generation, deleted.value.generation if deleted is not None else 0),
            tuple(claim.job_uuid for claim in claims if claim.job_uuid in known),
        )
        begins = admission.begin(request, before, traces)
        admission.check_claims(snap, request, before, known)
        admission.check_alone(snap, request, before, traces)
        if begins.uuid is not None and before is not None:
            _check_moved(spec, before, scan)
        needs = (await self.uploads.require(spec.code),) if spec.code is not None else ()
        uuid, wall_ms = begins.uuid or self._new_id(), self._clock.wall_ms()
        compares, ops = admission.record(request, before, begins, uuid, wall_ms, ages(snap).now_ms, whose)
        ops = [*ops, ledger.opened(snap, spec.name, uuid, wall_ms, self._clock.now_ms())]
        if deleted is not None:
            compares, ops = [*compares, unchanged(deleted)], [*ops, Delete(deleted.key)]
        forgotten = before is None and begins.uuid is not None
        claim = await take_claim(store, claims, uuid, spec.name, again=forgotten)
        try:
            await self._write([*compares, *needs], ops, spec.name, f"job {spec.name} is submitted")
        except Conflict:
            # One claim too many makes somebody ask whose it is, which is no reason to hide this failure.
            with suppress(TfSupervisorError):
                if claim is not None:
                    await withdraw_claim(store, claim)
            raise
        held = hold.held(snap, before) if before is not None else hold.held_cluster(snap)
        told = [f"submitted; its first generation is {begins.floor + 1}", begins.held, waits]
        told.append(f"it waits: {held}" if held else "")
        if request.hold and not begins.held:
            told.append(f"it is on hold: `supervisorctl start {spec.name}` starts it")
        return Accepted(spec.name, "; ".join(filter(None, told)), admission.cautions(snap, spec))

    def _store_user(self, spec: JobSpec, owner: str) -> str:
        """The HDFS user for a job's store; empty: the daemons' own.

        Raises UserError if the store is not allowed, or a place that its environment or its data comes from.
        """
        self._check_environment(spec, owner)
        data_user = self._data_user(spec, owner)
        place = parse_uri(normal_uri(spec.checkpoint.uri))
        self._allowed.check(place, owner)
        self._check_apart_from_code(place)
        user = self._allowed.hdfs_user(place, owner)
        if user and spec.checkpoint.mode == MOUNTED:
            raise UserError(NOT_MOUNTED).about("checkpoint", "mode")
        return user or data_user

    def _data_user(self, spec: JobSpec, owner: str) -> str:
        """The HDFS user for a job's data. Raises UserError for data that its owner may not use."""
        users = {""}
        for name, uri in spec.data.items():
            try:
                place = parse_uri(normal_uri(uri))
                self._allowed.check(place, owner)
                users.add(self._allowed.hdfs_user(place, owner))
            except UserError as error:
                text = str(error).replace("checkpoint.uri", f"data.{name}", 1)
                raise UserError(text).about("data", name) from error
        return max(users)

    def _check_apart_from_code(self, place: StoreUri) -> None:
        """A job's tasks and its sweep write to its own directory, and must not reach the code of others."""
        if not self.uploads.store:
            return
        code = parse_uri(normal_uri(str(parse_record_uri(self.uploads.store))))
        if place.overlaps(code):
            raise UserError(
                f"checkpoint.uri {place} and this cluster's store of code, {code}, are within one another; "
                "use another directory"
            ).about("checkpoint", "uri")

    def _check_environment(self, spec: JobSpec, owner: str) -> None:
        """Files that agents read for a job must be where its owner may have a store."""
        environment = spec.environment
        if environment is None:
            return
        for field, uri in (("archive", environment.archive), ("wheelhouse", environment.wheelhouse)):
            if not uri:
                continue
            try:
                self._allowed.check(parse_uri(normal_uri(uri)), owner)
            except UserError as error:
                text = str(error).replace("checkpoint.uri", f"environment.{field}", 1)
                raise UserError(text).about("environment", field) from error

    def _check_secrets(self, spec: JobSpec, owner: str, group: str) -> None:
        """The job's owner must be allowed to use its secrets, and its submitter, who chooses the program."""
        for field, name in uses(spec):
            for each in ((owner, group), _caller()):
                if why := self.secrets.objection(name, *each):
                    raise UserError(why).about(*field)

    def _check_targets(self, spec: JobSpec) -> None:
        """A job names targets that operators have configured: it chooses no address itself."""
        for name in spec.notify:
            if name not in self.targets:
                known = ", ".join(sorted(self.targets)) or "none"
                text = (
                    f"there is no target {name[:64]!r} in `notify.targets` of the supervisors; known: {known}"
                )
                raise UserError(text).about("notify")

    async def find_code(self, ref: CodeRef) -> CodeState:
        """Whether this archive need not be uploaded."""
        return await self.uploads.find(ref)

    async def put_code(self, part: CodePart) -> CodeState:
        """Take one chunk of an archive."""
        return await self.uploads.put(part)

    async def stop(self, job: str, *, save: bool = False) -> Accepted:
        """Ask for a stop; an ended job is left alone. `save`: SIGTERM and time to save come first."""
        picture = self._job(job)
        switch = picture.switch.value
        if switch.held:
            await self._write(
                [unchanged(picture.switch)],
                [turn(picture.switch, Transition.END_HOLD, held=())],
                job,
                "what is kept of it for inspection is ended",
            )
            return Accepted(job, f"it had {switch.phase.value}; what was kept of it for inspection is ended")
        if switch.phase.ended:
            return Accepted(job, f"it has already ended: {switch.shown_phase.value}")
        if save and switch.phase is JobPhase.STOPPING and not switch.save_grace_ms:
            return Accepted(job, "it is being stopped already, without time to save")
        intent = replace(picture.intent.value, wanted=Wanted.STOP, save=save)
        await self._write_intent(picture, intent, "a stop with time to save" if save else "a stop")
        if not save:
            return Accepted(job, "it is being stopped; its last finished checkpoint is committed first")
        grace_ms = picture.record.value.spec.limits.save_grace_ms
        return Accepted(job, f"it gets SIGTERM and {grace_ms} ms to save; what it saves is committed")

    async def start(self, job: str) -> Accepted:
        """Start an ended job again from its newest checkpoint."""
        picture = self._job(job)
        if not picture.switch.value.phase.ended:
            return Accepted(job, f"it has not ended: {picture.switch.value.phase.value}")
        _check_not_parked(picture)
        deletion.check_kept(self._leading(), job)
        self._check_time(picture)
        admission.check_records(picture)
        await self._write_intent(picture, _next_run(picture), "a start")
        return Accepted(job, f"it is started again from its newest checkpoint{self._waits(picture)}")

    async def release(self, job: str) -> Accepted:
        """Let a parked job be looked at again. Repeating it does no harm.

        One whose tasks ran begins again from its newest checkpoint; one that had ended has ended again.
        """
        picture = self._job(job)
        if picture.switch.value.parked is None:
            return Accepted(job, f"it is not parked: {picture.switch.value.phase.value}")
        deletion.check_kept(self._leading(), job)
        action = parking.release(picture)
        await self._run(action)
        return Accepted(job, action.text)

    async def delete(self, job: str) -> Accepted:
        """Stop the job, and remove it from etcd once nothing of it can run. Repeating it does no harm."""
        picture = self._job(job)
        if not picture.intent.value.delete:
            await self._run(deletion.ask(picture))
        return Accepted(job, "it is being deleted; what it has in its store stays there, except its logs")

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
        _check_not_parked(picture)
        deletion.check_kept(self._leading(), job)
        if picture.switch.value.phase.ended and from_ref is None:
            raise Conflict(f"job {job} has ended; use `supervisorctl start {job}`")
        if picture.switch.value.phase.ended:
            self._check_time(picture)
            admission.check_records(picture)
        if member and member not in {task.member for task in picture.record.value.spec.tasks()}:
            raise no_task(picture, f"{job}/{':'.join(member.rsplit('.', 1))}")
        if from_ref is None:
            intent = replace(_next_run(picture), restart_member=member)
            # The record, too: this task may leave in this very moment.
            same: list[Compare] = [
                unchanged(picture.intent),
                *([unchanged(picture.record)] if member else []),
            ]
            text = f"a restart of {member or 'all tasks'} is asked for"
            await self._write(same, [put(picture.intent.key, intent)], job, text)
            return Accepted(job, f"a restart is recorded{self._waits(picture)}")
        if member:
            raise UserError("--from restarts the whole job: its tasks share one checkpoint; name no task")
        record = find_checkpoint(picture, from_ref)
        _check_restorable(record)
        asked = replace(_next_run(picture), restart_from=record.ref)
        # The record, too: it may be set aside or collected in this very moment.
        compares: list[Compare] = [unchanged(picture.intent), unchanged(picture.commits[record.ref])]
        text = f"a restart from checkpoint {record.ref} is asked for"
        await self._write(compares, [put(picture.intent.key, asked)], job, text)
        waits = self._waits(picture)
        return Accepted(job, f"a restart from checkpoint {record.ref} is recorded{waits}")

    async def scale(self, job: str, sizes: Mapping[str, int]) -> Accepted:
        """Change the counts of roles; a job that has ended has them from its next start on.

        Raises:
            NotFound: no such job or role.
            UserError: a role that cannot have this count, or a job that could never run here with it.
        """
        picture, snap = self._job(job), self._leading()
        _check_not_parked(picture)
        deletion.check_kept(snap, job)
        if not sizes:
            raise UserError("no role is named; write for example worker=4")
        spec = resized(picture.wanted, sizes)
        resizing.check_asked(spec, sizes)
        admission.check_spec(spec)
        check_sizes(snap, spec)
        waits = admission.check_fits(snap, spec)
        what = ", ".join(f"{role}={count}" for role, count in sizes.items())
        if spec == picture.wanted:
            return Accepted(job, f"it is to have {what} already")
        intent = replace(picture.intent.value, sizes=dict(picture.intent.value.sizes) | dict(sizes))
        await self._write_intent(picture, intent, what)
        if picture.switch.value.phase not in (JobPhase.WAITING, JobPhase.RUNNING):
            return Accepted(job, f"it has {what} when it is started again")
        sized = replace(picture, intent=replace(picture.intent, value=intent))
        held = self._waits(picture)
        if not sizing.why_all_restart(sized):
            how = f"workers join or leave until it has {what}; all others train on"
            return Accepted(job, "; ".join(filter(None, (how, waits))) + held)
        grace_ms = spec.limits.save_grace_ms
        when = f"right after a checkpoint, or without one {grace_ms} ms after all is prepared"
        if any(spec.role(role).most for role in sizes):
            when = "right after a checkpoint, as far as there is room"
        return Accepted(job, "; ".join(filter(None, (f"it restarts with {what} {when}", waits))) + held)

    async def pin(self, job: str, ref: CheckpointRef, *, pinned: bool) -> Accepted:
        """Keep a checkpoint from being collected, or let it go again. `ref`: as in `restart`.

        It is noted in the store, too, where `rebuild` finds it; repeated, that is made up for.

        Raises NotFound when there is none, Conflict when it is being collected already.
        """
        picture = self._job(job)
        admission.check_records(picture)
        record = find_checkpoint(picture, ref)
        if record.state is CommitState.COLLECTING:
            raise Conflict(f"checkpoint {record.ref} is being collected already")
        word = "pinned" if pinned else "not pinned"
        if record.pinned is pinned:
            noted = await self._note_pin(picture, record.path, pinned=pinned)
            return Accepted(job, f"checkpoint {record.ref} is {word} already{noted}")
        compares, ops = commit_list.changed(picture, replace(record, pinned=pinned))
        await self._run(
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
        store = self._open_store(picture.record.value.store_uri)
        try:
            async with until(self._clock, self._clock.now_ms() + NOTE_MS, f"noting it beside {path}"):
                await mark(store, path, pinned=pinned)
        except TfSupervisorError as error:
            return f"; a `rebuild` after a loss of etcd would not know of it: {error}"
        return ""

    def _waits(self, picture: JobState) -> str:
        """That what was asked for waits, and why; empty if it does not."""
        held = hold.held(self._leading(), picture)
        return f"; it waits: {held}" if held else ""

    def _leading(self) -> Snapshot:
        snap = self._snapshot()
        if snap is None:
            raise Unreachable("this supervisor does not lead")
        return snap

    def _job(self, name: str) -> JobState:
        snap = self._leading()
        _check_not_aside(snap, name)
        picture = snap.jobs.get(name)
        if picture is None:
            raise nothing_named("job", name, snap.jobs)
        return picture

    def _check_time(self, picture: JobState) -> None:
        """A job that has used up its time would fail at once."""
        if why := out_of_time(self._leading(), picture):
            raise Conflict(why)

    def _check_directory_free(self, snap: Snapshot, spec: JobSpec) -> None:
        """Two jobs cannot share a directory, however each spells it (rule 12)."""
        wanted = normal_uri(spec.checkpoint.uri)
        taken = {job.name: job.record.value.spec.checkpoint.uri for job in snap.jobs.values()}
        taken |= {left.job: left.uri for left in snap.aside.values() if left.uri}
        for job, uri in taken.items():
            if job != spec.name and normal_uri(uri) == wanted:
                raise Conflict(
                    f"{spec.checkpoint.uri} belongs to job {job}; two jobs cannot share one"
                ).about("checkpoint", "uri")

    async def _scan(
        self, store: CheckpointStore, request: SubmitRequest, before: JobState | None
    ) -> StoreScan:
        """The contents of the job's store.

        The store is created only if no checkpoint is known to be in it.
        """
        known = before is None or before.commits or before.switch.value.base
        if request.mode is not SubmitMode.RESUME or not known:
            with effect("service.prepare_store", StoreUnreachable):
                await store.prepare()
        return await scan_store(store)

    async def tell_of_certificate(self, holder: str, text: str) -> None:
        """Make an event of a certificate that its holder must renew."""
        fields = {"holder": holder, "state": text}
        told = f"the certificate of {holder} {text}; replace its files, no restart is needed"
        await self.tell(Action("certificate", "", told, (), (), fields))

    async def tell(self, event: Action) -> None:
        """Write an event. Raises an error if this supervisor does not lead, or etcd does not take it."""
        await self._run(event)

    async def _write_intent(self, picture: JobState, intent: JobIntent, what: str) -> None:
        ops: list[Op] = [put(picture.intent.key, intent)]
        await self._write([unchanged(picture.intent)], ops, picture.name, f"{what} is asked for")

    async def _write(self, compares: list[Compare], ops: list[Op], job: str, text: str) -> None:
        await self._run(Action("asked", job, text, tuple(compares), tuple(ops)))

    async def _run(self, action: Action) -> None:
        """One transaction under the leader token, with the event that tells of it."""
        token = self._leading().token
        action = _by_caller(action)
        ops = [*action.ops, *self._event(action)]
        with effect(f"service.{action.kind}", CoordinationUnreachable):
            result = await self._coordination.txn([token.compare(), *action.compares], ops)
        if not result.succeeded:
            node = action.fields.get("node", "")
            what = f"job {action.job}" if action.job else f"node {node}" if node else "the cluster's pause"
            raise Conflict(f"{what} changed at the same moment; see `supervisorctl status`, then try again")
        await self._seen(result.revision)

    async def _seen(self, revision: int) -> None:
        """Wait, for a while, until this leader's own snapshot has what was written: the next to ask finds it.

        The snapshot follows etcd by a watch, which on a loaded machine is late.
        """
        until_ms = self._clock.now_ms() + SEEN_MS
        while self._clock.now_ms() < until_ms:
            snap = self._snapshot()
            if snap is None or snap.revision >= revision:
                return
            await asyncio.sleep(SEEN_LOOK_S)


def _by_caller(action: Action) -> Action:
    """The same, and its event names who asked for it."""
    caller = CALLER.get()
    if caller is None:
        return action
    return replace(action, text=f"{action.text} (by {caller})", fields={**action.fields, "by": str(caller)})


def _owner(before: JobState | None) -> tuple[str, str]:
    """The owner and group of a submitted job: those of its earlier life, else the caller's."""
    if before is not None and before.record.value.owner:
        return before.record.value.owner, before.record.value.group
    return _caller()


def _caller() -> tuple[str, str]:
    caller = CALLER.get()
    return (str(caller), caller.standing.group) if caller is not None else ("", "")


def _check_not_parked(picture: JobState) -> None:
    if picture.switch.value.parked is not None:
        raise Conflict(f"job {picture.name} is parked; `supervisorctl release {picture.name}` lets it go on")


def _check_not_aside(snap: Snapshot, name: str) -> None:
    if name in snap.aside:
        raise Conflict(f"job {name} is set aside: {snap.aside[name].why}")


def _check_restorable(record: CommitRecord) -> None:
    if record.state is CommitState.QUARANTINED:
        raise Conflict(f"checkpoint {record.ref} is quarantined: {record.reason}")


def _next_run(picture: JobState) -> JobIntent:
    """The wish that the job run, from a start or restart of its own."""
    intent = picture.intent.value
    serial = max(intent.restart_serial, picture.switch.value.restart_serial) + 1
    return JobIntent(Wanted.RUN, serial, sizes=intent.sizes, paused=intent.paused)


def _check_moved(spec: JobSpec, before: JobState, scan: StoreScan) -> None:
    """A job that goes on from another directory than before must find its checkpoints there.

    Otherwise each of them would look like one whose files are missing, and be quarantined.
    """
    old = before.record.value.spec.checkpoint.uri
    if old == spec.checkpoint.uri:
        return
    there = {one.path for one in scan.found}
    missing = [
        held.value.path for held in before.commits.values() if held.value.state is CommitState.COMMITTED
    ]
    missing = [path for path in missing if path not in there]
    if missing:
        raise Conflict(
            f"{spec.checkpoint.uri} lacks {len(missing)} checkpoints of the job, {missing[0]} among them; "
            f"copy all of {old} there first, or keep that as checkpoint.uri"
        ).about("checkpoint", "uri")
