"""One run: bring the cluster up, break things for a while, heal, and see what the promises say."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from chaos.sim.cluster.fencing import Keeper
from chaos.sim.cluster.loop import Deadlock, TooManySteps
from chaos.sim.cluster.power import Device
from chaos.sim.cluster.world import World
from chaos.sim.coverage import Coverage
from chaos.sim.jobs import FIRST, SECOND
from chaos.sim.promises.checkers import Promises
from chaos.sim.story import Story, Toothless
from chaos.sim.swarm import Length, Shape, plain, swarm
from chaos.sim.trouble.aimed import Aim
from chaos.sim.trouble.fault import Fault
from chaos.sim.trouble.flaws import EFFECTS, Flaw, agent_rules, install, rules

SCRATCH = "tfsup-sim"
CALM = 0.5
"""The share of seeds with a flaw that have no other fault."""
ALLOCATIONS = 100_000
"""After so many the garbage collector looks."""
BY_AGENTS = 0.3
"""The share of flaws in which a rule of the agents raises."""
AT_EFFECTS = 0.2
"""The share of flaws in which an effect raises, once."""
MOST_DELETIONS = 3
LASTING = 0.5
"""The share of flaws in which the rule raises again and again."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run. `virtual_s` and `steps` are its length.

    Attributes:
        schedule: every fault planned for it, in order.
        covered: states and transitions that it has been through, with how often.
        reached: failpoints that daemons have come to since faults began, with how often.
    """

    seed: int
    violations: tuple[str, ...]
    error: str
    trace: tuple[str, ...]
    virtual_s: float
    steps: int
    facts: dict[str, int]
    schedule: tuple[Fault, ...] = ()
    covered: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Every promise was kept, and the run bit."""
        return not self.violations and not self.error

    @property
    def digest(self) -> str:
        """Equal for equal traces."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


def run_seed(seed: int, script: Sequence[Fault] = ()) -> Result:
    """Run a seed as a swarm makes it, or a plain cluster of it under the given faults."""
    return _run(seed, plain(seed), tuple(script)) if script else run_swarm(seed)


def run_booked(seed: int, script: Sequence[Fault] = (), length: Length = Length.FULL) -> Result:
    """Run a seed with two jobs whose tasks fill two of three nodes, under its faults or the given ones."""
    shape = replace(plain(seed), nodes=3, length=length, second=True, booked=True)
    return _run(seed, shape, tuple(script) or None)


def run_flawed(seed: int, script: Sequence[Fault] = (), length: Length = Length.FULL) -> Result:
    """Run a seed with two jobs and a bug: a rule of the leader, or of the agents, raises for one of them.

    Half of the seeds meet nothing else. The others meet their faults, or the given ones, besides.
    """
    rng = random.Random(f"flaw {seed}")
    calm = not script and rng.random() < CALM
    drawn = rng.random()
    sorts = (agent_rules(), EFFECTS, rules())
    rule = rng.choice(sorted(sorts[(drawn >= BY_AGENTS) + (drawn >= BY_AGENTS + AT_EFFECTS)]))
    flaw = Flaw(
        rule,
        "" if rule in EFFECTS else rng.choice((FIRST, SECOND)),
        at=rng.choice((1, 1, 2, 5, 20)),
        lasts=rng.random() < LASTING,
        calm=calm,
        armed=False,
    )
    shape = replace(plain(seed), length=length) if calm else swarm(seed, length)
    given: tuple[Fault, ...] | None = tuple(script) or (() if calm else None)
    undo = install(flaw)
    try:
        return _run(seed, replace(shape, second=True, crowded=False), given, flaw=flaw)
    finally:
        undo()


def run_deleted(seed: int, script: Sequence[Fault] = (), length: Length = Length.FULL) -> Result:
    """Run a seed with two jobs that operators delete amid its faults, or amid the given ones."""
    shape = replace(swarm(seed, length), second=True, crowded=False)
    return _run(seed, shape, tuple(script) or None, deletions=MOST_DELETIONS)


def run_powered(seed: int, script: Sequence[Fault] = (), length: Length = Length.FULL) -> Result:
    """Run a seed whose fence devices are late, or do not work, under its faults or the given ones."""
    device = random.Random(f"device {seed}").choice((Device.LATE, Device.BROKEN))
    shape = plain(seed) if script else swarm(seed, length)
    return _run(seed, replace(shape, device=device), tuple(script) or None)


def run_stopped(
    seed: int,
    script: Sequence[Fault] = (),
    keeper: Keeper = Keeper.WORKS,
    length: Length = Length.FULL,
) -> Result:
    """Run a seed whose nodes fence what a stopped agent has left, under its faults or the given ones."""
    shape = plain(seed) if script else swarm(seed, length)
    return _run(seed, replace(shape, keeper=keeper), tuple(script) or None)


def run_served(seed: int, script: Sequence[Fault] = ()) -> Result:
    """Run a seed whose first job has two parameter servers, and sessions that survive their loss."""
    shape = plain(seed) if script else replace(swarm(seed), crowded=False)
    return _run(seed, replace(shape, served=True), tuple(script) or None)


def run_other_saver(seed: int, script: Sequence[Fault] = ()) -> Result:
    """Run a seed in whose first job another task saves than its roles let expect."""
    shape = plain(seed) if script else replace(swarm(seed), crowded=False)
    return _run(seed, replace(shape, other_saver=True), tuple(script) or None)


def run_swarm(
    seed: int, length: Length = Length.FULL, *, only: Sequence[int] | None = None, aim: Aim | None = None
) -> Result:
    """Run a seed of the swarm.

    `only`: leave out all faults of its schedule but these, counted from 1. `aim`: besides, a daemon is killed
    there; a run in which none was is an error.
    """
    return _run(seed, swarm(seed, length), None, only, aim)


def _run(
    seed: int,
    shape: Shape,
    script: tuple[Fault, ...] | None,
    only: Sequence[int] | None = None,
    aim: Aim | None = None,
    flaw: Flaw | None = None,
    deletions: int = 0,
) -> Result:
    with scratch(seed) as root:
        world = World(seed, root, shape.layout)
        world.loop.max_steps = shape.length.most_steps
        promises = Promises(world)
        story = Story(world, promises, shape, script, only, aim, flaw, deletions)
        return play(world, promises, story.tell(), story)


def play(
    world: World, promises: Promises, tale: Coroutine[object, object, None], story: Story | None = None
) -> Result:
    """Let it happen, and see what became of it."""
    with closing(world), rare_collection():
        error = ""
        coverage = Coverage(world)
        try:
            world.loop.run_until_complete(tale)
        except (Toothless, Deadlock, TooManySteps) as failure:
            error = f"{type(failure).__name__}: {failure}"
            world.say(error)
        if story is not None and story.aim is not None and not world.struck and not error:
            error = f"no daemon came to {story.aim}"
        for failed in world.loop.failures:
            world.violate("no daemon crashes", failed)
        traits = Counter(f"trait {trait}" for trait in (story.traits if story is not None else ()))
        return Result(
            world.seed,
            tuple(world.violations),
            error,
            tuple(world.lines),
            world.loop.time(),
            world.loop.steps,
            promises.facts(),
            story.schedule if story is not None else (),
            coverage.counts + traits,
            dict(world.reached),
        )


@contextmanager
def rare_collection() -> Iterator[None]:
    """Let the garbage collector look seldom: it takes a tenth of the time of a run, and finds little."""
    before = gc.get_threshold()
    gc.set_threshold(ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def scratch_parent() -> Path:
    """The parent of the scratch directories, each named after the process that made it."""
    memory = Path("/dev", "shm")
    return memory if memory.is_dir() else Path(tempfile.gettempdir())


@contextmanager
def scratch(seed: int) -> Iterator[Path]:
    """A directory for a run, in memory where there is a file system for it: no fsync here proves anything."""
    root = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}-{os.getpid()}-{seed}-", dir=scratch_parent()))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
