"""`python -m benchmarks.scale`: what one look of the leader costs, by the size of the cluster.

The pure leader decides about records in memory: jobs of four tasks that all run and make steps, a task on
each node. Timed are a look after each node has beaten once, and one after a task has reported its end. With
`--placement` other jobs wait for places beside those: timed is finding places for all of them, and the look
that does. With `--before REV` the leader of that revision does the same in turn with today's. JSON on
standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.support.figures import machine
from benchmarks.support.revision import in_turns

if TYPE_CHECKING:
    from supervisor.control.decide.snapshot import Snapshot

HERE = Path(__file__).resolve()
TASKS = (("chief", 1), ("ps", 1), ("worker", 2))
BIG = "big"
CPUS = 4.0
"""Of each node. With `--placement` each task that runs has one of them."""
TICK_MS = 50
WARM_UP = 3
LOOKS = 15
PLACINGS = 3
SIZES = ["10", "125", "500", "2000", "0+322", "0+1000"]
PLACEMENTS = ["1000+1x1000@1", "5000+1x10@1", "500+1000x4@4", "1000+100x4@1"]

T = TypeVar("T")


class Cluster:
    """The records of `jobs` jobs of four tasks, or of one of `tasks` tasks, folded into a leader's view."""

    def __init__(self, jobs: int, tasks: int = 0, cpus: float = 0.0) -> None:
        self._observed: Any = importlib.import_module("supervisor.contract.observed")
        self._desired: Any = importlib.import_module("supervisor.contract.desired")
        self._spec: Any = importlib.import_module("supervisor.contract.job.spec")
        self._keys: Any = importlib.import_module("supervisor.contract.keys")
        self._codec: Any = importlib.import_module("supervisor.contract.codec")
        self._boundaries: Any = importlib.import_module("supervisor.contract.boundaries")
        self._snapshot: Any = importlib.import_module("supervisor.control.decide.snapshot")
        self._timing: Any = importlib.import_module("supervisor.contract.timing").FAST
        view: Any = importlib.import_module("supervisor.control.decide.view")
        self._memory: list[Any] = []
        self._timed: list[Any] = []
        try:
            self._memory = [importlib.import_module("supervisor.control.decide.rest.rests").Rests()]
            self._view: Any = view.View(self._timing)
        except ImportError:
            # An earlier revision's looks visit everything.
            self._view, self._timed = view.View(), [self._timing]
        self._now_ms, self._revision = 1_000_000, 1
        self._attempts: list[Any] = []
        self._cpus = cpus
        token = self._desired.LeaderToken
        self._token = token(self._keys.LEADER, 1)
        record = self._desired.ClusterRecord("c", "fast", self._timing.d_ms, 0, uuid="cluster")
        self._write({self._keys.CLUSTER: record})
        if tasks:
            self._add(BIG, (("chief", 1), ("ps", 1), ("worker", tasks - 2)))
        for number in range(jobs):
            self._add(f"job{number}", TASKS)
        self._now_ms += 10 * self._timing.d_ms
        self._since_ms = self._now_ms - self._timing.d_ms * 2

    def wait(self, name: str, tasks: int, cpus: float) -> None:
        """A job that waits for places for all of its tasks."""
        self._write(self._submitted(name, (("chief", 1), ("worker", tasks - 1)), cpus))

    def _submitted(self, name: str, roles: tuple[tuple[str, int], ...], cpus: float) -> dict[str, object]:
        spec, desired, keys = self._spec, self._desired, self._keys
        job = spec.JobSpec(
            name=name,
            strategy=spec.Strategy.ASYNC,
            roles=tuple(
                spec.RoleSpec(
                    name=role, count=count, command=("python", "t.py"), resources=spec.Resources(cpus)
                )
                for role, count in roles
            ),
            checkpoint=spec.CheckpointSpec(f"file:///checkpoints/{name}"),
            workdir="/work",
        )
        return {
            keys.job_record(name): spec.JobRecord(job, name, 0),
            keys.intent(name): spec.JobIntent(),
            keys.switch(name): desired.JobSwitch(name, name, desired.JobPhase.WAITING, 0),
        }

    def _add(self, name: str, roles: tuple[tuple[str, int], ...]) -> None:
        desired, observed, keys = self._desired, self._observed, self._keys
        records = self._submitted(name, roles, self._cpus)
        records[keys.switch(name)] = desired.JobSwitch(name, name, desired.JobPhase.RUNNING, 1, f"{name}-1")
        placements, addresses = [], []
        for role, count in roles:
            addresses.append(
                desired.RoleAddresses(role, tuple(f"127.0.0.1:{2000 + each}" for each in range(count)))
            )
            for index in range(count):
                node, life = f"node-{name}-{role}-{index}", f"life-{name}-{role}-{index}"
                offer = observed.NodeResources(CPUS, 1 << 33)
                records[keys.node(node)] = observed.Incarnation(
                    node, life, "boot", self._timing.d_ms, "127.0.0.1", "", 20_000, 29_999, 1, offer
                )
                placements.append(desired.Placement(role, index, node, life))
                wanted = desired.Assignment(
                    name, name, role, index, 1, f"{name}-1", node, life, 1, ("python", "t.py"), "/work"
                )
                task = wanted.task
                records[keys.assignment(node, task, wanted.plan_id)] = wanted
                report = observed.AttemptReport(
                    name,
                    role,
                    index,
                    1,
                    1,
                    wanted.plan_id,
                    node,
                    life,
                    observed.AttemptState.RUNNING,
                    100,
                    1,
                    f"127.0.0.1:{2000 + index}",
                    stepped=True,
                )
                records[keys.attempt(report.attempt)] = report
                self._attempts.append(report)
        records[keys.plan(name, f"{name}-1")] = desired.Plan(name, f"{name}-1", 1, "", tuple(placements))
        records[keys.cluster_spec(name, f"{name}-1")] = desired.ClusterSpec(
            name, 1, f"{name}-1", tuple(addresses)
        )
        self._write(records)

    def _write(self, records: dict[str, object]) -> None:
        changes = []
        for key, record in records.items():
            self._revision += 1
            changes.append(
                self._boundaries.KeyValue(key, self._codec.encode(record), self._revision, self._revision)
            )
        self._view.apply(changes, self._revision, self._now_ms)

    def begin(self) -> None:
        """Apply the records that the leader writes about jobs that it sees for the first time."""
        for op in [op for decision in self._decide() for op in decision.ops]:
            self._revision += 1
            change = self._boundaries.KeyValue(op.key, op.value, self._revision, self._revision)
            self._view.apply([change], self._revision, self._now_ms)

    def beat(self) -> None:
        """Each node beats once; its task has made steps."""
        self._now_ms += TICK_MS
        for report in self._attempts:
            name = str(report.attempt)
            task = self._observed.TaskBeat(name, self._now_ms // 100, 0, 5, 60_000, 100.0, 100)
            seen = self._snapshot.BeatSeen(self._now_ms, {name: task})
            self._view.beat(report.node, report.incarnation, seen)

    def report(self) -> None:
        """A worker of the last job has ended, and is confirmed dead."""
        report = self._attempts[-1]
        end = self._observed.Exit(self._observed.ExitReason.EXIT, 1, None, 10, True, tail="last words")
        ended = replace(report, state=self._observed.AttemptState.EXITED, exit=end)
        self._write({self._keys.attempt(report.attempt): ended})

    def snapshot(self) -> Snapshot:
        """The snapshot that the leader decides about."""
        snap: Snapshot = self._view.snapshot(self._now_ms, 0, self._since_ms, self._token, *self._timed)
        return snap

    def look(self) -> int:
        """The number of decisions."""
        return len(self._decide())

    def _decide(self) -> Sequence[Any]:
        decide: Any = importlib.import_module("supervisor.control.decide.reconcile")
        assess: Any = importlib.import_module("supervisor.control.decide.assess.assess")
        snap = self.snapshot()
        made: Sequence[Any] = decide.reconcile(snap, assess.Assessments(snap), *self._memory)
        return made

    def place(self) -> int:
        """The number of waiting jobs that find places, if each is asked alone."""
        prepare: Any = importlib.import_module("supervisor.control.decide.jobs.prepare")
        waiting = self._desired.JobPhase.WAITING
        snap = self.snapshot()
        jobs = [job for job in snap.jobs.values() if job.switch.value.phase is waiting]
        return sum(not prepare.find_places(snap, job).waiting_for for job in jobs)


def _timed(took: dict[str, list[float]], name: str, work: Callable[[], T]) -> T:
    began_s = time.process_time()
    done = work()
    took.setdefault(name, []).append((time.process_time() - began_s) * 1000)
    return done


def _medians(took: dict[str, list[float]]) -> dict[str, float]:
    found = {f"{name}_ms": round(sorted(ms)[len(ms) // 2], 3) for name, ms in took.items()}
    return {**found, "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}


def _settle(cluster: Cluster, looks: int) -> None:
    for _ in range(looks):
        cluster.beat()
        cluster.look()
    gc.collect()
    gc.freeze()


def _measure(size: str) -> dict[str, float]:
    jobs, _, tasks = size.partition("+")
    cluster = Cluster(int(jobs), int(tasks or 0))
    took: dict[str, list[float]] = {}
    cluster.beat()
    cluster.begin()
    _settle(cluster, WARM_UP)
    for _ in range(LOOKS):
        _timed(took, "beats", cluster.beat)
        _timed(took, "look", cluster.look)
    decisions = cluster.look()
    if decisions:
        raise AssertionError(f"{decisions} decisions about a cluster at rest")
    for _ in range(LOOKS):
        cluster.report()
        _timed(took, "look after a report", cluster.look)
    return {"jobs": int(jobs), "tasks_of_one_more": int(tasks or 0), **_medians(took)}


def _measure_placement(size: str) -> dict[str, float]:
    """NODES+JOBSxTASKS@CPUS: so many jobs wait on so many nodes, whose every task asks for so many CPUs."""
    nodes, jobs, tasks, cpus = re.split("[+x@]", size)
    cluster = Cluster(int(nodes) // 4, cpus=1.0)
    for number in range(int(jobs)):
        cluster.wait(f"waiting{number}", int(tasks), float(cpus))
    took: dict[str, list[float]] = {}
    _settle(cluster, 1)
    about = {"nodes": int(nodes), "waiting_jobs": int(jobs), "tasks_of_each": int(tasks)}
    for _ in range(PLACINGS):
        about["jobs_placed"] = _timed(took, "place", cluster.place)
        about["decisions"] = _timed(took, "look", cluster.look)
    return {**about, **_medians(took)}


def main() -> int:
    """Parse the flags, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--before", help="a revision whose leader is measured, too")
    parser.add_argument("--blocks", type=int, default=1, help="runs of each revision (%(default)s)")
    parser.add_argument("--placement", action="store_true", help="measure how jobs that wait find places")
    parser.add_argument(
        "--sizes",
        nargs="+",
        metavar="JOBS[+TASKS]",
        help=f"clusters: so many jobs of four tasks, and one of TASKS tasks ({' '.join(SIZES)}); with "
        f"--placement NODES+JOBSxTASKS@CPUS: such jobs wait ({' '.join(PLACEMENTS)})",
    )
    parser.add_argument("--only", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.only:
        print(json.dumps((_measure_placement if flags.placement else _measure)(flags.only)))
        return 0
    mode = ["--placement"] if flags.placement else []
    about, found = machine(), dict[str, list[object]]()
    for name, tree in in_turns(flags.before, flags.blocks):
        for size in flags.sizes or (PLACEMENTS if flags.placement else SIZES):
            print(f"{name}: {size}", file=sys.stderr, flush=True)
            done = subprocess.run(
                [sys.executable, "-P", str(HERE), *mode, "--only", size],
                env={**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{HERE.parents[1]}"},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            found.setdefault(name, []).append(json.loads(done.stdout))
    settings = {"before": flags.before, "tick_ms": TICK_MS, "looks": PLACINGS if flags.placement else LOOKS}
    document = {"benchmark": "scale", "machine": about, "settings": settings, "leaders": found}
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
