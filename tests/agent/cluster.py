"""One node under test: a real agent process, a real etcd, and a hand that writes the leader's records."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from agent.inside.processes import fence
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Op, Put
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import (
    Assignment,
    Closing,
    ClusterSpec,
    JobPhase,
    JobSwitch,
    RoleAddresses,
)
from supervisor.contract.errors import CoordinationUnreachable
from supervisor.contract.ids import TaskId
from supervisor.contract.observed import AttemptReport, Incarnation, Prepared, Staged

T = TypeVar("T")
PROGRAM = """
import os, sys, time
step = int(os.environ["TFSUP_BASE_STEP"])
end = time.monotonic() + 240
while time.monotonic() < end:
    step += 1
    print("step", step, flush=True)
    time.sleep(0.02)
"""

PATIENT = {"control_plane_grace": "60s"}
"""A D that the restart of an agent does not outlast, however busy its machine is."""


class Node:
    """An agent on a fresh directory, driven through etcd alone."""

    def __init__(
        self,
        endpoint: str,
        name: str = "n1",
        root: Path | None = None,
        more: Mapping[str, object] | None = None,
        profile: str = "fast",
    ) -> None:
        self.name = name
        own = {"task_user": f"{os.geteuid()}:{os.getegid()}", "stores": ["file:"]}
        self.more = {**own, **(more or {})}
        self.profile = profile
        self.endpoint = endpoint
        self.root = root or Path(tempfile.mkdtemp(prefix="agent-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.enter: tuple[str, ...] = ()
        """Words before the command that run the agent elsewhere, as in another network."""
        self.coordination = EtcdCoordination([endpoint], "test", rpc_deadline_ms=20_000, silence_ms=20_000)
        (self.root / "prog.py").write_text(PROGRAM)
        (self.root / "work").mkdir(exist_ok=True)

    def config(self) -> Path:
        path = self.root / f"{self.name}.yaml"
        path.write_text(
            f"""\
cluster: test
etcd: {{endpoints: ["{self.endpoint}"]}}
listen: unix:{self.root}/{self.name}-api.sock
profile: {self.profile}
state_dir: {self.root}/{self.name}
node: {self.name}
host: 127.0.0.1
supervisors: ["unix:{self.root}/nobody.sock"]
port_low: 21000
port_high: 21999
checkpoint_parent: {self.root}/ckpt
lock_dir: {self.root}/locks
"""
            + "".join(f"{key}: {json.dumps(value)}\n" for key, value in self.more.items())
        )
        (self.root / "locks").mkdir(exist_ok=True)
        return path

    def start(self) -> None:
        with (self.root / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.enter, sys.executable, "-m", "agent.main", "--config", str(self.config())],
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[2],
            )

    @property
    def log(self) -> str:
        return (self.root / "agent.log").read_text()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    async def close(self) -> None:
        self.kill()
        for directory in (self.root / self.name / "launchers").glob("*"):
            await asyncio.to_thread(fence.fence, f"{directory.name}#")
        await self.coordination.close()

    async def read(self, kind: type[T], key: str) -> T | None:
        found = await self.coordination.get(key)
        return codec.decode(kind, found.value) if found is not None else None

    async def put(self, key: str, record: object) -> None:
        result = await self.coordination.txn((), [Put(key, codec.encode(record))])
        assert result.succeeded

    async def do(self, *ops: Op) -> None:
        await self.coordination.txn((), ops)

    async def incarnation(self) -> Incarnation | None:
        return await self.read(Incarnation, keys.node(self.name))

    async def until(self, what: Callable[[], Awaitable[T | None]], timeout_s: float = 40.0) -> T:
        """The first answer that is not None; that etcd does not answer for a moment is none."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with suppress(CoordinationUnreachable):
                found = await what()
                if found is not None:
                    return found
            await asyncio.sleep(0.01)
        raise AssertionError(f"it did not happen in {timeout_s} s:\n{self.log[-4000:]}")

    async def until_printed(self, text: str, timeout_s: float = 30.0) -> str:
        """The output of the attempt that has printed this."""

        async def look() -> str | None:
            found = [each.read_text() for each in self.root.glob(f"{self.name}/attempts/*/*/output.log")]
            return next((each for each in found if text in each), None)

        return await self.until(look, timeout_s)

    async def until_joined(self, other_than: str = "") -> Incarnation:
        async def joined() -> Incarnation | None:
            found = await self.incarnation()
            return found if found is not None and found.incarnation != other_than else None

        return await self.until(joined)


class Job:
    """The leader's part for a job of one worker."""

    def __init__(self, node: Node, me: Incarnation, name: str = "job", argv: tuple[str, ...] = ()) -> None:
        self.node = node
        self.name = name
        self.uuid = f"{name}-uuid"
        self.task = TaskId(name, "worker", 0)
        self.saves = False
        self.switch = JobSwitch(name, self.uuid, JobPhase.WAITING, 0)
        self.assignment = Assignment(
            name,
            self.uuid,
            "worker",
            0,
            generation=1,
            plan_id="p1",
            node=node.name,
            incarnation=me.incarnation,
            attempt=1,
            argv=argv or (sys.executable, str(node.root / "prog.py")),
            workdir=str(node.root / "work"),
            step_patterns=(r"step (\d+)",),
            checkpoint_uri=f"file://{node.root}/store",
        )

    def next_generation(self) -> None:
        generation = self.assignment.generation + 1
        self.assignment = replace(self.assignment, generation=generation, plan_id=f"p{generation}", attempt=1)

    async def write(self) -> None:
        key = keys.assignment(self.node.name, self.task, self.assignment.plan_id)
        await self.node.do(
            Put(keys.switch(self.name), codec.encode(self.switch)), Put(key, codec.encode(self.assignment))
        )

    async def prepare(self) -> Prepared:
        await self.write()
        return await self.node.until(self.prepared)

    async def prepared(self) -> Prepared | None:
        """The answer of its agent; None while there is none, or only a delay with its reason."""
        found = await self.node.read(Prepared, keys.prepared(self.task, self.assignment.plan_id))
        return found if found is not None and not found.delay else None

    async def delay(self) -> str | None:
        """Why its agent cannot answer for now."""
        found = await self.node.read(Prepared, keys.prepared(self.task, self.assignment.plan_id))
        return found.delay if found is not None and found.delay else None

    async def stage(self, base: CheckpointRef | None = None) -> Staged:
        self.switch = replace(self.switch, closing=Closing(self.assignment.plan_id, base))
        await self.write()
        key = keys.staged(self.name, self.assignment.plan_id, self.node.name)
        return await self.node.until(lambda: self.node.read(Staged, key))

    async def flip(self, *addresses: str) -> None:
        spec = ClusterSpec(
            self.name,
            self.assignment.generation,
            self.assignment.plan_id,
            (RoleAddresses("worker", addresses),),
        )
        closing, plan = self.switch.closing, self.assignment
        self.switch = JobSwitch(
            self.name,
            self.uuid,
            JobPhase.RUNNING,
            plan.generation,
            plan.plan_id,
            base=closing.base if closing is not None else None,
            saver=self.task.member if self.saves else "chief.0",
        )
        await self.node.put(keys.cluster_spec(self.name, self.assignment.plan_id), spec)
        await self.write()

    async def run(self) -> AttemptReport:
        """Prepare, close, flip, and wait for the first attempt."""
        prepared = await self.prepare()
        assert not prepared.failure, prepared.failure
        staged = await self.stage()
        assert staged.failure is None, staged.detail
        await self.flip(prepared.address)
        return await self.running()

    async def running(self) -> AttemptReport:
        return await self.node.until(lambda: self.report("running"))

    async def exited(self) -> AttemptReport:
        async def dead() -> AttemptReport | None:
            found = await self.report("exited")
            return found if found and found.exit and found.exit.confirmed_dead else None

        return await self.node.until(dead)

    async def report(self, state: str) -> AttemptReport | None:
        found = await self.node.read(AttemptReport, keys.attempt(self.assignment.attempt_id))
        return found if found is not None and found.state.value == state else None


def is_alive(report: AttemptReport) -> bool:
    found = fence.read_process(report.pid)
    return found is not None and found.start_ticks == report.start_ticks


async def fence_by_command(node: Node) -> subprocess.CompletedProcess[str]:
    """`tfsup-agent --fence`, as an operator or systemd runs it."""
    command = [*node.enter, sys.executable, "-m", "agent.main", "--config", str(node.config()), "--fence"]
    return await asyncio.to_thread(
        subprocess.run,
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
