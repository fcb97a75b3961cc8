"""An error met while one job or node is dealt with is contained: everything else goes on. Pure.

The look at everything (`reconcile`) is one pure function. Where it raises, the innermost frame of the
traceback that has the state of a job or a node says which one it was about. That one is left aside in the
snapshot, and the look is made again without it.

Where one alone meets an error, it is parked:

- a job's switch is turned by a transaction like any other decision, so that agents end its tasks as those of
  a job that has failed, and no rule looks at it until an operator releases or deletes it;
- a node is cordoned, and nothing is decided about it.

Where several meet errors in one look, or one meets an error at a place at which another was parked already,
the error is likely to be the supervisor's own: it is in what they share. Nothing of them is touched then;
each is left aside for as long as it raises. So is a job that raises even when it is parked.

An error that is about no job and no node ends the daemon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from supervisor.contract.boundaries import Op
from supervisor.contract.containment import contained, described, frames_of, place_of, told
from supervisor.contract.desired import JobPhase, Parked
from supervisor.contract.incident import Event
from supervisor.contract.job.spec import JobIntent, Wanted
from supervisor.control.decide.nodes import cordons
from supervisor.control.decide.plan import Action, put, short, unchanged
from supervisor.control.decide.set_aside import Left, aside
from supervisor.control.decide.snapshot import JobState, NodeState, Snapshot
from supervisor.control.decide.switch import Transition, turn

JOB_PARKED, NODE_PARKED = "job_parked", "node_parked"
MAX_REASON = 300
"""Characters of why something is left out, in its event."""
TOLD_MS, MOST_TOLD = 60_000, 10
MOST_NAMES = 5
"""Jobs or nodes that are named of those which meet an error at one place."""


@dataclass(frozen=True, slots=True)
class Met:
    """A job or node, and the error that was met while it was dealt with."""

    subject: JobState | NodeState
    error: Exception


def leave(snap: Snapshot, error: Exception) -> tuple[Met, Snapshot]:
    """The job or node that an error is about, and the snapshot without it.

    Raises the error itself when it is about nobody, or when the snapshot was without that one already.
    """
    for subject in _subjects(error):
        if isinstance(subject, NodeState) and subject.node not in snap.nodes_aside:
            return Met(subject, error), without(snap, subject, why_of(error))
        if isinstance(subject, JobState) and subject.name in snap.jobs:
            job = snap.jobs[subject.name]
            return Met(job, error), without(snap, job, why_of(error))
    raise error


def why_of(error: Exception) -> Left:
    """Why a job or node that an error is about is left aside."""
    return Left(told(error), place_of(error))


def park_alone(snap: Snapshot, met: Sequence[Met]) -> list[Action]:
    """The action that parks the only job or node that has met an error in a look; none for several.

    `snap` is the snapshot with all of them. Those that are parked, or cordoned, already do not count. Nothing
    for one that cannot be parked.
    """
    new = [each for each in met if not _is_parked(each.subject)]
    if len(new) != 1 or place_of(new[0].error) in _places_of_parked(snap):
        return []
    subject, error = new[0].subject, new[0].error
    actions: list[Action] = []
    with contained(lambda _error: actions.clear()):
        actions.append(park(subject, error) if isinstance(subject, JobState) else _cordon(subject, error))
    return actions


def park(job: JobState, error: BaseException) -> Action:
    """Turn the job's switch, so that its tasks end and no rule looks at it any more."""
    phase = job.switch.value.phase
    reason = short(
        f"the supervisor met an error of its own in this job ({told(error)}); "
        f"no task of it runs until `supervisorctl release {job.name}`"
    )
    parked = turn(
        job.switch,
        Transition.PARK,
        # For agents it is the switch of a job that has failed.
        phase=JobPhase.FAILED,
        closing=None,
        reason=reason,
        save_grace_ms=0,
        held=(),
        parked=Parked(phase, described(error), place_of(error)),
        # A wish from before does not start it again once it is released.
        restart_serial=max(job.switch.value.restart_serial, job.intent.value.restart_serial),
    )
    fields = {"phase": phase.value, "error": described(error), "place": place_of(error)}
    compares = (unchanged(job.record), unchanged(job.switch), unchanged(job.intent))
    return Action(JOB_PARKED, job.name, reason, compares, (parked,), fields)


def release(job: JobState) -> Action:
    """An operator lets a parked job be looked at again.

    It goes on in the phase in which it was parked. One whose tasks ran has been ended by that, and is started
    again from its newest checkpoint, as by `start`; one that was to be stopped is stopped. So is one that was
    finishing: agents commit nothing of a job that is parked, so that its last save may be missing.
    """
    switch, intent = job.switch.value, job.intent.value
    assert switch.parked is not None
    phase, ops, what = switch.parked.phase, list[Op](), "goes on"
    if phase in (JobPhase.WAITING, JobPhase.RUNNING, JobPhase.FINISHING):
        phase, what = JobPhase.STOPPED, "is stopped"
        if intent.wanted is Wanted.RUN:
            serial, what = max(intent.restart_serial, switch.restart_serial) + 1, "is started again"
            wish = JobIntent(Wanted.RUN, serial, sizes=intent.sizes, paused=intent.paused)
            ops.append(put(job.intent.key, wish))
    changed = turn(job.switch, Transition.RELEASE, phase=phase, reason="an operator released it", parked=None)
    # The time that it was parked is not counted as time that it ran.
    record = replace(job.record.value, counting=False)
    return Action(
        "job_released",
        job.name,
        f"an operator released the job, which was parked at {switch.parked.place}: it {what}",
        (unchanged(job.switch), unchanged(job.record), unchanged(job.intent)),
        (changed, put(job.record.key, record), *ops),
    )


def without(snap: Snapshot, subject: JobState | NodeState, why: Left) -> Snapshot:
    """The snapshot with a job or node set aside.

    Other jobs do not get the resources that the job's records name.
    """
    if isinstance(subject, NodeState):
        return replace(snap, nodes_aside={**snap.nodes_aside, subject.node: why})
    job = subject
    left = aside(
        job.name,
        why,
        job.record.value,
        (held.value for held in job.attempts.values()),
        (held.value for held in job.plans.values()),
        (held.value for held in job.specs.values()),
    )
    jobs = {name: each for name, each in snap.jobs.items() if name != job.name}
    return replace(snap, jobs=jobs, aside={**snap.aside, job.name: left})


def tell(snap: Snapshot, parked: Iterable[Action] = ()) -> list[Action]:
    """One event for each place at which jobs, or nodes, are left out; not for those that are `parked` now.

    An error may say something else each time, so that the place alone tells a repeat. Places may vary, too:
    in TOLD_MS there are MOST_TOLD such events at most.
    """
    done = {_about(action) for action in parked}
    left = [(JOB_PARKED, each.job, Left(each.why, each.place)) for each in snap.aside.values()]
    left += [(NODE_PARKED, node, why) for node, why in snap.nodes_aside.items()]
    whys: dict[tuple[str, str], dict[str, str]] = {}
    for kind, name, why in left:
        if (kind, name) not in done:
            whys.setdefault((kind, why.place), {})[name] = why.why
    if not whys:
        return []
    events = [event for event in snap.events if event.value.kind in (JOB_PARKED, NODE_PARKED)]
    known = {(*_about(event.value), event.value.fields.get("place", "")) for event in events}
    actions = [_left_alone(kind, place, names) for (kind, place), names in whys.items()]
    new = [each for each in actions if (*_about(each), each.fields["place"]) not in known]
    lately = sum(snap.now_ms - event.created_ms < TOLD_MS for event in events)
    return new[: max(0, MOST_TOLD - lately)]


def _about(told_of: Action | Event) -> tuple[str, str]:
    return told_of.kind, told_of.job or told_of.fields.get("node", "")


def _left_alone(kind: str, place: str, whys: Mapping[str, str]) -> Action:
    """The event of the jobs or nodes that are left out for what was met at one place."""
    names = sorted(whys)
    why, what = whys[names[0]], "job" if kind == JOB_PARKED else "node"
    job, fields = "", {"why": short(why, MAX_REASON), "place": short(place, MAX_REASON)}
    if len(names) > 1:
        some = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
        subject = f"{len(names)} {what}s ({some})"
        rest = "as several meet this error, the supervisor itself is taken to be wrong; their tasks go on"
    else:
        subject, rest = f"{what} {names[0]}", "all others go on"
        if kind == JOB_PARKED:
            job = names[0]
        else:
            fields["node"] = names[0]
    return Action(kind, job, f"nothing is decided about {subject}: {why}; {rest}", (), (), fields)


def _is_parked(subject: JobState | NodeState) -> bool:
    """An operator's cordon keeps tasks away, too."""
    if isinstance(subject, NodeState):
        return subject.cordon is not None
    return subject.switch.value.parked is not None


def _places_of_parked(snap: Snapshot) -> set[str]:
    """The places in the code of the errors that jobs and nodes are parked for."""
    jobs = {
        job.switch.value.parked.place for job in snap.jobs.values() if job.switch.value.parked is not None
    }
    nodes = {node.cordon.value.place for node in snap.nodes.values() if node.cordon is not None}
    return jobs | (nodes - {""})


def _cordon(picture: NodeState, error: Exception) -> Action:
    """An operator's `uncordon` lifts it."""
    reason = f"the supervisor met an error of its own about this node ({told(error)})"
    compares, ops = cordons.for_error(picture, reason, place_of(error))
    return Action(
        NODE_PARKED,
        "",
        f"node {picture.node} gets no new task, and what it has stays: {reason}",
        compares,
        ops,
        {"node": picture.node, "why": short(told(error), MAX_REASON), "place": place_of(error)},
    )


def _subjects(error: BaseException) -> list[JobState | NodeState]:
    """The jobs and nodes that the frames of the traceback dealt with, the innermost first."""
    found: list[JobState | NodeState] = []
    for _, values in frames_of(error):
        # Where a function has both, it looks at the job.
        found[:0] = [each for each in values if isinstance(each, NodeState)]
        found[:0] = [each for each in values if isinstance(each, JobState)]
    return found
