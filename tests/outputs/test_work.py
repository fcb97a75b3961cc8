"""Files that tasks wrote elsewhere: named in an event before any is removed, and kept for a while."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent.checkpoints.keeper import NodeCheckpoints
from agent.outputs.directories import OutputFiles
from agent.outputs.leftover_work import NOTE_PREFIX, NodeWork, strays
from agent.outputs.sender import NodeOutputs
from recovery.outputs.note import OutputState, load_state, state_path
from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.adapters.etcd.memory_store import MemoryStore
from supervisor.contract import keys
from supervisor.contract.boundaries import Put
from supervisor.contract.checkpoint import CheckpointRef, CommitHead
from supervisor.contract.codec import encode
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Event
from supervisor.contract.job.spec import (
    CheckpointSpec,
    JobRecord,
    JobSpec,
    Limits,
    RoleSpec,
    Strategy,
)
from supervisor.contract.observed import MOST_NOTICES, WORK_KEPT, Notice
from tests.outputs.task import FIRST, TASK, UUID
from tests.support.sinks import ListSink
from tests.support.waiting import until

SPEC = JobSpec(
    "job",
    Strategy.PLAIN,
    (RoleSpec("worker", 1, ("x",)),),
    CheckpointSpec("file:///store"),
    "/",
    limits=Limits(keep_work_ms=60_000),
)


class HandClock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms


class Home:
    """One node, its job's directory and etcd."""

    def __init__(self, parent: Path, budget: int | None = None) -> None:
        self.parent, self.clock, self.sink = parent, HandClock(), ListSink()
        self.coordination = MemoryCoordination(MemoryStore())
        self.job = parent / UUID
        self.work = self.again(budget)
        self.checkpoints = NodeCheckpoints(
            "n1",
            parent,
            self.coordination,
            lambda _uri: MemoryCheckpointStore(),
            self.clock,
            self.sink,
            lambda: uuid.uuid4().hex,
        )
        self.checkpoints.work = self.work

    def again(self, budget: int | None = None) -> NodeWork:
        return NodeWork("n1", self.parent, self.coordination, self.clock, self.sink, budget)

    def write(self, path: str, size: int = 1) -> Path:
        file = self.job / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size))
        return file

    async def records(self, phase: JobPhase, *, committed: bool = True, spec: JobSpec = SPEC) -> None:
        ops = [
            Put(keys.job_record("job"), encode(JobRecord(spec, UUID, 0))),
            Put(keys.switch("job"), encode(JobSwitch("job", UUID, phase, 5, "p"))),
        ]
        if committed:
            ops.append(Put(keys.head("job"), encode(CommitHead(1, CheckpointRef(1, 1)))))
        await self.coordination.txn((), ops)

    async def name_all(self, notices: Sequence[Notice] | None = None, first: int = 0) -> None:
        """As the leader does."""
        for serial, notice in enumerate(self.work.notices() if notices is None else notices, first):
            event = Event(0, notice.kind, "job", notice.text, {"node": "n1", "about": notice.about})
            await self.coordination.txn((), [Put(keys.event(serial), encode(event))])

    def files(self) -> set[str]:
        return {
            str(path.relative_to(self.job))
            for path in self.job.rglob("*")
            if path.is_file() and not path.name.startswith((NOTE_PREFIX, ".outputs-"))
        }


def node_outputs(home: Home, store: MemoryCheckpointStore) -> NodeOutputs:
    files = OutputFiles("n1", home.parent, home.parent / "notes")
    node = NodeOutputs(
        files, home.coordination, lambda _uri: store, home.clock, home.sink, lambda: uuid.uuid4().hex
    )
    node.work, node.send_s = home.work, 0.05
    return node


@pytest.fixture
async def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_files_of_checkpoints_are_told_from_others() -> None:
    checkpoints = [
        "checkpoint",
        "model.ckpt-10.index",
        "model.ckpt-10.meta",
        "train/ckpt_3.data-00000-of-00002",
        "graph.pbtxt",
        "backup/w-7.h5",
    ]
    others = [
        "events.out.tfevents.1.host",
        "export/1/saved_model.pb",
        "export/1/variables/variables.index",
        "export/1/variables/variables.data-00000-of-00001",
        "other.h5",
    ]
    assert strays([*checkpoints, *others], ("backup/w-{step}.h5",)) == others


async def test_what_lies_beside_checkpoints_stays_when_its_generation_goes(home: Home) -> None:
    await home.records(JobPhase.RUNNING)
    for path in ("g1/ckpt-1.index", "g1/eval/events.1", "g2/ckpt-2.index", "g5/ckpt-5.index", "g5/x"):
        home.write(path)
    await home.checkpoints.clean("job", UUID, 5, ended=False)
    assert home.files() == {"g1/eval/events.1", "g5/ckpt-5.index", "g5/x"}
    (notice,) = home.work.notices()
    assert notice.kind == WORK_KEPT
    assert str(home.job / "g1") in notice.text
    assert "eval/events.1" in notice.text


async def test_what_tasks_wrote_elsewhere_stays_when_the_job_has_ended_and_is_named(home: Home) -> None:
    await home.records(JobPhase.SUCCEEDED)
    for path in ("summaries/train/events.1", "result.txt", "g5/ckpt-5.index", "g5/model.h5", ".outbox/x/y"):
        home.write(path)
    (home.job / "link").symlink_to("/etc/passwd")
    await home.checkpoints.clean("job", UUID, 5, ended=True)
    stays = {"summaries/train/events.1", "result.txt", "g5/model.h5"}
    assert home.files() == stays
    assert len(home.work.notices()) == 3
    home.clock.ms += 10**9
    await home.work.tidy()
    assert home.files() == stays, "no event has named it"
    successor = home.work = home.again()
    await successor.load()
    await home.name_all()
    await successor.tidy()
    assert not home.job.exists()


async def test_it_stays_for_as_long_as_the_job_says(home: Home) -> None:
    await home.records(JobPhase.SUCCEEDED)
    home.write("summaries/events.1")
    await home.checkpoints.clean("job", UUID, 5, ended=True)
    await home.name_all()
    home.clock.ms += 59_000
    await home.work.tidy()
    assert home.files() == {"summaries/events.1"}
    home.clock.ms += 2_000
    await home.work.tidy()
    assert not home.job.exists()
    assert home.work.notices() == ()


async def test_a_job_that_never_committed_anything_loses_no_checkpoint_either(home: Home) -> None:
    await home.records(JobPhase.FAILED, committed=False)
    home.write("g1/ckpt-1.index")
    await home.checkpoints.clean("job", UUID, 5, ended=True)
    assert home.files() == {"g1/ckpt-1.index"}


async def test_a_job_without_anything_else_leaves_nothing(home: Home) -> None:
    await home.records(JobPhase.SUCCEEDED)
    for path in ("g5/ckpt-5.index", "g5/checkpoint", ".outbox/x/y", ".bases/g5.json"):
        home.write(path)
    (home.job / "summaries").mkdir()
    await home.checkpoints.clean("job", UUID, 5, ended=True)
    assert not home.job.exists()
    assert home.work.notices() == ()


async def test_the_oldest_goes_first_where_the_budget_is_used_up(tmp_path: Path) -> None:
    home = Home(tmp_path, budget=250)
    await home.records(JobPhase.RUNNING)
    for generation in (1, 2):
        home.write(f"g{generation}/events", 100)
        await home.checkpoints.clean("job", UUID, 5, ended=False)
        home.clock.ms += 10
    await home.name_all()
    await home.work.tidy()
    assert home.files() == {"g1/events", "g2/events"}
    home.write("g3/events", 100)
    await home.checkpoints.clean("job", UUID, 10, ended=False)
    await home.name_all()
    await home.work.tidy()
    assert home.files() == {"g2/events", "g3/events"}


async def test_of_more_than_a_beat_holds_each_is_named_and_in_the_end_removed(home: Home) -> None:
    await home.records(JobPhase.SUCCEEDED)
    for index in range(MOST_NOTICES + 8):
        home.write(f"summaries-{index}/events.1")
    await home.checkpoints.clean("job", UUID, 5, ended=True)
    node = node_outputs(home, MemoryCheckpointStore())
    for look in range(2):
        notices = node.notices()
        assert len(notices) == MOST_NOTICES
        await home.name_all(notices, look * MOST_NOTICES)
        await home.work.tidy()
    home.clock.ms += 10**9
    await home.work.tidy()
    assert home.files() == set()


async def test_outputs_that_are_not_sent_and_kept_work_leave_room_for_each_other(home: Home) -> None:
    node, count = node_outputs(home, MemoryCheckpointStore()), MOST_NOTICES + 8
    await home.records(JobPhase.SUCCEEDED)
    for index in range(count):
        task = TaskId("job", "worker", index)
        await node.prepare(replace(FIRST, attempt=replace(FIRST.attempt, task=task)))
        home.write(f"summaries-{index}/events.1")
    await home.checkpoints.clean("job", UUID, 5, ended=True)
    for entry in node._tasks.values():
        entry.put(replace(entry.state, left_out={"a": "too large"}))
    both = [each.kind for each in node.notices()]
    node.work = None
    alone = [each.kind for each in node.notices()]
    await node.close()
    half = MOST_NOTICES // 2
    assert both == ["outputs_left_out"] * half + [WORK_KEPT] * half
    assert alone == ["outputs_left_out"] * MOST_NOTICES


async def test_what_a_job_that_starts_again_may_write_to_is_not_removed_under_it(home: Home) -> None:
    await home.records(JobPhase.STOPPED)
    home.write("summaries/events.1")
    home.write("g1/events.1")
    await home.checkpoints.clean("job", UUID, 5, ended=True)
    await home.name_all()
    await home.work.in_use(UUID)
    home.clock.ms += 10**9
    await home.work.tidy()
    assert home.files() == {"summaries/events.1"}


async def test_outputs_that_could_not_be_sent_stay_and_are_named(home: Home) -> None:
    store = MemoryCheckpointStore()
    await store.prepare()
    node = node_outputs(home, store)
    await node.prepare(replace(FIRST, budget_bytes=100, keep_ms=60_000))
    own = Path(node.directories(UUID, TASK).own)
    (own / "a").write_bytes(bytes(50))
    (own / "large").write_bytes(bytes(500))
    os.mkfifo(own / "fifo")
    node.over(FIRST.attempt)
    await until(lambda: any(notice.kind == "outputs_left_out" for notice in node.notices()))
    node.job_ended(UUID)
    await until(lambda: not own.exists())
    await until(lambda: any(notice.kind == WORK_KEPT for notice in node.notices()))
    await until(lambda: home.files() == {"kept-outputs-worker.0-g1.1/large"})
    node.check()
    await node.close()


async def test_of_agents_that_share_a_directory_one_tells_and_all_spare_it(home: Home) -> None:
    await home.records(JobPhase.SUCCEEDED)
    home.write("summaries/events.1")
    await home.checkpoints.clean("job", UUID, 5, ended=True)
    other = NodeWork("n2", home.parent, home.coordination, home.clock, home.sink)
    home.checkpoints.work = other
    await home.checkpoints.clean("job", UUID, 5, ended=True)
    assert home.files() == {"summaries/events.1"}
    assert (len(home.work.notices()), other.notices()) == (1, ())


def test_a_note_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    path = state_path(tmp_path, "worker.0")
    assert load_state(path) is None
    path.write_bytes(b"{")
    assert load_state(path) is None
    path.write_bytes(encode(OutputState("job", UUID, "worker.0", "uri", "n1", 1, 1, 9)))
    assert load_state(path) is not None
