"""How often a job's program should save: how often the job fails, and what `status` says of its saves. Pure.

The interval is made of it where the program runs (`agent.inside`): only there a save's cost is known.
"""

from __future__ import annotations

from operator import itemgetter

from recovery.policy.history import ASKED
from supervisor.contract.desired import Cadence, JobPhase, Plan
from supervisor.contract.incident import Cause, Incident
from supervisor.contract.job.spec import JobSpec, Scope, Strategy
from supervisor.contract.observed import Pace
from supervisor.control.decide.assess import servers
from supervisor.control.decide.checkpoints.advice import saves_of
from supervisor.control.decide.checkpoints.saving import lag_ms
from supervisor.control.decide.facts.cluster_time import ages
from supervisor.control.decide.facts.history import life_of
from supervisor.control.decide.snapshot import JobState, Snapshot

OFF = "off"
DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS
PRIOR_WEIGHT = 0.1
"""The rate that is assumed beforehand counts as much as a tenth of a failure that was seen."""
PRIOR_MS, PRIOR_NODE_MS = DAY_MS, 30 * DAY_MS
"""Beforehand: a job fails once a day, and more often where it has so many nodes that one of them does."""
APART = 1.5
"""Intervals are told to differ when one is so many times the other."""
_OF_NODES = frozenset({Cause.NODE_LOST, Cause.GPU})


def cadence_of(snap: Snapshot, job: JobState, plan: Plan) -> Cadence | None:
    """The cadence for the saver of a plan; None where the job wants no part of it.

    Only failures that restart ALL, or the parameter servers, count: what they cost is what was made since a
    save. It is told to each generation; while nothing fails, the program counts the time.
    """
    spec = job.record.value.spec
    if spec.checkpoint.cadence == OFF:
        return None
    nodes, known = {each.node for each in plan.placements}, ages(snap)
    life = () if _is_started(job) else life_of(job)
    prior_ms = PRIOR_WEIGHT * min(PRIOR_MS, PRIOR_NODE_MS / max(1, len(nodes)))
    over_ms = prior_ms + (known.of(life[0].revision) if life else 0)
    own = sum(_takes_back(job, past.incident) for past in life)
    # The failure that this plan answers has a record only with it.
    own += not _is_started(job) and plan.incident not in job.incidents
    of_nodes = sum(
        held.value.node in nodes
        and held.value.cause in _OF_NODES
        and known.of(held.create_revision) < WEEK_MS
        for other in snap.jobs.values()
        if other.name != job.name
        for held in other.incidents.values()
    )
    return Cadence(
        failures=PRIOR_WEIGHT + own + of_nodes * over_ms / WEEK_MS,
        over_ms=round(over_ms),
        max_overhead=spec.checkpoint.max_overhead / 100,
        steers=_saves_alone(spec),
        cost_ms=_pace(snap, job).cost_ms,
    )


def _takes_back(job: JobState, incident: Incident) -> bool:
    """Whether a failure cost what was made since a save."""
    lost = incident.scope is Scope.ALL or servers.is_about_servers(job, incident)
    return lost and incident.cause not in ASKED


def _is_started(job: JobState) -> bool:
    """Whether somebody starts or restarts the job, and nothing has failed."""
    switch = job.switch.value
    return switch.phase is not JobPhase.RUNNING or job.intent.value.restart_serial != switch.restart_serial


def _saves_alone(spec: JobSpec) -> bool:
    """Whether one process decides when to save. Where all save together, each would have its own times."""
    trainers = sum(role.count for role in spec.roles if not role.outside)
    return trainers == 1 or spec.strategy in (
        Strategy.ASYNC,
        Strategy.SYNC,
        Strategy.COORDINATOR,
        Strategy.IN_GRAPH,
    )


def line(snap: Snapshot, job: JobState) -> str:
    """The interval of a job's saves, their cost and the cost of a failure, for people.

    Empty if unknown, and once the saver has ended: it saves no more, and what it has made is not lost.
    """
    switch = job.switch.value
    mine = [
        (attempt.number, held.value.exit)
        for attempt, held in job.attempts.items()
        if (attempt.task, attempt.generation) == (job.saver, switch.generation)
    ]
    saves = any(mine) and max(mine, key=itemgetter(0))[1] is None
    return text(_pace(snap, job), lag_ms(snap, job)) if switch.phase is JobPhase.RUNNING and saves else ""


def _pace(snap: Snapshot, job: JobState) -> Pace:
    """The pace of the saver's newest attempt in the generation in force that has saved."""
    found = [
        (attempt.number, saves.pace) for attempt, saves in saves_of(snap, job) if attempt.task == job.saver
    ]
    known = [each for each in found if each[1].cost_ms >= 0]
    return max(known, key=itemgetter(0))[1] if known else Pace()


def text(pace: Pace, lost_ms: int) -> str:
    """The line."""
    if pace.cost_ms < 0:
        return ""
    steered = pace.own_ms >= 0
    words = "saves" if steered else "saves on its own terms,"
    if pace.every_ms > 0:
        words += f" every {_seconds(pace.every_ms)} ({100 * pace.cost_ms / pace.every_ms:.1f} % of the time)"
    else:
        words += f" {pace.cost_ms / 1000:.1f} s each"
    parts = [words]
    if pace.pays_ms > 0 and (pace.every_ms < 0 or pace.every_ms > APART * pace.pays_ms):
        parts.append(f"every {_seconds(pace.pays_ms)} would pay")
    elif APART * pace.every_ms < pace.pays_ms:
        parts.append(f"every {_seconds(pace.pays_ms)} would do")
    if pace.why:
        parts.append(f"it is left alone: {pace.why}")
    if lost_ms >= 0:
        parts.append(f"a failure now would cost {_seconds(lost_ms)}")
    return "; ".join(parts)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.0f} s"
