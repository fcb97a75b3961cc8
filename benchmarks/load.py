"""`python -m benchmarks.load`: a cluster of scripted nodes under load, and what each process pays for it.

Real are three members of etcd, two supervisors, and the agent of each node with its watches, its lease and
its beats. Docker, processes and disks are scripted (`benchmarks.support.scripted_node`). The nodes join, jobs
are submitted, and nothing happens for a while; then workers are killed, nodes are switched off, and the
leader is killed. JSON on standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.support.figures import machine, row
from benchmarks.support.load_cluster import CLUSTER, LoadCluster, between
from benchmarks.support.load_records import LoadRecords
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.api.client import ControlClient
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.job.spec import CheckpointSpec, JobSpec, Resources, RestartPolicy, RoleSpec, Strategy
from supervisor.contract.timing import PROFILES
from supervisor.contract.views.jobs import SubmitMode, SubmitRequest

JOIN_S = 600.0
START_S = 600.0
RESTART_S = 60.0
KILL_EVERY_S = 0.5
POLL_S = 5.0
SUBMITS = 5
AT_ONCE = 8
"""Submits under way at a time."""
STATUS_RUNS = 5
GIB = 1 << 30


@dataclass(slots=True)
class Beats:
    """The leader's view of its nodes, from time to time."""

    ages_ms: list[float] = field(default_factory=list)
    suspected: set[str] = field(default_factory=set)
    answers_ms: list[float] = field(default_factory=list)


class Run:
    """One run of all phases. `found` is the document."""

    def __init__(self, flags: argparse.Namespace, cluster: LoadCluster, client: ControlClient) -> None:
        self._flags = flags
        self._cluster = cluster
        self._client = client
        self._timing = PROFILES[flags.profile]
        self._records = LoadRecords()
        self._gone: set[str] = set()
        self._rng = random.Random(0)
        self.found: dict[str, object] = {}

    async def all(self) -> None:
        """Run all phases."""
        etcd = EtcdCoordination(self._cluster.endpoints, CLUSTER, rpc_deadline_ms=20_000, silence_ms=60_000)
        watching = asyncio.create_task(self._watch(etcd))
        try:
            await self._join()
            await self._submit()
            half_s = self._flags.minutes * 30
            await self._phase("at rest", asyncio.sleep(half_s))
            await self._phase("kills", self._kill(half_s))
            await self._phase("node losses", self._lose())
            await self._phase("change of leader", self._change())
            await asyncio.to_thread(self._status)
        finally:
            self._sum_up()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await etcd.close()

    async def _watch(self, etcd: EtcdCoordination) -> None:
        async for batch in etcd.watch("", 1):
            self._records.take(batch.changes, time.monotonic())

    async def _join(self) -> None:
        began_s = time.monotonic()
        await self._until(lambda: bool(self._records.elections), 60, "a supervisor to lead")
        await self._cluster.start_nodes()
        count = self._flags.agents
        await self._until(
            lambda: len(self._records.nodes) >= count, JOIN_S, "all nodes to register", tell=True
        )
        joined_s = time.monotonic()
        while True:
            with suppress(TfSupervisorError):
                ready = sum(each.state == "ready" for each in (await self._client.nodes()).nodes)
                if ready >= count:
                    break
            if time.monotonic() - joined_s > JOIN_S:
                raise TimeoutError("the leader does not hear all nodes")
            await asyncio.sleep(1)
        ready_s = time.monotonic()
        self.found["join_s"] = {
            "registered": round(joined_s - began_s, 1),
            "ready": round(ready_s - began_s, 1),
        }

    async def _submit(self) -> None:
        """Submit all jobs, a few at a time, and wait until all tasks run."""
        before, began_s = self._cluster.look(), time.monotonic()
        room, took_ms = asyncio.Semaphore(AT_ONCE), list[float]()

        async def submit(number: int) -> None:
            async with room:
                spec = self._job(number)
                sent_s = time.monotonic()
                self._records.submitted(spec.name, sent_s, self._flags.tasks)
                await self._submit_one(spec)
                took_ms.append((time.monotonic() - sent_s) * 1000)

        await asyncio.gather(*(submit(number) for number in range(self._flags.jobs)))
        starts = self._records.starts.values()
        await self._until(
            lambda: all(each.running_s >= 0 for each in starts), START_S, "all jobs to run", tell=True
        )
        self.found["submits"] = {
            "all_run_s": round(time.monotonic() - began_s, 2),
            "submit_ms": row(took_ms),
            "submit_to_prepared_ms": row([(each.prepared_s - each.at_s) * 1000 for each in starts]),
            "submit_to_running_ms": row([(each.running_s - each.at_s) * 1000 for each in starts]),
            **between(before, self._cluster.look()),
        }

    async def _submit_one(self, spec: JobSpec) -> None:
        """Submit a job, and again where the answer was lost with a leader."""
        mode = SubmitMode.NEW
        for _ in range(SUBMITS):
            try:
                await self._client.submit(SubmitRequest(spec, mode))
            except TfSupervisorError as error:
                print(f"submit of {spec.name}: {error}", file=sys.stderr, flush=True)
                mode = SubmitMode.FRESH
                await asyncio.sleep(1)
                if self._records.knows(spec.name):
                    return
            else:
                return

    def _job(self, number: int) -> JobSpec:
        name, tasks = f"job-{number}", self._flags.tasks
        counts = {"chief": 1, "ps": 1, "worker": tasks - 2}
        return JobSpec(
            name=name,
            strategy=Strategy.ASYNC,
            roles=tuple(
                RoleSpec(role, count, ("python", "train.py"), resources=Resources(1.0, GIB))
                for role, count in counts.items()
            ),
            checkpoint=CheckpointSpec((self._cluster.root / "checkpoints" / name).as_uri()),
            workdir=str(self._cluster.root),
            restart=RestartPolicy(max_restarts=100_000, max_in_window=100_000),
        )

    async def _phase(self, name: str, work: Awaitable[dict[str, object] | None]) -> None:
        """Run one phase beside looks at the nodes."""
        print(f"{name} ...", file=sys.stderr, flush=True)
        leader = self._records.elections[-1][0]
        await self._cluster.ask_all(do="look")
        before, beats = self._cluster.look(), Beats()
        polling = asyncio.create_task(self._poll(beats))
        try:
            result = await work
        finally:
            polling.cancel()
        after, told = self._cluster.look(), await self._cluster.ask_all(do="look")
        phase: dict[str, object] = {"leader": leader, **between(before, after)}
        phase["beat_age_ms"] = row(beats.ages_ms)
        phase["suspected"] = sorted(beats.suspected - self._gone)
        phase["list_of_nodes_ms"] = row(beats.answers_ms)
        phase["generators"] = told
        if result is not None:
            phase["result"] = result
        self.found[name] = phase
        shares = phase["processes"]
        print(f"{name}: {json.dumps(shares)}", file=sys.stderr, flush=True)

    async def _poll(self, beats: Beats) -> None:
        while True:
            sent_s = time.monotonic()
            with suppress(TfSupervisorError):
                nodes = (await self._client.nodes()).nodes
                beats.answers_ms.append((time.monotonic() - sent_s) * 1000)
                here = [each for each in nodes if each.node not in self._gone]
                beats.ages_ms += [each.beat_age_ms for each in here]
                beats.suspected |= {each.node for each in here if each.state != "ready"}
            await asyncio.sleep(POLL_S)

    async def _kill(self, for_s: float) -> dict[str, object]:
        """Kill a worker of one job after the other."""
        until_s, first = time.monotonic() + for_s, len(self._records.kills)
        jobs = list(self._records.starts)
        self._rng.shuffle(jobs)
        for job in itertools.cycle(jobs):
            if time.monotonic() > until_s:
                break
            await self._kill_one(job)
            await asyncio.sleep(KILL_EVERY_S)
        kills = self._records.kills[first:]
        await self._until(lambda: all(each.running_s >= 0 for each in kills), RESTART_S, "all restarts")
        return {
            "kills": len(kills),
            "kill_to_report_ms": row([(each.reported_s - each.at_s) * 1000 for each in kills]),
            "report_to_restart_ms": row([(each.ordered_s - each.reported_s) * 1000 for each in kills]),
            "kill_to_running_ms": row([(each.running_s - each.at_s) * 1000 for each in kills]),
        }

    async def _kill_one(self, job: str) -> None:
        found = [each for each in self._records.victims(self._gone) if each.job == job]
        if found:
            kill = self._records.killed(found[0], time.monotonic())
            done = await self._cluster.ask(found[0].node, do="kill", attempt=str(found[0].attempt))
            if not done.get("killed"):
                self._records.kills.remove(kill)

    async def _lose(self) -> dict[str, object]:
        """Switch nodes off, and wait until their tasks run elsewhere."""
        with_tasks = sorted({each.node for each in self._records.victims(self._gone)})
        lost = self._rng.sample(with_tasks, min(self._flags.losses, len(with_tasks) // 2))
        self._gone |= set(lost)
        began_s = time.monotonic()
        orphans = self._records.on(lost)
        for node in lost:
            await self._cluster.ask(node, do="lose")
        within_s = 4 * self._timing.d_ms / 1000 + 60
        await self._until(lambda: self._records.run_elsewhere(orphans, lost), within_s, "lost tasks to run")
        marked = [
            (self._records.lost[each][0] - began_s) * 1000 for each in lost if each in self._records.lost
        ]
        return {
            "nodes": len(lost),
            "tasks": len(orphans),
            "off_to_lost_mark_ms": row(marked),
            "off_to_all_running_ms": round((time.monotonic() - began_s) * 1000),
        }

    async def _change(self) -> dict[str, object]:
        """SIGKILL the leader and a worker; timed is until the next one orders the restart."""
        leader, elections = self._records.elections[-1][0], len(self._records.elections)
        first = len(self._records.kills)
        began_s = time.monotonic()
        self._cluster.kill_supervisor(leader)
        await self._kill_one(self._rng.choice(self._records.victims(self._gone)).job)
        kills = self._records.kills[first:]
        await self._until(lambda: all(each.running_s >= 0 for each in kills), RESTART_S, "the next leader")
        elected_s = self._records.elections[elections][1]
        self._cluster.start_supervisor(leader)
        await asyncio.sleep(2 * self._timing.leader_lease_s)
        return {
            "killed": leader,
            "elected_ms": round((elected_s - began_s) * 1000),
            "first_action_ms": [round((each.ordered_s - began_s) * 1000) for each in kills],
        }

    def _status(self) -> None:
        """The time of a `supervisorctl`, from its start to its end."""
        supervisorctl = str(Path(sys.executable).parent / "supervisorctl")
        took: dict[str, float] = {}
        for name, more in (("status", []), ("status of one job", ["job-0"]), ("nodes", [])):
            verb = name.partition(" ")[0]
            times = []
            for _ in range(STATUS_RUNS):
                began_s = time.monotonic()
                command = [supervisorctl, "--config", str(self._cluster.client_config), verb, *more]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                times.append(time.monotonic() - began_s)
            took[name] = round(statistics.median(times) * 1000)
        self.found["supervisorctl_ms"] = took

    def _sum_up(self) -> None:
        records = self._records
        self.found["overcommitted"] = {
            "checks": records.checks,
            "fullest_node_percent": round(records.fullest * 100),
            "found": records.overcommitted[:10],
        }
        self.found["room_was_kept"] = not records.overcommitted
        false = {node: reason for node, (_, reason) in records.lost.items() if node not in self._gone}
        self.found["false_losses"] = false
        mine = [what for node, what in records.ended if node not in self._gone]
        self.found["ended_by_themselves"] = {"count": len(mine), "first": mine[:10]}

    async def _until(
        self, condition: Callable[[], bool], within_s: float, what: str, *, tell: bool = False
    ) -> None:
        deadline_s = time.monotonic() + within_s
        said_s = time.monotonic()
        while not condition():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"after {within_s:g} s: waiting for {what}; {self._records.summary()}")
            if tell and time.monotonic() - said_s > POLL_S:
                said_s = time.monotonic()
                print(f"waiting for {what}: {self._records.summary()}", file=sys.stderr, flush=True)
            await asyncio.sleep(0.02)


async def measure(kind: type[Run], flags: argparse.Namespace, root: Path) -> dict[str, object]:
    """Run one kind of run on a cluster of its own. The document says so if it fails."""
    each = flags.jobs * flags.tasks / flags.agents
    cpus = math.ceil(each * 1.5) + 1
    generators = flags.generators or max(1, min(4, flags.agents // 50))
    cluster = LoadCluster(root, flags.profile, flags.agents, generators, cpus, 4 * cpus * GIB)
    async with cluster, cluster.client() as client:
        run = kind(flags, cluster, client)
        try:
            await run.all()
        except (TimeoutError, TfSupervisorError) as error:
            run.found["failed"] = str(error)
    return run.found


def main() -> int:
    """Parse the flags, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", type=int, default=50, help="nodes (%(default)s)")
    parser.add_argument("--jobs", type=int, help="jobs (one for four nodes)")
    parser.add_argument("--tasks", type=int, default=4, help="tasks of each job, three or more (%(default)s)")
    parser.add_argument("--minutes", type=float, default=1.0, help="at rest and under kills (%(default)s)")
    parser.add_argument("--losses", type=int, default=2, help="nodes that are switched off (%(default)s)")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="default")
    parser.add_argument("--generators", type=int, help="processes that run the nodes (1 to 4)")
    parser.add_argument("--keep", type=Path, help="a new directory for logs, which stays")
    flags = parser.parse_args()
    flags.jobs = flags.jobs or max(1, flags.agents // 4)
    if flags.keep is not None and flags.keep.exists():
        parser.error(f"--keep: {flags.keep} exists")
    if flags.tasks < 3:
        parser.error("--tasks: a job has a chief, a ps and one worker or more")
    about = machine()
    # An exception ends what was started; the signal alone would not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="load-") as scratch:
        root = flags.keep or Path(scratch)
        root.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(measure(Run, flags, root))
    settings = {name: value for name, value in vars(flags).items() if name != "keep"}
    document = {"benchmark": "load", "machine": about, "settings": settings, **found}
    print(json.dumps(document, indent=2))
    return 0 if "failed" not in found and found["room_was_kept"] is True else 1


if __name__ == "__main__":
    sys.exit(main())
