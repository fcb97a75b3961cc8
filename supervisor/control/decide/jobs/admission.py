"""A job that is submitted: is it one that can run here, and where does it begin? Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recovery.formats.manifest import Manifest
from recovery.formats.selection import candidates
from recovery.policy.rules import objection
from supervisor.contract import keys
from supervisor.contract.boundaries import Absent, Compare, Delete, DeletePrefix, Op
from supervisor.contract.bounds import MAX_GIVEN_BYTES
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import Conflict, FitsNowhere, NotFound, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.job.adopted_path import check_adopted
from supervisor.contract.job.bounds import objections
from supervisor.contract.job.spec import JobIntent, JobRecord, JobSpec, resized
from supervisor.contract.views.jobs import SubmitMode, SubmitRequest
from supervisor.control.decide.facts.gpus import all_slots, reported
from supervisor.control.decide.facts.history import records_are_lost
from supervisor.control.decide.facts.promises import held_ms
from supervisor.control.decide.facts.standing import ENDED_AFTER, not_dead
from supervisor.control.decide.nodes.offers import NodeOffer, grouped
from supervisor.control.decide.nodes.placement import Before, place
from supervisor.control.decide.plan import put, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot
from supervisor.control.decide.switch import first_switch

MAX_GENERATION_SEEN = 9_999_999
"""A directory that claims more was not left by training: no job restarts ten million times."""

FORGOTTEN = 1_000
"""The most generations of a job that may have begun and left nothing in its store before etcd lost the
job."""

MOST_FORMER = 100
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Begin:
    """The beginning of a submitted job.

    Attributes:
        uuid: its own, or that of the job that it resumes; None: it needs a new one.
        floor: the highest generation that is known of it (rule 12).
        base: what it goes on from, as its switch says.
        held: it waits for `start`; why, and what to do.
    """

    uuid: str | None
    floor: int
    base: CheckpointRef | None = None
    held: str = ""


@dataclass(frozen=True, slots=True)
class Traces:
    """The traces in a checkpoint store of the jobs that used it.

    Attributes:
        found: the manifests in it.
        unreadable: how many directories have a checkpoint's name, and no manifest that can be read.
        floor: the highest generation that left anything.
        claims: the UUIDs of the jobs that were submitted to it: one for each time that etcd did not know it.
    """

    found: Sequence[Manifest] = ()
    unreadable: int = 0
    floor: int = 0
    claims: Sequence[str] = ()


def check_spec(spec: JobSpec) -> None:
    """Check the rules that every client must respect, not only `supervisorctl`. Raises UserError."""
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
    for cause in spec.restart.rules:
        if why := objection(cause):
            raise UserError(why).about("restart", "rules", cause)
    for wrong in objections(spec):
        raise UserError(wrong.text).about(*map(str, wrong.where))
    _check_adopt(spec.checkpoint.adopt)
    if not spec.workdir.startswith("/"):
        raise UserError(f"workdir {spec.workdir!r} must be an absolute path")


def _check_adopt(path: str) -> None:
    if path and check_adopted(path) != path:
        raise UserError(f"{path!r} has superfluous parts").about("checkpoint", "adopt")


def check_fits(snap: Snapshot, spec: JobSpec) -> str:
    """Refuse at once what could not run even on an empty cluster; a busy one is waited for.

    Returns what cannot be told yet, empty if all can.
    """
    offers = grouped(
        NodeOffer(
            node.node,
            node.incarnation.value.incarnation,
            node.incarnation.value.resources,
            gpus=all_slots(node),
        )
        for node in snap.nodes.values()
        if node.incarnation is not None
    )
    if not offers.by_node:
        return "it waits for a node: no agent is registered"
    result = place(resized(spec, {r.name: r.least or r.count for r in spec.roles}), offers, Before())
    if any(spec.role(name).resources.gpus for name in result.asks[1:2] if result.asks[-1] == "resources"):
        silent = [node.node for node in snap.nodes.values() if node.incarnation and not reported(node)]
        if silent:
            return f"it waits until {', '.join(silent)} told of their GPUs"
    if result.waiting_for:
        error = FitsNowhere(f"job {spec.name} can never run here, on all nodes empty: {result.waiting_for}")
        raise error.about(*result.asks)
    return ""


def cautions(snap: Snapshot, spec: JobSpec) -> tuple[str, ...]:
    """Warnings about an allowed job that may be a mistake: one without GPUs, on a cluster that has some."""
    if any(role.resources.gpus for role in spec.roles):
        return ()
    nodes = [node.node for node in snap.nodes.values() if (held := reported(node)) and held.value.gpus]
    if not nodes:
        return ()
    where = ", ".join(nodes[:MOST_NAMED])
    if len(nodes) > MOST_NAMED:
        where += f" and {len(nodes) - MOST_NAMED} more nodes"
    text = f"no role asks for GPUs, so that its tasks see none of those of {where}"
    return (f"{text}; `resources: {{gpus: 1}}` gives each task of a role one",)


def check_over(snap: Snapshot, before: JobState | None) -> None:
    """The record of the job's placements is about to be replaced: nothing of it may run by then (rule 3)."""
    if before is None:
        return
    if before.switch.value.held:
        raise Conflict(
            f"{', '.join(before.switch.value.held)} of job {before.name} are kept for inspection; "
            f"`supervisorctl stop {before.name}` ends them"
        )
    left_ms = before.switch.seen_ms + ENDED_AFTER * snap.timing.d_ms - snap.now_ms
    alive = {
        str(attempt): left_ms for attempt, held in before.attempts.items() if not held.value.confirmed_dead
    }
    # What runs on by promises outlives that (rule 11), and may never have been reported.
    alive |= {f"{each.member} on {each.node}": held_ms(snap, each.node) for each in not_dead(before)}
    longest = max(alive, key=alive.__getitem__, default="")
    if longest and alive[longest] > 0:
        again_s = alive[longest] // 1000 + 1
        raise Conflict(f"{longest} of the job's last life may still be running; submit again in {again_s} s")


def check_name_free(spec: JobSpec, before: JobState | None, mode: SubmitMode) -> None:
    """Raise Conflict for a name that is in use (rule 12)."""
    if before is None:
        return
    phase = before.switch.value.phase
    if not phase.ended:
        raise Conflict(f"job {spec.name} is {phase.value}; stop it first, or submit under another name")
    shown = before.switch.value.shown_phase
    if mode is SubmitMode.NEW:
        raise Conflict(
            f"job {spec.name} exists ({shown.value}); submit with --resume to go on from its checkpoints "
            "or with --fresh to start from scratch"
        )


def begin(request: SubmitRequest, before: JobState | None, traces: Traces) -> Begin:
    """The beginning of the job, by its records in etcd and its checkpoints in the store.

    Args:
        request: what is asked for.
        before: its last life, which has ended; None when etcd knows no job of this name.
        traces: what its store holds.

    Raises:
        Conflict: the store holds what this job would get mixed up with.
        NotFound: there is nothing to resume.
    """
    spec, mode, floor, found = request.spec, request.mode, traces.floor, traces.found
    if floor > MAX_GENERATION_SEEN:
        raise Conflict(
            f"{spec.checkpoint.uri} holds a directory of generation {floor}, which no training has left; "
            "move it away"
        ).about("checkpoint", "uri")
    if before is not None:
        return _begin_again(mode, before, floor)
    ours = [each for each in found if each.job == spec.name]
    if mode is SubmitMode.RESUME:
        return _take_up(spec, traces)
    if mode is SubmitMode.NEW and (found or traces.unreadable):
        advice = "use another checkpoint.uri, or --fresh to start from scratch beside them"
        if ours:
            advice = "--resume takes them up, if this cluster has lost its etcd; " + advice
        whose = "a job of this name" if ours else "another job" if found else "nobody known"
        count = len(found) + traces.unreadable
        raise Conflict(f"{spec.checkpoint.uri} already holds {count} checkpoints of {whose}; {advice}").about(
            "checkpoint", "uri"
        )
    return Begin(None, floor)


def check_claims(
    snap: Snapshot, request: SubmitRequest, before: JobState | None, claims: Mapping[str, str]
) -> None:
    """Raise Conflict when the directory is known to be another's, by whatever name that one knows it.

    `claims` are the jobs that were ever submitted to it, by UUID.
    """
    name, uri = request.spec.name, request.spec.checkpoint.uri
    here = {each.record.value.uuid: each.name for each in snap.jobs.values() if each.name != name}
    left = {each.job: each for each in snap.aside.values()}
    for uuid, job in claims.items():
        if job in left and left[job].uuid in {"", uuid}:
            raise Conflict(
                f"{uri} is, or was, the directory of job {job}, which may run, and is set aside: "
                f"{left[job].why}"
            ).about("checkpoint", "uri")
        if uuid in here:
            raise Conflict(
                f"{uri} is the directory of job {here[uuid]}, which knows it by another name (a link, a "
                "mount, another name of a host); two jobs cannot share one"
            ).about("checkpoint", "uri")
        if before is None and request.mode is SubmitMode.NEW and job == name:
            raise Conflict(
                f"{uri} was taken for a job of this name, which this cluster does not know: a submit of "
                f"{name} was not finished (--fresh takes the directory over), or it is another cluster's, or "
                "this one has lost its etcd"
            ).about("checkpoint", "uri")
        if before is None and request.mode is SubmitMode.NEW:
            raise Conflict(
                f"{uri} was taken by job {job}, which this cluster does not know: it is another cluster's, "
                "or this one has lost its etcd; use another checkpoint.uri, or --fresh if that job is gone"
            ).about("checkpoint", "uri")


def check_alone(snap: Snapshot, request: SubmitRequest, before: JobState | None, traces: Traces) -> None:
    """Raise Conflict while tasks may run of a job of which only the directory tells: etcd has lost it.

    Who takes it up again waits in `rebuild`.
    """
    left_ms = snap.former_ms()
    if before is not None or request.mode is SubmitMode.RESUME or not left_ms:
        return
    if traces.found or traces.unreadable or traces.claims:
        raise Conflict(
            f"{request.spec.checkpoint.uri} was used before this cluster's etcd was begun; its tasks may "
            f"still be running: submit again in {left_ms // 1000 + 1} s"
        ).about("checkpoint", "uri")


def _begin_again(mode: SubmitMode, before: JobState, seen: int) -> Begin:
    switch = before.switch.value
    floor = max(seen, switch.generation)
    if mode is not SubmitMode.RESUME:
        return Begin(None, floor)
    base = switch.base
    if records_are_lost(before):
        return Begin(before.record.value.uuid, floor, base, _lost(before.name))
    if floor > switch.generation:
        # Its last generation's commits are on the lineage of a later one only through its base.
        usable = candidates((held.value for held in before.commits.values()), switch)
        base = usable[0].ref if usable else base
    return Begin(before.record.value.uuid, floor, base)


def _take_up(spec: JobSpec, traces: Traces) -> Begin:
    """A job that etcd has forgotten: its store says who it was. Its records are made again by `rebuild`."""
    ours = [each for each in traces.found if each.job == spec.name]
    if not ours:
        others = ", ".join(sorted({each.job for each in traces.found}))
        what = (
            f"checkpoints of {others}: submit it under that name"
            if others
            else "no checkpoint: submit it without --resume"
        )
        raise NotFound(f"there is no job {spec.name!r} to resume; {spec.checkpoint.uri} holds {what}")
    newest = max(ours, key=lambda each: each.ref)
    times = 1 + traces.claims.count(newest.job_uuid)
    return Begin(newest.job_uuid, traces.floor + times * FORGOTTEN, newest.ref, _lost(spec.name))


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner and group of a job, and its user of HDFS, as `JobRecord` has them."""

    owner: str = ""
    group: str = ""
    hdfs_user: str = ""


def record(
    request: SubmitRequest,
    before: JobState | None,
    begins: Begin,
    uuid: str,
    wall_ms: int,
    now_ms: int,
    whose: Owner,
) -> tuple[list[Compare], list[Op]]:
    """The transaction that makes the job known; the leader token is for the caller to add.

    `wall_ms` is for people, `now_ms` on the time that leaders count.
    """
    name, former = request.spec.name, _former(before, uuid)
    on_hold = begins.held
    if request.hold and not on_hold:
        on_hold = f"it is on hold; `supervisorctl start {name}` starts it"
    serial, paused = 0, None
    ops: list[Op] = []
    compares: list[Compare] = [Absent(keys.job_record(name))]
    if before is not None:
        compares = [unchanged(before.record), unchanged(before.switch), unchanged(before.intent)]
        serial = max(before.intent.value.restart_serial, before.switch.value.restart_serial)
        paused = before.intent.value.paused
        ops.append(DeletePrefix(keys.incidents_of(name)))
        if begins.uuid is None:
            ops += [DeletePrefix(keys.commits_of(name)), Delete(keys.head(name))]
    known = JobRecord(
        request.spec,
        uuid,
        wall_ms,
        begins.floor,
        former=former,
        submitted_ms=now_ms,
        owner=whose.owner,
        group=whose.group,
        hdfs_user=whose.hdfs_user,
        given=_recorded(request.given),
    )
    ops += [
        put(keys.job_record(name), known),
        first_switch(
            before.switch if before is not None else None,
            name,
            uuid,
            generation=begins.floor,
            base=begins.base,
            restart_serial=serial,
            on_hold=on_hold,
        ),
        put(keys.intent(name), JobIntent(restart_serial=serial, paused=paused)),
    ]
    return compares, ops


def _recorded(given: tuple[str, ...]) -> tuple[str, ...]:
    """The fields that a job file gives, unless their names are too long for a record."""
    return given if len(json.dumps(given)) <= MAX_GIVEN_BYTES else ()


def _former(before: JobState | None, uuid: str) -> tuple[str, ...]:
    """The UUIDs of the job's earlier lives that this cluster has ended, oldest first."""
    if before is None:
        return ()
    last = before.record.value
    return last.former if last.uuid == uuid else (*last.former, last.uuid)[-MOST_FORMER:]


def check_records(job: JobState) -> None:
    """Raise Conflict, which says what to do, when etcd has lost the job's commit records."""
    if records_are_lost(job):
        raise Conflict(f"job {job.name}: {_lost(job.name)}")


def _lost(name: str) -> str:
    return (
        f"its records were lost; run `supervisorctl checkpoints {name} rebuild`, "
        f"then `supervisorctl start {name}`"
    )
