"""Faults of tasks: their processes killed, stopped, out of memory; programs that fail by themselves."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from chaos.faults import memory
from chaos.faults.fault import Family, Fault, Incidents, expects
from chaos.faults.kernel import Life
from chaos.faults.scene import DidNotBite, Scene, send

IDLE_LOOK_S = 0.5
RESTART_S = 30.0
SLEEPER = b"time.sleep(3600)"


def of(*roles: str) -> Callable[[Scene], Sequence[str]]:
    """Targets: the running tasks of these roles, as `worker.0`."""

    def targets(scene: Scene) -> Sequence[str]:
        return scene.members(*roles)

    return targets


@contextmanager
def killed(scene: Scene, member: str) -> Iterator[str]:
    """SIGKILL of the main process."""
    life = scene.process(scene.task(member))
    send(life, signal.SIGKILL)
    yield scene.gone(life)


@contextmanager
def stopped(scene: Scene, member: str) -> Iterator[str]:
    """SIGSTOP of the main process; SIGCONT if it is still there."""
    life = scene.process(scene.task(member))
    send(life, signal.SIGSTOP)
    try:
        yield scene.frozen(life)
    finally:
        with suppress(DidNotBite, ProcessLookupError):
            send(life, signal.SIGCONT)


@contextmanager
def out_of_memory(scene: Scene, member: str) -> Iterator[str]:
    """It eats memory in a cgroup that is too small for it, until the kernel's OOM killer takes it."""
    life = scene.process(scene.task(member))
    with memory.limited(life.pid) as cgroup, ordered(scene, member, do="eat"):
        scene.gone(life)
        kills = scene.wait("a kill of the OOM killer", lambda: cgroup.kills() or None)
        scene.job.clear()
        yield f"process {life.pid} is gone; its cgroup counts {kills} kills of the OOM killer"


@contextmanager
def ordered(scene: Scene, member: str, **what: object) -> Iterator[None]:
    """The program is told to have a fault, until the block is left."""
    scene.job.order(member.replace(".", "-"), **what)
    try:
        yield
    finally:
        scene.job.clear()


@contextmanager
def ends_itself(scene: Scene, member: str, *, do: str, code: int = 0) -> Iterator[str]:
    """The program exits or raises, once."""
    life = scene.process(scene.task(member))
    with ordered(scene, member, do=do, code=code, once=True):
        yield scene.gone(life)


@contextmanager
def crash_loop(scene: Scene, member: str, *, times: int) -> Iterator[str]:
    """Every attempt exits with 1 as soon as it runs, so many in a row."""

    def running() -> Life | None:
        with suppress(DidNotBite, OSError):
            return scene.process(scene.task(member))
        return None

    # What an attempt that ends at once was cannot be looked at: the job's incidents count them.
    before = _incidents(scene)
    with ordered(scene, member, do="exit", code=1):
        first = scene.wait(member, running)
        scene.gone(first)
        scene.wait(f"{times} crashes", lambda: _incidents(scene) >= before + times or None, RESTART_S)
    # No longer, however long another fault takes to come: one more would be the end of the job.
    yield f"process {first.pid} is gone, and {times - 1} more after it"


def _incidents(scene: Scene) -> int:
    story = scene.job.story()
    return len(story.incidents) if story is not None else 0


@contextmanager
def hangs(scene: Scene, member: str) -> Iterator[str]:
    """The program waits for ever, in its own code."""
    life = scene.process(scene.task(member))

    def idle() -> str | None:
        before = life.cpu_ticks
        time.sleep(IDLE_LOOK_S)
        same = life.alive and life.cpu_ticks == before
        return (
            f"process {life.pid} is alive ({life.state}), no processor time in {IDLE_LOOK_S} s"
            if same
            else None
        )

    with ordered(scene, member, do="hang", once=True):
        yield scene.wait("a process that does nothing", idle)


@contextmanager
def slow(scene: Scene, member: str, *, ms: float) -> Iterator[str]:
    """Each step takes so much longer."""
    life = scene.process(scene.task(member))

    def idle() -> str | None:
        """The main thread sleeps almost always: a step takes under a millisecond of processor time."""
        before = life.cpu_ticks
        time.sleep(IDLE_LOOK_S)
        used = life.cpu_ticks - before
        return (
            f"process {life.pid} used {used} ticks in {IDLE_LOOK_S} s" if life.alive and used <= 2 else None
        )

    with ordered(scene, member, do="slow", ms=ms):
        yield scene.wait("a process that is slow", idle)


@contextmanager
def escapes(scene: Scene, member: str) -> Iterator[str]:
    """A grandchild in a session of its own, orphaned; then the task is killed."""
    task = scene.task(member)
    node = scene.cluster.nodes[task.node]
    life = scene.process(task)
    with ordered(scene, member, do="grandchild", once=True):
        child = scene.wait("a grandchild", lambda: _sleeper(node.pids(), life))
        session = child.session
        send(life, signal.SIGKILL)
        scene.gone(life)
        yield f"process {life.pid} is gone; its grandchild {child.pid} had session {session}"


def _sleeper(pids: Sequence[int], task: Life) -> Life | None:
    """The orphan: it sleeps, in another session than the task."""
    for pid in pids:
        with suppress(OSError):
            found = Life.of(pid) if SLEEPER in _argv(pid) else None
            if found is not None and found.session not in (-1, task.session):
                return found
    return None


def _argv(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _article(role: str) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"


def _kill(role: str, scope: str) -> Fault:
    what = expects(Incidents.ONE, "killed", scopes=[scope])
    return Fault(f"kill-{role}", Family.TASK, f"SIGKILL of {_article(role)}", of(role), killed, what)


def _stop(role: str, scope: str) -> Fault:
    what = expects(Incidents.ONE, "hang", scopes=[scope, "all"], program_faults=1)
    text = f"SIGSTOP of {_article(role)} until it is restarted"
    return Fault(f"stop-{role}", Family.TASK, text, of(role), stopped, what, hold_s=(8.0, 10.0))


_EXIT = expects(Incidents.ONE, "program_exit", scopes=["all"], program_faults=1)
_LOOP = expects(Incidents.ANY, "program_exit", program_faults=3)
_FAILS = expects(Incidents.ANY, "program_exit", ends=["failed"], program_faults=4)

FAULTS: tuple[Fault, ...] = (
    _kill("worker", "task"),
    _kill("ps", "all"),
    _kill("chief", "all"),
    _kill("evaluator", "task"),
    _stop("worker", "task"),
    _stop("ps", "all"),
    _stop("chief", "all"),
    Fault(
        "stop-shortly",
        Family.TASK,
        "SIGSTOP of a worker for less than it takes to be called hung",
        of("worker"),
        stopped,
        hold_s=(0.2, 1.0),
    ),
    Fault(
        "oom-worker",
        Family.TASK,
        "the kernel's OOM killer takes a worker",
        of("worker"),
        out_of_memory,
        expects(Incidents.ONE, "oom", "killed", scopes=["task"], program_faults=1),
        needs=memory.missing,
    ),
    Fault(
        "crash-loop",
        Family.TASK,
        "a worker crashes twice in a row before its first step",
        of("worker"),
        partial(crash_loop, times=2),
        _LOOP,
    ),
    Fault(
        "crash-for-good",
        Family.TASK,
        "a worker crashes whenever it starts, until the job is given up",
        of("worker"),
        partial(crash_loop, times=4),
        _FAILS,
        hold_s=(3.0, 3.0),
        alone=True,
    ),
    Fault(
        "exit-early",
        Family.TASK,
        "a parameter server exits with 0 while training goes on",
        of("ps"),
        partial(ends_itself, do="exit", code=0),
        expects(Incidents.ONE, "exited_early", scopes=["all"], program_faults=1),
    ),
    Fault(
        "raise-chief", Family.TASK, "the chief raises", of("chief"), partial(ends_itself, do="raise"), _EXIT
    ),
    Fault(
        "hang-worker",
        Family.TASK,
        "a worker hangs in its own code",
        of("worker"),
        hangs,
        expects(Incidents.ONE, "hang", scopes=["task"], program_faults=1),
        hold_s=(8.0, 10.0),
    ),
    Fault(
        "slow-worker",
        Family.TASK,
        "a worker takes ten times as long for a step",
        of("worker"),
        partial(slow, ms=400.0),
        hold_s=(2.0, 6.0),
    ),
    Fault(
        "grandchild",
        Family.TASK,
        "a worker is killed that has left a grandchild in a session of its own",
        of("worker"),
        escapes,
        expects(Incidents.ONE, "killed", scopes=["task"]),
    ),
)
