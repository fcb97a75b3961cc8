"""The GPUs of the nodes: those that a task may get, and the faults of those that it has. Pure.

A GPU is known by its UUID, wherever it is reported from: agents of one machine report the same ones. Claims
tell which task has it (`facts.claims`). A job's own tasks make room on their node for its next generation:
their agent starts an attempt only when no living attempt holds its GPUs there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from supervisor.contract.desired import Assignment, GpuQuarantine, Placement, Plan
from supervisor.contract.incident import Event
from supervisor.contract.job.spec import Resources
from supervisor.contract.observed import Gpu, GpuAction, GpuHealth, GpuReport
from supervisor.control.decide.facts.claims import Asking
from supervisor.control.decide.set_aside import Claim
from supervisor.control.decide.snapshot import JobState, NodeState, Snapshot, Versioned

HARMFUL = frozenset({GpuAction.RESET_GPU, GpuAction.DRAIN_NODE, GpuAction.CONTACT})
"""After a fault that asks for one of these, no task should have the GPU."""

SETTLED_MS = 2_000
"""A report on a GPU so soon after an attempt's start may still be what its predecessor did."""

FAULT_EVENTS = ("gpu_fault", "gpu_quarantined")
"""The kinds of events that tell of a fault."""

QUARANTINED, FAULTY = "quarantined", "faulty"
"""Why a GPU is given to nobody, and those who have it are to leave it."""


@dataclass(frozen=True, slots=True)
class GpuSlot:
    """A GPU that tasks may be given. `users` have it already; up to `share` may, all of them included."""

    uuid: str
    index: int
    name: str = ""
    memory_bytes: int = 0
    users: int = 0
    share: int = 1


class Devices:
    """The GPUs that are given away while tasks are placed, beside those that had users before."""

    def __init__(self) -> None:
        self._shares: dict[str, list[int]] = {}

    def usable(self, slots: Iterable[GpuSlot], need: Resources) -> list[GpuSlot]:
        """The slots that suit the request and have room for one more task."""
        return [slot for slot in slots if _suits(slot, need) and self._has_room(slot, need)]

    def choose(
        self, slots: Iterable[GpuSlot], need: Resources, had: tuple[str, ...], users: Mapping[str, int]
    ) -> tuple[str, ...]:
        """The UUIDs for a task that fits: first those that it `had`, last those that others had.

        `users`: how many of its job's tasks had each. Whoever keeps its GPUs keeps its launcher, too, where
        that is bound to them.
        """
        found = self.usable(slots, need)

        def rank(slot: GpuSlot) -> tuple[bool, bool, int, int, int]:
            busy = slot.users + len(self._shares.get(slot.uuid, ()))
            own, others = slot.uuid in had, users.get(slot.uuid, 0) > (slot.uuid in had)
            return not own, others, busy, slot.memory_bytes, slot.index

        chosen = sorted(sorted(found, key=rank)[: need.gpus], key=lambda slot: slot.index)
        for slot in chosen:
            self._shares.setdefault(slot.uuid, []).append(need.gpu_share)
        return tuple(slot.uuid for slot in chosen)

    def _has_room(self, slot: GpuSlot, need: Resources) -> bool:
        shares = self._shares.get(slot.uuid, ())
        return slot.users + len(shares) < min(slot.share, need.gpu_share, *shares)


def _suits(slot: GpuSlot, need: Resources) -> bool:
    return (
        slot.memory_bytes >= need.gpu_memory_bytes
        and need.gpu_model.lower() in slot.name.lower()
        and (not need.gpu_indices or slot.index in need.gpu_indices)
    )


def asked_for(need: Resources) -> str:
    """The kind of GPUs that a task needs, for people."""
    named = f" named {need.gpu_model}" if need.gpu_model else ""
    size = f" with {need.gpu_memory_bytes / (1 << 30):.4g} GiB" if need.gpu_memory_bytes else ""
    which = f" of index {', '.join(map(str, need.gpu_indices))}" if need.gpu_indices else ""
    return f"GPUs{named}{size}{which}"


def reported(picture: NodeState) -> Versioned[GpuReport] | None:
    """The last report on the node's GPUs since its boot, by its agent or one that this agent succeeded."""
    held, life = picture.gpus, picture.incarnation
    if held is None or life is None or not picture.acts_for(held.value.incarnation):
        return None
    return held if held.value.boot_id == life.value.boot_id else None


def find_gpu(picture: NodeState, uuid: str) -> Gpu | None:
    """A GPU of a node, as last reported by its present agent."""
    held = reported(picture)
    return next((gpu for gpu in held.value.gpus if gpu.uuid == uuid), None) if held is not None else None


def quarantined(snap: Snapshot, uuid: str) -> GpuQuarantine | None:
    """The quarantine that is in force on a GPU, whichever agent of its machine reported it."""
    return snap.once(_in_force).get(uuid)


def _in_force(snap: Snapshot) -> dict[str, GpuQuarantine]:
    """GPU -> the first quarantine that is in force on it."""
    held = [each.value for each in snap.quarantines.values() if not each.value.lifted]
    return {each.uuid: each for each in reversed(held)}


def quarantines_of(snap: Snapshot, node: str) -> list[GpuQuarantine]:
    """The quarantines in force on a node's GPUs, by index."""
    held = [each.value for (where, _), each in snap.quarantines.items() if where == node]
    return sorted((each for each in held if not each.lifted), key=lambda each: each.index)


def unfit(snap: Snapshot, picture: NodeState, gpu: Gpu) -> str:
    """Why no task may be given this GPU, in a word or two; empty if one may."""
    if quarantined(snap, gpu.uuid) is not None:
        return QUARANTINED
    if gpu.health is GpuHealth.UNKNOWN:
        return "unknown"
    if gpu.mig:
        return "split by MIG"
    lifted = snap.quarantines.get((picture.node, gpu.uuid))
    excused = lifted is not None and lifted.value.fault == gpu.fault
    return FAULTY if gpu.health is GpuHealth.FAULTY and gpu.action in HARMFUL and not excused else ""


@dataclass(frozen=True, slots=True)
class GpuHarm:
    """A GPU of a task has had a fault that its attempt must not go on with. `harmful`: nor may the next.

    `seen_ms`: since when the fault is known. `blames_program`: it is mostly the task's own; then it counts
    from the first fault that the attempt has had there.
    """

    gpu: Gpu
    node: str
    harmful: bool
    seen_ms: int
    blames_program: bool = False

    def describe(self) -> str:
        """The GPU, its node and its fault, for people."""
        return f"GPU {self.gpu.index} of {self.node} ({self.gpu.uuid}): {self.gpu.reason or 'quarantined'}"


def befallen(snap: Snapshot, job: JobState, plan: Plan, placement: Placement) -> GpuHarm | None:
    """The worst harm by a task's GPUs since its present attempt was decided on; None without any.

    What its own program did comes last. Of several alike it is the one that is known for longest.
    A GPU that is unknown now does no harm (rule 10). A fault that a program caused on a shared GPU does not
    count: no report says whose program it was, and that program ends by itself.
    """
    picture, assigned = snap.nodes.get(placement.node), job.assigned(plan.plan_id, placement.member)
    report = reported(picture) if picture is not None else None
    if picture is None or report is None or assigned is None:
        return None
    before = dict(zip(assigned.value.gpus, assigned.value.gpu_faults, strict=False))
    found: list[GpuHarm] = []
    for uuid in assigned.value.gpus:
        gpu = find_gpu(picture, uuid)
        if gpu is None:
            continue
        own, had = gpu.blames_program, before.get(uuid, 0)
        since_ms = _known_ms(snap, placement.node, gpu, report, assigned, had)
        if unfit(snap, picture, gpu) in (QUARANTINED, FAULTY):
            return GpuHarm(gpu, placement.node, True, since_ms)
        restarts = gpu.action is GpuAction.RESTART_TASK and gpu.fault != had
        if restarts and not (own and assigned.value.gpus_shared):
            found.append(GpuHarm(gpu, placement.node, False, since_ms, blames_program=own))
    return min(found, key=lambda harm: (harm.blames_program, harm.seen_ms), default=None)


def told_of(snap: Snapshot, node: str, gpu: Gpu) -> bool:
    """Whether history has a line about a GPU's newest fault."""
    return any(fault == str(gpu.fault) for fault, _ in _told(snap, node, gpu))


def _told(snap: Snapshot, node: str, gpu: Gpu) -> Iterator[tuple[str, Versioned[Event]]]:
    """The lines of history about a GPU's faults, each with the number of its fault."""
    for event in snap.events:
        fields = event.value.fields
        if event.value.kind in FAULT_EVENTS and (fields.get("node"), fields.get("gpu")) == (node, gpu.uuid):
            yield fields.get("fault", ""), event


def _known_ms(
    snap: Snapshot,
    node: str,
    gpu: Gpu,
    report: Versioned[GpuReport],
    assigned: Versioned[Assignment],
    had: int,
) -> int:
    """Since when its newest fault is known; a report is renewed by whatever changes in it.

    Of a program that crashes on and on, since when the first fault of its attempt is: it has a new one every
    few seconds. `had`: the GPU's newest fault before that attempt.
    """
    known_ms = [report.seen_ms]
    settled_ms = assigned.seen_ms + SETTLED_MS
    for fault, event in _told(snap, node, gpu):
        later = event.mod_revision > assigned.mod_revision and event.seen_ms >= settled_ms
        its_own = gpu.blames_program and later and fault != str(had)
        if its_own or fault == str(gpu.fault):
            known_ms.append(event.seen_ms)
    return min(known_ms)


def known_faults(snap: Snapshot, node: str, gpus: tuple[str, ...]) -> tuple[int, ...]:
    """The serial of each GPU's last fault; 0 without one.

    An attempt that is decided on now does not end for these.

    Serials outlive agents and boots, so that any report has them.
    """
    picture = snap.nodes.get(node)
    held = picture.gpus if picture is not None else None
    serials = {gpu.uuid: gpu.fault for gpu in held.value.gpus} if held is not None else {}
    return tuple(serials.get(uuid, 0) for uuid in gpus)


def slots_of(
    snap: Snapshot, picture: NodeState, asking: Asking, found: Mapping[str, list[Claim]]
) -> tuple[tuple[GpuSlot, ...], str]:
    """The GPUs of a node that a job may be given, and a remark on those that it may not.

    `found` are the claims by UUID (`by_gpu`).
    """
    held = reported(picture)
    if picture.incarnation is None:
        return (), ""
    resources = picture.incarnation.value.resources
    if held is None:
        return (), "none told of yet"
    slots, out = [], dict[str, int]()
    for gpu in held.value.gpus:
        why = unfit(snap, picture, gpu)
        if why:
            out[why] = out.get(why, 0) + 1
            continue
        claims = [
            claim
            for claim in found.get(gpu.uuid, ())
            if claim.node != picture.node or not asking.gives_up(claim)
        ]
        share = min([resources.gpu_share, *(claim.resources.gpu_share for claim in claims)])
        slots.append(GpuSlot(gpu.uuid, gpu.index, gpu.name, gpu.memory_bytes, len(claims), share))
    remarks = [f"{count} {why}" for why, count in sorted(out.items())]
    if not held.value.gpus and held.value.problem:
        remarks.append(held.value.problem)
    return tuple(slots), ", ".join(remarks)


def all_slots(picture: NodeState) -> tuple[GpuSlot, ...]:
    """The GPUs of a node as if nobody had any, and whatever state they are in."""
    held = reported(picture)
    if picture.incarnation is None or held is None:
        return ()
    share, whole = picture.incarnation.value.resources.gpu_share, [g for g in held.value.gpus if not g.mig]
    return tuple(GpuSlot(gpu.uuid, gpu.index, gpu.name, gpu.memory_bytes, 0, share) for gpu in whole)
