"""Every promise, each with a checker that is named after it and reads recordings alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from chaos.history.history import History, load
from chaos.promises import checkpoints, ends, generations, gpus, incidents, nodes, pauses, writes
from chaos.promises.violation import Check, Violation

CHECKS: dict[str, Check] = {
    "one generation at a time": generations.one_generation_takes_effect,
    "no write of a deposed": writes.no_write_of_a_deposed,
    "lost nodes are dead before D": nodes.lost_nodes_are_dead_before_d,
    "a pause holds": pauses.a_pause_holds,
    "committed stays restorable": checkpoints.committed_stays_restorable,
    "the base is the newest good": checkpoints.base_is_the_newest_good,
    "the first step is the base's": checkpoints.first_step_is_the_bases,
    "nothing is left": ends.nothing_is_left,
    "one failure, one incident": incidents.one_failure_one_incident,
    "budgets are kept": incidents.budgets_are_kept,
    "a GPU is in one task": gpus.a_gpu_is_in_one_task,
    "converges": ends.converges,
    "histories are whole": writes.histories_are_whole,
    "the reason is the fault": incidents.reason_is_the_fault,
    "no secret is told": ends.no_secret_is_told,
    "phases are the stopwatch's": incidents.phases_are_the_stopwatchs,
}
PROMISES = {name: (check.__doc__ or "").partition("\n")[0] for name, check in CHECKS.items()}
"""The sentence of each promise, by its name."""


def check(directory: Path) -> tuple[Violation, ...]:
    """Every broken promise of a run, in the order of time.

    Raises:
        Incomplete: a recording has a hole.
        NotReadable: a line, or a record in etcd, is not what it should be.
    """
    return check_history(load(directory))


def check_history(history: History, names: Iterable[str] = CHECKS) -> tuple[Violation, ...]:
    """The same, of a history that was read or made up."""
    found = [
        Violation(name, broken.text, broken.at_ms, broken.evidence)
        for name in names
        for broken in CHECKS[name](history)
    ]
    return tuple(sorted(found, key=lambda violation: violation.at_ms))
