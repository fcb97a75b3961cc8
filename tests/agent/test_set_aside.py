"""An unexpected error that an agent meets ends what it is about, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from agent.core import set_aside
from agent.core.events import (
    BeatSeen,
    Broken,
    Drained,
    Event,
    Fenced,
    Heard,
    LauncherSaid,
    Observed,
    OutputsReady,
    Reported,
    Spawned,
    SpecRead,
    Tick,
    Written,
)
from agent.core.instructions import (
    Commit,
    Drain,
    Fence,
    Instruction,
    Launch,
    PrepareOutputs,
    ReadSpec,
    Report,
    Say,
    Spawn,
    StopCommit,
    Write,
)
from agent.core.state import AgentState, ReportLevel
from agent.core.step import step
from agent.inside import protocol
from chaos.sim.trouble import flaws
from chaos.sim.trouble.flaws import Flaw
from supervisor.contract.desired import Assignment, ClusterSpec, JobSwitch, RoleAddresses
from supervisor.contract.observed import AttemptReport, ExitReason, Prepared
from tests.guarantees.test_agent_rules import ORDER, RUNNING, SPEC, WAITING, Core, only

FEW = 4
"""One in so many of the rules is tried each time, all of them by `make test-all`."""
RULES = tuple(
    pytest.param(rule, marks=() if index % FEW == 0 else pytest.mark.slow)
    for index, rule in enumerate(sorted(flaws.agent_rules()))
)
PORTS = {"p1": 20_000, "p2": 20_001}
OTHER = replace(ORDER, job="other", job_uuid="v", plan_id="p2")


class Two(Core):
    """An agent with two jobs of one task each, around which all do what they are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: dict[str, AttemptReport] = {}
        self.words: dict[str, Prepared] = {}
        self.seen = 0

    def see_both(self, base: JobSwitch) -> Two:
        """What the leader wants of both."""
        plans = {each.plan_id: each.plan_id if base is RUNNING else "" for each in (ORDER, OTHER)}
        switches = [
            replace(base, job=each.job, job_uuid=each.job_uuid, plan_id=plans[each.plan_id])
            for each in (ORDER, OTHER)
        ]
        self.feed(Observed((ORDER, OTHER), tuple(switches), self.now_ms))
        return self.live()

    def live(self, rounds: int = 15) -> Two:
        """Answer whatever is asked, for a while."""
        for _ in range(rounds):
            self.now_ms += 200
            self.feed(BeatSeen(self.now_ms), Heard(self.now_ms), Tick())
            for launcher in list(self.state.launchers.values()):
                if launcher.connected:
                    pull = protocol.Pull(self.now_ms, self.state.life, None)
                    self.feed(LauncherSaid(launcher.launcher_id, pull))
            asked, self.seen = self.said[self.seen :], len(self.said)
            for instruction in asked:
                self.feed(*self.answers(instruction))
        return self

    def answers(self, asked: Instruction) -> Iterator[Event]:
        match asked:
            case Spawn():
                yield Spawned(asked.launcher_id, 100, 1)
                hello = protocol.Hello(1, asked.launcher_id, asked.recipe.job, 100, 1, "boot", True)
                yield LauncherSaid(asked.launcher_id, hello)
            case Fence():
                yield Fenced(asked.launcher_id, 0)
            case ReadSpec():
                yield SpecRead(asked.plan_id, spec_of(asked.plan_id))
            case PrepareOutputs():
                yield OutputsReady(asked.attempt)
            case Drain():
                yield Drained(asked.attempt)
            case Report():
                self.reports[asked.record.job] = asked.record
                yield Reported(asked.record.attempt, asked.serial, ok=True)
            case Write():
                if isinstance(asked.record, Prepared):
                    self.words[asked.record.job] = asked.record
                yield Written(asked.tag, ok=True)
            case Launch():
                started = protocol.Started(str(asked.assignment.attempt_id), 101, 1, self.now_ms, True)
                yield LauncherSaid(asked.launcher_id, started)
            case Say(launcher_id, protocol.Reserve() as reserve):
                port = PORTS[reserve.reservation.partition(".")[0]]
                yield LauncherSaid(launcher_id, protocol.Reserved(reserve.reservation, port))
            case _:
                pass

    def runs(self, order: Assignment) -> bool:
        attempt = self.state.attempts.get(order.attempt_id)
        return attempt is not None and attempt.pid > 0 and attempt.end is None


def spec_of(plan_id: str) -> ClusterSpec:
    job = ORDER.job if plan_id == ORDER.plan_id else OTHER.job
    return replace(SPEC, job=job, plan_id=plan_id, roles=(RoleAddresses("worker", (f"h:{PORTS[plan_id]}",)),))


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
def two() -> Two:
    """Both run."""
    core = Two().see_both(WAITING).see_both(RUNNING)
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
    core = Two().see_both(WAITING).see_both(RUNNING)
    assert core.runs(OTHER)
    core.see_both(RUNNING)
    assert core.runs(OTHER)


@pytest.mark.parametrize("rule", ["agent.launcher_events._on_pull", "agent.launcher_events._on_warm"])
def test_an_error_about_what_a_launcher_said_ends_its_attempt_with_the_place(
    rule: str, two: Two, install: Callable[[Flaw], Flaw]
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
    core = Two().see_both(WAITING)
    assert "Flawed: agent.desired.recipe_of" in core.words["job"].failure
    assert core.words["other"].address


def test_a_plan_that_is_set_aside_is_forgotten_with_its_records(
    install: Callable[[Flaw], Flaw],
) -> None:
    install(Flaw("agent.desired.recipe_of", "job", lasts=True))
    core = Two().see_both(WAITING)
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
def test_what_the_daemon_met_an_error_about_is_ended_and_told(event: Broken, two: Two) -> None:
    two.feed(event)
    two.live(4)
    end = two.reports["job"].exit
    assert end is not None
    assert end.detail.endswith("odd")
    assert not two.runs(ORDER)
    assert two.runs(OTHER)


def test_what_commits_for_a_job_is_begun_anew_after_an_error() -> None:
    core, order = Core(), replace(ORDER, saver=True)
    core.prepared(order)
    core.see(RUNNING, order)
    assert len(only(Commit, core.said)) == 1
    out = core.feed(Broken("odd", job_uuid="another"))
    assert not only(StopCommit, out)
    out = core.feed(Broken("odd", job_uuid=ORDER.job_uuid))
    assert [type(each) for each in out if isinstance(each, Commit | StopCommit)] == [StopCommit, Commit]


def test_an_error_that_is_about_no_task_ends_the_agent(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_given: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("agent.core.gpus.report.tell", faulty)
    with pytest.raises(ZeroDivisionError):
        two.feed(Tick())


def test_an_error_that_all_jobs_of_a_node_meet_is_the_agents_own(
    two: Two, monkeypatch: pytest.MonkeyPatch
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
    two: Two, install: Callable[[Flaw], Flaw]
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
    two: Two, install: Callable[[Flaw], Flaw]
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
