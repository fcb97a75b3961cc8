"""Faults of what is around: ports, clocks, other jobs, and operators who act at the worst moment."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from chaos.cluster import CommandFailed
from chaos.faults.families.agent import holders
from chaos.faults.fault import Family, Fault, Incidents, expects
from chaos.faults.scene import DidNotBite, Scene, send
from chaos.programs import STEPS, job_file

PORTS = 300
LISTENERS = """
import socket, sys, time
held = []
for port in range(int(sys.argv[1]), int(sys.argv[2])):
    found = socket.socket()
    try:
        found.bind(("", port))
        found.listen()
        held.append(found)
    except OSError:
        found.close()
print(len(held), flush=True)
sys.stdin.read()
"""
ENDED_S = 30.0


def everywhere(_: Scene) -> Sequence[str]:
    """One target."""
    return ["the job"]


@contextmanager
def ports_taken(scene: Scene, node: str) -> Iterator[str]:
    """Strangers listen on the ports that the node would take next; then all tasks need fresh ones."""
    found = scene.cluster.nodes[node]
    there = (scene.task_on(node), *(each for each in scene.tasks() if each.node == node))
    last = max(int(each.address.rpartition(":")[2]) for each in there)
    argv = found.inside(sys.executable, "-c", LISTENERS, str(last + 1), str(last + PORTS))
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        held = int(process.stdout.readline())
        server = scene.process(scene.task("ps.0"))
        send(server, signal.SIGKILL)
        yield f"strangers listen on {held} ports above {last} of {node}; {scene.gone(server)}"
    finally:
        process.communicate()


@contextmanager
def second_job(scene: Scene, _: str) -> Iterator[str]:
    """Another job comes, trains, and is stopped at the heal."""
    operator, job = scene.job.operator, scene.job
    name = f"{job.name}-beside"
    directory = job.step_log.parent / "beside"
    directory.mkdir()
    env = {"STEP_LOG": str(directory / "steplog"), "CHAOS_CONTROL": str(directory / "control")}
    path = directory / "job.yaml"
    path.write_text(json.dumps(job_file(STEPS, name, env)))
    operator.ctl("submit", str(path))
    try:
        files = scene.wait("steps of the other job", lambda: _logs(directory / "steplog"), ENDED_S)
        yield f"{files} processes of {name} tell of steps"
    finally:
        operator.insist("stop", name)
        operator.ctl("wait", name, "--for", "ended", "--timeout", str(ENDED_S))


def _logs(directory: Path) -> int | None:
    """The number of files with a step, once all trainers of a job have one."""
    found = sum(b'"step",' in path.read_bytes() for path in directory.glob("*")) if directory.is_dir() else 0
    return found if found >= 3 else None


Command = Callable[[Scene], None]


@contextmanager
def operated(scene: Scene, _: str, *, victim: str, command: Command) -> Iterator[str]:
    """A task is killed, and an operator acts while that is being dealt with; all tasks are new afterwards."""
    lives = {victim: scene.process(scene.task(victim))}
    for each in scene.tasks():
        # Another fault may have ended some.
        with suppress(DidNotBite):
            lives[f"{each.role}.{each.index}"] = scene.process(each)
    send(lives[victim], signal.SIGKILL)
    scene.gone(lives[victim])
    # Somewhere between the report of the death and the first new step.
    time.sleep(scene.random.uniform(0.0, 0.8))
    command(scene)
    ended = [name for name, life in sorted(lives.items()) if not life.alive]
    yield f"gone by now: {', '.join(ended)}"


def restart(scene: Scene) -> None:
    """`supervisorctl restart JOB`."""
    scene.job.operator.ctl("restart", scene.job.name)


def restart_task(scene: Scene) -> None:
    """`supervisorctl restart JOB/worker:1`."""
    scene.job.operator.ctl("restart", f"{scene.job.name}/worker:1")


def restart_older(scene: Scene) -> None:
    """`supervisorctl restart JOB --from` the oldest checkpoint that there is."""
    body = scene.job.operator.ctl("checkpoints", scene.job.name)
    assert isinstance(body, dict)
    refs = [each["ref"] for each in body["checkpoints"] if each["state"] == "committed"]
    oldest = min(refs, key=lambda ref: (ref["generation"], ref["step"]))
    with suppress(CommandFailed):
        # It may be collected by now, which the operator is told.
        name = f"g{oldest['generation']}-s{oldest['step']}"
        scene.job.operator.ctl("restart", scene.job.name, "--from", name)


def stop_and_start(scene: Scene) -> None:
    """`supervisorctl stop JOB`, and `start` at once when it has stopped."""
    operator, name = scene.job.operator, scene.job.name
    operator.insist("stop", name)
    operator.ctl("wait", name, "--for", "ended", "--timeout", str(ENDED_S))
    operator.insist("start", name)


@contextmanager
def drained(scene: Scene, node: str) -> Iterator[str]:
    """A worker is killed, and a node is drained meanwhile; it is free again at the heal."""
    operator = scene.job.operator
    before = [scene.process(each) for each in scene.tasks() if each.node == node]
    worker = scene.process(scene.task("worker.0"))
    send(worker, signal.SIGKILL)
    operator.ctl("drain", node, "--timeout", str(ENDED_S))
    try:
        left = sum(life.alive for life in before)
        scene.wait("an empty node", lambda: not any(life.alive for life in before) or None)
        yield f"of {len(before)} processes on {node} {left} were alive when drain returned, now none"
    finally:
        operator.ctl("uncordon", node)


_ASKED = expects(Incidents.ANY, "killed", "operator", "peer_lost")


def _operated(name: str, text: str, victim: str, command: Command) -> Fault:
    inject = partial(operated, victim=victim, command=command)
    return Fault(name, Family.ENVIRONMENT, text, everywhere, inject, _ASKED, alone=True)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "ports-taken",
        Family.ENVIRONMENT,
        "strangers listen on the next ports of a node when all tasks need fresh ones",
        holders,
        ports_taken,
        expects(Incidents.ONE, "killed", scopes=["all"]),
    ),
    Fault(
        "second-job",
        Family.ENVIRONMENT,
        "a second job comes and goes",
        everywhere,
        second_job,
        hold_s=(1.0, 3.0),
        alone=True,
    ),
    _operated("restart-amid", "an operator restarts the job while a ps is being replaced", "ps.0", restart),
    _operated(
        "restart-task-amid", "an operator restarts another worker while a worker is", "worker.0", restart_task
    ),
    _operated(
        "restart-older-amid",
        "an operator goes back to an old checkpoint while a ps is",
        "ps.0",
        restart_older,
    ),
    _operated(
        "stop-start-amid", "an operator stops and starts the job while a ps is", "ps.0", stop_and_start
    ),
    Fault(
        "drain-amid",
        Family.ENVIRONMENT,
        "an operator drains a node while a worker is being restarted",
        holders,
        drained,
        expects(Incidents.ANY, "killed", "drained", "operator", "peer_lost"),
        alone=True,
    ),
)
