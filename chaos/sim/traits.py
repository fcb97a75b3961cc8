"""Unusual settings of jobs. A seed gives each of its jobs some of them, and most jobs few."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from chaos.sim.cluster.programs import KEEPS_ALL, Temper
from chaos.sim.cluster.saves import OVERWRITTEN, PLAIN_FILES
from chaos.sim.cluster.world import NETWORK
from chaos.sim.swarm import Length, Shape
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import (
    CHIEF_ROLES,
    ContainerSpec,
    JobSpec,
    Pull,
    RestartPolicy,
    Rule,
    Scope,
    Strategy,
    SuccessPolicy,
)

STARTUP_S, WALL_TIME_S, FALLBACK_S, GRACE_S, KEPT_S = (3.0, 6.0), (6.0, 20.0), (1.0, 5.0), (0.5, 3.0), 4.0
FORGOTTEN_S = (0.0, 8.0)
WINDOW_MS = 24 * 3_600_000
"""Longer than faults set wall clocks wrong: one that jumps ahead lets failures leave the window early."""
ELSEWHERE = (Cause.KILLED, Cause.LAUNCHER_LOST, Cause.PROGRAM_EXIT, Cause.DEADLINE, Cause.START_FAILED)


@dataclass(frozen=True, slots=True)
class Draft:
    """A job as it takes shape: what is submitted, how its program behaves, and which traits it has."""

    spec: JobSpec
    temper: Temper
    traits: tuple[str, ...] = ()


PARTING = 5
"""Steps by which a save at the end of another task is newer than the saver's."""

Trait = Callable[[random.Random, Draft, Shape], Draft]

RULED_OUT = {
    "two parameter servers": "a crowded cluster has no room for one more; a ring has none",
    "a network of its own": "it is a container's",
    "unread steps": "its recoveries take half a minute: too long for a short run, and where a hang "
    "has to be found",
    "no restore": "where sessions recover, a commit that is late with a save of before is set aside with "
    "those of after (docs/bugs.md, known and open)",
    "another task saves": "there has to be another worker that trains",
    "a parting save": "there has to be a worker that trains beside the saver; in a ring TensorFlow throws "
    "away the saves of all but one",
    "elastic workers": "it is about workers; a job without them has nobody to add",
    "worker 0 decides": "`validate` refuses it where a role of chiefs decides",
    "cold starts, and sessions that recover": "only asynchronous jobs with servers have such sessions; none "
    "is stuck for good where a narrow window allows no restart for it",
}
"""Trait -> what it leaves out, and why. Each is a rule of the product, or of the run's length."""

LEFT_OUT = {
    "jobs.py": "A second job has one worker, and is neither a ring nor under a coordinator: both jobs have "
    "to fit on three nodes. A cluster for a script has no style and no trait: scripts count its tasks.",
    "swarm.py": "A crowded cluster has no second job, and one with GPUs is not crowded: there is no room. "
    "A job with GPUs books no CPUs: either decides where it fits.",
    "gpus.py": "Its jobs have no traits, so that none of them ends while GPUs fail; jobs of the swarm with "
    "GPUs have traits.",
    "outage.py": "Its job has no traits, as every task has to step while etcd is gone, and a trait may end "
    "it; supervisors of the swarm promise tasks with traits, too.",
    "run.py": "The first job of `--booked` has no trait, as it trains in a plain cluster; jobs that the "
    "swarm books have traits.",
    "trouble/surroundings.py": "The newest two checkpoints since an import do not rot: a job that has "
    "nothing else to go back to fails, as it must.",
    "cluster/saves.py": "Files of a program's own have a name for each step, whatever its saves are called: "
    "the step of such a save is read from its name.",
}
"""Module -> what it leaves out beside the traits, and why."""


def varied(draft: Draft, seed: int, shape: Shape) -> Draft:
    """The job with the traits that the seed gives to one of its name."""
    rng = random.Random(f"traits of {draft.spec.name} {seed}")
    share = rng.choice(shape.length.shares)
    for name, trait in TRAITS.items():
        if rng.random() < share:
            changed = trait(rng, draft, shape)
            draft = replace(changed, traits=(*draft.traits, name)) if changed is not draft else draft
    return draft


def _servers(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """More than one parameter server, all of which everybody needs."""
    if shape.crowded:
        return draft
    roles = tuple(replace(role, count=2) if role.name == "ps" else role for role in draft.spec.roles)
    return _with(draft, replace(draft.spec, roles=roles))


def _ordered(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """Programs start when those that they need listen."""
    names = [role.name for role in draft.spec.roles if not role.follow]
    order = [name for name in ("data_worker", "ps", "chief", "worker") if name in names]
    first = order[: rng.randrange(1, len(order))] if len(order) > 1 else []
    roles = tuple(
        replace(role, after=tuple(first)) if role.name in order and role.name not in first else role
        for role in draft.spec.roles
    )
    return _with(draft, replace(draft.spec, roles=roles))


def _networked(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """Its containers have addresses of their own, which end with them."""
    pull = rng.choice((Pull.MISSING, Pull.ALWAYS))
    container = ContainerSpec(image="training", pull=pull, network=NETWORK)
    return _with(draft, replace(draft.spec, container=container)) if shape.docker else draft


def _mute(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """Its output shows no steps. Its recoveries take half a minute, too long for a short run."""
    if shape.watched or shape.length in (Length.SHORT, Length.BRIEF):
        return draft
    return replace(draft, temper=replace(draft.temper, mute=True))


def _in_epochs(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """It prints an epoch and a step: its steps are seen, but none of their numbers is the job's."""
    return replace(draft, temper=replace(draft.temper, epochs=True))


def _tidy(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """Its program removes more of what it saved before than others, or nothing: `max_to_keep=None`."""
    return replace(draft, temper=replace(draft.temper, keeps=rng.choice((1, 1, 2, 2, KEEPS_ALL))))


def _limited(name: str, span_s: tuple[float, float]) -> Trait:
    """One of its `limits` is so many seconds of a fast cluster."""

    def trait(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
        limits = replace(draft.spec.limits, **{name: _ms(rng, span_s, shape)})
        return _with(draft, replace(draft.spec, limits=limits))

    return trait


def _fallback(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """It rather goes back further than wait for a store that cannot be read."""
    checkpoint = replace(draft.spec.checkpoint, fallback_after_ms=_ms(rng, FALLBACK_S, shape))
    return _with(draft, replace(draft.spec, checkpoint=checkpoint))


def _keeper(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """It keeps more than the newest."""
    kept_ms = int(rng.choice((0.0, KEPT_S)) * 1000 * shape.pace)
    checkpoint = replace(draft.spec.checkpoint, keep_every=rng.choice((0, 30, 100)), keep_for_ms=kept_ms)
    return _with(draft, replace(draft.spec, checkpoint=checkpoint))


def _window(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    wide = replace(draft.spec.restart, max_in_window=rng.choice((1, 2, 3)), window_ms=WINDOW_MS)
    return _restarting(draft, wide)


def _scoped(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """More, or less, is restarted than the strategy says."""
    names = [role.name for role in draft.spec.roles if role.name in ("chief", "ps", "worker", "evaluator")]
    scope = {name: rng.choice((Scope.ALL, Scope.TASK)) for name in names}
    return _restarting(draft, replace(draft.spec.restart, scope=scope))


def _wandering(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """A task that ends for one of these causes is tried on another node."""
    rules = {cause.value: Rule.ELSEWHERE for cause in ELSEWHERE if rng.random() < 0.5}
    return _restarting(draft, replace(draft.spec.restart, rules={**rules, **draft.spec.restart.rules}))


def _files_of_its_own(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """Its program saves files that are not TensorFlow's."""
    checkpoint = replace(draft.spec.checkpoint, patterns=PLAIN_FILES)
    temper = replace(draft.temper, plain=True)
    return replace(draft, spec=replace(draft.spec, checkpoint=checkpoint), temper=temper)


def _one_name(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """Its saves have all the same name, below a directory of their own."""
    return replace(draft, temper=replace(draft.temper, named=OVERWRITTEN))


def _another_saves(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """Not the task that its roles let expect saves, but the last worker."""
    return replace(draft, temper=replace(draft.temper, another_saves=True)) if _has_another(draft) else draft


def _parting(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """A worker beside the saver saves at its end, in a way that no hook sees: only its directory shows it."""
    another = _has_another(draft) and not draft.temper.ring
    return replace(draft, temper=replace(draft.temper, parting=PARTING)) if another else draft


def _elastic(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """It has as many workers as there is room for."""
    roles = tuple(
        replace(role, count=role.count + 1, least=1, most=role.count + 1) if role.name == "worker" else role
        for role in draft.spec.roles
    )
    return _with(draft, replace(draft.spec, roles=roles))


def _urgent(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """It waits before others for room, or behind them."""
    return _with(draft, replace(draft.spec, priority=rng.choice((-1, 1, 2))))


def _first_worker(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """Worker 0 ends it, as a chief would."""
    if {role.name for role in draft.spec.roles} & {*CHIEF_ROLES}:
        return draft
    return _with(draft, replace(draft.spec, success_policy=SuccessPolicy.WORKER_0))


def _old_tensorflow(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """No worker can move with the version that it imports, or its chief cannot always be told of a move."""
    if rng.random() < 0.5:
        return replace(draft, temper=replace(draft.temper, tensorflow="2.3.0"))
    return replace(draft, temper=replace(draft.temper, deaf=0.5))


def served(draft: Draft) -> Draft:
    """The job with two parameter servers that come back together."""
    if draft.temper.ring or draft.spec.strategy is Strategy.COORDINATOR:
        return draft
    roles = tuple(replace(role, count=2) if role.name == "ps" else role for role in draft.spec.roles)
    restart = replace(draft.spec.restart, scope={}, max_restarts=8)
    spec = replace(draft.spec, strategy=Strategy.ASYNC, roles=roles, preload=(), restart=restart)
    temper = replace(draft.temper, recovers=True, restores=True, dies_with_server=0.0, mute=False)
    temper = replace(temper, last_step=10**9)
    return _with(replace(draft, temper=temper), spec)


def saved_by_another(draft: Draft) -> Draft:
    """The job with another worker beside the task that is expected to save: that one saves.

    At the end another one does, too, on its own node, and nothing notes it.
    """
    roles = tuple(replace(role, count=2) if role.name == "worker" else role for role in draft.spec.roles)
    parting = 0 if draft.temper.ring else PARTING
    temper = replace(draft.temper, another_saves=True, last_step=10**9, parting=parting)
    return _with(replace(draft, temper=temper), replace(draft.spec, roles=roles))


def _recovering(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """Each start imports, and its sessions survive the loss of a parameter server, or nearly always."""
    if draft.temper.ring or draft.spec.strategy is not Strategy.ASYNC:
        return draft
    # A hang is charged: a narrow window leaves the task as it is, for its owner to look at.
    stuck = 0.0 if "a narrow window" in draft.traits else rng.choice((0.0, 0.3))
    temper = replace(draft.temper, recovers=True, dies_with_server=0.0, stuck=stuck)
    return _with(replace(draft, temper=temper), replace(draft.spec, preload=()))


def _forgetful(rng: random.Random, draft: Draft, shape: Shape) -> Draft:
    """It saves, and reads none of its checkpoints: each start trains from scratch."""
    return draft if draft.temper.recovers else replace(draft, temper=replace(draft.temper, restores=False))


TRAITS: dict[str, Trait] = {
    "two parameter servers": _servers,
    "ordered starts": _ordered,
    "a network of its own": _networked,
    "unread steps": _mute,
    "saves kept": _tidy,
    "a short start-up": _limited("startup_ms", STARTUP_S),
    "a wall time": _limited("wall_time_ms", WALL_TIME_S),
    "a short grace": _limited("save_grace_ms", GRACE_S),
    "a fallback": _fallback,
    "kept checkpoints": _keeper,
    "a narrow window": _window,
    "scopes of its own": _scoped,
    "elsewhere": _wandering,
    "files of its own": _files_of_its_own,
    "one name for all saves": _one_name,
    "an epoch and a step": _in_epochs,
    "another task saves": _another_saves,
    "elastic workers": _elastic,
    "a TensorFlow that cannot move workers": _old_tensorflow,
    "cold starts, and sessions that recover": _recovering,
    "a priority": _urgent,
    "worker 0 decides": _first_worker,
    "deleted after its end": _limited("delete_after_ms", FORGOTTEN_S),
    "no restore": _forgetful,
    "a parting save": _parting,
}


def _has_another(draft: Draft) -> bool:
    """Whether a worker trains beside the task that TensorFlow takes for the chief."""
    counts = {role.name: role.count for role in draft.spec.roles}
    others = counts.get("worker", 0) - (0 if "chief" in counts else 1)
    return "worker" in draft.temper.trainers and others > 0


def _with(draft: Draft, spec: JobSpec) -> Draft:
    return draft if spec == draft.spec else replace(draft, spec=spec)


def _restarting(draft: Draft, policy: RestartPolicy) -> Draft:
    return _with(draft, replace(draft.spec, restart=policy))


def _ms(rng: random.Random, span_s: tuple[float, float], shape: Shape) -> int:
    return int(rng.uniform(*span_s) * 1000 * shape.pace)
