"""A node's part in outputs: made before a start, sent while tasks run, removed once nothing needs them."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agent.host.task_users import OneUser
from agent.outputs.directories import OutputFiles
from agent.outputs.sender import NodeOutputs
from recovery.commit.sight import Eyes
from recovery.io.trees import remove_tree
from recovery.outputs.index import OutputIndex, directory_of
from recovery.outputs.note import save_state, state_path
from recovery.outputs.stored import read_index
from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryCheckpointStore, Moment
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.adapters.etcd.memory_store import MemoryStore
from supervisor.contract import keys
from supervisor.contract.boundaries import CheckpointStore, Put
from supervisor.contract.errors import StoreUnreachable, UserError
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.job.serving import Exports
from supervisor.contract.job.spec import ModelCheck, ServingSpec
from tests.models.exported import export
from tests.outputs.task import FIRST, TASK, UUID
from tests.support.sinks import ListSink
from tests.support.users import threads_that_ask_for_users
from tests.support.waiting import until

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
        files = OutputFiles(name, self.root / (disk or name), self.root / f"{name}-notes")
        made = NodeOutputs(
            files,
            self.coordination,
            lambda _uri: self.store,
            BootClock(),
            self.sink,
            lambda: uuid.uuid4().hex,
        )
        made.send_s, made.mirrors.look_s = 0.05, 0.02
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


@pytest.mark.parametrize("site", ["memory"], indirect=True)
async def test_a_published_model_is_told_of_and_counted_also_after_its_job(site: Site) -> None:
    node, counted = site.node(), list[int]()
    node.published = lambda: counted.append(1)
    serving = ServingSpec("digits", "export/*", "worker", ModelCheck.CHECKSUMS, 3)
    await node.prepare(replace(FIRST, exports=Exports(serving, "python")))
    export(own(node), "export/7", b"1")
    node.over(FIRST.attempt)
    node.job_ended(UUID)
    await gone(site.root / "n1" / UUID)
    (notice,) = node.notices()
    text = "version 1 of model digits is published: export/7 of worker.0"
    assert (notice.kind, notice.text, counted) == ("model_published", text, [1])


@pytest.mark.parametrize("site", ["memory"], indirect=True)
async def test_exports_below_the_checkpoint_directory_are_published_also_when_that_is_gone(
    site: Site,
) -> None:
    node, checkpoints = site.node(), site.root / "n1" / UUID / "g1"
    checkpoints.mkdir(parents=True)
    serving = ServingSpec("digits", "{checkpoint_dir}/export/*", "worker", ModelCheck.CHECKSUMS, 3)
    asked = replace(FIRST, exports=Exports(serving, "python"))
    await node.prepare(asked)
    export(checkpoints, "export/7", b"1")
    assert Eyes(checkpoints).look().refused == {}, "the saver looks for checkpoints alone there"
    await asyncio.to_thread(remove_tree, checkpoints)
    (site.root / "n1" / UUID / "g2").mkdir()
    await node.prepare(replace(asked, attempt=AttemptId(TASK, 2, 1)))
    export(site.root / "n1" / UUID / "g2", "export/8", b"2")
    node.over(AttemptId(TASK, 2, 1))
    await until(lambda: len(node.notices()) == 2)
    exports = {notice.text.partition(": ")[2] for notice in node.notices()}
    assert exports == {"export/7 of worker.0", "export/8 of worker.0"}


@pytest.mark.parametrize("site", ["memory"], indirect=True)
async def test_a_directory_of_the_base_is_no_place_for_exports(site: Site) -> None:
    node, own = site.node(), site.root / "n1" / UUID / "g1/export"
    own.mkdir(parents=True)
    serving = ServingSpec("digits", "{checkpoint_dir}/export/*", "worker", ModelCheck.CHECKSUMS, 3)
    await node.prepare(replace(FIRST, exports=Exports(serving, "python")))
    assert own.is_dir()
    assert not own.is_symlink()
    assert [event for level, event, _ in site.sink.lines if level == "error"] == [
        "the output directory of a task cannot be prepared"
    ]


@pytest.mark.parametrize("site", ["memory"], indirect=True)
async def test_an_absent_store_makes_it_late_also_for_an_agent_that_is_killed(site: Site) -> None:
    """The store in memory can be made to fail."""
    assert isinstance(site.store, MemoryCheckpointStore)
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
    await successor.run(tuple)
    successor.job_ended(UUID)
    assert own(successor).is_dir()
    broken = False
    await site.until(lambda index: set(index.files) == {"model"} and not index.writing)
    await gone(site.root / "n1" / UUID)


async def test_what_is_written_while_the_last_but_one_is_sent_is_sent_before_the_directory_goes(
    tmp_path: Path,
) -> None:
    store, reached, go_on = MemoryCheckpointStore(), asyncio.Event(), asyncio.Event()
    await store.prepare()

    async def hook(operation: str, _path: str, moment: Moment) -> None:
        if operation == "write_bytes" and moment is Moment.BEFORE:
            reached.set()
            await go_on.wait()

    store.hook = hook
    site = Site(tmp_path, store)
    node = site.node()
    await node.prepare(FIRST)
    (own(node) / "first").write_bytes(b"1")
    async with asyncio.timeout(BOUND_S):
        await reached.wait()
    (own(node) / "last").write_bytes(b"2")
    node.over(FIRST.attempt)
    node.job_ended(UUID)
    go_on.set()
    await gone(site.root / "n1" / UUID)
    index = await site.until(lambda index: not index.writing)
    assert set(index.files) == {"first", "last"}
    node.check()
    await node.close()


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
    await other.run(tuple)
    assert other._tasks == {}


async def test_directories_of_tasks_are_theirs_and_those_above_are_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, threads = site.node(), threads_that_ask_for_users(monkeypatch)
    node.files.users = OneUser(12345, 12345)
    await node.prepare(FIRST)
    assert threads
    assert threading.get_ident() not in threads, "it can take long"
    job = site.root / "n1" / UUID
    assert (own(node).stat().st_uid, own(node).parent.stat().st_uid) == (12345, 0)
    notes = site.root / "n1-notes" / UUID
    assert (job.stat().st_mode & 0o777, notes.stat().st_mode & 0o777) == (0o711, 0o700)
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
    await back.run(tuple)
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
    assert any(event == "a task starts without its earlier outputs" for _, event, _ in site.sink.lines)
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
    aside = site.root / "n1" / UUID / "kept-worker.0-g3.1/result"
    assert aside.read_bytes() == b"never sent"


async def test_what_has_grown_since_an_index_that_was_not_noted_stays(site: Site) -> None:
    """The agent ended its sender, or died, between the index and the note of it."""
    node = site.node()
    await node.prepare(FIRST)
    log, note = own(node) / "log", state_path(node.files.notes(UUID), TASK.member)
    log.write_bytes(b"1\n")
    await site.until(lambda index: index.size == 2)
    await until(lambda: "log" in note.read_text())
    noted = note.read_bytes()
    with log.open("ab") as file:
        file.write(b"2\n")
    await site.until(lambda index: index.size == 4)
    await node.close()
    note.write_bytes(noted)
    with log.open("ab") as file:
        file.write(b"3\n")
    again = site.node()
    await again.prepare(replace(FIRST, attempt=AttemptId(TASK, 2, 1)))
    assert log.read_bytes() == b"1\n2\n3\n"
    await site.until(lambda index: index.size == 6)


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


async def test_who_follows_can_read_the_copies_whatever_the_umask_of_the_agent(site: Site) -> None:
    node = site.node()
    node.files.users = OneUser(12345, 12345)
    umask = os.umask(0o077)
    try:
        await node.prepare(replace(FIRST, follow=True))
        assert Path(node.directories(UUID, TASK).all).is_dir(), "it is there when the program starts"
        (own(node) / "events").write_bytes(b"1")
        os.chown(own(node) / "events", 12345, 12345)
        copy = Path(node.directories(UUID, TASK).all) / "worker.0/events"
        await until(copy.exists)
    finally:
        os.umask(umask)
    top = copy.parents[1].stat()
    assert (top.st_uid, top.st_mode & 0o777) == (0, 0o755), "a task reads it, and replaces nothing in it"
    assert (copy.stat().st_uid, copy.parent.stat().st_uid) == (12345, 12345)


def _holds(path: Path, data: bytes) -> bool:
    return path.exists() and path.read_bytes() == data


async def test_two_that_follow_on_a_node_see_one_copy_grow_in_place(site: Site) -> None:
    first, second = site.node("n1"), site.node("n2")
    board, evaluator = TaskId("job", "tensorboard", 0), TaskId("job", "evaluator", 0)
    for task in (board, evaluator):
        await second.prepare(replace(FIRST, attempt=AttemptId(task, 1, 1), follow=True))
    await first.prepare(FIRST)
    seen = Path(second.directories(UUID, board).all) / "worker.0/events"
    text, inodes = b"", set()
    for step in range(10):
        text += b"%d" % step
        with (own(first) / "events").open("ab") as file:
            file.write(b"%d" % step)
        await until(partial(_holds, seen, text))
        inodes.add(seen.stat().st_ino)
    assert len(inodes) == 1
    # The copies are kept up for as long as one of them lives, and for the next one.
    second.over(AttemptId(board, 1, 1))
    (own(first) / "more").write_bytes(b"m")
    await until((seen.parent / "more").exists)
    second.over(AttemptId(evaluator, 1, 1))
    await second.prepare(replace(FIRST, attempt=AttemptId(board, 1, 2), follow=True))
    (own(first) / "again").write_bytes(b"m")
    await until((seen.parent / "again").exists)
    assert seen.read_bytes() == text


async def test_nodes_of_one_machine_do_not_remove_what_another_has_taken_over(site: Site) -> None:
    first, second = site.node("n1", "shared"), site.node("n2", "shared")
    await first.prepare(FIRST)
    (own(first) / "model").write_bytes(b"1")
    first.over(FIRST.attempt)
    await site.until(lambda index: not index.writing)
    await second.prepare(MOVED)
    await site.until(lambda index: index.node == "n2")
    first.job_ended(UUID)
    await until(lambda: not first._tasks)
    assert (own(second) / "model").read_bytes() == b"1"
    second.over(MOVED.attempt)
    second.job_ended(UUID)
    await gone(site.root / "shared" / UUID)
    assert set((await site.until(lambda index: not index.writing)).files) == {"model"}


async def test_a_directory_that_is_gone_empties_no_store(site: Site) -> None:
    node = site.node()
    await node.prepare(FIRST)
    (own(node) / "model").write_bytes(b"1")
    await site.until(lambda index: "model" in index.files)
    (own(node) / "model").unlink()
    own(node).rmdir()
    node.over(FIRST.attempt)
    index = await site.until(lambda index: not index.writing)
    assert set(index.files) == {"model"}


async def test_ends_that_are_told_before_the_notes_are_read_count(site: Site) -> None:
    node = site.node()
    await node.prepare(FIRST)
    (own(node) / "model").write_bytes(b"1")
    await site.until(lambda index: "model" in index.files)
    await node.close()
    successor = site.node()
    successor.job_ended(UUID)
    await successor.run(lambda: (FIRST.attempt,))
    await gone(site.root / "n1" / UUID)
    assert not (await site.until(lambda _: True)).writing


async def test_what_no_longer_lives_when_an_agent_starts_is_sent_whole(site: Site) -> None:
    node = site.node()
    await node.prepare(FIRST)
    (own(node) / "model").write_bytes(b"1")
    await site.until(lambda index: "model" in index.files)
    await node.close()
    await site.node().run(tuple)
    await site.until(lambda index: not index.writing)


async def test_a_note_whose_store_cannot_be_opened_stops_nothing(site: Site) -> None:
    node = site.node()
    await node.prepare(FIRST)
    await until((site.root / "n1-notes" / UUID / "worker.0.json").exists)
    await node.close()

    def refuse(_uri: str) -> CheckpointStore:
        raise UserError("no such scheme")

    successor = site.node()
    successor._opener = refuse
    await successor.run(tuple)
    await successor.prepare(replace(FIRST, attempt=AttemptId(TASK, 2, 1)))
    successor.check()


async def test_an_agent_that_was_killed_while_it_removed_goes_on_and_a_job_that_starts_again_loses_nothing(
    site: Site,
) -> None:
    node = site.node()
    await node.prepare(FIRST)
    (own(node) / "model").write_bytes(b"1")
    node.over(FIRST.attempt)
    await until(lambda: node._tasks[UUID, "worker.0"].state.done)
    state = replace(node._tasks[UUID, "worker.0"].state, ended=True, removing=True)
    await node.close()
    save_state(node.files.notes(UUID), state)
    (own(node) / "model").unlink()
    again = site.node()
    await again.prepare(replace(FIRST, attempt=AttemptId(TASK, 2, 1)))
    assert (own(again) / "model").read_bytes() == b"1", "it is brought in"
    await again.close()
    save_state(again.files.notes(UUID), state)
    await site.node().run(tuple)
    await until(lambda: not (site.root / "n1-notes" / UUID).exists())
    assert set((await site.until(lambda _: True)).files) == {"model"}


async def test_a_link_in_the_place_of_a_directory_is_not_followed(site: Site) -> None:
    elsewhere = site.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_bytes(b"x")
    node = site.node()
    own(node).parent.mkdir(parents=True)
    own(node).symlink_to(elsewhere)
    await node.prepare(FIRST)
    assert any(
        event == "the output directory of a task cannot be prepared" for _, event, _ in site.sink.lines
    )
    node.over(FIRST.attempt)
    await until(lambda: any("cannot be sent" in event for _, event, _ in site.sink.lines))
    assert await site.index() is None
    assert list(elsewhere.iterdir()) == [elsewhere / "secret"]
