"""Submits: a job is checked against this cluster and its store, then recorded in one fenced transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from recovery.mount.layout import MOUNTED
from recovery.retention.claims import read_claims, take_claim, withdraw_claim
from recovery.retention.collect import StoreScan, scan_store
from recovery.stores.allowed import ANYWHERE, AllowedStores
from recovery.stores.open import NOT_MOUNTED, normal_uri
from supervisor.adapters.caller import CALLER
from supervisor.adapters.failpoints import effect
from supervisor.adapters.files.store_uri import StoreUri, parse_record_uri, parse_uri
from supervisor.adapters.secret_sources import SecretSources
from supervisor.contract.boundaries import CheckpointStore, Clock, Delete
from supervisor.contract.checkpoint import CommitState
from supervisor.contract.errors import Conflict, StoreUnreachable, TfSupervisorError, UserError
from supervisor.contract.job.spec import JobSpec, as_hdfs_user
from supervisor.contract.secret import uses
from supervisor.contract.views.jobs import Accepted, SubmitMode, SubmitRequest
from supervisor.control.decide.facts import hold
from supervisor.control.decide.facts.cluster_time import ages
from supervisor.control.decide.goodput import ledger
from supervisor.control.decide.jobs import admission, deletion
from supervisor.control.decide.jobs.sizes import check_sizes
from supervisor.control.decide.plan import unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot
from supervisor.control.services.code_uploads import CodeUploads
from supervisor.control.services.context import LeaderContext, check_not_aside


class SubmissionService:
    """Takes jobs, and says without a change whether it would.

    Attributes:
        secrets: those that jobs may name.
        targets: of notifications, those that jobs may name.
    """

    def __init__(
        self,
        context: LeaderContext,
        open_store: Callable[[str], CheckpointStore],
        clock: Clock,
        new_id: Callable[[], str],
        uploads: CodeUploads,
        allowed: AllowedStores = ANYWHERE,
    ) -> None:
        self._context = context
        self._open_store = open_store
        self._clock = clock
        self._new_id = new_id
        self._uploads = uploads
        self._allowed = allowed
        self.secrets = SecretSources()
        self.targets: frozenset[str] = frozenset()

    async def validate(self, request: SubmitRequest) -> Accepted:
        """Check a job as `submit` would, and change nothing."""
        snap = self._context.leading()
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
        snap = self._context.leading()
        admission.check_spec(spec)
        before = snap.jobs.get(spec.name)
        owner, group = _owner(before)
        whose = admission.Owner(owner, group, self._store_user(spec, owner))
        uri = as_hdfs_user(spec.checkpoint.uri, whose.hdfs_user)
        self._check_secrets(spec, owner, group)
        self._check_targets(spec)
        check_sizes(snap, spec)
        waits = admission.check_fits(snap, spec)
        check_not_aside(snap, spec.name)
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
        needs = (await self._uploads.require(spec.code),) if spec.code is not None else ()
        uuid, wall_ms = begins.uuid or self._new_id(), self._clock.wall_ms()
        compares, ops = admission.record(request, before, begins, uuid, wall_ms, ages(snap).now_ms, whose)
        ops = [*ops, ledger.opened(snap, spec.name, uuid, wall_ms, self._clock.now_ms())]
        if deleted is not None:
            compares, ops = [*compares, unchanged(deleted)], [*ops, Delete(deleted.key)]
        forgotten = before is None and begins.uuid is not None
        claim = await take_claim(store, claims, uuid, spec.name, again=forgotten)
        try:
            await self._context.ask(spec.name, f"job {spec.name} is submitted", [*compares, *needs], ops)
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
        if not self._uploads.store:
            return
        code = parse_uri(normal_uri(str(parse_record_uri(self._uploads.store))))
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


def _owner(before: JobState | None) -> tuple[str, str]:
    """The owner and group of a submitted job: those of its earlier life, else the caller's."""
    if before is not None and before.record.value.owner:
        return before.record.value.owner, before.record.value.group
    return _caller()


def _caller() -> tuple[str, str]:
    caller = CALLER.get()
    return (str(caller), caller.standing.group) if caller is not None else ("", "")


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
