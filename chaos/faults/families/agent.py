"""Faults of agents: killed, frozen, doubled, upgraded; their disk and their state file spoilt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from chaos.cluster import Cluster, Node
from chaos.cluster.program import REPOSITORY
from chaos.faults import release
from chaos.faults.daemons import dead, frozen
from chaos.faults.families.supervisor import rolling
from chaos.faults.families.task import of
from chaos.faults.fault import Family, Fault, Incidents, expects
from chaos.faults.kernel import Life
from chaos.faults.scene import DidNotBite, Scene, send
from supervisor.contract.errors import Refused

DAEMON = "agent"
STATE = Path("state/agent.json")
D_S = 4.0
"""D of the fast profile, which sweeps run in."""
LOOPS_PER_PROCESSOR = 2
REFUSED_S = 60.0
IN_USE = "is in use by another agent"
FREEZER = Path("/sys/fs/cgroup/freezer")


def holders(scene: Scene) -> Sequence[str]:
    """Nodes with tasks of the job's ClusterSpec."""
    return sorted({task.node for task in scene.tasks() if task.role != "evaluator"})


def everybody(_: Scene) -> Sequence[str]:
    """One target: all of them."""
    return ["all agents"]


@contextmanager
def fenced(scene: Scene, node: str) -> Iterator[str]:
    """It is killed for good, and its node fences what it has left. On a busy machine D may be over before."""
    found, before = scene.cluster.nodes[node], scene.task_on(node)
    task = scene.process(before)
    with dead(scene, node, daemon=DAEMON) as evidence:
        began_s = time.monotonic()
        config = scene.cluster.root / "conf" / f"{node}.yaml"
        process = subprocess.Popen(
            found.inside(sys.executable, "-m", "agent.main", "--config", str(config), "--fence"),
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            scene.successor(before, REFUSED_S)  # in another generation, or it moves alone
            next_ms = 1000 * (time.monotonic() - began_s)
            code = scene.wait("the end of `--fence`", process.poll, REFUSED_S)
            assert process.stderr is not None
            said = process.stderr.read().decode(errors="replace")
        finally:
            _end(process)
        if code not in {0, Refused.exit_code}:
            raise DidNotBite(f"`--fence` ended with exit code {code}: {said[-400:]}")
        when = f"the next attempt of {before.task} ran {next_ms:.0f} ms after the kill"
        yield f"{evidence}; {when}; `--fence` ended with exit code {code}, and its task's {scene.gone(task)}"


@contextmanager
def spoilt_state(scene: Scene, node: str) -> Iterator[str]:
    """It is killed, and finds its state file damaged; an operator removes that at the heal."""
    found = scene.cluster.nodes[node]
    life = scene.daemon(node, DAEMON)
    daemon = found.daemons[DAEMON]
    daemon.kill(signal.SIGKILL)
    scene.gone(life)
    path = found.root / STATE
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    try:
        daemon.start()
        said = scene.wait("an agent that refuses its file", lambda: daemon.last_exit or None, REFUSED_S)
        if not said.startswith("exit code"):
            raise DidNotBite(f"the agent ended by {said}")
        yield f"process {life.pid} is gone; its successor ended with {said} over {path.name}"
    finally:
        path.unlink()
        daemon.start()


@contextmanager
def old_state(scene: Scene, node: str) -> Iterator[str]:
    """It is killed, and finds a state file from before a task of its was restarted."""
    found = scene.cluster.nodes[node]
    path = found.root / STATE
    task = scene.task_on(node)
    old = path.read_bytes()
    victim = scene.process(task)
    send(victim, signal.SIGKILL)
    scene.gone(victim)

    def restarted() -> bool | None:
        others = [each for each in scene.tasks() if each.task == task.task and each.pid != task.pid]
        return (bool(others) and path.read_bytes() != old) or None

    scene.wait("a restarted task", restarted, REFUSED_S)
    with dead(scene, node, daemon=DAEMON) as evidence:
        newer = path.read_bytes()
        path.write_bytes(old)
        yield f"{evidence}; {path.name} is of before its last {len(newer)} bytes"


@contextmanager
def starved(scene: Scene, node: str) -> Iterator[str]:
    """It is killed and does not come back, and what its launchers have to end competes with busy loops."""
    threads = LOOPS_PER_PROCESSOR * (os.cpu_count() or 1)
    loops = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"], start_new_session=True)
        for _ in range(threads)
    ]
    try:
        with dead(scene, node, daemon=DAEMON) as evidence:
            lives = [life for each in loops if (life := Life.of(each.pid)) is not None]
            used = scene.wait("busy loops that run", lambda: sum(life.cpu_ticks for life in lives) or None)
            yield f"{evidence}; {threads} busy loops have used {used} ticks beside its launchers"
    finally:
        for each in loops:
            each.kill()
            each.wait()


@contextmanager
def doubled(scene: Scene, node: str) -> Iterator[str]:
    """A second agent for this node, on another machine, as a copied disk would start one."""
    names = [each.name for each in scene.nodes("node-") if each.name != node]
    elsewhere = scene.cluster.nodes[scene.random.choice(names)]
    process = subprocess.Popen(
        elsewhere.inside(
            sys.executable, "-m", "agent.main", "--config", str(_copied(scene, node, elsewhere))
        ),
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        code = scene.wait("a second agent that is refused", process.poll, REFUSED_S)
        if code == 0:
            raise DidNotBite("the second agent ended as if it had been told to")
        assert process.stderr is not None
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
        if not any(IN_USE in line for line in said):
            raise DidNotBite(f"the second agent ended with exit code {code}: {said[-1:]}")
        yield f"a second agent of {node} ran on {elsewhere.name} and ended with exit code {code}: {said[-1]}"
    finally:
        _end(process)


def _copied(scene: Scene, node: str, elsewhere: Node) -> Path:
    """The configuration of a node, for the machine of another."""
    source = scene.cluster.root / "conf" / f"{node}.yaml"
    body = json.loads(source.read_text())
    body["listen"] = f"{elsewhere.address}:7799"
    body["host"] = elsewhere.address
    body["tls"] = json.loads((source.parent / f"{elsewhere.name}.yaml").read_text())["tls"]
    for name, own in (("state_dir", "state"), ("run_dir", "run")):
        body[name] += "-again"
        (elsewhere.root / f"{own}-again").mkdir(mode=0o700, exist_ok=True)
    path = source.with_name(f"{node}-again.yaml")
    path.write_text(json.dumps(body))
    return path


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL of all of it: nsenter does not take its child with it."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
    process.kill()
    process.wait()


@contextmanager
def upgraded(scene: Scene, _: str) -> Iterator[str]:
    """Every supervisor and agent is replaced by the next release, one after the other; back at the heal."""
    tree = release.next_release(scene.cluster.root / "next")
    nodes = [*scene.nodes("sup-"), *scene.nodes("node-")]
    said: list[str] = []
    try:
        said.extend(_replaced(scene, node, tree) for node in nodes)
        yield f"{len(said)} daemons run from {tree.name}: {', '.join(said)}"
    finally:
        for node in nodes:
            _replaced(scene, node, REPOSITORY)


def _replaced(scene: Scene, node: Node, tree: Path) -> str:
    """SIGTERM, and the same daemon from another tree; its process."""
    name = next(iter(node.daemons))
    node.daemons[name].stop()
    node.daemons[name].start(tree)

    def there() -> Life | None:
        with suppress(DidNotBite, OSError):
            life = scene.daemon(node.name, name)
            return life if Path(f"/proc/{life.pid}/cwd").readlink() == tree else None
        return None

    return f"{node.name} is {scene.wait('a daemon of the other release', there).pid}"


@contextmanager
def unkillable(scene: Scene, member: str) -> Iterator[str]:
    """A task that SIGKILL does not end, while all shall restart: its agent cannot do what it is told.

    A freezer of version 1 holds even SIGKILL back, as a device that hangs does.
    """
    task = scene.task(member)
    node = scene.cluster.nodes[task.node]
    life = scene.process(task)
    server = scene.process(scene.task("ps.0"))
    home = FREEZER / f"chaos-{life.pid}"
    home.mkdir()
    try:
        (home / "cgroup.procs").write_text(str(life.pid))
        (home / "freezer.state").write_text("FROZEN")
        state = home / "freezer.state"
        scene.wait("a frozen process", lambda: state.read_text().strip() == "FROZEN" or None)
        send(server, signal.SIGKILL)
        scene.gone(server)
        pending = scene.wait("a SIGKILL that waits", lambda: _pending(life), REFUSED_S)
        yield f"process {life.pid} is frozen, with {pending}; process {server.pid} is gone"
    finally:
        (home / "freezer.state").write_text("THAWED")
        scene.gone(life)
        home.rmdir()
        # A fresh agent is what lifts the cordon of one that did not obey.
        node.daemons[DAEMON].stop()
        node.daemons[DAEMON].start()


def _pending(life: Life) -> str | None:
    """The kernel's word that SIGKILL has been sent, and has not worked."""
    status = Path(f"/proc/{life.pid}/status").read_text().splitlines()
    masks = {
        line.split(":")[0]: int(line.split()[1], 16)
        for line in status
        if line.startswith(("SigPnd", "ShdPnd"))
    }
    bit = 1 << (signal.SIGKILL - 1)
    return "SIGKILL pending" if life.alive and any(mask & bit for mask in masks.values()) else None


def no_freezer(_: Cluster) -> str | None:
    """Why there is nothing that holds SIGKILL back."""
    usable = (FREEZER / "cgroup.procs").exists() and os.access(FREEZER, os.W_OK)
    return None if usable else "no freezer of version 1: nothing else here holds SIGKILL back"


_LOSS = expects(Incidents.ANY, "node_lost", "deadline", "launcher_lost")
_LOST = expects(Incidents.ONE, "node_lost", "deadline", "launcher_lost", scopes=["all", "task"])
"""A worker alone on its node moves alone (rule 6.10)."""

FAULTS: tuple[Fault, ...] = (
    Fault(
        "agent-restart",
        Family.AGENT,
        "SIGKILL of an agent, and a successor at once, which adopts the tasks if it is up in time",
        holders,
        partial(dead, daemon=DAEMON),
        _LOSS,
        hold_s=(0.0, 0.3),
    ),
    Fault(
        "agent-lost",
        Family.AGENT,
        "SIGKILL of an agent, and a successor after D",
        holders,
        partial(dead, daemon=DAEMON),
        _LOST,
        hold_s=(D_S + 2.0, D_S + 5.0),
    ),
    Fault(
        "agent-fenced",
        Family.AGENT,
        "SIGKILL of an agent that does not come back, and its node fences what it has left: no wait for D",
        holders,
        fenced,
        _LOST,
        hold_s=(0.0, 2.0),
        alone=True,
    ),
    Fault(
        "agent-lost-busy",
        Family.AGENT,
        "SIGKILL of an agent, a successor after D, busy loops beside: what its launchers kill is not starved",
        holders,
        starved,
        expects(Incidents.ONE, "node_lost", "deadline", "launcher_lost", "peer_lost", scopes=["all", "task"]),
        hold_s=(D_S + 2.0, D_S + 5.0),
        alone=True,
    ),
    Fault(
        "agent-pause",
        Family.AGENT,
        "an agent stands still for less than D, and goes on",
        holders,
        partial(frozen, daemon=DAEMON),
        _LOSS,
        hold_s=(0.3, 2.5),
    ),
    Fault(
        "agent-frozen",
        Family.AGENT,
        "an agent stands still past D, and goes on",
        holders,
        partial(frozen, daemon=DAEMON),
        _LOST,
        hold_s=(D_S + 2.0, D_S + 5.0),
    ),
    Fault(
        "agent-cannot-obey",
        Family.AGENT,
        "an agent that cannot end a task: it is marked lost for good and its node cordoned",
        of("worker"),
        unkillable,
        expects(Incidents.ANY, "killed", "node_lost", "launcher_lost", "peer_lost", "deadline"),
        hold_s=(8.0, 12.0),
        needs=no_freezer,
        alone=True,
    ),
    Fault(
        "agent-spoilt-state",
        Family.AGENT,
        "an agent is killed and finds its state file cut short",
        holders,
        spoilt_state,
        _LOSS,
        hold_s=(D_S + 3.0, D_S + 4.0),
        alone=True,
    ),
    Fault(
        "agent-old-state",
        Family.AGENT,
        "an agent is killed and finds a state file from before its task was restarted",
        holders,
        old_state,
        expects(Incidents.ANY, "killed", "node_lost", "deadline", "launcher_lost"),
        alone=True,
    ),
    Fault(
        "agent-doubled",
        Family.AGENT,
        "a second agent for the same node, on another machine",
        holders,
        doubled,
    ),
    Fault(
        "rolling-agents",
        Family.AGENT,
        "agents are restarted one after the other under running tasks",
        everybody,
        partial(rolling, daemon=DAEMON, prefix="node-"),
        _LOSS,
    ),
    Fault(
        "upgrade",
        Family.AGENT,
        "all supervisors and agents become the next release, and this one again, under running tasks",
        everybody,
        upgraded,
        _LOSS,
        hold_s=(1.0, 2.0),
        bound_s=60.0,
        alone=True,
    ),
)
