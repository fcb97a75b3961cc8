"""Files of ended jobs go from the node, also those that an earlier life of its agent has left."""

from __future__ import annotations

from dataclasses import replace

from agent.core.events import Joined, Observed
from agent.core.instructions import Clean
from agent.core.state import AgentState
from agent.core.step import step
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.observed import Incarnation, NodeResources
from supervisor.contract.timing import FAST
from tests.agent.core import SETTINGS

ME = Incarnation("n1", "life2", "boot", FAST.d_ms, "h", "h:1", 20000, 20100, 1, NodeResources(1.0, 1))
NOW_MS = 100_000
LIVE = JobSwitch("job", "u", JobPhase.RUNNING, 2, "p2")
OVER = replace(LIVE, phase=JobPhase.STOPPED)


class Core:
    """An agent's core on whose node directories of these jobs were found, and that runs nothing."""

    def __init__(self, *found: str) -> None:
        state = AgentState(SETTINGS, "life2", "boot", FAST.d_ms, found=frozenset(found))
        self.state, _ = step(state, [Joined(ME, NOW_MS, adopt=False, d_ms=FAST.d_ms)], NOW_MS)

    def cleans(self, *switches: JobSwitch) -> list[Clean]:
        """The instructions to clean that the sight of these switches leads to."""
        self.state, said = step(self.state, [Observed((), switches, NOW_MS)], NOW_MS)
        return [each for each in said if isinstance(each, Clean)]


def test_what_an_earlier_life_has_left_goes_when_its_job_is_over() -> None:
    core = Core("u")
    assert core.cleans(LIVE) == []
    assert core.cleans(OVER) == [Clean("job", "u", 2, ended=True)]
    assert core.cleans(OVER) == []


def test_what_a_deleted_job_has_left_goes() -> None:
    core = Core("u")
    assert core.cleans(LIVE) == []
    assert core.cleans() == [Clean("job", "u", 2, ended=True)]


def test_a_new_life_of_a_job_name_ends_the_one_before() -> None:
    core = Core("u")
    assert core.cleans(LIVE) == []
    assert core.cleans(replace(LIVE, job_uuid="v")) == [Clean("job", "u", 2, ended=True)]


def test_it_goes_too_when_the_job_had_ended_before_this_life_began() -> None:
    core = Core("u")
    assert core.cleans(OVER) == [Clean("job", "u", 2, ended=True)]
    assert core.cleans(OVER) == []


def test_what_is_of_no_known_job_is_left_alone() -> None:
    core = Core("another")
    assert core.cleans(LIVE) == []
    assert core.cleans(OVER) == []
