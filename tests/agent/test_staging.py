"""What of staging a base a leader is told: what the store said, and not that etcd was silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.duties import STAGE_AGAIN_MS
from agent.core.events import Joined, Observed, StageDone
from agent.core.instructions import Instruction, Stage, Write
from agent.core.state import AgentState
from agent.core.step import step
from agent.settings import AgentSettings
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import Assignment, Closing, JobPhase, JobSwitch
from supervisor.contract.observed import Incarnation, NodeResources, Staged, StageFailure
from supervisor.contract.timing import FAST

SETTINGS = AgentSettings("n1", "h", "h:1", 20000, 20100, "/locks", FAST, NodeResources(1.0, 1))
ME = Incarnation("n1", "life1", "boot", FAST.d_ms, "h", "h:1", 20000, 20100, 1, NodeResources(1.0, 1))
ORDER = Assignment("job", "u", "worker", 0, 2, "p2", "n1", "life1", 1, ("x",), "/")
BASE = CheckpointRef(1, 7)
CLOSED = JobSwitch("job", "u", JobPhase.RUNNING, 1, "p1", closing=Closing("p2", BASE))
NOW_MS = 100_000


class Core:
    """An agent's core on a node that a plan in preparation needs."""

    def __init__(self) -> None:
        state = AgentState(SETTINGS, "life1", "boot", FAST.d_ms)
        self.now_ms = NOW_MS
        self.state, _ = step(state, Joined(ME, NOW_MS, adopt=False, d_ms=FAST.d_ms), NOW_MS)

    def look(self, after_ms: int = 0) -> list[Instruction]:
        self.now_ms += after_ms
        self.state, said = step(self.state, Observed((ORDER,), (CLOSED,), self.now_ms), self.now_ms)
        return list(said)

    def end(self, done: StageDone) -> list[Instruction]:
        self.state, said = step(self.state, done, self.now_ms)
        return list(said)


def stages(said: list[Instruction]) -> int:
    return sum(isinstance(each, Stage) for each in said)


def told(said: list[Instruction]) -> list[StageFailure | None]:
    writes = [each.record for each in said if isinstance(each, Write)]
    return [record.failure for record in writes if isinstance(record, Staged)]


@pytest.fixture
def core() -> Core:
    made = Core()
    assert stages(made.look()) == 1
    return made


@pytest.mark.parametrize("failure", [None, StageFailure.BAD, StageFailure.UNKNOWN])
def test_what_the_store_said_is_told(core: Core, failure: StageFailure | None) -> None:
    assert told(core.end(StageDone("job", "p2", BASE, failure, "why"))) == [failure]


def test_that_etcd_was_silent_is_told_to_nobody_and_it_is_tried_again(core: Core) -> None:
    silent = StageDone("job", "p2", BASE, StageFailure.UNKNOWN, "get: no answer", unasked=True)
    assert told(core.end(silent)) == []
    assert stages(core.look(STAGE_AGAIN_MS - 1)) == 0
    assert stages(core.look(1)) == 1
    assert told(core.end(replace(silent, failure=None, unasked=False))) == [None]
