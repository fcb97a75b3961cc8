"""Warm starts of attempts: forked from an interpreter that has imported already (docs/design.md).

A warm attempt that falls over by a fault of its own before its first step may have done so because of the
fork, so the next one starts cold, in a fresh interpreter. An attempt that died of its peer's death tells
nothing of the fork. A cold attempt that runs well gives its task one more warm start; a task that falls over
warm again stays cold.
"""

from __future__ import annotations

from dataclasses import replace

from agent.core.desired import Wants
from agent.core.events import Reported
from agent.core.saved.record import End
from agent.core.state import Attempt
from agent.core.step_context import Work
from supervisor.contract.desired import Assignment, JobSwitch
from supervisor.contract.ids import AttemptId
from supervisor.contract.observed import ExitReason

FATAL_SIGNALS = frozenset({4, 6, 7, 8, 11})
EARLY_MS = 60_000
"""An attempt that lived for so long was started well, whether or not its steps are read."""


def learn(work: Work, attempt: Attempt, reported: Reported) -> None:
    """Take from an attempt's end what it says of the next start of its task."""
    state, task, end = work.state, str(attempt.id.task), attempt.end
    if end is None or _superseded(work, attempt.id):
        return
    ran = reported.stepped or end.code == 0 or _lived_ms(attempt, end) >= EARLY_MS
    if attempt.warm and not ran and _fell_over(end) and not reported.peer_lost:
        work.state = replace(state, cold={**state.cold, task: attempt.id})
    elif not attempt.warm and ran and task in state.cold and task not in state.retried:
        cold = {name: why for name, why in state.cold.items() if name != task}
        work.state = replace(state, cold=cold, retried=state.retried | {task})


def starts_warm(work: Work, order: Assignment, switch: JobSwitch) -> bool:
    """Whether a new attempt starts warm. Forgets a fall that the leader says was no fault of a program.

    One that joins a running cluster can do so only warm; if it falls, all others start again, too.
    """
    if order.joins:
        return True
    cold, task = work.state.cold, str(order.task)
    if switch.cold and order.attempt == 1:
        return False
    fell = cold.get(task)
    if fell is None:
        return True
    if switch.blameless and order.attempt == 1 and order.generation == fell.generation + 1:
        work.state = replace(work.state, cold={name: why for name, why in cold.items() if name != task})
        return True
    return False


def forget(work: Work, wants: Wants) -> None:
    """Drop what is known of the tasks of jobs that have ended."""
    state = work.state
    over = {task for task in (*state.cold, *state.retried) if task.partition("/")[0] not in wants.live}
    if over:
        cold = {task: why for task, why in state.cold.items() if task not in over}
        work.state = replace(state, cold=cold, retried=state.retried - over)


def _superseded(work: Work, attempt: AttemptId) -> bool:
    """Whether the task's next attempt has begun: it is judged by its own end."""
    order = (attempt.generation, attempt.number)
    others = (each for each in work.state.attempts if each.task == attempt.task)
    return any((each.generation, each.number) > order for each in others)


def _fell_over(end: End) -> bool:
    return end.reason is ExitReason.EXIT and (end.code not in {None, 0} or end.signal in FATAL_SIGNALS)


def _lived_ms(attempt: Attempt, end: End) -> int:
    """EARLY_MS for an attempt whose start was not seen."""
    return end.ended_ms - attempt.started_ms if attempt.started_ms >= 0 else EARLY_MS
