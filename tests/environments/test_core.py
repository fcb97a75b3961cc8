"""An environment is made while a plan is prepared, and a launcher of another one serves no task."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.code import AGAIN_MS
from agent.core.desired import recipe_of
from agent.core.events import BroughtIn, Joined, Observed
from agent.core.instructions import BringIn, Instruction, KeepCode, Spawn
from agent.core.state import AgentState
from agent.core.step import step
from agent.runtimes.process import find_interpreters, job_environment
from supervisor.contract.desired import Assignment, JobPhase, JobSwitch, Spare
from supervisor.contract.errors import UserError
from supervisor.contract.job.spec import CodeRef, EnvironmentRef
from supervisor.contract.observed import NodeResources
from supervisor.contract.timing import FAST
from supervisor.control.decide.nodes.offers import grouped
from supervisor.control.decide.nodes.placement import Before, place
from tests.agent.core import ME, SETTINGS
from tests.support.builders import job_spec, offer, role

ONE = EnvironmentRef("a" * 64, "r.lock")
OTHER = replace(ONE, digest="b" * 64)
ORDER = Assignment(
    "job", "u", "worker", 0, 1, "p1", "n1", "life1", 1, ("python", "x.py"), "/w", environment=ONE
)
SWITCH = JobSwitch("job", "u", JobPhase.WAITING, 0)


class Core:
    """The core of an agent with one task to prepare."""

    def __init__(self, order: Assignment = ORDER) -> None:
        self.state = AgentState(SETTINGS, "life1", "boot", FAST.d_ms)
        self.now_ms = 1000
        self.give(Joined(ME, 1000, adopt=False, d_ms=FAST.d_ms))
        self.out = self.give(Observed((order,), (SWITCH,), self.now_ms))

    def give(self, event: Joined | Observed | BroughtIn, after_ms: int = 0) -> list[Instruction]:
        self.now_ms += after_ms
        self.state, out = step(self.state, [event], self.now_ms)
        return list(out)


def test_a_launcher_is_made_when_the_environment_is_there() -> None:
    core = Core()
    assert BringIn("p1", None, None, ONE, "/w") in core.out
    assert KeepCode(frozenset({ONE.key})) in core.out
    assert not [each for each in core.out if isinstance(each, Spawn)]
    (spawn,) = [each for each in core.give(BroughtIn("p1")) if isinstance(each, Spawn)]
    assert spawn.recipe.environment == ONE


def test_it_is_asked_for_again_as_long_as_it_cannot_be_had() -> None:
    core = Core()
    core.give(BroughtIn("p1", "pip has not ended", unknown=True))
    again = core.give(Observed((ORDER,), (SWITCH,), core.now_ms), after_ms=AGAIN_MS)
    assert [each for each in again if isinstance(each, BringIn)] == [BringIn("p1", None, None, ONE, "/w")]


def test_code_and_environment_come_together_and_both_are_kept() -> None:
    code = CodeRef("c" * 64, 10)
    core = Core(replace(ORDER, code=code))
    assert BringIn("p1", code, None, ONE, "/w") in core.out
    assert KeepCode(frozenset({ONE.key, code.digest})) in core.out


def test_a_launcher_of_another_environment_is_another_launcher() -> None:
    mine, bare = recipe_of(ORDER, "process"), recipe_of(replace(ORDER, environment=None), "process")
    assert mine != bare
    assert mine != recipe_of(replace(ORDER, environment=OTHER), "process")
    spare = Spare("job", "u", "n1", "/w", "python", environment=ONE)
    assert spare.environment == mine.environment


def test_environments_of_other_pythons_are_others_and_their_carrier_makes_no_difference() -> None:
    keys = {ONE.key, OTHER.key, replace(ONE, python="python3.12").key}
    assert len(keys) == 3
    assert replace(ONE, requirements="sub/r.lock", wheelhouse="file:///w").key == ONE.key


def test_the_environments_programs_are_found_first() -> None:
    recipe = recipe_of(ORDER, "process")
    env = job_environment(replace(recipe, env={"VIRTUAL_ENV": "/e"}))
    assert env["PATH"].startswith("/e/bin:")
    assert env["VIRTUAL_ENV"] == "/e"
    assert "/e/bin" not in job_environment(replace(recipe, environment=None))["PATH"]


def test_a_python_that_the_environment_lacks_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    recipe = replace(recipe_of(ORDER, "process"), env={"VIRTUAL_ENV": str(tmp_path)}, preload=())
    assert find_interpreters(recipe, job_environment(recipe)) == (str(tmp_path / "bin" / "python"),)
    named = replace(recipe, program="python3")
    with pytest.raises(UserError, match="the job's environment has no 'python3'"):
        find_interpreters(named, job_environment(named))


def test_only_nodes_that_make_environments_take_the_job() -> None:
    spec = replace(job_spec(roles=(role("worker"),)), environment=ONE)
    able = NodeResources(4, 1 << 30, environments=True)
    plain = offer("n1")
    found = place(spec, grouped([plain]), Before({}, {}))
    assert "needs a node that makes environments" in found.waiting_for
    both = grouped([plain, plain._replace(node="n2", resources=able)])
    assert {each.node for each in place(spec, both, Before({}, {})).placements.values()} == {"n2"}


def test_only_nodes_with_zstd_take_a_job_whose_environment_it_packed() -> None:
    packed = EnvironmentRef(digest="0" * 64, archive="hdfs://ns1/venv.tar.zst")
    spec = replace(job_spec(roles=(role("worker"),)), environment=packed)
    able = NodeResources(4, 1 << 30, environments=True)
    plain = offer("n1")._replace(resources=able)
    found = place(spec, grouped([plain]), Before({}, {}))
    assert "needs a node whose agent found the command zstd" in found.waiting_for
    both = grouped([plain, plain._replace(node="n2", resources=replace(able, zstd=True))])
    assert {each.node for each in place(spec, both, Before({}, {})).placements.values()} == {"n2"}
