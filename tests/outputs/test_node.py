"""A node's part in outputs: made before a start, sent while tasks run, removed once nothing needs them."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.instructions import PrepareOutputs
from agent.outputs import NodeOutputs
from recovery.outputs.index import OutputIndex, directory_of
from recovery.outputs.stored import read_index
from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryCheckpointStore, Moment
from supervisor.adapters.clock import BootClock
from supervisor.adapters.memory import MemoryCoordination
from supervisor.adapters.memory_store import MemoryStore
from supervisor.contract import keys
from supervisor.contract.boundaries import CheckpointStore, Put
from supervisor.contract.errors import StoreUnreachable
from supervisor.contract.ids import AttemptId, TaskId
from tests.checkpoints.test_saver import until
from tests.support.sinks import ListSink

UUID = "uuid-1"
TASK = TaskId("job", "worker", 0)
FIRST = PrepareOutputs(AttemptId(TASK, 1, 1), UUID, "memory://", 1 << 30)
BOUND_S = 20.0


class Site:
    """Nodes with one store. A disk may be shared, as on one machine."""

    def __init__(self, root: Path, store: CheckpointStore) -> None:
        self.root = root
        self.store = store
        self.sink = ListSink()
        self.coordination = MemoryCoordination(MemoryStore())
        self.nodes: list[NodeOutputs] = []

    def node(self, name: str = "n1", disk: str = "") -> NodeOutputs:
        made = NodeOutputs(
            name,
            self.root / (disk or name),
            self.coordination,
            lambda _uri: self.store,
            BootClock(),
            self.sink,
            lambda: uuid.uuid4().hex,
        )
        made.send_s = 0.05
        self.nodes.append(made)
        return made

    async def index(self, task: TaskId = TASK) -> OutputIndex | None:
        return await read_index(self.store, directory_of(UUID, task.member))

    async def until(self, found: Callable[[OutputIndex], bool], task: TaskId = TASK) -> OutputIndex:
        async with asyncio.timeout(BOUND_S):
            while True:
                index = await self.index(task)
                if index is not None and found(index):
                    return index
                await asyncio.sleep(0.01)


@pytest.fixture(params=["local", "memory"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    made: CheckpointStore = (
        LocalStore(tmp_path / "store") if request.param == "local" else MemoryCheckpointStore()
    )
    await made.prepare()
    found = Site(tmp_path, made)
    yield found
    for node in found.nodes:
        node.check()
        await node.close()


def own(node: NodeOutputs, task: TaskId = TASK) -> Path:
    return Path(node.directories(UUID, task).own)


async def gone(path: Path) -> None:
    await until(lambda: not path.exists())


async def test_outputs_are_in_the_store_while_the_task_runs_and_go_from_the_node_after_the_job(
    site: Site,
) -> None:
    node = site.node()
    await node.prepare(FIRST)
    assert list(own(node).iterdir()) == []
    (own(node) / "events").write_bytes(b"1")
    index = await site.until(lambda index: "events" in index.files)
    assert index.writing
    (own(node) / "model").write_bytes(b"2")
    node.over(FIRST.attempt)
    await site.until(lambda index: set(index.files) == {"events", "model"} and not index.writing)
    assert own(node).is_dir(), "the next attempt finds it"
    node.job_ended(UUID)
    await gone(site.root / "n1" / UUID)
    assert (await site.until(lambda _: True)).size == 2


async def test_an_absent_store_makes_it_late_also_for_an_agent_that_is_killed(site: Site) -> None:
    if not isinstance(site.store, MemoryCheckpointStore):
        pytest.skip("the store in memory can be made to fail")
    store, broken = site.store, True

    async def hook(_operation: str, _path: str, _moment: Moment) -> None:
        if broken:
            raise StoreUnreachable("no answer")

    store.hook = hook
    node = site.node()
    await node.prepare(FIRST)
    (own(node) / "model").write_bytes(b"2")
    node.over(FIRST.attempt)
    node.job_ended(UUID)
    await until(lambda: any("cannot be sent" in event for _, event, _ in site.sink.lines))
    await node.close()
    successor = site.node()
    await successor.run()
    successor.job_ended(UUID)
    assert own(successor).is_dir()
    broken = False
    await site.until(lambda index: set(index.files) == {"model"} and not index.writing)
    await gone(site.root / "n1" / UUID)


async def test_the_next_attempt_here_goes_on_in_the_same_directory(site: Site) -> None:
    node = site.node()
    await node.prepare(FIRST)
    (own(node) / "events").write_bytes(b"1")
    node.over(FIRST.attempt)
    await site.until(lambda index: not index.writing)
    await node.prepare(replace(FIRST, attempt=AttemptId(TASK, 1, 2)))
    index = await site.until(lambda index: index.writing)
    assert (index.attempt, (own(node) / "events").read_bytes()) == (2, b"1")
    node.over(FIRST.attempt)
    with (own(node) / "events").open("ab") as file:
        file.write(b"2")
    assert (await site.until(lambda index: index.size == 2)).writing, "an earlier attempt's end is not its"


async def test_an_agent_takes_up_its_own_notes_alone(site: Site) -> None:
    first = site.node("n1", "shared")
    await first.prepare(FIRST)
    (own(first) / "a").write_bytes(b"1")
    await first.close()
    other = site.node("n2", "shared")
    await other.run()
    assert other._tasks == {}


async def test_directories_of_tasks_are_theirs_and_those_above_are_not(site: Site) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    node = site.node()
    node.owner = (12345, 12345)
    await node.prepare(FIRST)
    job = site.root / "n1" / UUID
    assert (own(node).stat().st_uid, own(node).parent.stat().st_uid) == (12345, 0)
    assert (job.stat().st_mode & 0o777, (job / ".outputs").stat().st_mode & 0o777) == (0o711, 0o700)
    (own(node) / "roots").write_bytes(b"x")
    node.over(FIRST.attempt)
    index = await site.until(lambda index: index.left_out_count == 1)
    assert "another user" in index.left_out["roots"]


MOVED = replace(FIRST, attempt=AttemptId(TASK, 2, 1))


async def test_a_task_that_moves_finds_what_it_wrote_and_sends_only_what_is_new(site: Site) -> None:
    first, second = site.node("n1"), site.node("n2")
    await first.prepare(FIRST)
    (own(first) / "d").mkdir()
    (own(first) / "d/events").write_bytes(b"1")
    (own(first) / "model").write_bytes(b"m")
    first.over(FIRST.attempt)
    version = (await site.until(lambda index: not index.writing)).files["d/events"].version
    await second.prepare(MOVED)
    assert (own(second) / "d/events").read_bytes() == b"1"
    (own(second) / "model").unlink()
    with (own(second) / "d/events").open("ab") as file:
        file.write(b"23")
    index = await site.until(lambda index: index.size == 3)
    assert (index.node, set(index.files), index.files["d/events"].version) == ("n2", {"d/events"}, version)
    second.over(MOVED.attempt)
    await site.until(lambda index: not index.writing)
    # And back, where an older state of it lies.
    await first.prepare(replace(FIRST, attempt=AttemptId(TASK, 3, 1)))
    assert (own(first) / "d/events").read_bytes() == b"123"
    assert not (own(first) / "model").exists(), "it was removed on the other node"


async def test_a_task_that_moves_waits_for_the_last_that_a_living_node_sends(site: Site) -> None:
    first, second = site.node("n1"), site.node("n2")
    await site.coordination.txn((), [Put(keys.node("n1"), b"{}")])
    await first.prepare(FIRST)
    (own(first) / "events").write_bytes(b"1")
    await site.until(lambda index: "events" in index.files)
    moving = asyncio.create_task(second.prepare(MOVED))
    with (own(first) / "events").open("ab") as file:
        file.write(b", the last")
    await asyncio.sleep(0)
    assert not moving.done()
    first.over(FIRST.attempt)
    await moving
    assert (own(second) / "events").read_bytes() == b"1, the last"


async def test_a_task_does_not_wait_for_a_node_that_is_lost_whose_end_arrives_later(site: Site) -> None:
    first, second = site.node("n1"), site.node("n2")
    await first.prepare(FIRST)
    (own(first) / "events.1").write_bytes(b"1")
    await site.until(lambda index: "events.1" in index.files)
    await first.close()
    with (own(first) / "events.1").open("ab") as file:
        file.write(b", its end")
    await second.prepare(MOVED)
    assert (own(second) / "events.1").read_bytes() == b"1"
    (own(second) / "events.2").write_bytes(b"2")
    await site.until(lambda index: "events.2" in index.files)
    back = site.node("n1")
    await back.run()
    back.over(FIRST.attempt)
    index = await site.until(lambda index: index.files["events.1"].size == len(b"1, its end"))
    assert (index.node, index.writing) == ("n2", True)


async def test_a_start_says_why_earlier_outputs_are_missing(site: Site) -> None:
    first, second = site.node("n1"), site.node("n2")
    await first.prepare(FIRST)
    (own(first) / "model").write_bytes(b"m")
    first.over(FIRST.attempt)
    await site.until(lambda index: not index.writing)
    real = site.store
    site.store = MemoryCheckpointStore()  # it was not prepared: as a file system that is not mounted
    await second.prepare(MOVED)
    assert list(own(second).iterdir()) == []
    assert any(event == "started without its earlier outputs" for _, event, _ in site.sink.lines)
    await second.close()
    site.store = real
    third = site.node("n3")
    await third.prepare(replace(FIRST, attempt=AttemptId(TASK, 3, 1)))
    assert (own(third) / "model").read_bytes() == b"m", "nothing is removed for that"


async def test_a_file_that_was_never_sent_is_put_aside_for_one_that_was_written_since(site: Site) -> None:
    first, second = site.node("n1"), site.node("n2")
    await first.prepare(FIRST)
    (own(first) / "result").write_bytes(b"old")
    await site.until(lambda index: "result" in index.files)
    await first.close()
    (own(first) / "result").write_bytes(b"never sent")
    await second.prepare(MOVED)
    (own(second) / "result").write_bytes(b"newest")
    second.over(MOVED.attempt)
    await site.until(lambda index: not index.writing)
    back = site.node("n1")
    await back.prepare(replace(FIRST, attempt=AttemptId(TASK, 3, 1)))
    assert (own(back) / "result").read_bytes() == b"newest"
    aside = site.root / "n1" / UUID / "kept/worker.0-g3.1/result"
    assert aside.read_bytes() == b"never sent"


async def test_machines_with_one_disk_bring_nothing_in(site: Site) -> None:
    first, second = site.node("n1", "shared"), site.node("n2", "shared")
    await site.coordination.txn((), [Put(keys.node("n1"), b"{}")])
    await first.prepare(FIRST)
    (own(first) / "events").write_bytes(b"1")
    await site.until(lambda index: "events" in index.files)
    with (own(first) / "events").open("ab") as file:
        file.write(b"2")
    await second.prepare(MOVED)
    assert (own(second) / "events").read_bytes() == b"12"
    await site.until(lambda index: index.size == 2)


async def test_who_follows_sees_the_outputs_of_all_tasks_grow(site: Site) -> None:
    first, second = site.node("n1"), site.node("n2")
    board = TaskId("job", "tensorboard", 0)
    await second.prepare(replace(FIRST, attempt=AttemptId(board, 1, 1), follow=True))
    await first.prepare(FIRST)
    (own(first) / "run").mkdir()
    (own(first) / "run/events").write_bytes(b"1")
    seen = Path(second.directories(UUID, board).all) / "worker.0/run/events"
    await until(lambda: seen.exists() and seen.read_bytes() == b"1")
    with seen.open("rb") as reader:
        assert reader.read() == b"1"
        with (own(first) / "run/events").open("ab") as file:
            file.write(b"2")
        await until(lambda: seen.read_bytes() == b"12")
        assert reader.read() == b"2"
    second.over(AttemptId(board, 1, 1))
    second.job_ended(UUID)
    await gone(site.root / "n2" / UUID)
