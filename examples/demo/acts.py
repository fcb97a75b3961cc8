"""The kills, one after the other. Each waits until the job is healthy, kills, and shows what came of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from chaos.hdfs import HdfsCluster
from examples.demo.kernel import ProcessRef, process
from examples.demo.pool import Pool
from examples.demo.screen import Screen
from examples.demo.watch import TRAINERS, PromiseBroken, Watch
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.incident import PHASES, Outcome
from supervisor.contract.views.jobs import IncidentView

HEALTHY_S = 30.0
RECOVERED_S = 30.0
COMMITTED_S = 60.0
UNTOUCHED_STEPS_S = 15.0
START_S = 15.0
"""If the first start takes longer, all limits grow with it: the machine is slow, or busy."""
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Kill:
    """One act, as report.json has it.

    Attributes:
        outside_ms: from the kill to the first new step, by the program's own step log: for a restart, of a
            process that did not run at the kill; else the longest that any trainer went without a step.
        incident: the id of the incident that it became; empty when nothing had to be restarted.
        to_step: the step that training went on from.
    """

    what: str
    target: str
    pid: int
    outside_ms: int
    incident: str = ""
    to_step: int = -1
    facts: dict[str, int] = field(default_factory=dict)


class Acts:
    """The whole story, on a running cluster with a submitted job."""

    def __init__(
        self,
        cluster: LocalCluster,
        watch: Watch,
        screen: Screen,
        d_ms: int,
        hdfs: HdfsCluster | None,
        pool: Pool | None = None,
    ) -> None:
        self._cluster = cluster
        self._hdfs = hdfs
        self._pool = pool
        self._watch = watch
        self._screen = screen
        self._d_ms = d_ms
        self._slow = 1.0
        self.kills: list[Kill] = []

    async def play(self, start_s: float) -> None:
        """All acts in turn; raises PromiseBroken when one does not end as promised.

        `start_s`: how long it took until all tasks stepped.
        """
        self._slow = max(1.0, start_s / START_S)
        acts: tuple[Callable[[], Awaitable[Kill]], ...] = (
            self.worker,
            *([self.data_node] if self._hdfs is not None else []),
            self.parameter_server,
            self.agent,
            self.leader,
            self.node if self._pool is None else self.container,
        )
        for act in acts:
            self.kills.append(await act())

    async def worker(self) -> Kill:
        """A worker is restarted alone, in place; the others do not stop."""
        return await self._kill_task("worker:0", "a worker")

    async def data_node(self) -> Kill:
        """One of three holders of the checkpoints: training does not notice, and commits go on without it."""
        watch, hdfs = self._watch, self._hdfs
        assert hdfs is not None
        await self._healthy()
        victim = hdfs.datanode(0)
        pid, pids, known = victim.pid, watch.pids, len(watch.incidents)
        self._screen.title(
            f"Kill a DataNode of HDFS ({victim.name}, pid {pid}, SIGKILL); it does not come back"
        )
        enough = max(watch.committed_step, watch.step) + 1
        killed_ns = time.monotonic_ns()
        await asyncio.to_thread(victim.kill)
        await watch.until(
            lambda: watch.committed_step >= enough, "a commit without that DataNode", COMMITTED_S * self._slow
        )
        commit_ms = _ms_since(killed_ns)
        gap_ms = self._gap_ms(killed_ns, pids, known, victim.name)
        self._screen.say(
            f"a checkpoint that was saved after the kill is committed {commit_ms} ms after it; same pids, no "
            f"incident; no task went longer than {gap_ms} ms without a step",
            "green",
        )
        facts = {"committed_ms": commit_ms}
        return Kill("datanode", victim.name, pid, gap_ms, to_step=watch.step, facts=facts)

    async def parameter_server(self) -> Kill:
        """The variables are gone, so all restart from the newest checkpoint."""
        return await self._kill_task("ps:0", "the parameter server, which holds the model")

    async def agent(self) -> Kill:
        """The keeper restarts it, and the new agent adopts the tasks: nothing is restarted."""
        watch = self._watch
        await self._healthy()
        per_node = Counter(task.node for task in watch.tasks.values())
        node = max(sorted(per_node), key=lambda name: per_node[name])
        pid = watch.nodes[node].pid
        mine = [name for name, task in watch.tasks.items() if task.node == node]
        self._screen.title(
            f"Kill the agent of {node} (pid {pid}, SIGKILL), which looks after {', '.join(mine)}"
        )

        def adopted() -> bool:
            view = watch.nodes.get(node)
            return view is not None and view.state == "ready" and view.pid not in (0, pid)

        return await self._untouched("agent", node, pid, adopted, lambda: watch.nodes[node].pid)

    async def leader(self) -> Kill:
        """The other supervisor takes over; training does not notice."""
        watch = self._watch
        await self._healthy()
        assert watch.status is not None
        leader = watch.status.supervisors[0]
        self._screen.title(f"Kill the leading supervisor ({leader.supervisor}, pid {leader.pid}, SIGKILL)")

        def led() -> bool:
            found = watch.status.supervisors if watch.status is not None else ()
            return bool(found) and found[0].pid != leader.pid

        def who() -> int:
            assert watch.status is not None
            return watch.status.supervisors[0].pid

        return await self._untouched("leader", leader.supervisor, leader.pid, led, who)

    async def node(self) -> Kill:
        """An agent that does not come back: its tasks end by themselves before D and go on elsewhere."""
        watch = self._watch
        await self._healthy()
        node = self._node_to_lose()
        tasks = {name: task for name, task in watch.tasks.items() if task.node == node}
        refs = {name: process(task.pid) for name, task in tasks.items()}
        member, pid = node.replace("node-", "agent-"), watch.nodes[node].pid
        self._screen.title(
            f"Kill the agent of {node} for good (pid {pid}); D is {self._d_ms} ms; on it run "
            + ", ".join(f"{name} (pid {task.pid})" for name, task in tasks.items())
        )
        before = self._before()
        killed_ns = time.monotonic_ns()
        stopping = asyncio.create_task(
            asyncio.to_thread(self._cluster.stop_member, member, int(signal.SIGKILL))
        )
        try:
            ended_ms = await self._ended_by_themselves(refs, killed_ns)
        finally:
            await stopping
        incident = await self._recovered(before, killed_ns)
        homes = ", ".join(f"{name} on {watch.tasks[name].node}" for name in tasks)
        self._screen.say(f"they go on elsewhere: {homes}", "green")
        return self._restarted("node", node, pid, killed_ns, before, incident, {"tasks_ended_ms": ended_ms})

    async def container(self) -> Kill:
        """YARN kills an agent's container: its keeper ends the node, and its tasks go on elsewhere."""
        pool, watch = self._pool, self._watch
        assert pool is not None
        await self._healthy()
        node = self._node_to_lose()
        names, pid = [name for name, task in watch.tasks.items() if task.node == node], watch.nodes[node].pid
        self._screen.title(f"Have YARN kill the container of {node}; on it run {', '.join(names)}")
        before = self._before()
        container = await asyncio.to_thread(pool.kill, node)
        told_ns = time.monotonic_ns()
        incident = await self._recovered(before, told_ns)
        homes = ", ".join(f"{name} on {watch.tasks[name].node}" for name in names)
        self._screen.say(f"{container} is gone; they go on elsewhere: {homes}", "green")
        return self._restarted("container", node, pid, told_ns, before, incident)

    async def _kill_task(self, name: str, what: str) -> Kill:
        await self._healthy()
        task = self._watch.tasks[name]
        self._screen.title(f"Kill {what}: {name} on {task.node} (pid {task.pid}, SIGKILL)")
        before = self._before()
        killed_ns = time.monotonic_ns()
        os.kill(task.pid, signal.SIGKILL)
        incident = await self._recovered(before, killed_ns)
        return self._restarted(name.partition(":")[0], name, task.pid, killed_ns, before, incident)

    async def _untouched(
        self, what: str, target: str, pid: int, back: Callable[[], bool], successor: Callable[[], int]
    ) -> Kill:
        """Kill a daemon and show that training did not notice."""
        watch = self._watch
        pids, known = watch.pids, len(watch.incidents)
        self._screen.say(f"tasks before: {_show(pids)}")
        killed_ns = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        await watch.until(back, f"a successor of {target}", RECOVERED_S * self._slow)
        back_ms = _ms_since(killed_ns)
        stepped_ns = time.monotonic_ns()
        await watch.until(
            lambda: all(watch.step_log.first_after(stepped_ns, task) is not None for task in TRAINERS),
            "a step of every task",
            UNTOUCHED_STEPS_S * self._slow,
        )
        self._screen.say(f"tasks after:  {_show(watch.pids)}")
        gap_ms = self._gap_ms(killed_ns, pids, known, target)
        verb = "adopted the tasks" if what == "agent" else "leads"
        leader = watch.status.supervisors[0].supervisor if watch.status is not None else ""
        name = f"the new agent of {target}" if what == "agent" else leader
        self._screen.say(
            f"{name} (pid {successor()}) {verb} after {back_ms} ms; same pids, no incident; "
            f"no task went longer than {gap_ms} ms without a step",
            "green",
        )
        return Kill(what, target, pid, gap_ms, to_step=watch.step, facts={"successor_ms": back_ms})

    def _gap_ms(self, killed_ns: int, pids: dict[str, int], known: int, target: str) -> int:
        """The longest time without a step; raises PromiseBroken when tasks were restarted for it."""
        watch = self._watch
        if watch.pids != pids or len(watch.incidents) != known:
            raise PromiseBroken(f"the tasks were restarted, though only {target} was killed")
        return max(watch.step_log.longest_gap_ns(killed_ns, task) for task in TRAINERS) // 1_000_000

    async def _healthy(self) -> None:
        """All tasks step, and there is a checkpoint that is newer than when we began to wait."""
        watch, since_ns = self._watch, time.monotonic_ns()
        enough = max(watch.committed_step, watch.step) + 1
        await watch.until(
            lambda: watch.healthy_since(since_ns) and watch.committed_step >= enough,
            "all tasks stepping and a newer checkpoint",
            HEALTHY_S * self._slow,
        )

    def _before(self) -> _Before:
        return _Before(self._watch.step_log.processes(), {incident.id for incident in self._watch.incidents})

    async def _recovered(self, before: _Before, killed_ns: int) -> IncidentView:
        """Wait for the incident to be over and for a step of a new process; tell its phases."""
        watch = self._watch

        def over() -> bool:
            fresh = before.fresh(watch.incidents)
            stepped = watch.step_log.first_after(killed_ns, not_of=before.pids) is not None
            return stepped and any(incident.outcome is Outcome.RECOVERED for incident in fresh)

        await watch.until(over, "the recovery", RECOVERED_S * self._slow)
        fresh = before.fresh(watch.incidents)
        incident = next(found for found in fresh if found.outcome is Outcome.RECOVERED)
        known = incident.phases_ms
        phases = ", ".join(f"{name.replace('_', ' ')} {known[name]}" for name in PHASES if name in known)
        self._screen.say(f"phases in ms: {phases}; total {incident.total_ms}")
        return incident

    def _restarted(
        self,
        what: str,
        target: str,
        pid: int,
        killed_ns: int,
        before: _Before,
        incident: IncidentView,
        facts: dict[str, int] | None = None,
    ) -> Kill:
        first = self._watch.step_log.first_after(killed_ns, not_of=before.pids)
        assert first is not None
        outside_ms = (first.ns - killed_ns) // 1_000_000
        self._screen.say(
            f"training went on at step {first.step} (it was at {incident.from_step}); outside stopwatch: "
            f"the first new step {outside_ms} ms after the kill",
            "bold green",
        )
        return Kill(what, target, pid, outside_ms, incident.id, first.step, facts or {})

    def _node_to_lose(self) -> str:
        """One with a worker, and if possible without what the others need, so that they are seen to go on."""
        hosts: dict[str, set[str]] = {}
        for task in self._watch.tasks.values():
            hosts.setdefault(task.node, set()).add(task.role)
        return min(
            sorted(hosts), key=lambda node: ("worker" not in hosts[node], len(hosts[node] - {"worker"}))
        )

    async def _ended_by_themselves(self, refs: dict[str, ProcessRef | None], killed_ns: int) -> int:
        """Watch the processes in /proc until none is left; raises PromiseBroken at D. Returns ms."""
        left = {name: ref for name, ref in refs.items() if ref is not None}
        last_ms = 0
        while left:
            for name, ref in list(left.items()):
                if not ref.alive:
                    last_ms = _ms_since(killed_ns)
                    self._screen.say(
                        f"{name} (pid {ref.pid}) ended by itself {last_ms} ms after its agent (by /proc)",
                        "yellow",
                    )
                    del left[name]
            if _ms_since(killed_ns) > self._d_ms and left:
                raise PromiseBroken(f"{', '.join(left)} outlived D = {self._d_ms} ms")
            await asyncio.sleep(_POLL_S)
        return last_ms


@dataclass(frozen=True, slots=True)
class _Before:
    """The tasks and incidents at the time of a kill."""

    pids: frozenset[int]
    incidents: set[str]

    def fresh(self, incidents: tuple[IncidentView, ...]) -> list[IncidentView]:
        return [incident for incident in incidents if incident.id not in self.incidents]


def logs_of(state: Path) -> str:
    """A line that tells where the logs are."""
    return f"logs of the daemons: {state / 'logs'}; of the tasks: under {state}/agent-*"


def _show(pids: dict[str, int]) -> str:
    return "  ".join(f"{name}={pid}" for name, pid in pids.items())


def _ms_since(ns: int) -> int:
    return (time.monotonic_ns() - ns) // 1_000_000
