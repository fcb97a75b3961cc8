"""The state that the leader's records want on this node, as a function of them alone (rule 6)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from agent.core.events import Observed
from agent.core.instructions import First, Recipe
from agent.core.state import hold_name
from supervisor.contract.desired import LOOK_ASIDE, Assignment, Closing, JobPhase, JobSwitch, Spare
from supervisor.contract.ids import TaskId
from supervisor.contract.job.placeholders import without_placeholders
from supervisor.contract.job.spec import ContainerSpec, Resources
from supervisor.contract.observed import Incarnation

DOCKER = "docker"
"""The `NodeResources.runtime` whose launchers are containers."""


@dataclass(frozen=True, slots=True)
class Wants:
    """The state that the leader wants on this node.

    Attributes:
        prepare: a launcher and a port, by reservation name.
        run: exactly this attempt of the task, by task.
        stage: the base of a closing switch, by plan id, and one of the plan's assignments here.
        commit: the saver's assignment here, by job.
        aside: the assignment of a task that is not the saver and whose directory is to be looked at, by task.
        follow: a reader of commits that runs here, by job; else a task that has moved here.
        linger: a task that the switch ends after some time, by task.
        held: a stopped task of a failed job, kept for inspection, by task.
        spares: the recipe of a launcher in reserve, by job; None if the node keeps none.
        live: switches of jobs that have not ended, by name.
        switches: the switch of each job of which something is here, by name.
    """

    prepare: dict[str, Assignment] = field(default_factory=dict)
    run: dict[TaskId, Assignment] = field(default_factory=dict)
    stage: dict[str, tuple[Assignment, Closing]] = field(default_factory=dict)
    commit: dict[str, Assignment] = field(default_factory=dict)
    aside: dict[TaskId, Assignment] = field(default_factory=dict)
    linger: dict[TaskId, Assignment] = field(default_factory=dict)
    held: dict[TaskId, Assignment] = field(default_factory=dict)
    follow: dict[str, Assignment] = field(default_factory=dict)
    spares: dict[str, Recipe | None] = field(default_factory=dict)
    live: dict[str, JobSwitch] = field(default_factory=dict)
    switches: dict[str, JobSwitch] = field(default_factory=dict)

    @property
    def holds(self) -> frozenset[str]:
        """Names of the reservations that are to be kept."""
        return frozenset(self.prepare) | {name_of(each) for each in self.run.values()}


def name_of(assignment: Assignment) -> str:
    """The reservation of an assignment."""
    return hold_name(assignment.plan_id, assignment.task.member)


def recipe_of(assignment: Assignment, runtime: str) -> Recipe:
    """The launcher that an assignment needs on a node of this runtime."""
    recipe = Recipe(
        assignment.job,
        assignment.job_uuid,
        assignment.workdir,
        assignment.argv[0] if assignment.argv else "",
        assignment.preload,
        _env_of(assignment),
        assignment.code,
        environment=assignment.environment,
        import_ms=assignment.startup_ms,
    )
    if runtime != DOCKER:
        return recipe
    first = First(assignment.role, assignment.index, assignment.generation, assignment.attempt)
    return replace(_contained(recipe, assignment, assignment.gpus), first=first)


def _env_of(record: Assignment | Spare) -> dict[str, str]:
    """The environment of a launcher's imports. Values that depend on addresses come with each attempt."""
    return without_placeholders(record.env) if record.templated else record.env


def _contained(recipe: Recipe, record: Assignment | Spare, gpus: tuple[str, ...]) -> Recipe:
    """With what a container is given when it is made. Of the resources that is what limits it."""
    limits = Resources(record.resources.cpus, record.resources.memory_bytes)
    return replace(
        recipe,
        container=record.container or ContainerSpec(),
        resources=limits,
        gpus=gpus,
        data=record.data,
    )


def wants(view: Observed, me: Incarnation, aside: Collection[str] = ()) -> Wants:
    """Read the records. An assignment for another life of this node, or of an ended job, asks for nothing.

    Nor does one of a plan that is set `aside`.
    """
    result = Wants()
    for switch in view.switches:
        result.switches[switch.job] = switch
        if not switch.phase.ended:
            result.live[switch.job] = switch
    for spare in view.spares:
        found = result.live.get(spare.job)
        if f"spares {spare.job}" in aside:
            continue
        if found is not None and found.job_uuid == spare.job_uuid:
            recipe = _spare_recipe(spare, me.resources.runtime) if spare.wanted else None
            result.spares[spare.job] = recipe
    for assignment in view.assignments:
        found = result.switches.get(assignment.job)
        if found is None or found.job_uuid != assignment.job_uuid:
            continue
        if not me.acts_for(assignment.incarnation):
            continue
        if assignment.plan_id in aside:
            continue
        if not found.phase.ended:
            _place(result, assignment, found)
        elif assignment.plan_id == found.plan_id and assignment.task.member in found.held:
            result.held[assignment.task] = assignment
    return result


def _spare_recipe(spare: Spare, runtime: str) -> Recipe:
    recipe = Recipe(
        spare.job,
        spare.job_uuid,
        spare.workdir,
        spare.program,
        spare.preload,
        _env_of(spare),
        spare.code,
        environment=spare.environment,
    )
    return _contained(recipe, spare, ()) if runtime == DOCKER else recipe


def _place(result: Wants, assignment: Assignment, switch: JobSwitch) -> None:
    if assignment.generation > switch.generation:
        if switch.phase in {JobPhase.WAITING, JobPhase.RUNNING}:
            result.prepare[name_of(assignment)] = assignment
            if switch.closing is not None and switch.closing.plan_id == assignment.plan_id:
                result.stage[assignment.plan_id] = (assignment, switch.closing)
        return
    if assignment.plan_id != switch.plan_id or assignment.generation != switch.generation:
        return
    if switch.phase is JobPhase.RUNNING and not assignment.ends:
        result.run[assignment.task] = assignment
    elif switch.save_grace_ms and _has_time(assignment, switch):
        result.linger[assignment.task] = assignment
    there = assignment.task in result.run or assignment.task in result.linger
    if there and (assignment.follow or (assignment.joins and assignment.job not in result.follow)):
        result.follow[assignment.job] = assignment
    if switch.phase in {JobPhase.RUNNING, JobPhase.FINISHING, JobPhase.STOPPING}:
        if switch.saver == assignment.task.member:
            result.commit[assignment.job] = assignment
        elif switch.look >= LOOK_ASIDE and not assignment.serves:
            result.aside[assignment.task] = assignment


def _has_time(assignment: Assignment, switch: JobSwitch) -> bool:
    """A stop lets the program save; when training is over, an evaluator may judge the last checkpoint."""
    if switch.phase is JobPhase.STOPPING:
        return True
    return switch.phase is JobPhase.FINISHING and assignment.follow and not assignment.serves
