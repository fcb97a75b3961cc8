"""Faults of HDFS as a checkpoint store: its daemons killed and frozen, safe mode, fail-over, a quota."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from chaos.cluster.hadoop import DATANODE, NAMENODE, Hadoop
from chaos.faults import daemons, points
from chaos.faults.families.store import STRUCK_S, saver
from chaos.faults.fault import Family, Fault, Incidents, expects
from chaos.faults.scene import Scene, send

READY_S = 90.0
HDFS = (("hdfs", True),)
HOLD = "pause:1000"
"""The agent stands still for so long, much less than D, before the effect in which the store is to break."""

NO_ROOM = 1
RUN_MEANWHILE = expects(Incidents.NONE)


def _hadoop(scene: Scene) -> Hadoop:
    found = scene.cluster.hadoop
    assert found is not None
    return found


def active(scene: Scene) -> Sequence[str]:
    """The node of the active NameNode."""
    return [scene.wait("an active NameNode", lambda: _hadoop(scene).active(), READY_S)]


def datanodes(scene: Scene) -> Sequence[str]:
    """The nodes that have one."""
    return [node.name for node in scene.nodes("hdfs-") if DATANODE in node.daemons]


@contextmanager
def dead(scene: Scene, node: str, *, daemon: str) -> Iterator[str]:
    """SIGKILL; it comes back at the heal, and HDFS takes writes again."""
    with _ready_again(scene, node), daemons.dead(scene, node, daemon=daemon) as evidence:
        yield evidence


@contextmanager
def frozen(scene: Scene, node: str, *, daemon: str) -> Iterator[str]:
    """It takes connections and answers nothing; after the heal HDFS takes writes again."""
    with _ready_again(scene, node), daemons.frozen(scene, node, daemon=daemon) as evidence:
        yield evidence


@contextmanager
def _ready_again(scene: Scene, node: str) -> Iterator[None]:
    try:
        yield
    finally:
        hadoop = _hadoop(scene)
        if hadoop.ha and hadoop.active() is None:
            hadoop.activate(node)
        hadoop.wait_ready(within_s=READY_S)


@contextmanager
def safe_mode(scene: Scene, _: str) -> Iterator[str]:
    """It refuses to write, as it does after a start."""
    hadoop = _hadoop(scene)
    hadoop.tool("dfsadmin", "-safemode", "enter")
    try:
        said = hadoop.tool("dfsadmin", "-safemode", "get").strip()
        yield scene.wait("safe mode", lambda: said if "ON" in said else None)
    finally:
        hadoop.tool("dfsadmin", "-safemode", "leave")


@contextmanager
def failed_over(scene: Scene, node: str) -> Iterator[str]:
    """The active NameNode is killed and the other made active; the first comes back as a standby."""
    hadoop = _hadoop(scene)
    other = next(name for name in hadoop.namenodes() if name != node)
    with dead(scene, node, daemon=NAMENODE) as evidence:
        hadoop.activate(other)
        yield f"{evidence}; {scene.wait('the other NameNode', hadoop.active, READY_S)} is active"


@contextmanager
def no_room(scene: Scene, _: str) -> Iterator[str]:
    """The job's directory has a quota that is used up."""
    hadoop = _hadoop(scene)
    path = f"/jobs/{scene.job.name}"
    hadoop.tool("dfsadmin", "-setSpaceQuota", str(NO_ROOM), path)
    try:
        said = hadoop.tool("dfs", "-count", "-q", path).split()
        yield f"{path}: a quota of {said[2]} bytes, {said[3]} left"
    finally:
        hadoop.tool("dfsadmin", "-clrSpaceQuota", path)


@contextmanager
def amid_commit(scene: Scene, node: str, *, frozen_one: bool) -> Iterator[str]:
    """A DataNode breaks while a commit is held up in its upload."""
    savers = [scene.cluster.nodes[name] for name in saver(scene)]
    break_it = frozen if frozen_one else dead
    with points.armed(savers, "commit.upload.before", HOLD) as trap:
        where, agent = scene.wait("a commit", trap.struck, STRUCK_S)
        with break_it(scene, node, daemon=DATANODE) as evidence:
            yield f"{evidence}, while process {agent.pid} of {where.name} commits"


@contextmanager
def amid_stage(scene: Scene, node: str, *, frozen_one: bool) -> Iterator[str]:
    """A ps is killed, and a DataNode breaks while the base is fetched."""
    life = scene.process(scene.task("ps.0"))
    break_it = frozen if frozen_one else dead
    with ExitStack() as broken:
        with points.armed(scene.nodes("node-"), "stage.download.before", HOLD) as trap:
            send(life, signal.SIGKILL)
            where, agent = scene.wait("a download", trap.struck, STRUCK_S)
            evidence = broken.enter_context(break_it(scene, node, daemon=DATANODE))
        yield f"{scene.gone(life)}; {evidence}, while process {agent.pid} of {where.name} stages"


FAULTS: tuple[Fault, ...] = (
    Fault(
        "namenode-killed",
        Family.STORE,
        "SIGKILL of the active NameNode, and back",
        active,
        partial(dead, daemon=NAMENODE),
        RUN_MEANWHILE,
        hold_s=(2.0, 10.0),
        bound_s=90.0,
        shape=HDFS,
    ),
    Fault(
        "namenode-frozen",
        Family.STORE,
        "the active NameNode stands still",
        active,
        partial(frozen, daemon=NAMENODE),
        RUN_MEANWHILE,
        hold_s=(3.0, 12.0),
        bound_s=90.0,
        shape=HDFS,
    ),
    Fault(
        "safe-mode",
        Family.STORE,
        "HDFS is in safe mode",
        lambda _: ["hdfs"],
        safe_mode,
        RUN_MEANWHILE,
        hold_s=(2.0, 8.0),
        bound_s=90.0,
        shape=HDFS,
    ),
    Fault(
        "namenode-failover",
        Family.STORE,
        "the active NameNode dies and the other takes over",
        active,
        failed_over,
        RUN_MEANWHILE,
        hold_s=(1.0, 4.0),
        bound_s=90.0,
        shape=(("hdfs_ha", True),),
    ),
    Fault(
        "quota",
        Family.STORE,
        "the job's directory in HDFS may hold no more",
        lambda _: ["hdfs"],
        no_room,
        RUN_MEANWHILE,
        hold_s=(2.0, 6.0),
        bound_s=90.0,
        shape=HDFS,
    ),
    *(
        Fault(
            f"datanode-{what}-in-{when}",
            Family.STORE,
            f"a DataNode {'stands still' if still else 'dies'} while {text}",
            datanodes,
            partial(inject, frozen_one=still),
            due,
            hold_s=(1.0, 6.0),
            bound_s=120.0,
            shape=HDFS,
        )
        for what, still in (("killed", False), ("frozen", True))
        for when, text, inject, due in (
            ("commit", "a checkpoint is committed", amid_commit, RUN_MEANWHILE),
            (
                "stage",
                "a base is fetched",
                amid_stage,
                expects(Incidents.ONE, "killed", scopes=["all"]),
            ),
        )
    ),
)
