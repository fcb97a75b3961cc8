"""The consequences of a GPU's fault: a quarantine, a drained node, or a line of history.

A quarantine is about the GPU. Its node is drained only where the fault asks for it. The tasks that have the
GPU are restarted (`assess.leaving`): they leave a quarantined one by a new generation, and run on it until
there is another for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.contract import keys
from supervisor.contract.boundaries import Compare, Op
from supervisor.contract.desired import GpuQuarantine
from supervisor.contract.observed import Gpu, GpuAction, GpuHealth, Incarnation
from supervisor.control.decide.facts.gpus import HARMFUL, reported, told_of
from supervisor.control.decide.nodes import cordons
from supervisor.control.decide.plan import Action, delete_all, put, short, unchanged, unchanged_or_absent
from supervisor.control.decide.snapshot import NodeState, Snapshot, Versioned

NEWS_MS = 10_000
"""A report that this leader has known for longer has been told of."""

_REACH = {action: reach for reach, action in enumerate(GpuAction)}


def decide(snap: Snapshot, picture: NodeState) -> list[Action]:
    """Quarantines, drained nodes, and what is only told."""
    return [] if picture.node in snap.nodes_aside else list(_of_node(snap, picture))


def _of_node(snap: Snapshot, picture: NodeState) -> Iterator[Action]:
    held, life = reported(picture), picture.incarnation
    if life is None:
        return
    known = {gpu.uuid: gpu for gpu in held.value.gpus} if held is not None else {}
    for (node, uuid), quarantine in snap.quarantines.items():
        gpu = known.get(uuid)
        booted = quarantine.value.boot_id != life.value.boot_id
        if node == picture.node and booted and (gpu is None or not _harmed(gpu)):
            yield _released(picture, quarantine)
    for gpu in known.values():
        quarantine_held = snap.quarantines.get((picture.node, gpu.uuid))
        if _harmed(gpu):
            if not _covered(gpu, quarantine_held, life.value):
                yield _quarantine(picture, life, gpu, quarantine_held)
        elif held is not None and _is_news(snap, picture.node, gpu, snap.now_ms - held.seen_ms):
            whoever = "who had it alone" if gpu.blames_program else "who had it"
            text = f"GPU {gpu.index} of {picture.node}: {gpu.reason}; {whoever} is restarted"
            yield Action("gpu_fault", "", text, (unchanged(life),), (), _fields(picture, gpu))


def _harmed(gpu: Gpu) -> bool:
    return gpu.health is GpuHealth.FAULTY and gpu.action in HARMFUL


def _covered(gpu: Gpu, held: Versioned[GpuQuarantine] | None, life: Incarnation) -> bool:
    """Whether the record that there is already answers this fault, with a quarantine or with its lifting."""
    if held is None or held.value.boot_id != life.boot_id:
        return False
    if held.value.lifted:
        return held.value.fault == gpu.fault
    return _REACH[gpu.action] <= _REACH[held.value.action]


def _quarantine(
    picture: NodeState, life: Versioned[Incarnation], gpu: Gpu, held: Versioned[GpuQuarantine] | None
) -> Action:
    node, key = picture.node, keys.quarantine(picture.node, gpu.uuid)
    why = short(gpu.reason, 500)
    record = GpuQuarantine(node, gpu.uuid, gpu.index, why, gpu.action, gpu.fault, life.value.boot_id)
    compares: list[Compare] = [unchanged(life), unchanged_or_absent(key, held)]
    ops: list[Op] = [put(key, record)]
    text = f"GPU {gpu.index} of {node} is quarantined: {why} ({gpu.action.value})"
    if gpu.action is GpuAction.DRAIN_NODE:
        cordon_compares, cordon_ops = cordons.for_gpu(picture, f"GPU {gpu.index}: {why}")
        compares += cordon_compares
        ops += cordon_ops
        text += "; its node is drained"
    return Action("gpu_quarantined", "", text, tuple(compares), tuple(ops), _fields(picture, gpu))


def _released(picture: NodeState, held: Versioned[GpuQuarantine]) -> Action:
    """A boot has reset the GPU; a fault that is still there is told anew."""
    value = held.value
    text = f"GPU {value.index} of {picture.node} is tried again: the machine has booted"
    fields = {"node": picture.node, "gpu": value.uuid, "reason": value.reason}
    told = "" if value.lifted else text
    return Action("gpu_released", "", told, (unchanged(held),), delete_all((held,)), fields)


def _is_news(snap: Snapshot, node: str, gpu: Gpu, age_ms: int) -> bool:
    """Whether history has yet to be told of a fault that only restarts a task."""
    if not gpu.fault or gpu.action is not GpuAction.RESTART_TASK or age_ms > NEWS_MS:
        return False
    return not told_of(snap, node, gpu)


def _fields(picture: NodeState, gpu: Gpu) -> dict[str, str]:
    return {
        "node": picture.node,
        "gpu": gpu.uuid,
        "index": str(gpu.index),
        "fault": str(gpu.fault),
        "action": gpu.action.value,
        "reason": gpu.reason,
    }
