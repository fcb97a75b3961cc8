"""Takes in the reports of the GPUs' watcher, and reports changes to the leader."""

from __future__ import annotations

from dataclasses import replace

from agent.core.events import GpusSeen, GpusTold
from agent.core.gpus import xid
from agent.core.gpus.health import GpuBook, Sight, fold
from agent.core.instructions import LookAtGpus, TellGpus
from agent.core.state import AgentState
from agent.core.step_context import Work
from supervisor.contract.desired import Assignment
from supervisor.contract.ids import AttemptId
from supervisor.contract.observed import Gpu, GpuAction, GpuBeat, GpuHealth

MEMORY_WAIT_MS = 10_000
_IDLE = 0x1
"""The one reason for slow clocks that nobody needs to know."""


def on_event(work: Work, event: GpusSeen | GpusTold) -> None:
    """Fold it in; operators read in the log what is new."""
    state = work.state
    if isinstance(event, GpusTold):
        told = event.report if event.ok else state.gpus_told
        work.state = replace(state, gpus_told=told, gpus_telling=False)
        return
    book = fold(state.gpus, event.sight, work.now_ms)
    _note_changes(work, state.gpus, book)
    _note_ignored(work, event.sight)
    work.state = replace(state, gpus=book)


def tell(work: Work) -> None:
    """Etcd has what is known now, by this incarnation; never more often than it changes."""
    state = work.state
    report = state.gpus.report(state.settings.node, state.life, state.boot_id)
    if report is not None and report != state.gpus_told and not state.gpus_telling:
        work.state = replace(state, gpus_telling=True)
        work.emit(TellGpus(report))


def beats(state: AgentState) -> tuple[GpuBeat, ...]:
    """How hard the GPUs work. That is for people, and never in etcd."""
    ours = {each.pid for each in state.attempts.values() if each.pid and each.alive}
    found = []
    for uuid, known in state.gpus.known.items():
        sight = known.sight
        mine = sum(leader in ours for leader, _ in sight.processes)
        found.append(
            GpuBeat(
                uuid,
                sight.temperature,
                sight.power_mw,
                sight.utilisation,
                sight.memory_used,
                max(0, sight.throttle) & ~_IDLE,
                mine,
                len(sight.processes) - mine,
            )
        )
    return tuple(found)


def utilisation(state: AgentState) -> dict[AttemptId, float]:
    """How hard the GPUs of each attempt work together, in per cent.

    An attempt that shares them is left out, as is one of whose GPUs NVML does not tell.
    """
    found = {}
    for attempt in state.attempts.values():
        known = [state.gpus.known[uuid] for uuid in attempt.gpus if uuid in state.gpus.known]
        told = [each.sight.utilisation for each in known if not each.unknown and each.sight.utilisation >= 0]
        if told and len(told) == len(attempt.gpus) and not attempt.gpus_shared:
            found[attempt.id] = float(sum(told))
    return found


def memory_free(work: Work, assignment: Assignment) -> bool:
    """Whether the dead have left the memory of a task's GPUs, for all that NVML tells; or it took too long.

    The driver takes its time to free what a killed process had, and TensorFlow wants all of it at its start.
    """
    state, attempt = work.state, assignment.attempt_id
    dead = {each.pid for each in state.attempts.values() if each.pid and not each.alive}
    known = [state.gpus.known[uuid] for uuid in assignment.gpus if uuid in state.gpus.known]
    held = {leader for each in known for leader, _ in each.sight.processes} & dead
    if not held:
        state.gpus_awaited.pop(attempt, None)
        return True
    since_ms = state.gpus_awaited.setdefault(attempt, work.now_ms)
    if work.now_ms - since_ms < MEMORY_WAIT_MS:
        work.emit(LookAtGpus())
        return False
    processes = ", ".join(map(str, sorted(held)))
    work.note(
        "dead processes still hold a GPU's memory; the attempt starts all the same",
        "warning",
        attempt=str(attempt),
        processes=processes,
    )
    state.gpus_awaited.pop(attempt, None)
    return True


def _note_changes(work: Work, before: GpuBook, after: GpuBook) -> None:
    if after.problem and after.problem != before.problem:
        work.note("the state of this node's GPUs is unknown", "warning", reason=after.problem)
    elif before.problem and not after.problem:
        work.note("the state of this node's GPUs is known again")
    for uuid, known in after.known.items():
        earlier = before.known.get(uuid)
        gpu, was = known.told(), earlier.told() if earlier is not None else None
        if gpu.fault > was.fault if was is not None else gpu.health is GpuHealth.FAULTY:
            work.note(
                "a GPU has a fault", "warning", **_fields(gpu), action=gpu.action.value, reason=gpu.reason
            )
        elif was is not None and was.health is GpuHealth.FAULTY and gpu.health is GpuHealth.OK:
            work.note("a GPU has recovered", **_fields(gpu))


def _fields(gpu: Gpu) -> dict[str, str]:
    return {"gpu": gpu.uuid, "index": str(gpu.index)}


def _note_ignored(work: Work, sight: Sight) -> None:
    for each in sight.xids:
        if xid.action_of(each.code) is GpuAction.NONE:
            work.note(
                "the driver reports an XID that needs no action",
                gpu=each.uuid or each.pci,
                reason=xid.describe(each.code),
            )
