"""An unexpected error that an agent meets ends what it is about, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from agent.core import set_aside
from agent.core.events import (
    BeatSeen,
    Broken,
    Fenced,
    LauncherSaid,
    Observed,
    Tick,
)
from agent.core.instructions import (
    Commit,
    Fence,
    Launch,
    Say,
    StopCommit,
)
from agent.core.state import AgentState, ReportLevel
from agent.core.step import step
from agent.inside import protocol
from chaos.sim.trouble import flaws
from chaos.sim.trouble.flaws import Flaw
from supervisor.contract.observed import ExitReason
from tests.agent.core import ORDER, RUNNING, SAVES, SPEC, WAITING, Core, only
from tests.agent.two_jobs import OTHER, TwoJobs

FEW = 4
"""One in so many of the rules is tried each time, all of them by `make test-all`."""
RULES = tuple(
    pytest.param(rule, marks=() if index % FEW == 0 else pytest.mark.slow)
    for index, rule in enumerate(sorted(flaws.agent_rules()))
)


@pytest.fixture
def install() -> Iterator[Callable[[Flaw], Flaw]]:
    undone: list[Callable[[], None]] = []

    def begin(flaw: Flaw) -> Flaw:
        undone.append(flaws.install(flaw))
        return flaw

    yield begin
    for undo in undone:
        undo()


@pytest.fixture
def two() -> TwoJobs:
    """Both run."""
    core = TwoJobs().see_both(WAITING).see_both(RUNNING)
    assert core.runs(ORDER)
    assert core.runs(OTHER)
    return core


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_raises_for_one_job_harms_no_other(
    rule: str, at: int, install: Callable[[Flaw], Flaw]
) -> None:
    """From before anything is prepared: the other job starts, and goes on."""
    install(Flaw(rule, "job", at=at, lasts=True))
    core = TwoJobs().see_both(WAITING).see_both(RUNNING)
    assert core.runs(OTHER)
    core.see_both(RUNNING)
    assert core.runs(OTHER)


@pytest.mark.parametrize("rule", ["agent.launcher_events._on_pull", "agent.launcher_events._on_warm"])
def test_an_error_about_what_a_launcher_said_ends_its_attempt_with_the_place(
    rule: str, two: TwoJobs, install: Callable[[Flaw], Flaw]
) -> None:
    install(Flaw(rule, "job", lasts=True))
    launcher = two.state.attempts[ORDER.attempt_id].launcher_id
    two.feed(LauncherSaid(launcher, protocol.Warm(100)))
    two.live(4)
    end = two.reports["job"].exit
    assert end is not None
    assert (end.reason, end.confirmed_dead) == (ExitReason.START_FAILED, True)
    assert f"Flawed: {rule} for job" in end.detail
    assert ", at agent/core/" in end.detail
    assert launcher not in two.state.launchers
    assert two.runs(OTHER)


def test_an_error_about_what_is_prepared_is_told_to_the_leader(install: Callable[[Flaw], Flaw]) -> None:
    install(Flaw("agent.desired.recipe_of", "job", lasts=True))
    core = TwoJobs().see_both(WAITING)
    assert "Flawed: agent.desired.recipe_of" in core.words["job"].failure
    assert core.words["other"].address


def test_a_plan_that_is_set_aside_is_forgotten_with_its_records(
    install: Callable[[Flaw], Flaw],
) -> None:
    install(Flaw("agent.desired.recipe_of", "job", lasts=True))
    core = TwoJobs().see_both(WAITING)
    assert core.state.aside.keys() == {"p1"}
    core.feed(Observed((OTHER,), (replace(WAITING, job="other", job_uuid="v"),), core.now_ms))
    assert not core.state.aside


@pytest.mark.parametrize(
    "event",
    [
        Broken("odd", attempt=ORDER.attempt_id),
        Broken("odd", job_uuid=ORDER.job_uuid),
    ],
)
def test_what_the_daemon_met_an_error_about_is_ended_and_told(event: Broken, two: TwoJobs) -> None:
    two.feed(event)
    two.live(4)
    end = two.reports["job"].exit
    assert end is not None
    assert end.detail.endswith("odd")
    assert not two.runs(ORDER)
    assert two.runs(OTHER)


def test_what_commits_for_a_job_is_begun_anew_after_an_error() -> None:
    core, order = Core(), ORDER
    core.prepared(order)
    core.see(SAVES, order)
    assert len(only(Commit, core.said)) == 1
    out = core.feed(Broken("odd", job_uuid="another"))
    assert not only(StopCommit, out)
    out = core.feed(Broken("odd", job_uuid=ORDER.job_uuid))
    assert [type(each) for each in out if isinstance(each, Commit | StopCommit)] == [StopCommit, Commit]


def test_an_error_that_is_about_no_task_ends_the_agent(two: TwoJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_given: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("agent.core.gpus.report.tell", faulty)
    with pytest.raises(ZeroDivisionError):
        two.feed(Tick())


def test_an_error_that_all_jobs_of_a_node_meet_is_the_agents_own(
    two: TwoJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended, as before: its tasks are none of the culprits, and what they may fail by is not spent."""

    def faulty(*_given: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("agent.core.reporting._record", faulty)
    for order in (ORDER, OTHER):
        attempt = two.state.attempts[order.attempt_id]
        two.state.attempts[order.attempt_id] = replace(attempt, told=ReportLevel.NOTHING)
    with pytest.raises(ZeroDivisionError):
        two.feed(Tick())


def test_an_error_about_one_event_costs_no_other_event_of_its_step(
    two: TwoJobs, install: Callable[[Flaw], Flaw]
) -> None:
    install(Flaw("agent.launcher_events._on_pull", "job", lasts=True))
    bad, good = (two.state.attempts[order.attempt_id] for order in (ORDER, OTHER))
    two.together(
        LauncherSaid(bad.launcher_id, protocol.Pull(two.now_ms, two.state.life, str(bad.id))),
        LauncherSaid(good.launcher_id, protocol.Exited(str(good.id), 0, None, two.now_ms, "exit", True)),
    )
    ends = [two.state.attempts[each.id].end for each in (bad, good)]
    assert [each.reason for each in ends if each is not None] == [ExitReason.START_FAILED, ExitReason.EXIT]


def test_a_step_that_meets_an_error_leaves_nothing_half_done(
    two: TwoJobs, install: Callable[[Flaw], Flaw]
) -> None:
    before: AgentState = two.state
    install(Flaw("agent.warmth.starts_warm", "job"))
    after, _ = step(before, [Tick()], two.now_ms)
    assert before.attempts == two.state.attempts
    assert after.attempts.keys() == before.attempts.keys()


def test_each_instruction_that_somebody_waits_for_has_an_answer() -> None:
    fence = set_aside.answer_of(Fence("l1", ()), "odd")
    assert fence == Fenced("l1", survivors=1), "it is fenced again"
    assert set_aside.answer_of(Say("l1", protocol.Kill("x", "y")), "odd") == Broken("odd", launcher_id="l1")


def test_a_job_that_meets_an_error_everywhere_is_told_as_ended_once_it_is_dead(
    two: TwoJobs, install: Callable[[Flaw], Flaw]
) -> None:
    """Seed 858319097: nobody told the leader, and the job hung with none of its tasks alive."""
    launcher = two.state.attempts[ORDER.attempt_id].launcher_id
    flaw = install(Flaw("agent.tasks._running", "job", lasts=True))
    two.feed(Tick())
    assert ORDER.attempt_id not in two.state.attempts
    assert launcher in {each.launcher_id for each in only(Fence, two.said)}
    flaw.armed = False
    two.seen = len(two.said)
    two.feed(Fenced(launcher, survivors=1))
    two.now_ms += 1_000
    two.feed(BeatSeen(two.now_ms), Tick())
    assert only(Fence, two.said[two.seen :])[0].launcher_id == launcher, "it is fenced again"
    report = two.reports["job"]
    assert report.exit is None, "it may live"
    two.live(4)
    end = two.reports["job"].exit
    assert end is not None
    assert (end.reason, end.confirmed_dead) == (ExitReason.START_FAILED, True)
    assert "Flawed: agent.tasks._running for job" in end.detail
    assert two.runs(OTHER)


def test_the_attempt_that_follows_an_error_is_tried(two: TwoJobs, install: Callable[[Flaw], Flaw]) -> None:
    """One error used up the budget: each restart in place was ended unstarted."""
    install(Flaw("agent.desired._place", "job"))
    two.live(4)
    assert not two.runs(ORDER)
    again = replace(ORDER, attempt=2)
    switches = [
        replace(RUNNING, job=each.job, job_uuid=each.job_uuid, plan_id=each.plan_id)
        for each in (ORDER, OTHER)
    ]
    two.feed(Observed((again, OTHER), tuple(switches), two.now_ms))
    two.live()
    assert two.runs(again)


def test_of_the_tasks_that_an_error_ends_together_one_is_charged() -> None:
    core = Core().running()
    another = replace(ORDER, index=1).attempt_id
    core.state.attempts[another] = replace(core.attempt, id=another)
    core.feed(Broken("odd", job_uuid=ORDER.job_uuid))
    ends = [core.state.attempts[each].end for each in (ORDER.attempt_id, another)]
    assert [end.reason for end in ends if end is not None] == [ExitReason.START_FAILED, ExitReason.KILLED]


def test_nothing_starts_beside_what_is_still_killed_of_its_job(
    two: TwoJobs, install: Callable[[Flaw], Flaw]
) -> None:
    flaw = install(Flaw("agent.tasks._running", "job", lasts=True))
    two.feed(Tick())
    flaw.armed = False
    again = replace(ORDER, plan_id="p3", generation=2)
    switch = replace(RUNNING, plan_id="p3", generation=2)
    other = replace(RUNNING, job="other", job_uuid="v", plan_id="p2")
    two.feed(Observed((again, OTHER), (switch, other), two.now_ms))
    assert again.attempt_id not in two.state.attempts
    assert not [each for each in two.state.holds.values() if each.job == "job"]
    two.live()
    assert two.runs(again)


def test_a_launch_that_raised_may_have_started_its_attempt() -> None:
    launch = Launch("l1", ORDER, SPEC, None, "p1.worker.0", warm=True, address="")
    answer = set_aside.answer_of(launch, "odd")
    assert answer == Broken("odd", launcher_id="l1")
