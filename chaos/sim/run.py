"""One run: bring the cluster up, break things for a while, heal, and see what the promises say."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from chaos.sim.faults import FATAL, SCRIPTED, Fault, apply, heal_all, schedule
from chaos.sim.loop import Deadlock, TooManySteps
from chaos.sim.programs import Temper
from chaos.sim.promises import Promises
from chaos.sim.world import World
from supervisor.contract.code import CodePart
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.job import (
    CheckpointSpec,
    CodeRef,
    JobSpec,
    Limits,
    ProgressSpec,
    RestartPolicy,
    RoleSpec,
    Rule,
    Strategy,
)
from supervisor.contract.views import SubmitMode, SubmitRequest

JOB = "digits"
READY_S = 20.0
FAULTS_S = (6.0, 14.0)
SETTLE_S = 45.0
HUNG_MS = 3_000
HOLD_MS = 12_000
SHIPS = 0.5
"""Of the seeds: their job's program is shipped."""
WITHOUT_CHIEF = 0.25
"""Of the seeds: worker 0 of their job is TensorFlow's chief, and saves."""


class Toothless(Exception):
    """The run proves nothing: the job was never healthy before the faults."""


ROOMY, ROOMY_NODES = 3, 5


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a run. `virtual_s` and `steps` say how much of it there was."""

    seed: int
    violations: tuple[str, ...]
    error: str
    trace: tuple[str, ...]
    virtual_s: float
    steps: int
    facts: dict[str, int]

    @property
    def ok(self) -> bool:
        """Every promise was kept, and the run bit."""
        return not self.violations and not self.error

    @property
    def digest(self) -> str:
        """Equal for equal traces."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


def run_seed(seed: int, script: tuple[Fault, ...] = ()) -> Result:
    """Run one seed, with the schedule that it makes or the given one."""
    with scratch(seed) as root:
        world = World(seed, root, supervisors=3 if seed % 7 == 0 else 2, nodes=_nodes(seed))
        promises = Promises(world)
        return play(world, promises, Story(world, promises, script).tell())


def play(world: World, promises: Promises, story: Coroutine[object, object, None]) -> Result:
    """Let it happen, and see what became of it."""
    error = ""
    try:
        world.loop.run_until_complete(story)
    except (Toothless, Deadlock, TooManySteps) as failure:
        error = f"{type(failure).__name__}: {failure}"
        world.say(error)
    for failed in world.loop.failures:
        world.violate("no daemon crashes", failed)
    violations, trace = tuple(world.violations), tuple(world.lines)
    facts = promises.facts()
    result = Result(world.seed, violations, error, trace, world.loop.time(), world.loop.steps, facts)
    world.loop.close()
    return result


@contextmanager
def scratch(seed: int) -> Iterator[Path]:
    """A directory for a run, in memory where there is a file system for it: no fsync here proves anything."""
    memory = Path("/dev", "shm")
    root = Path(tempfile.mkdtemp(prefix=f"tfsup-sim-{seed}-", dir=memory if memory.is_dir() else None))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _nodes(seed: int) -> int:
    """On five nodes an evaluator has one to itself, which may be lost without anybody else."""
    if seed % 6 == ROOMY:
        return ROOMY_NODES
    return 4 if seed % 5 == 0 else 3


class Story:
    """What happens in a run, in order."""

    def __init__(self, world: World, promises: Promises, script: tuple[Fault, ...]) -> None:
        self._world = world
        self._promises = promises
        self._script = script
        self._hangs = any(fault.kind in SCRIPTED for fault in script)
        self._fatal = any(fault.kind == FATAL for fault in script)
        self._rng = random.Random(f"story {world.seed}")
        self._job = self._spec()

    async def tell(self) -> None:
        """All of it; returns early at the first broken promise."""
        world = self._world
        world.start_all()
        await self._until("a leader and nodes", self._cluster_up, READY_S)
        if random.Random(f"code {world.seed}").random() < SHIPS:
            await self._ship()
        await self._submit(self._job)
        await self._until("the job to be healthy", lambda: self._promises.healthy(JOB), READY_S)
        world.say("== the job is healthy; faults begin")
        began_s = world.loop.time()
        length_s = self._rng.uniform(*FAULTS_S)
        plan = schedule(self._rng, length_s)
        for fault in self._script or plan:
            await self._wait_until(began_s + fault.at_s)
            if world.violations:
                return
            self._do(fault)
        await self._wait_until(began_s + length_s)
        heal_all(world)
        world.say("== everything is healed")
        await self._settle()

    def _spec(self) -> JobSpec:
        rng = self._rng
        roomy = len(self._world.nodes) == ROOMY_NODES
        strategy = rng.choice((Strategy.ASYNC, Strategy.ASYNC, Strategy.SYNC))
        roles = [
            RoleSpec("chief", 1, ("python", "train.py")),
            RoleSpec("ps", 1, ("python", "train.py")),
            RoleSpec("worker", 1 if roomy else rng.choice((1, 2)), ("python", "train.py")),
        ]
        if random.Random(f"chief {self._world.seed}").random() < WITHOUT_CHIEF:
            roles = [roles[1], replace(roles[2], count=roles[2].count + 1)]
        if roomy or rng.random() < 0.3:
            roles.append(RoleSpec("evaluator", 1, ("python", "evaluate.py"), follow=True))
        ends = rng.random() < 0.3
        self._world.tempers[JOB] = Temper(
            saves_every=rng.choice((8, 15, 40)),
            dies_with_server=rng.choice((0.3, 0.9)),
            last_step=rng.randrange(120, 400) if ends else 10**9,
        )
        return JobSpec(
            name=JOB,
            strategy=strategy,
            roles=tuple(roles),
            checkpoint=CheckpointSpec("file:///checkpoints/digits", keep=rng.choice((2, 3, 5))),
            workdir="/work",
            preload=("tensorflow",),
            progress=ProgressSpec(act_after_ms=HUNG_MS if self._hangs else None),
            restart=RestartPolicy(
                max_restarts=rng.choice((3, 8)),
                backoff_ms=200,
                backoff_max_ms=1_000,
                degraded_limit_ms=rng.choice((0, 0, 6_000)),
                rules={"hang": Rule.FAIL} if self._fatal else {},
            ),
            limits=Limits(hold_on_failure_ms=HOLD_MS if self._fatal else 0),
        )

    def _cluster_up(self) -> bool:
        seat = self._world.leader()
        if seat is None or seat.control is None:
            return False
        snap = seat.control.desk.snapshot()
        return snap is not None and len(snap.nodes) == len(self._world.nodes)

    async def _ship(self) -> None:
        """Upload the program, so that the job needs it on every node."""
        seat = self._world.leader()
        assert seat is not None
        assert seat.control is not None
        data = f"the program of seed {self._world.seed}".encode()
        ref = CodeRef(hashlib.sha256(data).hexdigest(), len(data))
        part = CodePart(ref.digest, ref.size, 0, base64.b64encode(data).decode())
        answer = await self._world.call(seat, seat.control.desk.put_code(part))
        assert answer.complete
        self._job = replace(self._job, code=ref)

    async def _submit(self, spec: JobSpec) -> None:
        seat = self._world.leader()
        assert seat is not None
        assert seat.control is not None
        answer = await self._world.call(seat, seat.control.desk.submit(SubmitRequest(spec)))
        self._world.say(f"operator: submit {spec.name}: {answer.detail}")

    def _do(self, fault: Fault) -> None:
        if fault.kind.startswith("operator"):
            self._world.loop.begin(None, self._operate(fault.kind))
        else:
            apply(self._world, fault)

    async def _operate(self, what: str) -> None:
        """An operator's request; it may well fail, and then the operator is told."""
        world = self._world
        seat = world.leader()
        if seat is None or seat.control is None:
            return
        desk = seat.control.desk
        try:
            match what:
                case "operator_restart":
                    answer = await world.call(seat, desk.restart(JOB))
                case "operator_restart_task":
                    answer = await world.call(seat, desk.restart(JOB, "worker.0"))
                case "operator_from":
                    known = self._promises.restorable(JOB)
                    ref = self._rng.choice(known) if known else None
                    answer = await world.call(seat, desk.restart(JOB, from_ref=ref))
                case "operator_save":
                    answer = await world.call(seat, desk.stop(JOB, save=True))
                case "operator_resume" | "operator_fresh":
                    mode = SubmitMode.RESUME if what == "operator_resume" else SubmitMode.FRESH
                    answer = await world.call(seat, desk.submit(SubmitRequest(self._job, mode)))
                case "operator_stop":
                    answer = await world.call(seat, desk.stop(JOB))
                case _:
                    answer = await world.call(seat, desk.start(JOB))
        except (TfSupervisorError, TimeoutError) as error:
            world.say(f"operator: {what} failed: {error!r}")
        else:
            world.say(f"operator: {what}: {answer.detail}")

    async def _settle(self) -> None:
        world = self._world
        healed_s = world.loop.time()
        why = "?"
        while world.loop.time() < healed_s + SETTLE_S:
            why = self._promises.unsettled(JOB, healed_s)
            if not why or world.violations:
                break
            await asyncio.sleep(0.25)
        if world.violations:
            return
        if why:
            world.violate("liveness", f"{SETTLE_S:g} s after the last fault healed: {why}")
            return
        world.say(f"== settled {world.loop.time() - healed_s:.1f} s after the last fault")
        if self._rng.random() < 0.5:
            await self._stop_for_good()
        self._promises.at_the_end(JOB)

    async def _stop_for_good(self) -> None:
        world, promises = self._world, self._promises
        began_s = world.loop.time()
        why = "?"
        while why and world.loop.time() < began_s + SETTLE_S and not world.violations:
            if not promises.stopping(JOB):
                await self._operate("operator_stop")
            await asyncio.sleep(0.5)
            why = promises.left_behind(JOB)
        if why:
            world.violate("nothing is left behind", f"{SETTLE_S:g} s after the stop: {why}")
        else:
            world.say(f"== stopped, nothing is left behind after {world.loop.time() - began_s:.1f} s")

    async def _wait_until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self._world.loop.time()))

    async def _until(self, what: str, done: Callable[[], bool], within_s: float) -> None:
        end_s = self._world.loop.time() + within_s
        while not done():
            if self._world.loop.time() > end_s:
                raise Toothless(f"waited {within_s:g} s for {what}")
            if self._world.violations:
                raise Toothless("a promise was broken before the first fault")
            await asyncio.sleep(0.05)
