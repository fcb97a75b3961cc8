"""The jobs that the simulated cluster runs."""

from __future__ import annotations

import random
from dataclasses import replace

from chaos.sim.cluster.programs import TRAINING, Temper
from chaos.sim.swarm import ROOMY_NODES, Shape
from chaos.sim.traits import Draft, saved_by_another, served, varied
from supervisor.contract.job.spec import (
    CheckpointSpec,
    JobSpec,
    Limits,
    Packing,
    ProgressSpec,
    Resources,
    RestartPolicy,
    RoleSpec,
    Rule,
    Strategy,
)

FIRST, SECOND, LATE = "digits", "letters", "words"
HUNG_MS = 3_000
HOLD_MS = 12_000
WITHOUT_CHIEF = 0.25
"""The share of seeds in which worker 0 is TensorFlow's chief, and saves."""
COORDINATED, RINGS = 0.15, 0.2
"""The shares of seeds in which a coordinator trains, and in which workers are a ring without servers."""
SIMPLER = 0.3
"""The share of those with a graph of its own, where all tasks fail together, or with one process that trains
alone."""
FED = 0.15
"""The share of seeds in which a task outside the ClusterSpec serves the others, and is restarted alone."""
STEP_S = 0.1
SAVE_S = 0.05

BOOKED = Resources(cpus=2.0, memory_bytes=2 << 30)
"""Four such tasks fill a node. All fit on three nodes; where one is lost, some wait."""

TRAIN = ("python", "train.py")


def first_job(rng: random.Random, seed: int, shape: Shape, *, fatal: bool) -> Draft:
    """The job of every run. `fatal`: a hang fails it, and what hangs is kept."""
    roomy = shape.nodes == ROOMY_NODES
    pace = shape.pace
    strategy = rng.choice((Strategy.ASYNC, Strategy.ASYNC, Strategy.SYNC))
    worker = RoleSpec("worker", 1 if roomy else rng.choice((1, 2)), TRAIN, resources=_needs(rng, shape))
    roles = [RoleSpec("chief", 1, TRAIN), RoleSpec("ps", 1, TRAIN), worker]
    if random.Random(f"chief {seed}").random() < WITHOUT_CHIEF:
        roles = [roles[1], replace(worker, count=worker.count + 1)]
    if roomy or rng.random() < 0.3:
        roles.append(RoleSpec("evaluator", 1, ("python", "evaluate.py"), follow=True))
    drawn = random.Random(f"style {seed}")
    style = drawn.random() if shape.families else 1.0
    simpler = drawn.random() < SIMPLER
    trainers: tuple[str, ...] = TRAINING
    ring = False
    if style < COORDINATED and roles[0].name == "chief":
        strategy, trainers = Strategy.IN_GRAPH if simpler else Strategy.COORDINATOR, ("chief",)
        roles = [replace(role, serves=True) if role.name == "worker" else role for role in roles]
    elif COORDINATED <= style < COORDINATED + RINGS:
        strategy, trainers, ring = Strategy.PLAIN if simpler else Strategy.MULTIWORKER, ("worker",), True
        workers = replace(worker, count=1 if simpler else worker.count + 1)
        roles = [workers, *(role for role in roles if role.follow)]
    if shape.families and random.Random(f"outside {seed}").random() < FED:
        roles.append(RoleSpec("data_worker", 1, TRAIN, in_cluster=False))
    if shape.crowded:
        roles = [replace(role, resources=Resources(cpus=1.0)) for role in roles]
    elif shape.booked:
        roles = [replace(role, resources=BOOKED) for role in roles]
    ends = rng.random() < 0.3
    temper = Temper(
        step_s=STEP_S * pace,
        saves_every=rng.choice((8, 15, 40)),
        save_s=SAVE_S * pace,
        dies_with_server=rng.choice((0.3, 0.9)),
        last_step=rng.randrange(120, 400) if ends else 10**9,
        trainers=trainers,
        ring=ring,
    )
    spec = JobSpec(
        name=FIRST,
        strategy=strategy,
        roles=tuple(roles),
        checkpoint=CheckpointSpec(f"file:///checkpoints/{FIRST}", keep=rng.choice((2, 3, 5))),
        workdir="/work",
        preload=("tensorflow",),
        progress=ProgressSpec(act_after_ms=int(HUNG_MS * pace) if fatal or shape.watched else None),
        restart=RestartPolicy(
            max_restarts=rng.choice((3, 8)),
            backoff_ms=int(200 * pace),
            backoff_max_ms=int(1_000 * pace),
            degraded_limit_ms=int(rng.choice((0, 0, 6_000)) * pace),
            rules={"hang": Rule.FAIL} if fatal else {},
        ),
        limits=Limits(hold_on_failure_ms=HOLD_MS if fatal else 0),
    )
    draft = Draft(spec, temper)
    draft = varied(draft, seed, shape) if shape.families else draft
    draft = served(draft) if shape.served else draft
    return saved_by_another(draft) if shape.other_saver else draft


def another_job(rng: random.Random, seed: int, shape: Shape, name: str) -> Draft:
    """A job that shares the nodes; SECOND also shares the GPUs, if there are any."""
    second = name == SECOND
    needs = _needs(rng, shape) if second else Resources()
    beside = Resources()
    if second and shape.booked:
        needs = beside = BOOKED
    spec = JobSpec(
        name=name,
        strategy=rng.choice((Strategy.ASYNC, Strategy.SYNC)),
        roles=(
            RoleSpec("chief", 1, TRAIN, resources=beside),
            RoleSpec("ps", 1, TRAIN, resources=beside),
            RoleSpec("worker", 1, TRAIN, resources=needs),
        ),
        checkpoint=CheckpointSpec(f"file:///checkpoints/{name}", keep=3),
        workdir="/work",
        preload=("tensorflow",),
        progress=ProgressSpec(act_after_ms=int(HUNG_MS * shape.pace) if shape.watched else None),
        restart=RestartPolicy(
            max_restarts=rng.choice((3, 8)),
            backoff_ms=int(200 * shape.pace),
            backoff_max_ms=int(1_000 * shape.pace),
        ),
        packing=rng.choice((Packing.SPREAD, Packing.PACK)),
    )
    temper = Temper(
        step_s=STEP_S * shape.pace,
        saves_every=rng.choice((8, 15)),
        save_s=SAVE_S * shape.pace,
        last_step=10**9,
    )
    return varied(Draft(spec, temper), seed, shape)


def _needs(rng: random.Random, shape: Shape) -> Resources:
    if not shape.gpus:
        return Resources()
    return Resources(gpus=1, gpu_share=rng.choice((1, 1, 2)))
