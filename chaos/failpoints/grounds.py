"""The grounds of strikes: a cluster with a job, and the causes that bring its daemons to their failpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from chaos.cluster import Shape
from chaos.failpoints.causes import CAUSES, GPUS, LATE, MOUNTED, OFTEN, PROMISED, PULLED, Cause
from chaos.faults import FAULTS
from chaos.faults.fault import Fault
from chaos.faults.scene import DidNotBite, Scene
from chaos.programs import KEEP
from chaos.runner.stage import Stage


@dataclass(frozen=True, slots=True)
class Ground:
    """One of them.

    Attributes:
        faults: names of those that are causes, too, where the cluster can have them.
        job: what the job's file says instead of the usual.
        program_faults: so many at most each of its faults makes besides: where saves are the program's own
            writes, it hangs in one that waits and ends with an error of one that fails.
    """

    name: str
    text: str
    shape: Shape
    causes: tuple[Cause, ...]
    faults: tuple[str, ...] = ()
    job: Mapping[str, object] = field(default_factory=dict)
    program_faults: int = 0

    def all_causes(self, stage: Stage) -> tuple[Cause, ...]:
        """The causes that a stage of this shape can have, in the order in which they are tried."""
        faults = [FAULTS[name] for name in self.faults]
        possible = [fault for fault in faults if fault.needs(stage.cluster) is None]
        return (*self.causes, *(of_fault(fault, self.program_faults) for fault in possible))


def of_fault(fault: Fault, program_faults: int = 0) -> Cause:
    """It is injected and healed; the program errs so often besides."""

    def do(scene: Scene) -> None:
        targets = fault.targets(scene)
        if not targets:
            raise DidNotBite(f"{fault.name} has no target")
        with fault.inject(scene, scene.random.choice(targets)):
            time.sleep(scene.random.uniform(*fault.hold_s))

    return Cause(fault.name, fault.text, do, fault.expects.program_faults + program_faults)


def _those(names: str) -> tuple[Cause, ...]:
    own = {cause.name: cause for cause in (*CAUSES, *PROMISED)}
    return tuple(own[name] for name in names.split())


_USUAL = _those("calm worker ps agent upgrade restart stop ask another-job power")

GROUNDS = {
    each.name: each
    for each in (
        Ground(
            "small",
            "two supervisors and three nodes; tasks are processes",
            Shape(etcd=1, supervisors=2, agents=3, log_budget="64MiB", disk_bytes=1 << 30),
            CAUSES,
            (
                *("cut-etcd", "cut-etcd-short", "agent-cannot-obey", "agent-old-state", "agent-spoilt-state"),
                *("disk-full-amid", "narrow"),
            ),
        ),
        Ground(
            "mounted",
            "the job's directory is in HDFS, and mounted",
            Shape(etcd=1, supervisors=2, agents=3, hdfs=True),
            (*_USUAL, *MOUNTED),
            ("namenode-killed", "quota", "cut-hdfs"),
            {"checkpoint": {"keep": KEEP, "mode": "mounted"}},
            program_faults=2,
        ),
        Ground(
            "hdfs",
            "checkpoints go to HDFS, and are late soon",
            Shape(etcd=1, supervisors=2, agents=3, hdfs=True, disk_bytes=2 << 30),
            (*_those("calm worker agent power leader"), *LATE),
            ("namenode-killed", "safe-mode", "quota", "cut-hdfs", "datanode-killed-in-commit"),
            {"checkpoint": {"keep": KEEP, "lag_bound": "1s", "fallback_after": "2s"}},
        ),
        Ground(
            "docker",
            "tasks are containers",
            Shape(etcd=1, supervisors=2, agents=0, docker_agents=3),
            (*_USUAL, *PULLED),
            ("dockerd-killed", "dockerd-frozen", "container-removed", "image-missing", "name-clash"),
        ),
        Ground(
            "gpus",
            "each node has two GPUs, as a scripted NVML has it, and each worker uses one",
            Shape(etcd=1, supervisors=2, agents=3, gpus=2),
            (*_those("calm worker agent power"), *GPUS),
            ("gpu-lost", "gpu-hung", "xid-program", "xid-contained", "xid-reset", "remap-failed"),
        ),
        Ground(
            "patient",
            "the same happens again and again, for minutes",
            Shape(etcd=1, supervisors=2, agents=3),
            OFTEN,
        ),
        Ground(
            "promised",
            "three supervisors promise tasks to live on without etcd",
            Shape(etcd=1, supervisors=3, agents=3, promise_s=60),
            (*_those("calm"), *PROMISED),
        ),
    )
}
