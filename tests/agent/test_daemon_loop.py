"""The agent's loop, without real parts: its state file, and an etcd that went back (rules 10, 11 and 12)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agent.boundaries import Process
from agent.core.instructions import Recipe
from agent.core.saved import adopt
from agent.core.saved.record import AgentRecord, LauncherRecord, Saved
from supervisor.adapters.etcd.mirror import MirrorUpdate
from supervisor.contract import codec, keys
from supervisor.contract.desired import ClusterRecord
from supervisor.contract.ids import TaskId
from supervisor.contract.observed import (
    Incarnation,
    NodeResources,
    Prepared,
)
from supervisor.contract.timing import FAST
from supervisor.control.decide.plan import put
from tests.agent.daemon import (
    Agent,
    joined,
    registered,
)
from tests.support.waiting import until

# The supervisor's.


# The agent's.


async def test_the_intent_is_on_disk_before_a_launcher_is_spawned() -> None:
    agent = Agent()
    agent.prepare("p1")
    running = asyncio.create_task(agent.daemon().run())
    async with asyncio.timeout(20):
        await agent.machine.spawned.wait()
    running.cancel()
    await asyncio.wait([running])
    assert agent.machine.known_at_spawn[:1] == [True]


async def test_what_cannot_be_written_is_not_spawned_and_the_agent_lives_on() -> None:
    agent = Agent()
    async with registered(agent):
        agent.disk.full = True
        agent.prepare("p1")
        key = keys.prepared(TaskId("job", "worker", 0), "p1")
        await until(lambda: bool(agent.store.read(key)))
        (found,) = agent.store.read(key)
        told = codec.decode(Prepared, found.value)
        assert told.delay == "cannot write agent.json: No space left on device"
        assert not told.failure
        assert not agent.machine.known_at_spawn
        agent.disk.full = False
        agent.prepare("p2")
        await agent.machine.spawned.wait()
        assert agent.machine.known_at_spawn == [True]
        said = [event for level, event, _ in agent.sink.lines if level == "error"]
        assert said == ["the state file cannot be written: tasks run on, no task starts"]


async def test_what_a_watch_shows_of_an_etcd_that_went_back_is_not_wanted() -> None:
    """The simulator: the orders of an old snapshot were carried out before a read had shown what it was."""
    agent = Agent()
    record = ClusterRecord("c", FAST.profile, FAST.d_ms, uuid="c1")
    assert agent.store.commit([], [put(keys.CLUSTER, record)], []).succeeded
    async with registered(agent) as daemon:
        await until(lambda: daemon.state.view is not None)
        before = daemon.state.life
        daemon._changed(MirrorUpdate(9, (), relisted=True))
        assert daemon._heard_ms() is not None
        daemon._changed(MirrorUpdate(9, (), relisted=True, forked=True))
        assert daemon._heard_ms() is None, "so nothing of it comes to the core, nor vouches for anything"
        agent.next_life = "life2"
        await until(lambda: daemon.state.life != before and daemon.state.view is not None)
        (said,) = [
            fields
            for _, event, fields in agent.sink.lines
            if event == "this life of the agent is lost; its tasks are ended"
        ]
        assert "a snapshot was restored" in str(said["reason"])


async def test_a_state_that_goes_back_to_what_was_saved_before_a_failure_is_saved_again() -> None:
    agent = Agent()
    daemon = agent.daemon()
    daemon._state = before = adopt.anew(None, daemon._settings, "life1", "boot")
    assert await daemon._save()
    agent.disk.full = True
    daemon._state = replace(before, born=1)
    assert not await daemon._save()
    assert daemon._unsaved
    daemon._state, agent.disk.full = before, False
    assert await daemon._save()
    assert not daemon._unsaved, "its beats would say for ever that nothing can start here"
    assert agent.disk.told == Saved("life1", 3, "")


async def test_a_state_file_that_does_not_know_what_runs_is_not_believed() -> None:
    agent = Agent()
    known = LauncherRecord("life0-1", Recipe("job", "u", "/", "python"), 100, 1)
    agent.disk.record = AgentRecord("n1", "boot", "life0", born=1, launchers=(known,))
    agent.machine.strange = {"later-1": (Process(200, 2),)}
    # The life that the file does not know of is this node's all the same.
    later = Incarnation("n1", "later", "boot", 1, "h", "h:1", 1, 2, 1, NodeResources(1.0, 1))
    assert agent.store.commit([], [put(keys.node("n1"), later)], []).succeeded
    holders: list[str] = []

    def look() -> None:
        (found,) = agent.store.read(keys.node("n1"))
        holders.append(codec.decode(Incarnation, found.value).incarnation)

    agent.machine.at_fence = look
    daemon = await joined(agent)
    assert sorted(agent.machine.fenced) == ["later-1", "later-1", "life0-1", "life0-1"]
    assert set(holders) == {"later"}, "all of it is dead before this life registers"
    assert daemon.state.me is not None
    assert daemon.state.me.succeeds == ()
    assert not daemon.state.launchers
    (said,) = [fields for _, event, fields in agent.sink.lines if event.startswith("the state file is not")]
    assert said["unknown"] == ("later-1",)


async def test_a_state_file_that_is_not_the_last_one_is_not_believed_though_it_knows_what_runs() -> None:
    agent = Agent()
    launcher = LauncherRecord("life0-1", Recipe("job", "u", "/", "python"), 100, 1)
    agent.disk.record = AgentRecord(
        "n1", "boot", "life0", born=1, launchers=(launcher,), serial=7, origin="o"
    )
    agent.disk.told = Saved("later", 9, "o")
    agent.machine.strange = {"life0-1": (Process(100, 1),)}
    later = Incarnation("n1", "later", "boot", 1, "h", "h:1", 1, 2, 1, NodeResources(1.0, 1))
    assert agent.store.commit([], [put(keys.node("n1"), later)], []).succeeded
    daemon = await joined(agent)
    assert set(agent.machine.fenced) == {"life0-1"}
    assert daemon.state.me is not None
    assert daemon.state.me.succeeds == ()
    assert not daemon.state.launchers
    assert agent.disk.told == Saved(daemon.state.me.incarnation, 10, "o")
