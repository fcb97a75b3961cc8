"""`python -m benchmarks.starting`: how soon an agent starts what is asked for, and its cost.

One real agent and one real etcd; the leader's records are written by hand. A node runs some jobs of one task
each. In turn one task is killed, or all of them at once, and the records that ask for the next attempts are
written when etcd has all exits. Measured are the time from that write until each program begins, and the
agent's steps, state-file writes and processor time from the kill until all run again; and its processor time
while nothing happens. With `--before REV` an agent of that revision does the same in turn with today's. JSON
on standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.support.figures import figures, machine
from benchmarks.support.revision import in_turns
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Op, Put
from supervisor.contract.observed import AttemptReport
from supervisor.contract.timing import PROFILES
from tests.agent.cluster import Job, Node
from tests.support.etcd_server import EtcdServer

QUIET_S = 5.0
SETTLED_S = 1.0
PROGRAM = """
import time
print("began", time.clock_gettime_ns(time.CLOCK_BOOTTIME), flush=True)
step = 0
while True:
    step += 1
    print("step", step, flush=True)
    time.sleep(0.1)
"""
COUNTED = """
import os, struct, sys
import agent.daemon
file, taken, decide = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT), 0, agent.daemon.step
def counted(*given):
    global taken
    taken += 1
    os.pwrite(file, struct.pack("<q", taken), 0)
    return decide(*given)
agent.daemon.step = counted
from agent.main import main
sys.exit(main())
"""


class CountedNode(Node):
    """An agent of the code in `tree` that counts its steps."""

    tree: Path

    def start(self) -> None:
        """Start it."""
        with (self.root / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COUNTED, str(self.steps_file), "--config", str(self.config())],
                stdout=log,
                stderr=log,
                cwd=self.tree,
            )

    @property
    def steps_file(self) -> Path:
        """The file with the number of its steps."""
        return self.root / "steps"

    def cost(self) -> Cost:
        """The agent's until now."""
        assert self.process is not None
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        record = json.loads((self.root / self.name / "agent.json").read_text())
        return Cost(
            int.from_bytes(self.steps_file.read_bytes(), "little"),
            int(record["serial"]),
            sum(map(int, stat[11:13])) * 1000 / os.sysconf("SC_CLK_TCK"),
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """An agent's steps, writes of its state file, and ms of processor time."""

    steps: int
    writes: int
    processor_ms: float

    def since(self, before: Cost) -> Cost:
        """The cost since `before`."""
        return Cost(
            self.steps - before.steps, self.writes - before.writes, self.processor_ms - before.processor_ms
        )


@dataclass(slots=True)
class Samples:
    """Of one agent and one kind of incident. `starts_ms`: of each task; `last_ms`: of each incident."""

    starts_ms: list[float] = field(default_factory=list)
    last_ms: list[float] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        """For JSON."""
        return {
            "start_ms": _figures(self.starts_ms),
            "last_start_ms": _figures(self.last_ms),
            "steps": _figures([each.steps for each in self.costs]),
            "state_file_writes": _figures([each.writes for each in self.costs]),
            "processor_ms": _figures([each.processor_ms for each in self.costs]),
        }


@dataclass(slots=True)
class Results:
    """Of one agent."""

    incidents: dict[str, Samples] = field(default_factory=lambda: {"one": Samples(), "all": Samples()})
    quiet: list[Cost] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        """For JSON."""
        return {
            **{f"{kind}_killed": samples.row() for kind, samples in self.incidents.items()},
            "per_quiet_second": {
                "steps": _figures([each.steps / QUIET_S for each in self.quiet]),
                "processor_ms": _figures([each.processor_ms / QUIET_S for each in self.quiet]),
            },
        }


class Site:
    """A node whose jobs all run."""

    def __init__(self, node: CountedNode, jobs: list[Job]) -> None:
        self._node = node
        self._jobs = jobs

    @classmethod
    async def begin(cls, node: CountedNode, tasks: int) -> Site:
        """Start the agent, and each job in its first generation."""
        (node.root / "prog.py").write_text(PROGRAM)
        node.start()
        me = await node.until_joined()
        site = cls(node, [Job(node, me, name=f"job{number}") for number in range(tasks)])
        for job in site._jobs:
            job.assignment = replace(job.assignment, plan_id=f"{job.name}-1")
            await job.run()
        await asyncio.sleep(SETTLED_S)
        return site

    async def quiet(self) -> Cost:
        """While nothing happens."""
        before = self._node.cost()
        await asyncio.sleep(QUIET_S)
        return self._node.cost().since(before)

    async def incident(self, jobs: list[Job], samples: Samples) -> None:
        """Kill the tasks, have them started again, and time it."""
        before = self._node.cost()
        for report in [await job.running() for job in jobs]:
            os.kill(report.pid, signal.SIGKILL)
        ops: list[Op] = []
        for job in jobs:
            await job.exited()
            job.assignment = replace(job.assignment, attempt=job.assignment.attempt + 1)
            key = keys.assignment(self._node.name, job.task, job.assignment.plan_id)
            ops.append(Put(key, codec.encode(job.assignment)))
        written_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        await self._node.do(*ops)
        for report in [await job.running() for job in jobs]:
            samples.starts_ms.append((await self._began_ns(report) - written_ns) / 1e6)
        samples.last_ms.append(max(samples.starts_ms[-len(jobs) :]))
        samples.costs.append(self._node.cost().since(before))
        await asyncio.sleep(SETTLED_S)

    async def both(self, ones: int, alls: int, results: Results) -> None:
        """So many incidents of each kind."""
        turns = itertools.cycle(self._jobs)
        for _ in range(ones):
            await self.incident([next(turns)], results.incidents["one"])
        for _ in range(alls):
            await self.incident(self._jobs, results.incidents["all"])

    async def _began_ns(self, report: AttemptReport) -> int:
        directory = self._node.root / self._node.name / "attempts" / f"{report.job}-uuid"
        path = directory / report.attempt.dirname / "output.log"

        async def look() -> int | None:
            first, _, rest = path.read_text().partition("\n")
            return int(first.split()[1]) if rest else None

        return await self._node.until(look)


async def _measure(tree: Path, flags: argparse.Namespace, results: Results) -> None:
    with EtcdServer() as etcd:
        node = CountedNode(etcd.endpoint, profile=flags.profile)
        node.tree = tree
        try:
            site = await Site.begin(node, flags.tasks)
            results.quiet.append(await site.quiet())
            await site.both(flags.ones, flags.alls, results)
        finally:
            await node.close()
            shutil.rmtree(node.root, ignore_errors=True)


def _figures(samples: list[float] | list[int]) -> dict[str, object] | None:
    found = figures([round(each, 1) for each in samples])
    return None if found is None else asdict(found)


def main() -> int:
    """Parse the flags, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.starting", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--before", help="a revision whose agent is measured, too")
    parser.add_argument("--tasks", type=int, default=8, help="jobs of one task on the node (%(default)s)")
    parser.add_argument("--blocks", type=int, default=4, help="turns of each agent (%(default)s)")
    parser.add_argument("--ones", type=int, default=8, help="kills of one task in a block (%(default)s)")
    parser.add_argument("--alls", type=int, default=4, help="kills of all tasks in a block (%(default)s)")
    parser.add_argument("--profile", choices=tuple(PROFILES), default="fast", help="(%(default)s)")
    flags = parser.parse_args()
    about, results = machine(), dict[str, Results]()
    for name, tree in in_turns(flags.before, flags.blocks):
        asyncio.run(_measure(tree, flags, results.setdefault(name, Results())))
    document = {
        "benchmark": "starting",
        "machine": about,
        "settings": vars(flags),
        "agent_tick_ms": 2 * PROFILES[flags.profile].tick_ms,
        "agents": {name: found.row() for name, found in results.items()},
    }
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
