"""Faults of GPUs, by a scripted NVML: lost, hanging, XIDs of each class, ECC, rows that are not remapped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from chaos.cluster import CommandFailed
from chaos.cluster.cluster import PREFIX
from chaos.faults.fault import Expects, Family, Fault, Incidents, expects
from chaos.faults.scene import DidNotBite, Scene
from chaos.nvml import FakeNvml

SEEN_S = 30.0
SETTLED, UNSEEN = "ok", "unknown"
GPU_IS_LOST = 15
GPUS = (("gpus", 2),)
HARMLESS = expects(Incidents.NONE)
ASKED = expects(Incidents.ANY, "gpu", "drained", "peer_lost", "killed", "node_lost")
"""The heal restarts an agent: on a busy machine that takes so long that its node is suspected."""

BLAMED = expects(Incidents.ANY, "program_signal", "gpu", "peer_lost", program_faults=1)


@dataclass(frozen=True, slots=True)
class Held:
    """A GPU that a task has: its node's library, and its index there."""

    node: str
    nvml: FakeNvml
    index: int

    @property
    def uuid(self) -> str:
        """NVML's."""
        return self.nvml.uuids[self.index]


Deed = Callable[[Held], None]


def holders(scene: Scene) -> Sequence[str]:
    """Tasks that have a GPU."""
    return [member for member in scene.members("worker", "chief") if _gpus(scene, member)]


def _gpus(scene: Scene, member: str) -> list[str]:
    found = scene.cluster.etcd().read(f"{PREFIX}attempts/{scene.job.name}/{member}/")
    reports = [json.loads(raw) for raw in found.values()]
    return [uuid for each in reports if each["state"] == "running" for uuid in each["gpus"]]


def held_by(scene: Scene, member: str) -> Held:
    """The first GPU of a task; raises DidNotBite without one."""
    node = scene.task(member).node
    nvml = scene.cluster.gpus[node]
    for uuid in _gpus(scene, member):
        return Held(node, nvml, nvml.uuids.index(uuid))
    raise DidNotBite(f"{member} has no GPU")


def _told(scene: Scene, held: Held) -> dict[str, object]:
    """The report on a GPU in etcd: the last one of its agent."""
    key = f"{PREFIX}gpus/{held.node}"
    report = json.loads(scene.cluster.etcd().read(key).get(key, b"{}"))
    found = [each for each in report.get("gpus", ()) if each["uuid"] == held.uuid]
    return found[0] if found else {"health": "gone", "fault": -1}


def health_of(scene: Scene, held: Held) -> str:
    """The health of a GPU in its agent's report, by NVML outside of containers."""
    return str(_told(scene, held)["health"])


@contextmanager
def faulted(scene: Scene, member: str, *, deed: Deed, undo: Deed) -> Iterator[str]:
    """Something happens to a GPU, and its agent has said so; all is well again at the heal."""
    held = held_by(scene, member)
    before = _told(scene, held)
    deed(held)
    try:
        now = scene.wait("a report of the GPU", lambda: _other(_told(scene, held), before), SEEN_S)
        yield f"{held.uuid} of {held.node}: {now.get('health')}, {now.get('action')}: {now.get('reason')}"
    finally:
        undo(held)
        _mended(scene, held)


def _other(now: dict[str, object], before: dict[str, object]) -> dict[str, object] | None:
    return now if now != before else None


def _mended(scene: Scene, held: Held) -> None:
    """Mend a GPU as a reset does: restart the agent, and lift the quarantine as an operator.

    A GPU that NVML could not see is seen again without that.
    """
    scene.wait("NVML's answer", lambda: health_of(scene, held) != UNSEEN or None, SEEN_S)
    if health_of(scene, held) != SETTLED:
        daemon = scene.cluster.nodes[held.node].daemons["agent"]
        daemon.stop()
        daemon.start()
        scene.wait("a healthy GPU", lambda: health_of(scene, held) == SETTLED or None, SEEN_S)
    operator = scene.job.operator
    for words in (("uncordon", held.node), ("uncordon", held.node, "--gpu", str(held.index))):
        # Where nothing was set aside there is nothing to lift.
        with suppress(CommandFailed):
            operator.ctl(*words)


def _event(code: int) -> Deed:
    return lambda held: held.nvml.event(held.index, code)


def _facts(**facts: object) -> Deed:
    return lambda held: held.nvml.set(held.index, **facts)


def _rules(*rules: str) -> Deed:
    return lambda held: held.nvml.rule(*rules)


def nothing(_: Held) -> None:
    """It is over by itself."""


def _fault(name: str, text: str, deed: Deed, undo: Deed = nothing, due: Expects = ASKED) -> Fault:
    return Fault(
        name,
        Family.GPU,
        text,
        holders,
        partial(faulted, deed=deed, undo=undo),
        due,
        hold_s=(1.0, 4.0),
        bound_s=60.0,
        shape=GPUS,
    )


FAULTS: tuple[Fault, ...] = (
    _fault("gpu-lost", "NVML says that a GPU is lost", _facts(error=GPU_IS_LOST), _facts(error=None)),
    _fault("gpu-hung", "every call of NVML hangs", _rules("hang *"), _rules(), HARMLESS),
    _fault("xid-program", "XID 31: a page fault of the program", _event(31), due=BLAMED),
    _fault("xid-contained", "XID 94: a contained ECC error", _event(94)),
    _fault("xid-reset", "XID 48: an ECC error that asks for a reset", _event(48)),
    _fault("xid-bus", "XID 79: a GPU has fallen off the bus", _event(79)),
    _fault("xid-power", "XID 54: a GPU lacks power", _event(54)),
    _fault(
        "ecc-errors", "errors of memory that could not be corrected", _facts(ecc_vol=1), _facts(ecc_vol=0)
    ),
    _fault(
        "remap-failed", "rows of memory cannot be remapped", _facts(remap_failed=1), _facts(remap_failed=0)
    ),
)
