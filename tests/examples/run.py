"""One run of a case: submit, kill in turn, wait for success, check. The tests and the table share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause, Outcome
from supervisor.contract.views.jobs import IncidentView
from tests.examples.cases import Case, Victim
from tests.examples.harness import Cluster, Job, NotAsPromised


@dataclass(frozen=True, slots=True)
class Run:
    """A run that went as promised. `incidents` are in the order of the victims."""

    case: Case
    job: str
    victims: tuple[Victim, ...]
    incidents: tuple[IncidentView, ...]
    result: str


def total_steps(case: Case, kills: int) -> int:
    """Enough for so many kills: each takes `advance` steps before it, and may throw as many away."""
    return case.steps + 2 * case.advance * kills


def run_case(
    cluster: Cluster, case: Case, victims: Sequence[Victim], scratch: Path, steps: int | None = None
) -> Run:
    """Run a case with these kills.

    Args:
        cluster: where.
        case: what.
        victims: of its tasks, killed one after the other, each after `case.advance` more steps.
        scratch: an empty directory for what the program writes beside its checkpoints.
        steps: the whole length; by default enough for the kills.

    Raises:
        NotAsPromised: a wait was in vain, or a kill became anything but one incident of the expected scope.
        AssertionError: the job's result is wrong.
    """
    values = {"steps": str(total_steps(case, len(victims)) if steps is None else steps)}
    values["scratch"] = str(scratch)
    job = cluster.submit(
        case.file,
        name=case.name,
        flags={role: [_fill(word, values) for word in words] for role, words in case.flags.items()},
        env={name: _fill(value, values) for name, value in case.env.items()},
    )
    incidents = []
    begins_at = 0
    for victim in victims:
        job.wait_step(begins_at + case.advance)
        incident = job.recovered(job.kill(victim.role, victim.index))
        _as_promised(job, victim, incident)
        incidents.append(incident)
        begins_at = max(job.view().step, incident.to_step)
    done = job.ended()
    if done.phase is not JobPhase.SUCCEEDED:
        raise NotAsPromised(f"{job.name} has {done.phase.value}: {done.reason}\n{job.story()}")
    others = [entry for entry in job.incidents() if entry.id not in {each.id for each in incidents}]
    if not all(_of_tensorflow(case, int(values["steps"]), entry) for entry in others):
        raise NotAsPromised(f"{len(incidents)} kills, but other incidents too\n{job.story()}")
    return Run(case, job.name, tuple(victims), tuple(incidents), case.check(job, scratch))


def _of_tensorflow(case: Case, steps: int, entry: IncidentView) -> bool:
    """Whether it stood still by itself, with its last step made."""
    return bool(case.hangs) and entry.cause == Cause.HANG.value and entry.from_step >= steps


def _as_promised(job: Job, victim: Victim, incident: IncidentView) -> None:
    wanted = (victim.scope.value, f"{job.name}/{victim.role}:{victim.index}", Outcome.RECOVERED)
    if (incident.scope, incident.task, incident.outcome) != wanted:
        raise NotAsPromised(f"wanted {wanted}, not {incident}\n{job.story()}")


def _fill(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace("{" + name + "}", value)
    return word
