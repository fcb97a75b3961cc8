"""Contract values with sensible defaults: a test names only what it is about."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping

from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import Placement, Plan
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.job.spec import (
    CheckpointSpec,
    CodeRef,
    JobSpec,
    Resources,
    RestartPolicy,
    RoleSpec,
    Scope,
    Strategy,
)
from supervisor.contract.observed import (
    AttemptReport,
    AttemptState,
    Exit,
    ExitReason,
    Gpu,
    NodeResources,
    Prepared,
    TaskBeat,
)
from supervisor.control.decide.facts.gpus import GpuSlot
from supervisor.control.decide.nodes.offers import NodeOffer

GIB = 1 << 30
CLASSIC = {"chief": 1, "ps": 1, "worker": 2}


def resources(
    cpus: float = 0.0, memory: int = 0, gpus: int = 0, labels: Mapping[str, str] | None = None
) -> Resources:
    return Resources(cpus, memory, gpus, dict(labels or {}))


def role(name: str, count: int = 1, need: Resources | None = None, *, follow: bool = False) -> RoleSpec:
    return RoleSpec(name, count, ("python", "train.py"), resources=need or Resources(), follow=follow)


def job_spec(
    roles: Mapping[str, int] | tuple[RoleSpec, ...] | None = None,
    strategy: Strategy = Strategy.ASYNC,
    *,
    name: str = "digits",
    scope: Mapping[str, Scope] | None = None,
    restart: RestartPolicy | None = None,
) -> JobSpec:
    """A job; by default 1 chief, 1 ps and 2 workers. An evaluator or tensorboard given by name follows."""
    if not isinstance(roles, tuple):
        counts = (roles or CLASSIC).items()
        roles = tuple(
            role(name, count, follow=name in {"evaluator", "tensorboard"}) for name, count in counts
        )
    return JobSpec(
        name=name,
        strategy=strategy,
        roles=roles,
        checkpoint=CheckpointSpec(f"file:///checkpoints/{name}"),
        workdir="/work",
        restart=restart or RestartPolicy(scope=dict(scope or {})),
    )


def ref(generation: int, step: int) -> CheckpointRef:
    return CheckpointRef(generation, step)


def ended(
    code: int | None = None,
    signal: int | None = None,
    reason: ExitReason = ExitReason.EXIT,
    *,
    age_ms: int = 0,
    confirmed_dead: bool = True,
    detail: str = "",
) -> Exit:
    """The end of an attempt; with exit code 0 if nothing else is said."""
    if code is None and signal is None and reason is ExitReason.EXIT:
        code = 0
    return Exit(reason, code, signal, age_ms, confirmed_dead, detail)


def report(
    member: str = "worker.0",
    end: Exit | None = None,
    *,
    job: str = "digits",
    generation: int = 1,
    number: int = 1,
    plan_id: str = "plan-1",
    node: str = "n1",
    incarnation: str = "i1",
    drained: bool = False,
) -> AttemptReport:
    """An attempt's report: running, or exited if `end` is given."""
    task = TaskId.from_member(job, member)
    return AttemptReport(
        job=job,
        role=task.role,
        index=task.index,
        generation=generation,
        number=number,
        plan_id=plan_id,
        node=node,
        incarnation=incarnation,
        state=AttemptState.RUNNING if end is None else AttemptState.EXITED,
        pid=4711,
        start_ticks=1,
        address=f"10.0.0.1:{20000 + task.index}",
        exit=end,
        drained=drained,
    )


def reports(**ends: Exit | None) -> dict[str, AttemptReport]:
    """Reports by member; write `worker_0=ended()` for `worker.0`."""
    members = {name.replace("_", "."): end for name, end in ends.items()}
    return {member: report(member, end) for member, end in members.items()}


def offer(
    node: str = "n1",
    *,
    cpus: float = 8.0,
    memory: int = 16 * GIB,
    gpus: int = 0,
    labels: Mapping[str, str] | None = None,
    used_cpus: float = 0.0,
    used_memory: int = 0,
    used_gpus: int = 0,
    tasks: int = 0,
    spares: int = 0,
) -> NodeOffer:
    """A node; the first `used_gpus` of its GPUs have a user."""
    slots = tuple(
        GpuSlot(f"GPU-{node}-{index}", index, users=int(index < used_gpus)) for index in range(gpus)
    )
    return NodeOffer(
        node,
        f"{node}-life",
        NodeResources(cpus, memory, gpus, dict(labels or {})),
        used_cpus,
        used_memory,
        slots,
        tasks,
        spares,
    )


def plan_for(
    spec: JobSpec, nodes: Mapping[str, str] | None = None, *, generation: int = 1, plan_id: str = "plan-1"
) -> Plan:
    """A plan that puts every task on the node given by member, `n1` by default."""
    where = {task.member: (nodes or {}).get(task.member, "n1") for task in spec.tasks()}
    placements = tuple(
        Placement(task.role, task.index, where[task.member], f"{where[task.member]}-life")
        for task in spec.tasks()
    )
    return Plan(spec.name, plan_id, generation, "incident-1", placements)


def prepared_for(plan: Plan) -> dict[str, Prepared]:
    """The reports of the agents when every task of a plan is ready, each at a port of its own."""
    return {
        placed.member: Prepared(
            plan.job,
            plan.plan_id,
            placed.role,
            placed.index,
            placed.node,
            placed.incarnation,
            address=f"{placed.node}:{20000 + number}",
        )
        for number, placed in enumerate(plan.placements)
    }


def beat(member: str = "worker.0", step: int = -1, rate: float = 0.0, generation: int = 1) -> TaskBeat:
    attempt = AttemptId(TaskId.from_member("digits", member), generation, 1)
    return TaskBeat(str(attempt), step=step, rate=rate)


def code_archive(size: int, seed: int = 1) -> tuple[CodeRef, bytes]:
    data = random.Random(seed).randbytes(size)
    return CodeRef(hashlib.sha256(data).hexdigest(), size), data


def gpu(node: str, index: int, memory: int = 80 * GIB, name: str = "NVIDIA H100 80GB") -> Gpu:
    return Gpu(f"GPU-{node}-{index}", index, name, memory)
