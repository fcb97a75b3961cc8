"""Faults of etcd: members killed, frozen and cut off, one or all; its quota, its history."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

from chaos.cluster import Cluster
from chaos.cluster.etcd_reader import EtcdReader
from chaos.cluster.shape import CLIENT_PORT
from chaos.faults.daemons import all_dead, dead, frozen
from chaos.faults.families.agent import holders
from chaos.faults.families.node import EITHER, LOST, networks, off
from chaos.faults.fault import NOTHING, Expects, Family, Fault, possible
from chaos.faults.scene import Scene

DAEMON = "etcd"
LED_S = 30.0
ANSWER_S = 1.0
NOSPACE = "NOSPACE"
MISSED = 3
_SCRATCH = "eA=="
"""x, as the gateway has it: a key that is nobody's."""


def everybody(_: Scene) -> Sequence[str]:
    """One target: chance says who, where there is a choice."""
    return ["etcd"]


def leader(scene: Scene) -> Sequence[str]:
    """The node of the member that leads."""
    return [scene.wait("a member that leads", lambda: _led_by(scene), LED_S)]


def followers(scene: Scene) -> Sequence[str]:
    """The nodes of the others."""
    leads = leader(scene)
    return [node.name for node in scene.nodes("etcd-") if node.name not in leads]


def _member(scene: Scene, name: str) -> EtcdReader:
    """One member alone, asked from the operator's machine."""
    endpoint = f"{scene.cluster.nodes[name].address}:{CLIENT_PORT}"
    return dataclasses.replace(scene.cluster.etcd(timeout_s=ANSWER_S), endpoints=(endpoint,))


def _status(scene: Scene, name: str) -> Mapping[str, object] | None:
    """The status that a member reports of itself; None if it does not answer."""
    try:
        return _member(scene, name).post("/v3/maintenance/status", {})
    except OSError:
        return None


def _id(status: Mapping[str, object]) -> str:
    header = status["header"]
    assert isinstance(header, dict)
    return str(header["member_id"])


def _led_by(scene: Scene) -> str | None:
    """The node whose member says that it leads; None when none does."""
    for node in scene.nodes("etcd-"):
        status = _status(scene, node.name)
        if status is not None and status.get("leader", "0") == _id(status):
            return node.name
    return None


@contextmanager
def several_dead(scene: Scene, _: str, *, but: int) -> Iterator[str]:
    """SIGKILL of all members at once, but for so many; the leader is among them."""
    leads = [*leader(scene)]
    names = [*leads, *scene.random.sample(others := [*followers(scene)], len(others))]
    with all_dead(scene, names[: len(names) - but], daemon=DAEMON) as evidence:
        yield evidence


@contextmanager
def alone(scene: Scene, node: str) -> Iterator[str]:
    """It is cut off from the other members; its clients reach it, and it answers those that ask it little."""
    network = scene.cluster.network
    others = [other.name for other in scene.nodes("etcd-") if other.name != node]
    try:
        network.cut_off(node, others)

        def apart() -> str | None:
            dropped = sum(count for name, count in network.dropped().items() if node in name)
            return f"{dropped} packets dropped" if dropped and _status(scene, node) is not None else None

        yield f"{scene.wait('a member that is alone', apart)}; {node} answers its clients"
    finally:
        network.rejoin(node, others)


@contextmanager
def slow(scene: Scene, node: str, *, delay_s: float, leads: bool) -> Iterator[str]:
    """It is restarted, so that its disk can be made slow; then each fsync takes longer. `leads`: it leads."""
    target = scene.cluster.nodes[node]
    daemon = target.daemons[DAEMON]
    with dead(scene, node, daemon=DAEMON):
        daemon.start(slow=True)
    scene.wait("a member that is back", lambda: _status(scene, node), LED_S)
    try:
        if leads:
            scene.wait("a new leader", lambda: _handed_over(scene, node), LED_S)
        target.slow_disk(delay_s)
        before = target.syncs_held_up()
        count = scene.wait("a slow write", lambda: max(0, target.syncs_held_up() - before) or None, LED_S)
        yield f"{count} writes of {node} to its disk took {delay_s * 1000:.0f} ms longer already"
    finally:
        target.slow_disk(0)


def _handed_over(scene: Scene, node: str) -> bool | None:
    """Whether this member leads; if another does, it is asked to hand over."""
    leads = _led_by(scene)
    status = _status(scene, node)
    if leads is None or status is None or leads == node:
        return leads == node or None
    with suppress(OSError):
        _member(scene, leads).post("/v3/maintenance/transfer-leadership", {"targetID": _id(status)})
    return None


@contextmanager
def no_space(scene: Scene, node: str) -> Iterator[str]:
    """The alarm is raised: etcd refuses every write, until it is disarmed."""
    status = scene.wait("a member that answers", lambda: _status(scene, node))
    alarm: dict[str, object] = {"memberID": _id(status), "alarm": NOSPACE}
    scene.cluster.etcd().post("/v3/maintenance/alarm", {"action": "ACTIVATE", **alarm})
    try:
        yield f"a write is refused: {scene.wait('a refused write', lambda: _refusal(scene))}"
    finally:
        # While etcd is ill in another way as well, it may take some tries.
        scene.wait("an alarm that is disarmed", lambda: _disarmed(scene, alarm), LED_S)


def _refusal(scene: Scene) -> str | None:
    try:
        scene.cluster.etcd().post("/v3/kv/put", {"key": _SCRATCH, "value": _SCRATCH})
    except OSError as error:
        return str(error)[:120] if "space" in str(error) else None
    return None


def _disarmed(scene: Scene, alarm: Mapping[str, object]) -> bool | None:
    try:
        scene.cluster.etcd().post("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
    except OSError:
        return None
    return True


@contextmanager
def compacted(scene: Scene, node: str) -> Iterator[str]:
    """A daemon is cut off from etcd; what it misses is compacted away: it can only read anew."""
    network = scene.cluster.network
    members = [member.name for member in scene.nodes("etcd-")]
    seen = _revision(scene)
    try:
        network.cut_off(node, members)
        scene.wait("a dropped packet", lambda: sum(network.dropped().values()) or None)
        for _ in range(MISSED):
            scene.cluster.etcd().post("/v3/kv/put", {"key": _SCRATCH, "value": _SCRATCH})
        revision = scene.wait("changes that it misses", lambda: _later(scene, seen + MISSED), LED_S)
        scene.cluster.etcd().post("/v3/kv/compaction", {"revision": str(revision)})
        yield f"{node} is cut off since revision {seen}, and etcd begins at {revision}"
    finally:
        network.rejoin(node, members)


def _later(scene: Scene, revision: int) -> int | None:
    found = _revision(scene)
    return found if found > revision else None


def _revision(scene: Scene) -> int:
    reply = scene.cluster.etcd().post("/v3/kv/range", {"key": _SCRATCH, "count_only": True})
    header = reply["header"]
    assert isinstance(header, dict)
    return int(header["revision"])


def watchers(scene: Scene) -> Sequence[str]:
    """Supervisors, and nodes with tasks."""
    return [*(node.name for node in scene.nodes("sup-")), *holders(scene)]


@contextmanager
def with_a_node(scene: Scene, node: str) -> Iterator[str]:
    """The leader of etcd and a node with tasks lose their power at the same instant."""
    with off(scene, leader(scene)[0]) as one, off(scene, node) as other:
        yield f"{one}; {other}"


def _fault(
    name: str,
    text: str,
    targets: Callable[[Scene], Sequence[str]],
    inject: Callable[[Scene, str], AbstractContextManager[str]],
    hold_s: tuple[float, float],
    *,
    wanted: Expects = NOTHING,
    needs: Callable[[Cluster], str | None] = possible,
) -> Fault:
    return Fault(name, Family.ETCD, text, targets, inject, wanted, hold_s, bound_s=60.0, needs=needs)


FAULTS: tuple[Fault, ...] = (
    _fault("etcd-kill-leader", "SIGKILL of etcd's leader", leader, partial(dead, daemon=DAEMON), (0.5, 6.0)),
    _fault(
        "etcd-kill-follower",
        "SIGKILL of a member that follows",
        followers,
        partial(dead, daemon=DAEMON),
        (0.5, 6.0),
    ),
    _fault(
        "etcd-majority",
        "two of three members are killed, and are back before D",
        everybody,
        partial(several_dead, but=1),
        (0.1, 1.0),
        wanted=EITHER,
    ),
    _fault(
        "etcd-majority-long",
        "two of three members are killed, and are back after D",
        everybody,
        partial(several_dead, but=1),
        (6.0, 10.0),
        wanted=EITHER,
    ),
    _fault(
        "etcd-all",
        "all members are killed, and are back after D",
        everybody,
        partial(several_dead, but=0),
        (5.0, 10.0),
        wanted=EITHER,
    ),
    _fault(
        "etcd-freeze-leader",
        "etcd's leader stands still, and goes on",
        leader,
        partial(frozen, daemon=DAEMON),
        (1.0, 8.0),
    ),
    _fault(
        "etcd-freeze-follower",
        "a member stands still, and goes on",
        followers,
        partial(frozen, daemon=DAEMON),
        (1.0, 8.0),
    ),
    _fault(
        "etcd-leader-alone",
        "etcd's leader is cut off from the others, not from its clients",
        leader,
        alone,
        (2.0, 8.0),
        needs=networks,
    ),
    _fault(
        "etcd-slow-disk",
        "each fsync of a member that follows takes 0.3 s longer",
        followers,
        partial(slow, delay_s=0.3, leads=False),
        (2.0, 8.0),
        needs=networks,
    ),
    _fault(
        "etcd-slow-disk-leader",
        "each fsync of etcd's leader takes 0.1 s longer",
        followers,
        partial(slow, delay_s=0.1, leads=True),
        (2.0, 8.0),
        wanted=EITHER,
        needs=networks,
    ),
    _fault(
        "etcd-no-space",
        "NOSPACE: etcd refuses every write",
        followers,
        no_space,
        (1.0, 8.0),
        wanted=EITHER,
    ),
    _fault(
        "etcd-compacted",
        "history that a watcher has not seen is compacted away",
        watchers,
        compacted,
        (2.5, 3.5),
        wanted=EITHER,
        needs=networks,
    ),
    _fault(
        "etcd-leader-and-node",
        "etcd's leader and a node with tasks lose their power at the same instant",
        holders,
        with_a_node,
        (6.0, 10.0),
        wanted=LOST,
    ),
)
