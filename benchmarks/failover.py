"""`python -m benchmarks.failover`: the leader, a node or an agent is lost; how long until somebody acts?

leader: the leading supervisor and a worker are killed at the same instant; timed to the next leader's first
effective action, the transaction in etcd that restarts the worker. machine: an agent, its launchers and its
tasks are killed together, in turn with a fence device for it and without. agent: the agent alone, for good;
its tasks must end by themselves before D. frozen: the agent is stopped past D, then thawed. JSON on standard
output, progress on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.support.figures import Figures, Goal, figures, machine
from benchmarks.support.nodes import agent_of, kill_on, node_back
from benchmarks.support.quiet import Quiet
from benchmarks.support.spares import spares_warm
from benchmarks.support.subjects import until
from examples.demo import kernel
from examples.demo.job import Training, digits_job
from examples.demo.kernel import ProcessRef
from examples.demo.steplog import StepLog
from examples.demo.watch import TRAINERS, PromiseBroken, Watch, beside
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import KeyDeleted
from supervisor.contract.desired import Assignment, LeaderRecord
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.timing import PROFILES, Timing
from supervisor.contract.views.jobs import SubmitRequest

STATE = Path("var/bench/failover")
FENCE = Path(__file__).resolve().parent / "support" / "fence_local.py"
ENDLESS = 100_000_000
SAVE_STEPS = 100
STATUS_EVERY_S = 0.2
STAND_BY_S = 1.0
WAIT_S = 90.0
THAWED_STEPS = 200
RPC_DEADLINE_MS = 2_000
SILENCE_MS = 10_000


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    leader_kills: int
    default_kills: int
    node_kills: int
    default_node_kills: int
    agent_kills: int
    freezes: int
    step_delay_ms: float
    quiet: Quiet
    state: Path


@dataclass(slots=True)
class Results:
    """Durations in ms by name, and how many rounds kept each promise."""

    times: dict[str, list[float]] = field(default_factory=dict)
    kept: dict[str, list[bool]] = field(default_factory=dict)

    def add(self, scenario: str, times: dict[str, float], kept: dict[str, bool]) -> None:
        """Take in one round and say so."""
        for name, ms in times.items():
            self.times.setdefault(f"{scenario}: {name}", []).append(round(ms, 1))
        for name, good in kept.items():
            self.kept.setdefault(f"{scenario}: {name}", []).append(good)
        said = ", ".join(f"{name} {ms:.0f} ms" for name, ms in times.items())
        broken = [name for name, good in kept.items() if not good]
        say(f"{scenario}: {said}" + (f"; NOT: {', '.join(broken)}" if broken else ""))


class Rounds:
    """A trained job on one cluster, and the ways to lose something of it."""

    def __init__(
        self, cluster: LocalCluster, watch: Watch, timing: Timing, quiet: Quiet, results: Results
    ) -> None:
        self._cluster = cluster
        self._watch = watch
        self._timing = timing
        self._quiet = quiet
        self._results = results
        self._log = watch.step_log
        self._turn = 0

    async def leader(self) -> None:
        """Kill the leader and a worker at the same instant."""
        await self._healthy()
        watch = self._watch
        assert watch.status is not None
        leader = watch.status.supervisors[0]
        await self._standing_by(leader.supervisor)
        await self._quiet.wait()
        pids, before = dict(watch.pids), self._log.processes()
        victim = "worker:1"
        etcd = EtcdCoordination(
            [self._cluster.layout.etcd_endpoint],
            watch.status.cluster,
            rpc_deadline_ms=RPC_DEADLINE_MS,
            silence_ms=SILENCE_MS,
        )
        try:
            revision = (await etcd.list(keys.LEADER)).revision
            acting = asyncio.create_task(_first_action(etcd, revision + 1, victim))
            killed_ns = time.monotonic_ns()
            os.kill(leader.pid, signal.SIGKILL)
            os.kill(pids[victim], signal.SIGKILL)
            async with asyncio.timeout(WAIT_S):
                elected_ns, acted_ns = await acting
        finally:
            await etcd.close()
        await self._until(
            lambda: self._log.first_after(killed_ns, victim, not_of=before),
            f"a step of {victim} after the leader",
        )
        stepped = self._log.first_after(killed_ns, victim, not_of=before)
        assert stepped is not None
        others = {task: pid for task, pid in pids.items() if task != victim}
        await self._healthy()
        gap_ns = max(self._log.longest_gap_ns(killed_ns, task) for task in TRAINERS if task != victim)
        self._results.add(
            f"leader, {self._timing.profile}",
            {
                "next leader elected": (elected_ns - killed_ns) / 1e6,
                "first effective action": (acted_ns - killed_ns) / 1e6,
                "first step of the killed worker": (stepped.ns - killed_ns) / 1e6,
                "longest gap of an untouched task": gap_ns / 1e6,
            },
            {"untouched tasks keep their pids": all(watch.pids[task] == pid for task, pid in others.items())},
        )

    async def machine(self) -> None:
        """Kill an agent, its launchers and its tasks; with a fence device, and without."""
        await self._fence(with_devices=True)
        await self._lose_node(f"machine with a fence device, {self._timing.profile}", all_of_it=True)
        await self._fence(with_devices=False)
        await self._lose_node(f"machine, {self._timing.profile}", all_of_it=True)

    async def agent(self) -> None:
        """Kill an agent alone, for good."""
        await self._lose_node("agent", all_of_it=False)

    async def frozen(self) -> None:
        """Stop an agent past D, and thaw it when its tasks train elsewhere."""
        await self._healthy()
        await self._spares_warm()
        node, tasks = self._next_node()
        agent = self._watch.nodes[node].pid
        before, pids = self._log.processes(), dict(self._watch.pids)
        frozen_ns = time.monotonic_ns()
        os.kill(agent, signal.SIGSTOP)
        try:
            ended_ms = await self._ended(tasks, frozen_ns)
            first_ms = await self._first_new_step(frozen_ns, before)
            await self._healthy()
            settled, incidents = dict(self._watch.pids), len(self._watch.incidents)
        finally:
            os.kill(agent, signal.SIGCONT)
        thawed_step = self._watch.step
        await self._until(lambda: self._watch.step >= thawed_step + THAWED_STEPS, "steps after the thaw")
        await self._until(lambda: self._ready(node), f"{node} ready again")
        harmless = self._watch.pids == settled and len(self._watch.incidents) == incidents
        self._results.add(
            "frozen",
            {"tasks ended": ended_ms, "first new step": first_ms},
            {
                "tasks end before D": ended_ms < self._timing.d_ms,
                "all tasks are new ones": not set(settled.values()) & set(pids.values()),
                "harmless on thaw": harmless,
            },
        )

    async def _fence(self, *, with_devices: bool) -> None:
        """Write the supervisors' files anew, and have them read again."""
        await self._healthy()
        layout = self._cluster.layout
        devices = [
            {
                "command": [sys.executable, str(FENCE)],
                "options": {"directory": str(layout.state / agent_of(node))},
                "nodes": [node],
            }
            for node in sorted(self._watch.nodes)
        ]
        assert self._watch.status is not None
        for each in self._watch.status.supervisors:
            path = layout.config(each.supervisor)
            about, _, body = path.read_text().partition("\n")
            config = json.loads(body) | {"fence": {"devices": devices if with_devices else []}}
            path.write_text(f"{about}\n{json.dumps(config, indent=2)}\n")
            os.kill(each.pid, signal.SIGHUP)

    async def _lose_node(self, name: str, *, all_of_it: bool) -> None:
        await self._healthy()
        await self._spares_warm()
        node, tasks = self._next_node()
        before = self._log.processes()
        killed_ns = kill_on(self._cluster, node) if all_of_it else time.monotonic_ns()
        stopping = asyncio.create_task(
            asyncio.to_thread(self._cluster.stop_member, agent_of(node), int(signal.SIGKILL))
        )
        ended_ms = await self._ended(tasks, killed_ns)
        await stopping
        first_ms = await self._first_new_step(killed_ns, before)
        await self._healthy()
        await node_back(self._cluster, self._watch, node, WAIT_S)
        self._results.add(
            name,
            {"tasks ended": ended_ms, "first new step": first_ms},
            {"tasks end before D": ended_ms < self._timing.d_ms},
        )

    async def _healthy(self) -> None:
        """All tasks step, and something newer than what was there is committed."""
        watch, since_ns, committed = self._watch, time.monotonic_ns(), self._watch.committed_step
        await self._until(
            lambda: watch.healthy_since(since_ns) and watch.committed_step > committed,
            "all tasks stepping and a newer checkpoint",
        )

    async def _spares_warm(self) -> None:
        await spares_warm(self._cluster, self._watch, WAIT_S)
        await self._quiet.wait()

    async def _standing_by(self, leader: str) -> None:
        """The other supervisors have run for a while, so that one of them can take over."""

        def ready() -> bool:
            members = self._cluster.status().members
            others = [m for m in members if m.member.startswith("supervisor-") and m.member != leader]
            return any(m.pid and time.time() - m.since_wall_ms / 1000 > STAND_BY_S for m in others)

        await self._until(ready, "a supervisor that stands by")

    def _next_node(self) -> tuple[str, dict[str, ProcessRef]]:
        """Nodes with tasks take turns."""
        hosts = sorted({task.node for task in self._watch.tasks.values()})
        self._turn += 1
        node = hosts[self._turn % len(hosts)]
        found = {
            name: kernel.process(task.pid) for name, task in self._watch.tasks.items() if task.node == node
        }
        return node, {name: ref for name, ref in found.items() if ref is not None}

    def _ready(self, node: str) -> bool:
        return self._state(node) == "ready"

    def _state(self, node: str) -> str:
        view = self._watch.nodes.get(node)
        return view.state if view is not None else ""

    async def _ended(self, tasks: dict[str, ProcessRef], since_ns: int) -> float:
        """The time until the last of them was gone, by /proc, in ms."""
        await self._until(
            lambda: not any(ref.alive for ref in tasks.values()), f"the end of {', '.join(tasks)}"
        )
        return (time.monotonic_ns() - since_ns) / 1e6

    async def _first_new_step(self, since_ns: int, before: frozenset[int]) -> float:
        await self._until(
            lambda: self._log.first_after(since_ns, not_of=before), "the first step of a new process"
        )
        step = self._log.first_after(since_ns, not_of=before)
        assert step is not None
        return (step.ns - since_ns) / 1e6

    async def _until(self, condition: Callable[[], object], what: str) -> None:
        await until(self._log, condition, what, WAIT_S)


async def _first_action(etcd: EtcdCoordination, revision: int, victim: str) -> tuple[int, int]:
    """The times at which etcd told of the next election, and of the order for the victim's next attempt."""
    elected_ns = 0
    role, _, index = victim.partition(":")
    async for batch in etcd.watch("", revision):
        now_ns = time.monotonic_ns()
        for change in batch.changes:
            if isinstance(change, KeyDeleted):
                continue
            record: object = codec.decode(keys.family(change.key).record, change.value)
            if isinstance(record, LeaderRecord):
                elected_ns = now_ns
            wanted = isinstance(record, Assignment) and (record.role, str(record.index)) == (role, index)
            if wanted and elected_ns:
                return elected_ns, now_ns
    raise PromiseBroken("etcd's watch ended")


def main() -> int:
    """Run all and print the figures; exit code 1: one failed or broke a promise; 130: interrupted."""
    flags = _flags()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    info, results, code = machine(), Results(), 0
    try:
        for profile, plan in _plans(flags):
            try:
                _on_cluster(profile, plan, flags, results)
            except TfSupervisorError as error:
                say(f"failed: {error}")
                code = 1
    except KeyboardInterrupt:
        say("interrupted: the figures are of what was measured until now")
        code = 130
    report, good = _report(info, flags, results)
    print(json.dumps(report, indent=2))
    return code or (0 if good else 1)


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


Plan = tuple[tuple[str, int], ...]


def _plans(flags: Flags) -> tuple[tuple[str, Plan], ...]:
    fast = (
        ("leader", flags.leader_kills),
        ("machine", flags.node_kills),
        ("agent", flags.agent_kills),
        ("frozen", flags.freezes),
    )
    default = (("leader", flags.default_kills), ("machine", flags.default_node_kills))
    return ("fast", fast), ("default", default)


def _flags() -> Flags:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.failover", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--leader-kills", type=int, default=20, help="with the fast profile (%(default)s)")
    parser.add_argument("--default-kills", type=int, default=6, help="with the default profile (%(default)s)")
    parser.add_argument(
        "--node-kills",
        type=int,
        default=10,
        help="of a machine, each with and without a device (%(default)s)",
    )
    parser.add_argument(
        "--default-node-kills", type=int, default=4, help="the same with the default profile (%(default)s)"
    )
    parser.add_argument("--agent-kills", type=int, default=10, help="of an agent, for good (%(default)s)")
    parser.add_argument("--freezes", type=int, default=5, help="of an agent (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="3 of each")
    parser.add_argument(
        "--step-delay-ms", type=float, default=10.0, help="pause of each replica (%(default)s)"
    )
    parser.add_argument(
        "--quiet-s",
        type=float,
        default=0.0,
        help="wait this long before a kill for an idle moment (%(default)s)",
    )
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    given = parser.parse_args()
    most = 3 if given.quick else 1_000_000
    return Flags(
        leader_kills=min(most, given.leader_kills),
        default_kills=min(most, given.default_kills),
        node_kills=min(most, given.node_kills),
        default_node_kills=min(most, given.default_node_kills),
        agent_kills=min(most, given.agent_kills),
        freezes=min(most, given.freezes),
        step_delay_ms=given.step_delay_ms,
        quiet=Quiet(given.quiet_s),
        state=given.state.resolve(),
    )


def _on_cluster(profile: str, plan: Plan, flags: Flags, results: Results) -> None:
    directory = flags.state / profile
    shutil.rmtree(directory, ignore_errors=True)
    training = Training(ENDLESS, flags.step_delay_ms, SAVE_STEPS, directory / "steps")
    with LocalCluster(directory, profile=profile) as cluster:
        asyncio.run(_rounds(cluster, PROFILES[profile], training, plan, flags.quiet, results))


async def _rounds(
    cluster: LocalCluster, timing: Timing, training: Training, plan: Plan, quiet: Quiet, results: Results
) -> None:
    spec = digits_job(training, cluster.layout.checkpoint_base)
    async with cluster.client(deadline_s=30.0) as client:
        await client.submit(SubmitRequest(spec))
        watch = Watch(client, spec.name, StepLog(training.step_log), status_every_s=STATUS_EVERY_S)
        rounds = Rounds(cluster, watch, timing, quiet, results)
        ways: dict[str, Callable[[], Coroutine[None, None, None]]] = {
            "leader": rounds.leader,
            "machine": rounds.machine,
            "agent": rounds.agent,
            "frozen": rounds.frozen,
        }

        async def play() -> None:
            for name, count in plan:
                for _ in range(count):
                    await ways[name]()

        await beside(play(), *watch.looks())


def _report(info: dict[str, object], flags: Flags, results: Results) -> tuple[dict[str, object], bool]:
    table: dict[str, Figures | None] = {name: figures(times) for name, times in results.times.items()}
    acted, node_ms = table.get("leader, fast: first effective action"), 800 + PROFILES["fast"].d_ms + 800
    fenced = "machine with a fence device"
    goals = [
        Goal("leader, fast: first effective action p99, ms", 2500, acted.p99 if acted else None),
        *(
            Goal(f"{name}: first new step p50, ms", most_ms, found.p50 if found else None)
            for name, most_ms in (
                ("machine, fast", node_ms),
                ("agent", node_ms),
                (f"{fenced}, fast", 2500),
                (f"{fenced}, default", 6000),
            )
            for found in (table.get(f"{name}: first new step"),)
        ),
    ]
    promises = {name: f"{sum(rounds)} of {len(rounds)}" for name, rounds in results.kept.items()}
    report: dict[str, object] = {
        "benchmark": "failover",
        "machine": info,
        "settings": {
            "step_delay_ms": flags.step_delay_ms,
            "save_steps": SAVE_STEPS,
            "quiet_s": flags.quiet.patience_s,
        },
        "times_ms": {name: asdict(found) for name, found in table.items() if found is not None},
        "promises_kept": promises,
        "goals": [goal.row() for goal in goals],
    }
    return report, all(all(rounds) for rounds in results.kept.values())


if __name__ == "__main__":
    sys.exit(main())
