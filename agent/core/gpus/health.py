"""The node's GPUs, their health, and the action that their newest fault asks for: a fold over NVML's reports.

A fault raises its GPU's serial once. A fault that asks for less than one that still stands, or that follows
one of its kind within a burst, counts as the same fault: a failing kernel writes an XID for each of its
units, and the death of its program two more. The record of a GPU outlives the agent (`GpuRecord`, in its
state file), so that a serial is never used for two faults.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from agent.core.gpus import xid
from supervisor.contract.observed import Gpu, GpuAction, GpuHealth, GpuReport

BURST_MS = 5_000
_REACH = {action: reach for reach, action in enumerate(GpuAction)}

_RECOVERY = {
    1: (GpuAction.RESET_GPU, "a reset of the GPU"),
    2: (GpuAction.DRAIN_NODE, "a reboot of the node"),
    3: (GpuAction.RESET_GPU, "that nothing reaches it over NVLink"),
    4: (GpuAction.RESET_GPU, "that it is drained and reset"),
    5: (GpuAction.DRAIN_NODE, "a recovery of its IMEX domain"),
    6: (GpuAction.RESET_GPU, "a reset of its bus"),
    7: (GpuAction.DRAIN_NODE, "a reboot of the system"),
}


@dataclass(frozen=True, slots=True)
class GpuSight:
    """One GPU at one look. -1 (or empty) where this driver, or this GPU, does not tell.

    Attributes:
        pci: bus id as in the kernel's log, `0000:65:00`.
        error: NVML's code when this GPU did not answer; 0 when it did.
        recovery: NVML's recovery action (field 230).
        ecc_volatile: ECC errors that could not be corrected, since the driver was loaded or the GPU reset.
        remap_pending, remap_failed: of rows of memory (1: yes).
        temperature: degrees Celsius.
        throttle: bits of the reasons why its clocks are held back.
        processes: (leader of its session, or itself if it is gone; bytes of memory) of each on it.
    """

    uuid: str
    index: int
    name: str = ""
    memory_bytes: int = 0
    pci: str = ""
    numa: int = -1
    peers: tuple[str, ...] = ()
    mig: bool = False
    error: int = 0
    recovery: int = -1
    ecc_volatile: int = -1
    remap_pending: int = -1
    remap_failed: int = -1
    temperature: int = -1
    power_mw: int = -1
    utilisation: int = -1
    memory_used: int = -1
    throttle: int = -1
    processes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Xid:
    """An XID of a GPU, named by its UUID (NVML) or its bus (the kernel's log)."""

    code: int
    uuid: str = ""
    pci: str = ""


@dataclass(frozen=True, slots=True)
class Sight:
    """A report of the watcher of the GPUs.

    `problem`: why NVML gives no data; then `gpus` is None. `gpus`: all present GPUs; None if the report has
    only XIDs. `unopened`: the number of GPUs that are present but could not be opened; it is unknown which
    they are. `kernel`: number of the last record of the kernel's log that was read; -1 for none.
    """

    driver: str = ""
    problem: str = ""
    gpus: tuple[GpuSight, ...] | None = None
    xids: tuple[Xid, ...] = ()
    unopened: int = 0
    kernel: int = -1


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a GPU: the action that it asks for, its reason, and whether mostly the program causes it."""

    action: GpuAction
    reason: str
    blames_program: bool = False

    @property
    def reach(self) -> int:
        """The weight of the fault, which is that of its action."""
        return _REACH[self.action]

    @property
    def bars(self) -> bool:
        """Whether the GPU cannot be used as long as the fault stands."""
        return self.reach >= _REACH[GpuAction.RESET_GPU]


_GONE = Fault(GpuAction.DRAIN_NODE, "NVML lists it no more")
_AWAY = {
    0: _GONE,
    15: Fault(GpuAction.DRAIN_NODE, "the GPU is lost: NVML cannot reach it"),
    16: Fault(GpuAction.RESET_GPU, "the GPU wants a reset"),
}
"""NVML's code -> its fault (0: NVML answers, and the GPU is missing). A GPU that is back from these was
reset."""


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """The record of a GPU for this agent's next process."""

    uuid: str
    fault: int = 0
    action: GpuAction = GpuAction.NONE
    reason: str = ""
    blames_program: bool = False


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """One GPU as it is told, and what the next look is compared with.

    Attributes:
        latched: a fault that stands until a reset is seen, or this agent ends.
        state: one that stands as long as the GPU says so.
        fault_ms: when the newest fault was counted.
        unknown: why nothing is known of it now.
        inherited: its fault is one of an earlier life's, and nothing was seen in this one yet.
    """

    gpu: Gpu
    sight: GpuSight
    latched: Fault | None = None
    state: Fault | None = None
    fault_ms: int = -BURST_MS
    unknown: str = ""
    inherited: bool = False

    @property
    def standing(self) -> Fault | None:
        """The heavier of both."""
        known = [each for each in (self.latched, self.state) if each is not None]
        return max(known, key=lambda each: each.reach, default=None)

    def told(self) -> Gpu:
        """The GPU for the report."""
        standing = self.standing
        if standing is not None:
            return replace(self.gpu, health=GpuHealth.FAULTY, action=standing.action, reason=standing.reason)
        gpu = self.gpu
        if Fault(gpu.action, "").bars:
            gpu = replace(gpu, action=GpuAction.NONE, reason="")
        if self.unknown:
            return replace(gpu, health=GpuHealth.UNKNOWN, reason=self.unknown)
        return replace(gpu, health=GpuHealth.OK)


@dataclass(frozen=True, slots=True)
class GpuBook:
    """The agent's knowledge of its GPUs.

    `looked`: a report has come. `records`: from an earlier process of the agent.
    """

    driver: str = ""
    problem: str = ""
    looked: bool = False
    known: dict[str, KnownGpu] = field(default_factory=dict)
    records: dict[str, GpuRecord] = field(default_factory=dict)

    def report(self, node: str, incarnation: str, boot_id: str) -> GpuReport | None:
        """The report for etcd; None before the first look."""
        if not self.looked:
            return None
        gpus = sorted((each.told() for each in self.known.values()), key=lambda gpu: (gpu.index, gpu.uuid))
        return GpuReport(node, incarnation, boot_id, self.driver, self.problem, tuple(gpus))

    def kept(self) -> tuple[GpuRecord, ...]:
        """The records for the state file, of every GPU that ever had a fault."""
        records = dict(self.records)
        for uuid, each in self.known.items():
            gpu = each.gpu
            if gpu.fault:
                records[uuid] = GpuRecord(uuid, gpu.fault, gpu.action, gpu.reason, gpu.blames_program)
        return tuple(records[uuid] for uuid in sorted(records))


def remembered(records: tuple[GpuRecord, ...]) -> GpuBook:
    """The book of a new life."""
    return GpuBook(records={each.uuid: each for each in records})


def fold(book: GpuBook, sight: Sight, now_ms: int) -> GpuBook:
    """The book after a report."""
    known = dict(book.known)
    if sight.gpus is not None:
        seen = {each.uuid: each for each in sight.gpus}
        for uuid in known.keys() - seen.keys():
            known[uuid] = _missed(known[uuid], sight.unopened, now_ms)
        for uuid, each in seen.items():
            after = _looked_at(known.get(uuid) or _first(book, each), each, now_ms)
            known[uuid] = replace(after, inherited=False)
        book = replace(book, driver=sight.driver, problem="", looked=True)
    if sight.problem:
        known = {uuid: replace(each, unknown=sight.problem) for uuid, each in known.items()}
        book = replace(book, problem=sight.problem, looked=True)
    for strike in sight.xids:
        found = _meant(known, strike)
        if found is not None:
            known[found] = _struck(known[found], strike.code, now_ms)
    return replace(book, known=known)


def _first(book: GpuBook, sight: GpuSight) -> KnownGpu:
    """A GPU at its first look, with the record of an earlier process.

    Its XIDs are over: a reset ends the agent.
    """
    record = book.records.get(sight.uuid, GpuRecord(sight.uuid))
    gpu = Gpu(sight.uuid, sight.index, sight.name, sight.memory_bytes)
    gpu = replace(gpu, fault=record.fault, action=record.action, reason=record.reason)
    gpu = replace(gpu, blames_program=record.blames_program)
    return KnownGpu(gpu, replace(sight, ecc_volatile=-1, recovery=-1), inherited=gpu.fault > 0)


def _missed(known: KnownGpu, unopened: int, now_ms: int) -> KnownGpu:
    """It may be one of those that could not be opened: then nothing new is known of it."""
    if unopened:
        return replace(known, unknown=f"NVML could not open {unopened} of the GPUs that are here")
    return _with_state(replace(known, unknown=""), _GONE, now_ms)


def _looked_at(known: KnownGpu, sight: GpuSight, now_ms: int) -> KnownGpu:
    before = known.sight
    if sight.error:
        # What it does not tell now is what it told before.
        kept = replace(before, index=sight.index, error=sight.error)
        known = replace(known, sight=kept, unknown=_unanswered(sight.error))
        fault = _AWAY.get(sight.error)
        return known if fault is None else _with_state(replace(known, unknown=""), fault, now_ms)
    gpu = replace(
        known.gpu,
        index=sight.index,
        name=sight.name,
        memory_bytes=sight.memory_bytes,
        numa=sight.numa,
        peers=sight.peers,
        mig=sight.mig,
    )
    if (
        known.state in _AWAY.values()
        or 0 <= sight.ecc_volatile < before.ecc_volatile
        or sight.recovery == 0 < before.recovery
    ):
        known = replace(known, latched=None)
    known = replace(known, gpu=gpu, sight=sight, unknown="")
    known = _with_state(known, _state_of(sight), now_ms)
    if 0 <= before.ecc_volatile < sight.ecc_volatile:
        reason = f"{sight.ecc_volatile - before.ecc_volatile} ECC errors that could not be corrected"
        known = _strike(known, Fault(GpuAction.RESTART_TASK, reason), now_ms)
    return known


def _unanswered(error: int) -> str:
    return f"NVML does not tell of it (error {error})"


def _state_of(sight: GpuSight) -> Fault | None:
    faults = []
    if sight.recovery in _RECOVERY:
        action, wish = _RECOVERY[sight.recovery]
        faults.append(Fault(action, f"the driver asks for {wish}"))
    if sight.remap_failed == 1:
        faults.append(Fault(GpuAction.CONTACT, "rows of its memory could not be remapped: replace it"))
    return max(faults, key=lambda each: each.reach, default=None)


def _with_state(known: KnownGpu, fault: Fault | None, now_ms: int) -> KnownGpu:
    """The state is read at each look; it is a new fault when it is heavier than what stands already."""
    if fault == known.state:
        return known
    before, gpu = known.standing, known.gpu
    known = replace(known, state=fault)
    if fault is None or (before is not None and before.reach >= fault.reach):
        return known
    same = known.inherited and (gpu.action, gpu.reason) == (fault.action, fault.reason)
    burst = now_ms < known.fault_ms + BURST_MS and _REACH[gpu.action] >= fault.reach
    return known if same or burst else _counted(known, fault, now_ms)


def _struck(known: KnownGpu, code: int, now_ms: int) -> KnownGpu:
    fault = Fault(xid.action_of(code), xid.describe(code), xid.blames_program(code))
    return known if fault.action is GpuAction.NONE else _strike(known, fault, now_ms)


def _strike(known: KnownGpu, fault: Fault, now_ms: int) -> KnownGpu:
    standing = known.standing
    if standing is not None and standing.reach >= fault.reach:
        return known
    # What the program did must not be what a fault of the GPU itself is taken for.
    same = fault.blames_program or not known.gpu.blames_program
    if same and now_ms < known.fault_ms + BURST_MS and _REACH[known.gpu.action] >= fault.reach:
        return known
    known = _counted(known, fault, now_ms)
    return replace(known, latched=fault) if fault.bars else known


def _counted(known: KnownGpu, fault: Fault, now_ms: int) -> KnownGpu:
    gpu = replace(known.gpu, fault=known.gpu.fault + 1, action=fault.action, reason=fault.reason)
    gpu = replace(gpu, blames_program=fault.blames_program)
    return replace(known, gpu=gpu, fault_ms=now_ms)


def _meant(known: dict[str, KnownGpu], strike: Xid) -> str | None:
    """The GPU that an XID is about; None for another machine's, or one that was never seen."""
    if strike.uuid:
        return strike.uuid if strike.uuid in known else None
    return next((uuid for uuid, each in known.items() if strike.pci and each.sight.pci == strike.pci), None)
