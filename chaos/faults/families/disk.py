"""Faults of the disk that an agent keeps its state on: no room left, or nothing can be written."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from chaos.cluster import Cluster, Node
from chaos.faults.families.agent import DAEMON, holders
from chaos.faults.fault import Family, Fault, Incidents, expects
from chaos.faults.scene import DidNotBite, Scene, send
from chaos.machine.main import DISK

WRITE_S = 20.0
MOVED_S = 15.0
STARTS_ALL = ("ps", "chief")
PROBE = f"{DISK}/state/probe"
DIED = ("killed", "node_lost", "deadline", "launcher_lost", "start_failed", "program_exit", "peer_lost")
Spoil = Callable[[Scene, str], AbstractContextManager[str]]


def disks(cluster: Cluster) -> str | None:
    """Why a node has no disk of its own here."""
    return cluster.missing.get("disk")


@contextmanager
def full(scene: Scene, node: str) -> Iterator[str]:
    """No room is left on the node's disk, where its agent and its tasks write."""
    found = scene.cluster.nodes[node]
    found.fill_disk()
    try:
        yield _refused(found, errno.ENOSPC)
    finally:
        found.free_disk()


@contextmanager
def read_only(scene: Scene, node: str) -> Iterator[str]:
    """The agent's state directory cannot be written to."""
    found = scene.cluster.nodes[node]
    found.make_read_only()
    try:
        yield _refused(found, errno.EROFS)
    finally:
        found.make_writable()


@contextmanager
def amid_restart(scene: Scene, node: str, *, spoil: Spoil) -> Iterator[str]:
    """The same, and a task of the node is killed: its agent has something to write."""
    task = scene.task_on(node)
    life = scene.process(task)
    with spoil(scene, node) as evidence:
        send(life, signal.SIGKILL)
        yield f"{evidence}; {scene.gone(life)}"


@contextmanager
def amid_birth(scene: Scene, node: str, *, spoil: Spoil) -> Iterator[str]:
    """The same, and the agent is killed: its successor finds the disk so."""
    daemon = scene.cluster.nodes[node].daemons[DAEMON]
    life = scene.daemon(node, DAEMON)
    with spoil(scene, node) as evidence:
        daemon.kill(signal.SIGKILL)
        gone = scene.gone(life)
        daemon.start()
        yield f"{evidence}; {gone}"


@contextmanager
def amid_generation(scene: Scene, node: str) -> Iterator[str]:
    """The same, and a task elsewhere is killed with which all start again: their base finds no room."""
    others = [each for each in scene.tasks() if each.role in STARTS_ALL and each.node != node]
    if not others:
        raise DidNotBite(f"{node} has every task with which all start again")
    task = others[0]
    life, before = scene.process(task), scene.generation()
    with full(scene, node) as evidence:
        send(life, signal.SIGKILL)
        gone = scene.gone(life)

        def elsewhere() -> list[str] | None:
            nodes = {each.node for each in scene.tasks()}
            return sorted(nodes) if scene.generation() > before and nodes and node not in nodes else None

        nodes = scene.wait("a generation that does without the node", elsewhere, MOVED_S)
        yield f"{evidence}; {gone}; the job goes on, on {', '.join(nodes)}"


def _refused(node: Node, wanted: int) -> str:
    """The kernel's word, from inside the node: a file that is written there is refused."""
    argv = node.inside("dd", "if=/dev/zero", f"of={PROBE}", "bs=65536", "count=1", "status=none")
    env = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=WRITE_S, check=False, env=env)
    (node.root / "state" / "probe").unlink(missing_ok=True)
    if os.strerror(wanted) not in done.stderr:
        raise DidNotBite(f"the disk of {node.name} takes a write: {done.stderr!r}")
    return f"{node.name}: {done.stderr.strip().splitlines()[0]}"


def _fault(name: str, text: str, inject: Spoil) -> Fault:
    # A task's output, by which its steps are known, is written there.
    wanted = expects(Incidents.ANY, *DIED, program_faults=4, hides_steps=True)
    return Fault(
        name, Family.AGENT, text, holders, inject, wanted, (2.0, 6.0), bound_s=60.0, needs=disks, alone=True
    )


FAULTS: tuple[Fault, ...] = (
    _fault("disk-full", "a node's disk is full", full),
    _fault(
        "disk-full-amid",
        "a node's disk is full when its agent has to restart a task",
        partial(amid_restart, spoil=full),
    ),
    _fault(
        "disk-full-generation",
        "a node's disk is full when all tasks of a job that has some there have to start again",
        amid_generation,
    ),
    _fault("disk-full-birth", "an agent starts on a disk that is full", partial(amid_birth, spoil=full)),
    _fault("read-only", "an agent cannot write its state", read_only),
    _fault(
        "read-only-amid",
        "an agent cannot write its state when it has to restart a task",
        partial(amid_restart, spoil=read_only),
    ),
    _fault(
        "read-only-birth",
        "an agent starts where it cannot write its state",
        partial(amid_birth, spoil=read_only),
    ),
)
