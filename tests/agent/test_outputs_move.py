"""A program that appends to its output directory, through its agent's death, a move and its job's end."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.outputs.index import OutputIndex, directory_of
from recovery.outputs.stored import read_index
from recovery.stores.local import LocalStore
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete, Put
from supervisor.contract.codec import encode
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import StoreUnreachable
from tests.agent.cluster import Job, Node
from tests.support.etcd_server import EtcdServer

NUMBERS = itertools.count(1)
PROGRAM = """
import os, time
path = os.path.join(os.environ["TFSUP_OUTPUT_DIR"], "events")
lines = open(path).read().splitlines() if os.path.exists(path) else []
print("found", len(lines), "lines, the last is", lines[-1] if lines else "none", flush=True)
end = time.monotonic() + 240
step = len(lines)
while time.monotonic() < end:
    step += 1
    with open(path, "a") as file:
        file.write(f"{step}\\n")
    print("step", step, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
async def nodes(etcd: EtcdServer) -> AsyncIterator[tuple[Node, Node]]:
    made = [Node(etcd.endpoint, name=f"o{next(NUMBERS)}", profile="default") for _ in range(2)]
    yield made[0], made[1]
    for node in made:
        await node.close()


def with_program(node: Node, job: Job, uri: str) -> Job:
    (node.root / "append.py").write_text(PROGRAM)
    argv = (sys.executable, str(node.root / "append.py"))
    job.assignment = replace(
        job.assignment, argv=argv, checkpoint_uri=uri, output_budget_bytes=1 << 20, keep_work_ms=1000
    )
    return job


@pytest.mark.slow
async def test_outputs_survive_their_agent_a_move_and_the_end_of_the_job(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    first.start()
    me = await first.until_joined()
    uri = f"file://{first.root}/store"
    job = with_program(first, Job(first, me, name=f"job-{first.name}"), uri)
    running = await job.run()
    await first.until_printed("step 5")
    first.kill()
    first.start()
    await first.until_joined(other_than=me.incarnation)
    await first.until_printed("step 20")
    os.kill(running.pid, signal.SIGKILL)
    await job.exited()
    store = LocalStore(Path(f"{first.root}/store"))
    base = directory_of(job.uuid, "worker.0")

    async def whole() -> OutputIndex | None:
        try:
            index = await read_index(store, base)
        except StoreUnreachable:
            return None
        return index if index is not None and not index.writing and index.node in written else None

    written = {first.name}
    size = (await first.until(whole)).files["events"].size
    local = first.root / "ckpt" / job.uuid / "outputs-worker.0/events"
    assert local.stat().st_size == size

    second.start()
    moved = with_program(second, Job(second, await second.until_joined(), name=job.name), uri)
    moved.switch = job.switch
    moved.next_generation()
    await first.do(Delete(keys.assignment(first.name, job.task, "p1")))
    running = await moved.run()
    lines = local.read_text().splitlines()
    await second.until_printed(f"found {len(lines)} lines, the last is {lines[-1]}\n")
    await second.until_printed(f"step {len(lines) + 5}")
    os.kill(running.pid, signal.SIGKILL)
    await moved.exited()
    over = replace(moved.switch, phase=JobPhase.SUCCEEDED)
    await second.do(Put(keys.switch(job.name), encode(over)))
    written = {second.name}
    assert (await second.until(whole)).files["events"].size > size

    async def removed() -> bool | None:
        homes = [node.root / "ckpt" / job.uuid for node in nodes]
        return True if not any(home.exists() for home in homes) else None

    assert await second.until(removed)
