"""Mild trouble only, on a healthy job, for long: nothing may restart.

One trouble at a time: a node loses up to one packet in twenty, is up to half a second away (there and back;
etcd's members keep their ways to each other), or a member of etcd stalls as on a disk that syncs slowly.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chaos.faults.families.node import lossy, networks
from chaos.faults.fault import Family, Fault
from chaos.faults.kernel import now_ms
from chaos.faults.scene import Scene
from chaos.programs import PROGRAMS
from chaos.runner.health import Health
from chaos.runner.run import NotHealthy
from chaos.runner.stage import Stage
from chaos.runner.steps import StepLog
from chaos.runner.submit import job_of, submit
from supervisor.contract.incident import Cause

MILD = "mild.json"
SHARE = 0.05
DELAY_MS = 500.0
STALL_S, BETWEEN_S = (0.02, 0.15), (0.1, 1.0)
HOLD_S, REST_S = (20.0, 60.0), (2.0, 10.0)
LOOK_S = 1.0
NO_FAILURES = frozenset({Cause.SUBMITTED.value, Cause.OPERATOR.value})


def anybody(scene: Scene) -> Sequence[str]:
    """Every node."""
    return [node.name for prefix in ("sup-", "node-", "etcd-") for node in scene.nodes(prefix)]


def members(scene: Scene) -> Sequence[str]:
    """The members of etcd."""
    return [node.name for node in scene.nodes("etcd-")]


@contextmanager
def loses(scene: Scene, node: str) -> Iterator[str]:
    """Up to one packet in twenty."""
    with lossy(scene, node, share=scene.random.uniform(0.01, SHARE)) as evidence:
        yield evidence


@contextmanager
def is_far(scene: Scene, node: str) -> Iterator[str]:
    """Up to half a second away, but for etcd's members among themselves."""
    network = scene.cluster.network
    ms = scene.random.uniform(20.0, DELAY_MS)
    etcd = members(scene)
    spared = etcd if node in etcd else []
    other = next(name for name in anybody(scene) if name != node and name not in spared)
    network.delay(node, ms / 2, but=spared)
    try:
        slow = scene.wait("a long way", lambda: _at_least(network.round_trip_ms(node, other), ms))
        yield f"{node} to {other} and back takes {slow:.0f} ms"
    finally:
        network.delay(node, 0)


def _at_least(found: float | None, ms: float) -> float | None:
    return found if found is not None and found >= ms else None


@contextmanager
def stalls(scene: Scene, node: str) -> Iterator[str]:
    """A member stands still for some hundredths of a second, again and again: what a slow sync does to it."""
    life = scene.daemon(node, "etcd")
    pid = os.fork()
    if pid == 0:
        # In a process of its own, as the hold is somebody else's time.
        _stall(life.pid, random.Random(scene.random.getrandbits(32)))
    try:
        yield f"{scene.frozen(life)}, and will be again"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.kill(life.pid, signal.SIGCONT)


def _stall(pid: int, rng: random.Random) -> None:
    parent = os.getppid()
    try:
        while os.getppid() == parent:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(rng.uniform(*STALL_S))
            os.kill(pid, signal.SIGCONT)
            time.sleep(rng.uniform(*BETWEEN_S))
    finally:
        os._exit(0)


TROUBLES = (
    Fault("mild-loss", Family.NODE, "a node loses up to 5 % of its packets", anybody, loses, needs=networks),
    Fault("mild-delay", Family.NODE, "a node is up to 500 ms away", anybody, is_far, needs=networks),
    Fault("mild-disk", Family.ETCD, "a member of etcd stalls as on a slow disk", members, stalls),
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One trouble of a run, and when it was there (CLOCK_BOOTTIME)."""

    name: str
    target: str
    begin_ms: float
    heal_ms: float
    evidence: str


@dataclass(frozen=True, slots=True)
class Needless:
    """An incident, though nothing but mild trouble was there."""

    id: str
    cause: str
    detail: str
    at_ms: float
    trouble: str


@dataclass(slots=True)
class MildRecord:
    """`mild.json`. `steps`: of all tasks, while it lasted."""

    seed: int
    profile: str
    troubles: list[Trouble] = field(default_factory=list)
    needless: list[Needless] = field(default_factory=list)
    took_s: float = 0.0
    steps: int = 0

    @property
    def exit_code(self) -> int:
        """1: something restarted; 3: nothing was proven; 0: nothing restarted."""
        if self.needless:
            return 1
        return 0 if self.troubles and self.steps else 3

    def document(self) -> str:
        """The record as JSON."""
        return json.dumps(asdict(self), indent=1)


class Mild:
    """Trouble after trouble on one job."""

    def __init__(self, stage: Stage, directory: Path, seed: int, say: Callable[[str], None]) -> None:
        directory = directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._say = directory, say
        self._random = random.Random(seed)
        self._program = PROGRAMS["steps"]
        job = job_of(stage.operator, "mild", directory)
        self._scene = Scene(stage.cluster, job, self._random)
        self._health = Health(self._scene, StepLog(job.step_log))
        self._known: set[str] = set()
        self.record = MildRecord(seed, stage.shape.profile)

    def perform(self, for_s: float) -> MildRecord:
        """Make mild trouble until the time is over.

        Raises NotHealthy if the job is not healthy at the start.
        """
        record, job = self.record, self._scene.job
        submit(job, self._program, self._directory, self._scene.cluster.shape)
        if why := self._health.wait(now_ms(), None, self._program.first_steps_s):
            raise NotHealthy(why)
        began_ms, began_s = now_ms(), time.monotonic()
        usable = [each for each in TROUBLES if each.needs(self._scene.cluster) is None]
        while time.monotonic() - began_s < for_s:
            self._trouble(self._random.choice(usable), min(for_s - (time.monotonic() - began_s), HOLD_S[1]))
            self._watch(self._random.uniform(*REST_S), "none")
            record.took_s = time.monotonic() - began_s
            self._health.log.read()
            record.steps = self._health.log.since(began_ms)
            (self._directory / MILD).write_text(record.document() + "\n")
        return record

    def _trouble(self, trouble: Fault, most_s: float) -> None:
        target = self._random.choice(sorted(trouble.targets(self._scene)))
        hold_s = min(self._random.uniform(*HOLD_S), most_s)
        begin_ms = now_ms()
        with trouble.inject(self._scene, target) as evidence:
            self._say(f"{trouble.name} of {target} for {hold_s:.0f} s: {evidence}")
            self._watch(hold_s, f"{trouble.name} of {target}")
        self.record.troubles.append(Trouble(trouble.name, target, begin_ms, now_ms(), evidence))

    def _watch(self, for_s: float, trouble: str) -> None:
        deadline = time.monotonic() + for_s
        while time.monotonic() < deadline:
            time.sleep(min(LOOK_S, max(0.0, deadline - time.monotonic())))
            story = self._scene.job.story()
            for each in story.incidents if story is not None else ():
                if each.id not in self._known and each.cause not in NO_FAILURES:
                    self._known.add(each.id)
                    found = Needless(each.id, each.cause, each.detail, now_ms(), trouble)
                    self.record.needless.append(found)
                    self._say(f"needless: {each.id}, {each.cause}, during {trouble}: {each.detail}")
