"""An error met while one job or node is dealt with parks that one alone; everything else goes on. Pure.

The look at everything (`reconcile`) is one pure function. Where it raises, the innermost frame of the
traceback that has a job's or a node's picture says which one it was about. That one is set aside in the
picture, and the look is made again without it:

- a job is *parked*: a transaction like any other decision turns its switch, so that agents end its tasks as
  those of a job that has failed, and no rule looks at it until an operator releases or deletes it;
- a job that cannot even be looked at as a parked one is left out of this leader's picture (`Aside`);
- a node is cordoned, and nothing is decided about it.

An error that is about neither is one of the daemon's own, and ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from supervisor.contract import keys
from supervisor.contract.boundaries import Absent, Op
from supervisor.contract.containment import described, place_of, told
from supervisor.contract.desired import Cordon, JobPhase, JobSwitch, Parked
from supervisor.contract.job import JobIntent, Wanted
from supervisor.control.plan import Action, put, short, unchanged
from supervisor.control.snapshot import JobPicture, NodePicture, Snapshot, aside

JOB_PARKED, NODE_PARKED = "job_parked", "node_parked"
MOST_FRAMES = 1_000
MAX_REASON = 300
"""Characters of why something is left out, in its event."""


def set_aside(snap: Snapshot, error: Exception) -> tuple[list[Action], Snapshot]:
    """What is done about the job or node that an error is about, and the picture without it.

    Raises the error itself when it is about nobody, or when setting that one aside did not help.
    """
    for subject in _subjects(error):
        if isinstance(subject, NodePicture) and subject.node not in snap.nodes_aside:
            left = replace(snap, nodes_aside={**snap.nodes_aside, subject.node: told(error)})
            return _cordon(subject, error), left
        if isinstance(subject, JobPicture) and subject.name in snap.jobs:
            job = snap.jobs[subject.name]
            actions = [park(job, error)] if job.switch.value.parked is None else []
            return actions, without(snap, job, told(error))
    raise error


def park(job: JobPicture, error: BaseException) -> Action:
    """Turn the job's switch, so that its tasks end and no rule looks at it any more."""
    switch = replace(
        parked(job.switch.value, error),
        # A wish from before does not start it again once it is released.
        restart_serial=max(job.switch.value.restart_serial, job.intent.value.restart_serial),
    )
    fields = {
        "phase": job.switch.value.phase.value,
        "error": described(error),
        "place": place_of(error),
    }
    compares = (unchanged(job.record), unchanged(job.switch), unchanged(job.intent))
    return Action(JOB_PARKED, job.name, switch.reason, compares, (put(job.switch.key, switch),), fields)


def parked(switch: JobSwitch, error: BaseException) -> JobSwitch:
    """The switch of a job that is parked: for agents it is that of one that has failed."""
    reason = (
        f"an error of the supervisor's own was met while this job was dealt with ({told(error)}); "
        f"nothing of it runs until `supervisorctl release {switch.job}`"
    )
    return replace(
        switch,
        phase=JobPhase.FAILED,
        closing=None,
        reason=short(reason),
        save_grace_ms=0,
        held=(),
        parked=Parked(switch.phase, described(error), place_of(error)),
    )


def release(job: JobPicture) -> Action:
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
            ops.append(put(job.intent.key, JobIntent(Wanted.RUN, serial)))
    changed = replace(switch, phase=phase, reason="an operator released it", parked=None)
    # The time that it was parked is not counted as time that it ran.
    record = replace(job.record.value, counting=False)
    return Action(
        "job_released",
        job.name,
        f"an operator released the job, which was parked at {switch.parked.place}: it {what}",
        (unchanged(job.switch), unchanged(job.record), unchanged(job.intent)),
        (put(job.switch.key, changed), put(job.record.key, record), *ops),
    )


def without(snap: Snapshot, job: JobPicture, why: str) -> Snapshot:
    """The picture without a job. What its records name is kept from others."""
    left = aside(job.name, why, job.attempts.values(), job.plans.values(), job.specs.values())
    jobs = {name: each for name, each in snap.jobs.items() if name != job.name}
    return replace(snap, jobs=jobs, aside={**snap.aside, job.name: left})


def tell(snap: Snapshot, parked: Iterable[Action] = ()) -> list[Action]:
    """One event for each job or node that is left out, and each reason; not for those that are `parked` now.

    Reasons that differ in their figures alone are the same one: an error may tell a time or a count.
    """
    left = [(JOB_PARKED, each.job, "", each.why) for each in snap.aside.values()]
    left += [(NODE_PARKED, "", node, why) for node, why in snap.nodes_aside.items()]
    if not left:
        return []
    done = {(action.job, action.fields.get("node", "")) for action in parked}
    known = {
        (event.value.kind, event.value.job, event.value.fields.get("node", ""), _kind_of(event.value.fields))
        for event in snap.events
        if event.value.kind in (JOB_PARKED, NODE_PARKED)
    }
    found = []
    for kind, job, node, why in left:
        fields = {"why": short(why, MAX_REASON)} | ({"node": node} if node else {})
        if (job, node) not in done and (kind, job, node, _kind_of(fields)) not in known:
            text = (
                f"nothing is decided about {f'node {node}' if node else 'this job'}: {why}; all else goes on"
            )
            found.append(Action(kind, job, text, (), (), fields))
    return found


def _kind_of(fields: Mapping[str, str]) -> str:
    return "".join(letter for letter in fields.get("why", "") if not letter.isdigit())


def _cordon(picture: NodePicture, error: Exception) -> list[Action]:
    """An operator's `uncordon` lifts it. A cordon that is there already keeps tasks away, too."""
    if picture.cordon is not None:
        return []
    reason = f"an error of the supervisor's own was met while this node was dealt with ({told(error)})"
    key = keys.cordon(picture.node)
    return [
        Action(
            NODE_PARKED,
            "",
            f"node {picture.node} gets no new task, and what it has stays: {reason}",
            (Absent(key),),
            (put(key, Cordon(picture.node, short(reason))),),
            {"node": picture.node, "why": short(told(error), MAX_REASON)},
        )
    ]


def _subjects(error: BaseException) -> list[JobPicture | NodePicture]:
    """The jobs and nodes that the frames of the traceback dealt with, the innermost first."""
    found: list[JobPicture | NodePicture] = []
    for values in _locals(error):
        # Where a function has both, it looks at the job.
        found[:0] = [each for each in values if isinstance(each, NodePicture)]
        found[:0] = [each for each in values if isinstance(each, JobPicture)]
    return found


def _locals(error: BaseException) -> Iterator[list[object]]:
    trace, left = error.__traceback__, MOST_FRAMES
    while trace is not None and left:
        # A variable that comes later is rather what was dealt with: the first may be of a loop before.
        yield list(trace.tb_frame.f_locals.values())[::-1]
        trace, left = trace.tb_next, left - 1
