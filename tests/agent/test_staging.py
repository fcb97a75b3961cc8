"""Failures to stage a base: the leader is told of the store's, not of a silent etcd or a full disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.events import Joined, Observed, StageDone, Unstaged
from agent.core.instructions import Instruction, Stage, Write
from agent.core.reporting import STAGE_AGAIN_MS
from agent.core.state import ROOM_AGAIN_MS, AgentState
from agent.core.step import step
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import Assignment, Closing, JobPhase, JobSwitch
from supervisor.contract.observed import Staged, StageFailure
from supervisor.contract.timing import FAST
from tests.agent.core import ME, SETTINGS

ORDER = Assignment("job", "u", "worker", 0, 2, "p2", "n1", "life1", 1, ("x",), "/")
BASE = CheckpointRef(1, 7)
CLOSED = JobSwitch("job", "u", JobPhase.RUNNING, 1, "p1", closing=Closing("p2", BASE))
NOW_MS = 100_000


class Core:
    """An agent's core on a node that a plan in preparation needs."""

    def __init__(self) -> None:
        state = AgentState(SETTINGS, "life1", "boot", FAST.d_ms)
        self.now_ms = NOW_MS
        self.state, _ = step(state, [Joined(ME, NOW_MS, adopt=False, d_ms=FAST.d_ms)], NOW_MS)

    def look(self, after_ms: int = 0) -> list[Instruction]:
        self.now_ms += after_ms
        self.state, said = step(self.state, [Observed((ORDER,), (CLOSED,), self.now_ms)], self.now_ms)
        return list(said)

    def end(self, done: StageDone) -> list[Instruction]:
        self.state, said = step(self.state, [done], self.now_ms)
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


@pytest.mark.parametrize(
    ("failure", "word"),
    [(None, None), (Unstaged.BAD, StageFailure.BAD), (Unstaged.UNREADABLE, StageFailure.UNKNOWN)],
)
def test_what_the_store_said_is_told(core: Core, failure: Unstaged | None, word: StageFailure | None) -> None:
    assert told(core.end(StageDone("job", "p2", BASE, failure, "why"))) == [word]
    assert core.state.blocked(core.now_ms) == ""


@pytest.mark.parametrize("failure", [Unstaged.UNASKED, Unstaged.NO_ROOM])
def test_what_says_nothing_of_the_store_is_told_to_nobody_and_tried_again(
    core: Core, failure: Unstaged
) -> None:
    untold = StageDone("job", "p2", BASE, failure, "why")
    assert told(core.end(untold)) == []
    assert stages(core.look(STAGE_AGAIN_MS - 1)) == 0
    assert stages(core.look(1)) == 1
    assert told(core.end(replace(untold, failure=None))) == [None]


def test_where_a_base_has_found_no_room_nothing_new_starts_for_a_while(core: Core) -> None:
    core.end(StageDone("job", "p2", BASE, Unstaged.NO_ROOM, "No space left on device"))
    assert core.state.blocked(core.now_ms + ROOM_AGAIN_MS - 1) == "No space left on device"
    assert core.state.blocked(core.now_ms + ROOM_AGAIN_MS) == ""
