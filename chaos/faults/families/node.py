"""Faults of whole nodes and of their network: lost, frozen, cut off, slow."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from chaos.cluster import Cluster, CommandFailed, Node
from chaos.cluster.shape import OPERATOR
from chaos.faults.families.agent import holders
from chaos.faults.families.task import ordered
from chaos.faults.fault import Expects, Family, Fault, Incidents, expects
from chaos.faults.scene import DidNotBite, Scene, send
from chaos.machine import power_switch
from supervisor.contract import codec
from supervisor.contract.views.jobs import EventBatch, EventView

LOST = expects(Incidents.ONE, "node_lost", "deadline", scopes=["all", "task"])
"""A worker that is alone on it moves alone (rule 6.10). A node that is back before another node has imported
a large program is not lost: only its tasks ended."""
EITHER = expects(
    Incidents.ANY, "node_lost", "deadline", "killed", "peer_lost", "hang", "base_missed", "store_lost"
)
"""It may be lost or not: how long that takes is a matter of chance."""
UNANSWERED = replace(EITHER, program_faults=3)
"""Also, a trainer whose peers do not answer looks like one that hangs, and a hang is the program's."""
AVOIDED_S = 60.0
UNHEARD_S = 0.25
FLAPS = 6
BITES_S = 20.0
Injection = Callable[[Scene, str], AbstractContextManager[str]]
Others = Callable[[Scene, str], Sequence[str]]


def networks(cluster: Cluster) -> str | None:
    """Why nodes cannot be cut off here."""
    return cluster.missing.get("network")


def boots(cluster: Cluster) -> str | None:
    """Why a node cannot boot anew here."""
    return cluster.missing.get("boot")


def kinds(*prefixes: str) -> Others:
    """All other nodes of some kinds."""
    return lambda scene, node: [
        other.name for prefix in prefixes for other in scene.nodes(prefix) if other.name != node
    ]


def everything(scene: Scene, node: str) -> Sequence[str]:
    """All other machines, the operator's too."""
    return [*(name for name in scene.cluster.nodes if name != node), OPERATOR]


@contextmanager
def off(scene: Scene, node: str) -> Iterator[str]:
    """No power until the heal."""
    with powerless([scene.cluster.nodes[node]]) as evidence:
        yield evidence


@contextmanager
def powerless(nodes: Sequence[Node]) -> Iterator[str]:
    """They lose their power at once."""
    pids = {node.name: node.pids() for node in nodes}
    with ExitStack() as restored:
        for node in nodes:
            node.power_off()
            restored.callback(node.power_on)
        yield "; ".join(_nothing_left(node, pids[node.name]) for node in nodes)


@contextmanager
def bad(scene: Scene, node: str) -> Iterator[str]:
    """Its daemons are well, but a program that works elsewhere ends here as soon as it starts.

    One of its tasks is killed; those left alone would run on. In force until all of them are elsewhere.
    """
    life = scene.process(scene.task_on(node))

    def avoided() -> bool | None:
        view = scene.job.view()
        tasks = [each for each in view.tasks if each.role != "evaluator"] if view is not None else []
        return True if tasks and all(each.node != node for each in tasks) else None

    with ordered(scene, "start", host=scene.cluster.nodes[node].address, code=1):
        send(life, signal.SIGKILL)
        gone = scene.gone(life)
        scene.wait(f"a job without {node}", avoided, AVOIDED_S)
        yield f"{gone} on {node}, and no task of the ClusterSpec is placed there any more"


@contextmanager
def rebooted(scene: Scene, node: str) -> Iterator[str]:
    """Off, and on again at once, with another boot id."""
    target = scene.cluster.nodes[node]
    before = target.boot_id
    pids = target.pids()
    target.power_off()
    evidence = _nothing_left(target, pids)
    target.power_on()
    yield f"{evidence}; boot id {before[:8]} -> {target.boot_id[:8]}"


def _nothing_left(node: Node, pids: Sequence[int]) -> str:
    if not pids:
        raise DidNotBite(f"nothing ran on {node.name}")
    if left := node.pids():
        raise DidNotBite(f"{node.name} still has {left}")
    return f"{len(pids)} processes of {node.name} are gone"


@contextmanager
def frozen(scene: Scene, node: str) -> Iterator[str]:
    """Every process of it stands still; its kernel still acknowledges."""
    target = scene.cluster.nodes[node]
    count = len(target.pids())
    target.freeze()
    try:
        yield f"cgroup of {node}: frozen 1, {count} processes"
    finally:
        target.thaw()


@contextmanager
def switched_off(scene: Scene, node: str) -> Iterator[str]:
    """It stands still, and a supervisor switches its power off; it boots at the heal."""
    target, before = scene.cluster.nodes[node], scene.task_on(node)
    pids, known = target.pids(), len(_told(scene, "power_off_confirmed", node))
    target.freeze()
    try:
        began_s = time.monotonic()
        scene.wait(
            "a switch that is used", lambda: len(_told(scene, "power_off_confirmed", node)) > known or None
        )
        off_ms = 1000 * (time.monotonic() - began_s)
        scene.successor(before, BITES_S)  # in another generation, or it moves alone
        went_on_ms = 1000 * (time.monotonic() - began_s)
        evidence = f"{_nothing_left(target, pids)} {off_ms:.0f} ms after they stood still"
        yield f"{evidence}; the next attempt of {before.task} ran after {went_on_ms:.0f} ms"
    finally:
        target.power_off()
        target.power_on()


@contextmanager
def switch_broken(scene: Scene, node: str) -> Iterator[str]:
    """It stands still, and its power switch does not work: D is waited for."""
    target, known = scene.cluster.nodes[node], len(_told(scene, "power_off_failed", node))
    broken = target.home / power_switch.BROKEN
    broken.touch()
    try:
        with frozen(scene, node) as evidence:
            scene.wait(
                "a switch that fails", lambda: len(_told(scene, "power_off_failed", node)) > known or None
            )
            yield f"{evidence}; its power switch has failed"
    finally:
        broken.unlink()


def _told(scene: Scene, kind: str, node: str) -> list[EventView]:
    """The events of a kind about a node; none while no supervisor answers."""
    try:
        found = codec.from_plain(EventBatch, scene.job.operator.ctl("events")).events
    except CommandFailed:
        return []
    return [each for each in found if each.kind == kind and each.fields["node"] == node]


@contextmanager
def cut_off(scene: Scene, node: str, *, others: Others, out: bool = True, back: bool = True) -> Iterator[str]:
    """Drop all packets `out` to the others, and `back` from them, until the heal."""
    network = scene.cluster.network
    names = others(scene, node)
    if not names:
        raise DidNotBite("there is nobody to be cut off from")
    try:
        network.cut_off(node, names, out=out, back=back)
        yield _dropped(scene, node, names)
    finally:
        network.rejoin(node, names, out=out, back=back)


@contextmanager
def flapping(scene: Scene, node: str, *, others: Others) -> Iterator[str]:
    """Cut off and joined again, several times, for longer and shorter."""
    said: list[str] = []
    for _ in range(FLAPS):
        with cut_off(scene, node, others=others) as evidence:
            said.append(evidence)
            time.sleep(scene.random.uniform(0.1, 1.5))
        time.sleep(scene.random.uniform(0.1, 1.0))
    yield f"{FLAPS} times; the last: {said[-1]}"


@contextmanager
def lossy(scene: Scene, node: str, *, share: float) -> Iterator[str]:
    """It loses a share of its packets, both ways."""
    network = scene.cluster.network
    network.loss(node, share)
    try:
        lost = scene.wait("a lost packet", lambda: network.dropped().get(f"{node} loss") or None, BITES_S)
        yield f"{lost} packets lost already, of {share:.0%}"
    finally:
        network.loss(node, 0)


@contextmanager
def far(scene: Scene, node: str, *, ms: float, jitter_ms: float = 0.0) -> Iterator[str]:
    """Everything from and to it takes longer; with jitter, packets overtake each other."""
    network = scene.cluster.network
    network.delay(node, ms, jitter_ms=jitter_ms, seed=scene.random.getrandbits(32))
    try:
        leads = scene.nodes("sup-")[0].name

        def slow() -> float | None:
            found = network.round_trip_ms(node, leads, 10 * (ms + jitter_ms + 1000) / 1000)
            return found if found is not None and found >= 2 * ms else None

        yield f"{node} to {leads} and back takes {scene.wait('a long way', slow, BITES_S):.0f} ms"
    finally:
        network.delay(node, 0)


@contextmanager
def narrow(scene: Scene, node: str, *, bytes_s: int) -> Iterator[str]:
    """It sends and gets so many bytes a second."""
    network = scene.cluster.network
    network.bandwidth(node, bytes_s)
    try:
        waits = scene.wait("a packet that waits", lambda: network.held_up(node) or None, BITES_S)
        yield f"packets waited {waits} times already, at {bytes_s} bytes/s"
    finally:
        network.bandwidth(node, 0)


def clocks(cluster: Cluster) -> str | None:
    """Why no clock can be set here."""
    return cluster.missing.get("clock")


@contextmanager
def wrong_clock(scene: Scene, node: str, *, offset_s: float) -> Iterator[str]:
    """The wall clock of a node jumps, and jumps back at the heal."""
    target = scene.cluster.nodes[node]
    target.set_clock(offset_s)
    try:
        readers = scene.wait("a process that has this clock", lambda: target.clock_readers() or None)
        yield f"the wall clock of {len(readers)} processes of {node} is off by {offset_s:.0f} s"
    finally:
        target.set_clock(0)


def trainers_and_leader(scene: Scene) -> Sequence[str]:
    """Nodes with tasks, and the supervisor that leads."""
    return [*holders(scene), scene.cluster.leader()]


def _dropped(scene: Scene, node: str, names: Sequence[str]) -> str:
    """The rules are there, and packets have met them; or, where nobody talks, a connection is not heard."""
    network = scene.cluster.network

    def met() -> str | None:
        found = {name: count for name, count in network.dropped().items() if node in name and count}
        if found:
            return ", ".join(f"{name}: {count}" for name, count in sorted(found.items()))
        for other in names:
            network.round_trip_ms(node, other, UNHEARD_S)
        return None

    return f"dropped {scene.wait('a dropped packet', met, BITES_S)}"


def _cut(
    name: str,
    text: str,
    others: Others,
    wanted: Expects,
    hold_s: tuple[float, float],
    *,
    out: bool = True,
    back: bool = True,
) -> Fault:
    inject = partial(cut_off, others=others, out=out, back=back)
    return Fault(name, Family.NODE, text, holders, inject, wanted, hold_s, bound_s=60.0, needs=networks)


def _switch(name: str, text: str, inject: Injection, hold_s: tuple[float, float]) -> Fault:
    """A node of a cluster whose supervisors have fence devices."""
    return Fault(
        name,
        Family.NODE,
        text,
        holders,
        inject,
        LOST,
        hold_s,
        bound_s=60.0,
        needs=boots,
        alone=True,
        shape=(("fence", True),),
    )


SUPERVISORS, ETCD, PEERS = kinds("sup-"), kinds("etcd-"), kinds("node-")

FAULTS: tuple[Fault, ...] = (
    Fault(
        "node-off",
        Family.NODE,
        "a node loses its power, and gets it back",
        holders,
        off,
        LOST,
        hold_s=(6.0, 12.0),
        bound_s=60.0,
    ),
    Fault(
        "node-blink",
        Family.NODE,
        "a node is off for a moment, and on again before anybody declares it lost",
        holders,
        rebooted,
        expects(Incidents.ONE, "node_lost", "killed", "launcher_lost"),
        bound_s=60.0,
        needs=boots,
    ),
    Fault(
        "node-bad",
        Family.NODE,
        "programs end on a node as soon as they start, and work elsewhere",
        holders,
        bad,
        expects(Incidents.ANY, "killed", "program_exit", program_faults=3),
        bound_s=60.0,
    ),
    Fault(
        "node-freeze",
        Family.NODE,
        "a node stands still for longer than D, and goes on",
        holders,
        frozen,
        LOST,
        hold_s=(7.0, 12.0),
        bound_s=60.0,
    ),
    Fault(
        "node-freeze-short",
        Family.NODE,
        "a node stands still for less than D, and goes on",
        holders,
        frozen,
        EITHER,
        hold_s=(0.3, 3.0),
        bound_s=60.0,
    ),
    _switch(
        "node-switched-off",
        "a node stands still, and a fence device switches its power off: no wait for D",
        switched_off,
        (0.0, 3.0),
    ),
    _switch(
        "node-switch-broken",
        "a node stands still for longer than D, and its fence device fails",
        switch_broken,
        (5.0, 8.0),
    ),
    _cut("cut-supervisors", "a node is cut off from all supervisors", SUPERVISORS, EITHER, (1.0, 10.0)),
    _cut("cut-etcd", "a node is cut off from etcd for longer than D", ETCD, EITHER, (7.0, 12.0)),
    _cut("cut-etcd-short", "a node is cut off from etcd for a moment", ETCD, EITHER, (0.3, 2.0)),
    _cut("cut-peers", "a node is cut off from all other nodes", PEERS, UNANSWERED, (1.0, 8.0)),
    _cut("cut-all", "a node is cut off from everything for longer than D", everything, LOST, (7.0, 12.0)),
    _cut("cut-out", "nothing that a node says is heard", everything, LOST, (7.0, 12.0), back=False),
    _cut("cut-in", "a node hears nothing", everything, LOST, (7.0, 12.0), out=False),
    Fault(
        "cut-hdfs",
        Family.NODE,
        "a node is cut off from HDFS: training does not wait for it",
        holders,
        partial(cut_off, others=kinds("hdfs-")),
        hold_s=(3.0, 10.0),
        bound_s=90.0,
        needs=networks,
        shape=(("hdfs", True),),
    ),
    Fault(
        "flapping",
        Family.NODE,
        "a node is cut off from everything and joined again, several times",
        holders,
        partial(flapping, others=everything),
        EITHER,
        bound_s=60.0,
        needs=networks,
    ),
    Fault(
        "loss-mild",
        Family.NODE,
        "a node loses one packet in twenty",
        holders,
        partial(lossy, share=0.05),
        EITHER,
        hold_s=(3.0, 8.0),
        needs=networks,
    ),
    Fault(
        "loss",
        Family.NODE,
        "a node loses one packet in three",
        holders,
        partial(lossy, share=0.33),
        EITHER,
        hold_s=(3.0, 8.0),
        bound_s=60.0,
        needs=networks,
    ),
    Fault(
        "far",
        Family.NODE,
        "a node is 50 ms away",
        holders,
        partial(far, ms=50.0),
        EITHER,
        hold_s=(3.0, 8.0),
        needs=networks,
    ),
    Fault(
        "far-reordered",
        Family.NODE,
        "a node is up to 300 ms away, and its packets overtake each other",
        holders,
        partial(far, ms=50.0, jitter_ms=250.0),
        EITHER,
        hold_s=(3.0, 8.0),
        bound_s=60.0,
        needs=networks,
    ),
    *(
        Fault(
            name,
            Family.ENVIRONMENT,
            f"a wall clock jumps an hour {where}, and back again",
            trainers_and_leader,
            partial(wrong_clock, offset_s=offset_s),
            hold_s=(2.0, 6.0),
            needs=clocks,
            shape=(("clocks", True),),
        )
        for name, where, offset_s in (
            ("clock-forward", "ahead", 3600.0),
            ("clock-back", "back", -3600.0),
        )
    ),
    Fault(
        "narrow",
        Family.NODE,
        "a node has a link of 20 kB/s",
        holders,
        partial(narrow, bytes_s=20_000),
        EITHER,
        hold_s=(3.0, 8.0),
        bound_s=60.0,
        needs=networks,
    ),
)
