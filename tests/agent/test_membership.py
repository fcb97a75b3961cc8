"""Rules 2, 3, 11 and 12 in an agent's membership, over an etcd that changes at a bad moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from agent.attempt_reports import AttemptReports
from agent.boundaries import Checkpoints, Code, Launchers, Links, Outside, Runtime, StateFile, TaskFiles
from agent.core.events import BeatSeen, Event, Evicted, Joined, TermsSeen
from agent.core.instructions import Report, Write
from agent.effects import Effects
from agent.membership import Former, Membership
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.identity import newest
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Clock, Delete, Op, Seen
from supervisor.contract.desired import Assignment, ClusterRecord, LostMark
from supervisor.contract.errors import CoordinationUnreachable, Dismissed, Fenced
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.observed import (
    AttemptReport,
    AttemptState,
    Incarnation,
    Prepared,
    Saves,
)
from supervisor.contract.timing import FAST
from supervisor.control.decide.plan import put
from tests.agent.core import SETTINGS
from tests.support.clocks import ManualClock
from tests.support.sinks import ListSink
from tests.support.waiting import until

NODE = keys.node("n1")
MARK = keys.lost("n1", "life1")


class Unused:
    """Stands where membership reaches for nothing."""


class Place:
    """One etcd, and agents of node n1 on it. `at_call` runs before that transaction is served.

    `known`: the cluster in the state files of those agents; `seen`: what it had wanted of them.
    """

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.posted: list[Event] = []
        self.known = ""
        self.seen: Seen | None = None
        self.calls = 0
        self.at_call: dict[int, Callable[[], None]] = {}
        self.coordination = MemoryCoordination(self.store, fault=self._on_call)
        self.clock: Clock = BootClock()

    def _on_call(self, name: str) -> None:
        if name == "txn":
            self.calls += 1
            self.at_call.pop(self.calls, lambda: None)()

    def before_next(self, txns: int, *ops: Op) -> None:
        """Another's write comes between this agent's transactions."""
        self.at_call[self.calls + txns] = lambda: self.write(*ops)

    def write(self, *ops: Op) -> None:
        assert self.store.commit([], ops, []).succeeded

    def mark(self, life: str = "life1", *, final: bool = False) -> None:
        self.write(put(keys.lost("n1", life), LostMark("n1", life, "by hand", final)))

    def outside(self) -> Outside:
        unused = Unused()
        return Outside(
            self.coordination,
            cast(Runtime, unused),
            cast(Launchers, unused),
            cast(Links, unused),
            cast(TaskFiles, unused),
            cast(Checkpoints, unused),
            cast(StateFile, unused),
            self.clock,
            ListSink(),
            lambda: "life9",
            cast(Code, unused),
        )

    def agent(self, life: str, *own: str) -> Membership:
        former = Former(own, self.known, self.seen)
        return Membership(SETTINGS, self.outside(), self.posted.append, former, life, "boot")

    async def joined(self, life: str = "life1", *own: str) -> Membership:
        agent = self.agent(life, *own)
        assert await agent._try_join(0) == ""
        return agent

    def holder(self) -> str:
        held = self.store.read(NODE)
        return codec.decode(Incarnation, held[0].value).incarnation if held else ""

    async def until_held_by(self, life: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        deadline = time.monotonic() + 20
        while self.holder() != life and time.monotonic() < deadline:
            meanwhile()
            await asyncio.sleep(0.01)
        assert self.holder() == life


@pytest.fixture
async def place() -> Place:
    return Place()


@pytest.mark.parametrize("joins", [True, False])
async def test_an_outage_is_two_log_lines_however_often_it_is_tried_again(place: Place, joins: bool) -> None:
    agent = place.agent("life1") if joins else await place.joined()
    sink = cast(ListSink, agent._sink)
    sink.lines.clear()

    def fail() -> None:
        raise CoordinationUnreachable("no etcd member answers")

    place.at_call = {place.calls + number: fail for number in (1, 2, 3)}
    trying = asyncio.create_task(agent._join() if joins else agent._beat())
    await until(lambda: any("again" in event for level, event, _ in sink.lines if level == "info"))
    assert place.at_call == {}
    trying.cancel()
    event = "cannot join the cluster yet" if joins else "cannot read etcd"
    assert [line[:2] for line in sink.lines if line[1] != "joined the cluster"] == [
        ("warning", f"{event}; trying again"),
        ("info", "etcd is read again"),
    ]


# Rule 2.


async def test_a_successor_takes_its_predecessors_writes_away(place: Place) -> None:
    first = await place.joined("life1")
    second = await place.joined("life2", "life1")
    assert not (await place.coordination.txn([first.fence], [Delete("x")])).succeeded
    assert (await place.coordination.txn([second.fence], [Delete("x")])).succeeded


async def test_a_succeeded_agents_answers_have_no_effect(place: Place) -> None:
    first = await place.joined("life1")
    task = TaskId("job", "worker", 0)
    order = Assignment("job", "u", "worker", 0, 1, "p1", "n1", "life1", 1, ("x",), "/")
    place.write(put(keys.assignment("n1", task, "p1"), order))
    answer = Prepared("job", "p1", "worker", 0, "n1", "life1", "h:20000")
    key = keys.prepared(task, "p1")
    effects = Effects(SETTINGS, place.outside(), place.posted.append, first)
    write = Write("prepared/x", key, answer, keys.assignment("n1", task, "p1"))
    await place.joined("life2", "life1")
    await effects._write(write)
    assert not place.store.read(key)


class Stepless:
    """Task files of which no step is known."""

    def last_step(self, _attempt: AttemptId) -> int:
        return -1

    def has_stepped(self, _attempt: AttemptId) -> bool:
        return False

    def saves(self, _attempt: AttemptId) -> Saves:
        return Saves()


async def test_a_report_that_arrives_after_the_leader_has_moved_on_does_not_take_effect(place: Place) -> None:
    """The simulator: the leader had removed what was told before, and took the attempt for alive."""
    agent = await place.joined()
    order = Assignment("job", "u", "worker", 0, 1, "p1", "n1", "life1", 1, ("x",), "/")
    where = keys.assignment("n1", order.task, "p1")
    place.write(put(where, order))
    record = AttemptReport("job", "worker", 0, 1, 1, "p1", "n1", "life1", AttemptState.RUNNING, 7, 7, "h:1")
    outside = replace(place.outside(), files=cast(TaskFiles, Stepless()))
    reports = AttemptReports(outside, place.posted.append, agent)
    place.before_next(2, put(where, replace(order, attempt=2)))
    await reports.send(Report(1, record, -1, 0, "u"))
    assert not place.store.read(keys.attempt(record.attempt))
    await reports.send(Report(1, record, -1, 0, "u"))
    assert place.store.read(keys.attempt(record.attempt)), "asked again, it is told"


# Rule 3.


async def test_only_a_read_that_shows_the_own_key_and_no_mark_counts(place: Place) -> None:
    agent = await place.joined()
    await agent._look(1)
    assert place.posted[-1] == BeatSeen(1)
    place.mark()
    await agent._look(2)
    place.write(Delete(MARK), Delete(NODE))
    await agent._look(3)
    assert place.posted[-1] == BeatSeen(1)
    assert place.holder() == "life1", "written again, as there was no mark"


async def test_a_mark_of_a_life_that_was_succeeded_counts_too(place: Place) -> None:
    await place.joined("life1")
    heir = await place.joined("life2", "life1")
    place.mark("life1")
    await heir._look(1)
    assert not [each for each in place.posted if isinstance(each, BeatSeen)]
    assert place.store.read(keys.appeal("n1", "life1"))


async def test_a_key_that_vanished_is_not_written_again_over_a_mark(place: Place) -> None:
    agent = await place.joined()
    place.write(Delete(NODE))
    # Looks, then writes: the leader marks in between.
    place.before_next(2, put(MARK, LostMark("n1", "life1", "its key is gone")))
    await agent._look(1)
    assert place.holder() == ""


async def test_a_marked_agent_appeals(place: Place) -> None:
    agent = await place.joined()
    place.mark()
    assert await agent._look(1) is None
    assert place.store.read(keys.appeal("n1", "life1"))


async def test_who_looks_often_appeals_no_more_often_than_it_beats(place: Place) -> None:
    place.clock = clock = ManualClock()
    agent = await place.joined()
    place.mark()
    assert await agent._look(1) is None
    first = place.store.revision
    assert await agent._look(2) is None
    assert place.store.revision == first
    clock.ms += FAST.beat_ms
    assert await agent._look(3) is None
    second = place.store.revision
    assert second > first
    # Another mark is another matter.
    place.mark()
    assert await agent._look(4) is None
    assert place.store.revision == second + 2


async def test_a_final_mark_ends_this_life(place: Place) -> None:
    agent = await place.joined()
    place.mark(final=True)
    assert "lost for good" in (await agent._look(1) or "")
    assert not place.store.read(keys.appeal("n1", "life1"))


async def test_an_agent_that_is_dismissed_ends_and_its_successors_do_not_join(place: Place) -> None:
    agent = place.agent("life1")
    running = asyncio.create_task(agent.run())
    await place.until_held_by("life1")
    place.write(put(MARK, LostMark("n1", "life1", "its pool is over", final=True, dismissed=True)))
    with pytest.raises(Dismissed, match="node n1 is to end: its pool is over"):
        await asyncio.wait_for(running, 20)
    with pytest.raises(Dismissed):
        await asyncio.wait_for(place.agent("life2", "life1").run(), 20)
    assert place.holder() == "life1"
    assert not any(isinstance(each, Evicted) for each in place.posted), "its keeper ends the tasks"


# Rule 11, as far as D goes.


async def test_an_agent_runs_under_the_clusters_d(place: Place) -> None:
    place.write(put(keys.CLUSTER, ClusterRecord("c", "fast", 3 * FAST.d_ms)))
    await place.joined()
    (joined,) = place.posted
    assert isinstance(joined, Joined)
    assert joined.d_ms == joined.me.d_ms == 3 * FAST.d_ms


# Rule 12.


def begun_anew(place: Place) -> None:
    """Etcd is another cluster's than the one in the state file."""
    place.known = "c1"
    place.write(put(keys.CLUSTER, ClusterRecord("c", "fast", FAST.d_ms, uuid="c2")))


async def test_what_ran_in_a_cluster_that_is_lost_is_not_adopted_into_the_next(place: Place) -> None:
    begun_anew(place)
    assert "another cluster" in (await place.agent("life2", "life1")._try_join(0) or "")
    assert place.holder() == ""


async def test_an_agent_that_beats_sees_that_its_cluster_is_lost(place: Place) -> None:
    agent = await place.joined()
    place.write(put(keys.CLUSTER, ClusterRecord("c", "fast", FAST.d_ms, uuid="c1")))
    await agent._look(1)
    begun_anew(place)
    assert "another cluster" in (await agent._look(2) or "")
    assert [each for each in place.posted if isinstance(each, BeatSeen)] == [BeatSeen(1)]


async def test_without_a_record_of_the_cluster_nothing_vouches_for_an_agent(place: Place) -> None:
    """Etcd has lost its data, and no leader has come yet: the node's key is not written again."""
    place.known = "c1"
    heir = place.agent("life2", "life1")
    assert await heir._try_join(0) is None
    assert place.holder() == ""
    place.known = ""
    agent = await place.joined()
    agent._etcd.cluster = "c1"
    place.write(Delete(NODE))
    assert await agent._look(1) is None
    assert place.holder() == ""
    assert not [each for each in place.posted if isinstance(each, BeatSeen)]


async def test_a_missing_record_of_the_cluster_is_logged_once_however_often_it_is_looked_for(
    place: Place,
) -> None:
    agent = await place.joined()
    agent._etcd.cluster = "c1"
    sink = cast(ListSink, agent._sink)
    sink.lines.clear()
    for sent_ms in (1, 2, 3):
        assert await agent._look(sent_ms) is None
    place.write(put(keys.CLUSTER, ClusterRecord("c", "fast", FAST.d_ms, uuid="c1")))
    assert await agent._look(4) is None
    (level, event, _), (_, over, fields) = sink.lines
    assert (level, event.partition(":")[0]) == ("warning", "etcd has no record of this cluster")
    assert (over, fields["failures"]) == ("etcd has a record of this cluster again", 3)


async def test_what_ran_when_etcd_had_come_further_is_not_adopted(place: Place) -> None:
    """A snapshot was restored: what was wanted of this node since is forgotten, and may come again."""
    place.write(put(keys.CLUSTER, ClusterRecord("c", "fast", FAST.d_ms, uuid="c1")))
    place.known, backup = "c1", place.store.backup()
    order = Assignment("job", "u", "worker", 0, 1, "p1", "n1", "life1", 1, ("x",), "/")
    place.write(put(where := keys.assignment("n1", order.task, "p1"), order))
    place.seen = newest(place.store.read(where))
    place.store.restore(backup)
    place.write(put(keys.lost("n2", "x"), LostMark("n2", "x", "it comes as far as before")))
    assert "a snapshot was restored" in (await place.agent("life2", "life1")._try_join(0) or "")
    assert place.holder() == ""
    place.seen = newest(place.store.read(keys.CLUSTER))
    assert await place.agent("life2", "life1")._try_join(0) == ""


async def test_an_agent_that_beats_sees_that_etcd_went_back(place: Place) -> None:
    place.write(put(keys.CLUSTER, ClusterRecord("c", "fast", FAST.d_ms, uuid="c1")))
    agent = await place.joined()
    place.write(put(keys.lost("n2", "x"), LostMark("n2", "x", "another node's")))
    await agent._look(1)
    place.store.revision -= 1
    assert "a snapshot was restored" in (await agent._look(2) or "")
    assert [each for each in place.posted if isinstance(each, BeatSeen)] == [BeatSeen(1)]


async def test_an_agent_believes_its_watches_that_etcd_went_back(place: Place) -> None:
    """Others may have written since, so that its revision does not tell."""
    place.write(put(keys.CLUSTER, ClusterRecord("c", "fast", FAST.d_ms, uuid="c1")))
    agent = await place.joined()
    agent.forked()
    assert "a snapshot was restored" in (await agent._look(1) or "")


async def test_a_life_that_was_lost_learns_the_cluster_anew(place: Place) -> None:
    place.write(put(keys.CLUSTER, ClusterRecord("c", "fast", FAST.d_ms, uuid="c1")))
    agent = place.agent("life1")
    running = asyncio.create_task(agent.run())
    await place.until_held_by("life1")
    place.mark(final=True)
    await place.until_held_by("life9", agent.cleared)
    running.cancel()
    assert [each for each in place.posted if isinstance(each, TermsSeen)] == [TermsSeen((), 0, "c1")] * 2


async def test_a_node_of_a_lost_cluster_joins_the_next_one_with_nothing(place: Place) -> None:
    begun_anew(place)
    agent = place.agent("life1", "life0")
    running = asyncio.create_task(agent.run())
    await place.until_held_by("life1", agent.cleared)
    running.cancel()
    (joined,) = [each for each in place.posted if isinstance(each, Joined)]
    assert (joined.adopt, joined.me.succeeds) == (False, ())
    assert TermsSeen((), 0, "c2") in place.posted


async def test_a_successor_does_not_adopt_over_a_mark(place: Place) -> None:
    await place.joined("life1")
    heir = place.agent("life2", "life1")
    # Reads, takes a lease, then writes: the leader marks in between.
    place.before_next(2, put(MARK, LostMark("n1", "life1", "no beat")))
    assert await heir._try_join(0) is None
    assert place.holder() == "life1"


async def test_a_successor_of_a_marked_life_appeals_and_does_not_join(place: Place) -> None:
    await place.joined("life1")
    place.mark()
    heir = place.agent("life2", "life1")
    assert await heir._try_join(0) is None
    assert place.store.read(keys.appeal("n1", "life1"))
    assert place.holder() == "life1"
    place.write(Delete(MARK))
    assert await heir._try_join(0) == ""
    assert place.holder() == "life2"


async def test_another_agents_key_is_never_taken(place: Place) -> None:
    await place.joined("life1")
    stranger = place.agent("other1", "other0")
    assert await stranger._try_join(BootClock().now_ms()) is None
    assert place.holder() == "life1"


async def test_an_agent_whose_key_another_holds_stops(place: Place) -> None:
    agent = await place.joined("life1")
    (held,) = place.store.read(NODE)
    other = replace(codec.decode(Incarnation, held.value), incarnation="other")
    place.write(put(NODE, other))
    with pytest.raises(Fenced):
        await agent._look(1)


async def test_a_life_that_was_lost_is_followed_by_a_new_one_that_adopts_nothing(place: Place) -> None:
    agent = place.agent("life1")
    running = asyncio.create_task(agent.run())
    await place.until_held_by("life1")
    place.mark(final=True)
    await place.until_held_by("life9", agent.cleared)
    running.cancel()
    joined = [each for each in place.posted if isinstance(each, Joined)]
    assert [(each.me.incarnation, each.adopt, each.me.succeeds) for each in joined] == [
        ("life1", False, ()),
        ("life9", False, ()),
    ]
