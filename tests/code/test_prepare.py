"""A task is prepared when its code is on the node, and the code goes when nothing runs in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.code import AGAIN_MS
from agent.core.events import (
    BroughtIn,
    Event,
    Joined,
    LauncherSaid,
    MemoryFree,
    Observed,
    Spawned,
    SpawnFailed,
    Tick,
    Written,
)
from agent.core.instructions import BringIn, Instruction, KeepCode, Say, Spawn, Write
from agent.core.pool import SPARE_BYTES
from agent.core.state import AgentState
from agent.core.step import step
from agent.inside import protocol
from supervisor.contract.desired import Assignment, JobPhase, JobSwitch, Spare
from supervisor.contract.errors import Conflict
from supervisor.contract.job.spec import CodeRef
from supervisor.contract.observed import Prepared
from supervisor.contract.timing import FAST
from supervisor.contract.views.jobs import SubmitRequest
from tests.agent.core import ME, SETTINGS
from tests.control.leader import Leader, other_job
from tests.support.builders import code_archive

CODE = CodeRef("c" * 64, 10)
ORDER = Assignment("job", "u", "worker", 0, 1, "p1", "n1", "life1", 1, ("python", "x.py"), "/w", code=CODE)


class Agent:
    """The core, with one task to prepare."""

    def __init__(self, order: Assignment = ORDER) -> None:
        self.now_ms = 1000
        self.state = AgentState(SETTINGS, "life1", "boot", FAST.d_ms)
        self.out: list[Instruction] = []
        self.give(Joined(ME, 1000, adopt=False, d_ms=FAST.d_ms))
        self.want(order)

    def want(self, *orders: Assignment) -> None:
        self.give(Observed(orders, (JobSwitch("job", "u", JobPhase.WAITING, 0),), self.now_ms))

    def give(self, event: Event, after_ms: int = 0) -> list[Instruction]:
        self.now_ms += after_ms
        self.state, out = step(self.state, [event], self.now_ms)
        self.out += out
        return list(out)

    def launch(self) -> None:
        """The launcher that was asked for comes up and holds a port."""
        (spawn,) = [each for each in self.out if isinstance(each, Spawn)]
        assert spawn.recipe.code == CODE
        hello = protocol.Hello(protocol.PROTOCOL, spawn.launcher_id, "job", 7, 7, "boot", warm=True)
        self.give(Spawned(spawn.launcher_id, 7, 7))
        self.give(LauncherSaid(spawn.launcher_id, hello))
        (asked,) = [
            e.message for e in self.out if isinstance(e, Say) and isinstance(e.message, protocol.Reserve)
        ]
        self.give(LauncherSaid(spawn.launcher_id, protocol.Reserved(asked.reservation, 20001)))

    @property
    def unpacks(self) -> list[BringIn]:
        return [each for each in self.out if isinstance(each, BringIn)]

    @property
    def answers(self) -> list[Prepared]:
        return [e.record for e in self.out if isinstance(e, Write) and isinstance(e.record, Prepared)]


def test_a_launcher_is_made_and_prepared_is_told_when_the_code_is_there() -> None:
    agent = Agent()
    assert agent.unpacks == [BringIn("p1", CODE)]
    agent.give(Tick(), 100)
    assert not any(isinstance(each, Spawn) for each in agent.out)
    agent.give(BroughtIn("p1"))
    agent.launch()
    (answer,) = agent.answers
    assert (answer.address, answer.failure) == ("h:20001", "")
    assert len(agent.unpacks) == 1


def test_a_launcher_that_is_there_reserves_meanwhile_and_prepared_still_waits() -> None:
    agent = Agent()
    agent.give(BroughtIn("p1"))
    agent.launch()
    agent.give(Written("prepared/p1.worker.0", ok=True))
    again = replace(ORDER, generation=2, plan_id="p2")
    agent.out.clear()
    agent.want(again)
    (asked,) = [
        e.message for e in agent.out if isinstance(e, Say) and isinstance(e.message, protocol.Reserve)
    ]
    launcher = next(iter(agent.state.launchers))
    agent.give(LauncherSaid(launcher, protocol.Reserved(asked.reservation, 20002)))
    assert agent.unpacks == [BringIn("p2", CODE)]
    assert agent.answers == []
    agent.give(BroughtIn("p2", "HDFS does not answer", unknown=True))
    assert [(answer.address, answer.delay) for answer in agent.answers] == [("", "HDFS does not answer")]
    agent.give(Written("delayed/p2.worker.0", ok=True))
    agent.give(Tick(), AGAIN_MS)
    agent.give(BroughtIn("p2"))
    assert [answer.address for answer in agent.answers[1:]] == ["h:20002"]


def test_code_that_cannot_be_had_is_a_failure_with_its_reason() -> None:
    agent = Agent()
    agent.give(BroughtIn("p1", "its code is not here: gone"))
    assert not any(isinstance(each, Spawn) for each in agent.out), "no launcher could start without it"
    (answer,) = agent.answers
    assert (answer.address, answer.failure) == ("", "its code is not here: gone")


def test_code_that_can_be_unpacked_nowhere_is_told_as_hopeless() -> None:
    agent = Agent()
    agent.give(BroughtIn("p1", "its code is not here: the archive is cut off", hopeless=True))
    (answer,) = agent.answers
    assert (answer.failure, answer.hopeless) == ("its code is not here: the archive is cut off", True)
    assert not answer.no_code, "a leader of an earlier release does not wait for it"


def test_what_etcd_cannot_give_now_is_asked_for_again_and_is_no_failure() -> None:
    agent = Agent()
    agent.give(BroughtIn("p1", "too slow", unknown=True))
    agent.give(Tick(), AGAIN_MS - 1)
    assert len(agent.unpacks) == 1
    agent.give(Tick(), 1)
    assert len(agent.unpacks) == 2
    (told,) = agent.answers
    assert (told.failure, told.delay) == ("", "too slow")


def test_a_spare_that_waits_for_the_code_in_vain_is_no_fault_of_the_task_that_was_to_have_it() -> None:
    agent = Agent()
    spare = Spare("job", "u", "n1", ORDER.workdir, ORDER.argv[0], code=CODE)
    running = JobSwitch("job", "u", JobPhase.RUNNING, 0)
    agent.give(MemoryFree(SPARE_BYTES))
    agent.give(Observed((), (running,), agent.now_ms, (spare,)))
    (spawn,) = [each for each in agent.out if isinstance(each, Spawn)]
    agent.give(Observed((ORDER,), (running,), agent.now_ms, (spare,)))
    assert agent.state.holds, "it takes the spare that is being made"
    agent.give(SpawnFailed(spawn.launcher_id, "etcd was too slow", unknown=True))
    agent.give(BroughtIn("p1"))
    agent.out = [each for each in agent.out if each is not spawn]
    agent.launch()
    assert [answer.failure for answer in agent.answers] == [""]


def test_code_is_kept_for_what_is_assigned_and_for_every_launcher() -> None:
    agent = Agent()
    assert [e for e in agent.out if isinstance(e, KeepCode)] == [KeepCode(frozenset({CODE.digest}))]
    agent.give(BroughtIn("p1"))
    agent.launch()
    agent.out.clear()
    agent.want()
    # Its launcher may still be in that directory.
    assert not any(isinstance(each, KeepCode) for each in agent.out)
    assert agent.state.code == {}


async def test_a_job_whose_code_is_not_there_is_not_recorded() -> None:
    leader = Leader()
    ref, _ = code_archive(100)
    with pytest.raises(Conflict, match="is not on the cluster"):
        await leader.job_service.submissions.submit(SubmitRequest(replace(other_job(), code=ref)))
    assert leader.record("other") is None
