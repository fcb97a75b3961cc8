"""Faults of many nodes at once: as many as are replaced, and as many as the brake holds for."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations

from chaos.faults.families.agent import holders
from chaos.faults.families.node import LOST, everything, networks, powerless
from chaos.faults.fault import Family, Fault, Incidents, expects
from chaos.faults.scene import Scene

LEAST = 3
"""The brake holds for no fewer nodes."""
ENDED = expects(Incidents.ANY, "node_lost", "deadline")
"""Tasks outside the ClusterSpec restart by themselves when their nodes are back."""
HOLDS = "the brake holds"
HOLDS_S = 20.0


def halves(scene: Scene) -> Sequence[str]:
    """Half of all nodes, one with a task of the ClusterSpec among them; their names with commas between."""
    return _together(scene, lambda count: (count + 1) // 2)


def majorities(scene: Scene) -> Sequence[str]:
    """As `halves`, but just more than half, and as many as the brake needs."""
    return _together(scene, lambda count: max(LEAST, count // 2 + 1))


def _together(scene: Scene, size: Callable[[int], int]) -> Sequence[str]:
    names, busy = [node.name for node in scene.nodes("node-")], set(holders(scene))
    return [",".join(each) for each in combinations(names, size(len(names))) if busy & {*each}]


@contextmanager
def several_off(scene: Scene, names: str) -> Iterator[str]:
    """They lose their power at once."""
    with powerless([scene.cluster.nodes[name] for name in names.split(",")]) as evidence:
        yield evidence


@contextmanager
def switch_died(scene: Scene, names: str) -> Iterator[str]:
    """Each is cut off from everything, until the heal. In force once operators are told of the brake."""
    network = scene.cluster.network
    with ExitStack() as joined:
        for node in names.split(","):
            others = everything(scene, node)
            joined.callback(network.rejoin, node, others)
            network.cut_off(node, others)
        held = scene.wait("a brake that holds", lambda: _held(scene), HOLDS_S)
        command = scene.cluster.supervisorctl("status")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        first = done.stdout.partition("\n")[0]
        assert first.startswith("PAUSED"), f"the first line of `status` is {first!r}; {done.stderr}"
        yield f"{sum(network.dropped().values())} packets are dropped already; `status` says: {held}"


def _held(scene: Scene) -> str | None:
    """The line of `status` about the brake."""
    view = scene.job.view()
    return view.paused if view is not None and view.paused.startswith(HOLDS) else None


FAULTS: tuple[Fault, ...] = (
    Fault(
        "half-off",
        Family.NODE,
        "half of all nodes lose their power at once",
        halves,
        several_off,
        LOST,
        hold_s=(6.0, 12.0),
        bound_s=90.0,
        alone=True,
    ),
    Fault(
        "switch-died",
        Family.NODE,
        "more than half of all nodes are cut off at once: the brake holds until they are back",
        majorities,
        switch_died,
        ENDED,
        hold_s=(7.0, 12.0),
        bound_s=90.0,
        needs=networks,
        alone=True,
    ),
)
