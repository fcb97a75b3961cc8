"""The requests of operators about jobs that there are: each is validated, then one fenced transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from recovery.stores.allowed import ANYWHERE, AllowedStores
from supervisor.contract.boundaries import CheckpointStore, Clock, Compare, Coordination, Op
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.desired import JobPhase, LeaderRecord
from supervisor.contract.errors import Conflict, UserError
from supervisor.contract.job.spec import JobIntent, Wanted, resized
from supervisor.contract.views.jobs import Accepted
from supervisor.control.decide import parking
from supervisor.control.decide.assess import sizing
from supervisor.control.decide.assess.progress import out_of_time
from supervisor.control.decide.facts import hold
from supervisor.control.decide.facts.history import find_checkpoint, no_task
from supervisor.control.decide.jobs import admission, deletion, resizing
from supervisor.control.decide.jobs.sizes import check_sizes
from supervisor.control.decide.plan import Action, put, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot
from supervisor.control.decide.switch import Transition, turn
from supervisor.control.services.checkpoints import CheckpointService
from supervisor.control.services.code_uploads import CodeUploads
from supervisor.control.services.context import LeaderContext
from supervisor.control.services.nodes import NodeService
from supervisor.control.services.pauses import PauseService
from supervisor.control.services.pools import PoolService
from supervisor.control.services.submissions import SubmissionService


class JobService:
    """The requests of operators about jobs. Each raises Unreachable while this supervisor does not lead.

    Attributes:
        submissions: takes new jobs.
        uploads: the archives of code.
        nodes, pauses, pools, checkpoints: the requests about these.
        etcd_lines: what operators must know of etcd, and of what keeps this supervisor from it.
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
        self._leader = leader
        self._snapshot = snapshot
        self._context = context = LeaderContext(coordination, clock, snapshot, event)
        self.etcd_lines: Callable[[], tuple[str, ...]] = tuple
        self.open_logs: Callable[[str], CheckpointStore] = open_store
        self.stacks_wanted: Callable[[str], tuple[str, ...] | None] = lambda _node: None
        self.uploads = CodeUploads(coordination, context.leading, open_store, new_id)
        self.submissions = SubmissionService(context, open_store, clock, new_id, self.uploads, allowed)
        self.nodes = NodeService(context.leading, context.run)
        self.pauses = PauseService(context.leading, context.job, context.run, clock)
        self.pools = PoolService(context.leading, context.run, clock, new_id)
        self.checkpoints = CheckpointService(context, coordination, open_store, clock)

    def leader(self) -> LeaderRecord | None:
        """The leader, as far as this supervisor knows; None if it knows of none."""
        return self._leader()

    def snapshot(self) -> Snapshot | None:
        """The present snapshot; None when this supervisor does not lead."""
        return self._snapshot()

    async def stop(self, job: str, *, save: bool = False) -> Accepted:
        """Ask for a stop; an ended job is left alone. `save`: SIGTERM and time to save come first."""
        picture = self._context.job(job)
        switch = picture.switch.value
        if switch.held:
            await self._context.ask(
                job,
                "what is kept of it for inspection is ended",
                [unchanged(picture.switch)],
                [turn(picture.switch, Transition.END_HOLD, held=())],
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
        picture = self._context.job(job)
        if not picture.switch.value.phase.ended:
            return Accepted(job, f"it has not ended: {picture.switch.value.phase.value}")
        _check_not_parked(picture)
        deletion.check_kept(self._context.leading(), job)
        self._check_time(picture)
        admission.check_records(picture)
        await self._write_intent(picture, _next_run(picture), "a start")
        return Accepted(job, f"it is started again from its newest checkpoint{self._waits(picture)}")

    async def release(self, job: str) -> Accepted:
        """Let a parked job be looked at again. Repeating it does no harm.

        One whose tasks ran begins again from its newest checkpoint; one that had ended has ended again.
        """
        picture = self._context.job(job)
        if picture.switch.value.parked is None:
            return Accepted(job, f"it is not parked: {picture.switch.value.phase.value}")
        deletion.check_kept(self._context.leading(), job)
        action = parking.release(picture)
        await self._context.run(action)
        return Accepted(job, action.text)

    async def delete(self, job: str) -> Accepted:
        """Stop the job, and remove it from etcd once nothing of it can run. Repeating it does no harm."""
        picture = self._context.job(job)
        if not picture.intent.value.delete:
            await self._context.run(deletion.ask(picture))
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
        picture = self._context.job(job)
        _check_not_parked(picture)
        deletion.check_kept(self._context.leading(), job)
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
            await self._context.ask(job, text, same, [put(picture.intent.key, intent)])
            return Accepted(job, f"a restart is recorded{self._waits(picture)}")
        if member:
            raise UserError("--from restarts the whole job: its tasks share one checkpoint; name no task")
        record = find_checkpoint(picture, from_ref)
        _check_restorable(record)
        asked = replace(_next_run(picture), restart_from=record.ref)
        # The record, too: it may be set aside or collected in this very moment.
        compares: list[Compare] = [unchanged(picture.intent), unchanged(picture.commits[record.ref])]
        text = f"a restart from checkpoint {record.ref} is asked for"
        await self._context.ask(job, text, compares, [put(picture.intent.key, asked)])
        waits = self._waits(picture)
        return Accepted(job, f"a restart from checkpoint {record.ref} is recorded{waits}")

    async def scale(self, job: str, sizes: Mapping[str, int]) -> Accepted:
        """Change the counts of roles; a job that has ended has them from its next start on.

        Raises:
            NotFound: no such job or role.
            UserError: a role that cannot have this count, or a job that could never run here with it.
        """
        picture, snap = self._context.job(job), self._context.leading()
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

    def _waits(self, picture: JobState) -> str:
        """That what was asked for waits, and why; empty if it does not."""
        held = hold.held(self._context.leading(), picture)
        return f"; it waits: {held}" if held else ""

    def _check_time(self, picture: JobState) -> None:
        """A job that has used up its time would fail at once."""
        if why := out_of_time(self._context.leading(), picture):
            raise Conflict(why)

    async def tell_of_certificate(self, holder: str, text: str) -> None:
        """Make an event of a certificate that its holder must renew."""
        fields = {"holder": holder, "state": text}
        told = f"the certificate of {holder} {text}; replace its files, no restart is needed"
        await self.tell(Action("certificate", "", told, (), (), fields))

    async def tell(self, event: Action) -> None:
        """Write an event. Raises an error if this supervisor does not lead, or etcd does not take it."""
        await self._context.run(event)

    async def _write_intent(self, picture: JobState, intent: JobIntent, what: str) -> None:
        ops: list[Op] = [put(picture.intent.key, intent)]
        await self._context.ask(picture.name, f"{what} is asked for", [unchanged(picture.intent)], ops)


def _check_not_parked(picture: JobState) -> None:
    if picture.switch.value.parked is not None:
        raise Conflict(f"job {picture.name} is parked; `supervisorctl release {picture.name}` lets it go on")


def _check_restorable(record: CommitRecord) -> None:
    if record.state is CommitState.QUARANTINED:
        raise Conflict(f"checkpoint {record.ref} is quarantined: {record.reason}")


def _next_run(picture: JobState) -> JobIntent:
    """The wish that the job run, from a start or restart of its own."""
    intent = picture.intent.value
    serial = max(intent.restart_serial, picture.switch.value.restart_serial) + 1
    return JobIntent(Wanted.RUN, serial, sizes=intent.sizes, paused=intent.paused)
