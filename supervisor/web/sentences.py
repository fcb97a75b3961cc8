"""Incidents and jobs in sentences, as `supervisorctl explain` tells them. Pure."""

from __future__ import annotations

from supervisor.contract.incident import PHASES, Outcome
from supervisor.contract.views.jobs import GoodputView, IncidentView, JobView

CAUSES = {
    "submitted": "was submitted",
    "operator": "was restarted by an operator",
    "program_exit": "ended with an error",
    "program_signal": "was ended by a signal of its own program",
    "exited_early": "ended before its work was done",
    "killed": "was killed from outside",
    "launcher_lost": "lost its launcher",
    "start_failed": "could not be started",
    "deadline": "was stopped because its agent lost the cluster",
    "node_lost": "lost its node",
    "bad_checkpoint": "met a checkpoint that is damaged",
    "oom": "ran out of memory",
    "hang": "made no progress any more",
    "nan_loss": "printed a loss that is not a number",
    "user_error": "failed by an error in its program",
    "missing_program": "could not find its program",
    "port_clash": "could not get its port",
    "peer_lost": "lost its connection to another task",
    "data_loss": "read data that is damaged",
    "out_of_range": "read beyond the end of its data",
    "resource_exhausted": "ran out of a resource",
    "never_ready": "never became ready",
    "wall_time": "reached its time limit",
    "gpu": "lost a GPU",
    "drained": "had to leave a node that is drained",
    "store_lost": "could not reach its store",
    "base_missed": "did not find the checkpoint that it had to begin from",
    "left_lock": "found a lock of its cache that a killed attempt had left",
    "resized": "was given another number of tasks",
}
DECIDED = {
    "task": "The leader restarted this task alone.",
    "all": "The leader restarted the whole job as a new generation.",
}
OUTCOMES = {
    Outcome.OPEN: "The recovery is still going on.",
    Outcome.RECOVERED: "Training went on.",
    Outcome.FAILED: "The job failed.",
    Outcome.ENDED: "The job ended meanwhile.",
    Outcome.SUPERSEDED: "Another incident took its place.",
}
MS = {
    "detected": "the failure was detected",
    "decided": "the restart was decided",
    "ready": "everything was prepared and fenced",
    "switched": "the job was switched over",
    "restored": "its tasks ran",
    "first_step": "the first new step was made",
    "all_running": "all tasks ran",
}


SUBMITTED = "submitted"
FIRST_MS = {
    "decided": "the start was decided",
    "ready": "everything was prepared",
    "switched": "the generation was in force",
    "first_step": "the first step was made",
}
FIRST_OUTCOMES = {
    Outcome.OPEN: "The start is still going on.",
    Outcome.RECOVERED: "Training began.",
}
"""The words for a first start, which is no recovery."""


def headline(incident: IncidentView) -> str:
    """What happened, to whom and where, in one sentence."""
    told = CAUSES.get(incident.cause, incident.cause.replace("_", " "))
    where = f" on {incident.node}" if incident.node else ""
    return f"{incident.task or incident.job}{where} {told}."


def sentences(incident: IncidentView) -> list[str]:
    """What was decided, what it cost, and how it ended."""
    lines = []
    if incident.cause != SUBMITTED:
        decided = DECIDED.get(incident.scope, f"The leader decided: restart {incident.scope}.")
        lines.append(f"{decided} The rule for it is “{incident.rule}”.")
    if incident.phases_ms:
        known = [(name, incident.phases_ms[name]) for name in PHASES if incident.phases_ms.get(name)]
        words = MS | FIRST_MS if incident.cause == SUBMITTED else MS
        told = ", then ".join(f"{words[name]} after {seconds(ms)}" for name, ms in known)
        if known:
            lines.append(f"{told[:1].upper()}{told[1:]}: {seconds(incident.total_ms)} in all.")
    lines += went_back(incident)
    outcomes = OUTCOMES | FIRST_OUTCOMES if incident.cause == SUBMITTED else OUTCOMES
    lines.append(outcomes[incident.outcome])
    return lines


def went_back(incident: IncidentView) -> list[str]:
    """The step from which training went on, and the steps that were lost."""
    base, lines = incident.base, []
    if incident.cause == SUBMITTED:
        if base is not None or incident.from_scratch:
            lines.append(f"It began from {f'checkpoint {base}' if base is not None else 'scratch'}.")
        return [*lines, *([f"Its first step was {incident.to_step}."] if incident.to_step >= 0 else [])]
    if base is not None and 0 <= incident.to_step < base.step:
        lines.append(
            f"Checkpoint {base} was in its checkpoint directory, but it began at step {incident.to_step}: "
            "it does not restore, or counts its steps anew."
        )
    elif base is not None:
        lines.append(f"It went back to checkpoint {base}.")
    elif incident.from_scratch:
        lines.append("It began from scratch: there was no checkpoint to go back to.")
    if incident.lost_steps >= 0 and (lines or incident.lost_steps):
        lines.append(f"{counted(incident.lost_steps, 'step')} had to be made again.")
    if incident.to_step >= 0:
        # A number below that of its base was printed once, when it began.
        known = incident.from_step >= (base.step if base is not None else 0)
        before = f"It was at step {incident.from_step}; the" if known else "The"
        lines.append(f"{before} first step after the restart was {incident.to_step}.")
    return lines


def story(job: JobView) -> list[str]:
    """The present state of a job."""
    running = sum(task.state == "running" for task in job.tasks)
    lines = [f"The job is {job.phase.value}" + (f": {job.reason}." if job.reason else ".")]
    if job.waiting_for:
        lines.append(f"It waits for: {job.waiting_for}.")
    if job.tasks:
        lines.append(f"{running} of {counted(len(job.tasks), 'task')} run.")
    lines += [f"{each[:1].upper()}{each[1:]}." for each in job.notices]
    lines += [f"To do: {each}." for each in job.advice]
    if job.commit_trouble:
        lines.append(f"Trouble with saves: {job.commit_trouble}.")
    return lines


def goodput(found: GoodputView) -> str:
    """`93.4 % of 1 h 2 min`, and what the time is spent on now if that is not training."""
    now = f", now {found.now.replace('_', ' ')}" if found.now not in ("", "productive") else ""
    return f"{100 * found.share:.1f} % of {seconds(found.elapsed_ms)}{now}"


def counted(number: int, what: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def seconds(ms: int) -> str:
    """`12 ms`, `1.25 s`, `3 min 20 s`, `5 h 12 min`."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.{2 if ms < 10_000 else 1}f} s"
    minutes, rest = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
