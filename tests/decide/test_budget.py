"""The restart budget and the pauses (rule 13)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.policy.budget import Verdict, charge
from recovery.policy.history import ASKED, Tally
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import Ledger
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import RestartPolicy
from tests.support.builders import ref

POLICY = RestartPolicy(max_restarts=3, backoff_ms=500, backoff_max_ms=30_000)
FAULTS = tuple(cause for cause in Cause if cause.program_fault)
OTHERS = tuple(cause for cause in Cause if not cause.program_fault and cause not in ASKED)
REFS = st.none() | st.builds(CheckpointRef, st.integers(1, 50), st.integers(0, 500))
STEPS = st.lists(st.tuples(st.sampled_from((*FAULTS, *OTHERS)), REFS), max_size=30)


def run(
    *entries: tuple[Cause, CheckpointRef | None], policy: RestartPolicy = POLICY, ledger: Ledger | None = None
) -> list[Verdict]:
    """Charge one after the other, each on the ledger that the one before left."""
    verdicts: list[Verdict] = []
    ledger = ledger or Ledger()
    for cause, newest in entries:
        verdicts.append(charge(ledger, cause, newest, policy))
        ledger = verdicts[-1].ledger
    return verdicts


def faults(count: int, newest: CheckpointRef | None = None) -> list[tuple[Cause, CheckpointRef | None]]:
    return [(Cause.PROGRAM_EXIT, newest)] * count


@pytest.mark.parametrize("newest", [None, ref(1, 40)])
def test_max_restarts_in_a_row_then_refused(newest: CheckpointRef | None) -> None:
    verdicts = run(*faults(4, newest))
    assert [verdict.allowed for verdict in verdicts] == [True, True, True, False]
    assert verdicts[-1].ledger == Ledger(program=3, streak=4, progress=newest)
    assert verdicts[-1].backoff_ms == 0


def test_the_pause_doubles_from_the_second_fault_of_a_streak() -> None:
    policy = RestartPolicy(max_restarts=20, backoff_ms=500, backoff_max_ms=3_000)
    pauses = [verdict.backoff_ms for verdict in run(*faults(6), policy=policy)]
    assert pauses == [0, 500, 1_000, 2_000, 3_000, 3_000]


def test_a_very_long_streak_still_pauses_at_the_maximum() -> None:
    policy = RestartPolicy(max_restarts=10**9, backoff_ms=1, backoff_max_ms=30_000)
    assert charge(Ledger(streak=10**8), Cause.PROGRAM_EXIT, None, policy).backoff_ms == 30_000


def test_a_newer_checkpoint_begins_a_new_streak() -> None:
    verdicts = run(*faults(3, ref(1, 40)), *faults(1, ref(4, 41)))
    assert verdicts[-1] == Verdict(
        Ledger(program=4, streak=1, progress=ref(4, 41)),
        allowed=True,
        backoff_ms=0,
        reason="1 of 3 restarts in a row without a newer checkpoint used, at once",
    )


def test_saving_again_what_was_restored_is_no_progress() -> None:
    """TF1's chief saves at its first step: a program that then dies must not restart for ever."""
    entries = [(Cause.PROGRAM_EXIT, ref(generation, 40)) for generation in range(1, 5)]
    assert [verdict.allowed for verdict in run(*entries)] == [True, True, True, False]


def test_falling_back_to_an_older_checkpoint_is_no_progress() -> None:
    verdicts = run(*faults(2, ref(1, 40)), *faults(1, ref(1, 30)), *faults(1, ref(3, 35)))
    assert not verdicts[-1].allowed
    assert verdicts[-1].ledger.progress == ref(1, 40)


def test_no_restart_allowed_at_all() -> None:
    (verdict,) = run(*faults(1), policy=RestartPolicy(max_restarts=0))
    assert not verdict.allowed


@pytest.mark.parametrize("cause", OTHERS)
def test_other_causes_are_counted_apart_and_always_allowed(cause: Cause) -> None:
    exhausted = Ledger(program=3, infrastructure=7, streak=4, progress=ref(1, 40))
    verdict = charge(exhausted, cause, ref(9, 90), POLICY)
    assert verdict.ledger == Ledger(program=3, infrastructure=8, streak=4, progress=ref(1, 40))
    assert (verdict.allowed, verdict.backoff_ms) == (True, 0)


def test_a_start_that_is_asked_for_is_no_restart_and_gives_the_streak_back() -> None:
    exhausted = Ledger(program=3, infrastructure=7, streak=4, progress=ref(1, 40))
    verdict = charge(exhausted, Cause.SUBMITTED, None, POLICY)
    assert verdict.ledger == Ledger(program=3, infrastructure=7, streak=0, progress=ref(1, 40))
    assert (verdict.allowed, verdict.backoff_ms) == (True, 0)
    assert charge(verdict.ledger, Cause.PROGRAM_EXIT, ref(1, 40), POLICY).ledger.streak == 1


def test_an_operators_restart_is_counted_and_gives_the_streak_back() -> None:
    verdict = charge(Ledger(program=3, infrastructure=7, streak=4), Cause.OPERATOR, None, POLICY)
    assert verdict.ledger == Ledger(program=3, infrastructure=8, streak=0)
    assert (verdict.allowed, verdict.backoff_ms) == (True, 0)


def test_machines_failures_in_a_row_pause_from_the_third_on() -> None:
    policy = RestartPolicy(backoff_ms=500, backoff_max_ms=3_000)
    verdicts = [charge(Ledger(), Cause.KILLED, None, policy, Tally(machines=row)) for row in range(1, 8)]
    assert [verdict.backoff_ms for verdict in verdicts] == [0, 0, 500, 1_000, 2_000, 3_000, 3_000]
    assert all(verdict.allowed for verdict in verdicts)


def test_a_launcher_that_is_lost_again_and_again_ends_the_job() -> None:
    verdicts = [
        charge(Ledger(), Cause.LAUNCHER_LOST, ref(1, 9), POLICY, Tally(machines=1, launchers=row))
        for row in (5, 6)
    ]
    assert [verdict.allowed for verdict in verdicts] == [True, False]
    assert verdicts[1].ledger == Ledger(infrastructure=1), "nobody knows whose fault it is"
    assert "a launcher was lost 6 times in a row" in verdicts[1].reason


def test_a_task_that_fails_without_a_step_of_its_own_ends_the_job_though_others_progress() -> None:
    verdicts = [charge(Ledger(), Cause.PROGRAM_EXIT, ref(1, 9), POLICY, Tally(task=row)) for row in (3, 4)]
    assert [verdict.allowed for verdict in verdicts] == [True, False]
    assert verdicts[0].backoff_ms == 1_000
    assert "of this task in a row without a step" in verdicts[1].reason


def test_too_many_faults_within_the_window_end_the_job_though_it_progresses() -> None:
    policy = RestartPolicy(max_in_window=5, window_ms=600_000)
    verdicts = [charge(Ledger(), Cause.PROGRAM_EXIT, ref(1, 9), policy, Tally(window=n)) for n in (5, 6)]
    assert [verdict.allowed for verdict in verdicts] == [True, False]
    assert "6 program faults within 10 minutes" in verdicts[1].reason


@pytest.mark.parametrize(
    ("ledger", "cause", "reason"),
    [
        (
            Ledger(streak=3, progress=ref(2, 40)),
            Cause.PROGRAM_EXIT,
            (
                "4 program faults in a row without a checkpoint newer than step 40; "
                "restart.max allows 3 restarts"
            ),
        ),
        (
            Ledger(streak=3),
            Cause.START_FAILED,
            "4 program faults in a row without any checkpoint; restart.max allows 3 restarts",
        ),
        (
            Ledger(streak=2),
            Cause.PROGRAM_EXIT,
            "3 of 3 restarts in a row without a newer checkpoint used, after 1000 ms",
        ),
        (
            Ledger(streak=2),
            Cause.NODE_LOST,
            (
                "node_lost does not count against the program; "
                "2 of 3 restarts in a row without a newer checkpoint used"
            ),
        ),
    ],
)
def test_the_reason_names_the_figures(ledger: Ledger, cause: Cause, reason: str) -> None:
    assert charge(ledger, cause, None, POLICY).reason == reason


@given(steps=STEPS, policy=st.builds(RestartPolicy, max_restarts=st.integers(0, 10)))
def test_every_restart_is_counted_once(
    steps: list[tuple[Cause, CheckpointRef | None]], policy: RestartPolicy
) -> None:
    verdicts = run(*steps, policy=policy)
    for (cause, _), verdict, before in zip(
        steps, verdicts, [Ledger(), *(verdict.ledger for verdict in verdicts)], strict=False
    ):
        restarts = verdict.ledger.program + verdict.ledger.infrastructure
        assert restarts - before.program - before.infrastructure == int(verdict.allowed)
        assert (verdict.ledger.program > before.program) == (cause.program_fault and verdict.allowed)


@given(steps=STEPS, data=st.data())
def test_other_causes_between_change_no_verdict_on_the_program(
    steps: list[tuple[Cause, CheckpointRef | None]], data: st.DataObject
) -> None:
    """The budget is conserved whatever the order of the machines' failures among the program's own."""
    own = [step for step in steps if step[0].program_fault]
    mixed = list(own)
    for other in (step for step in steps if not step[0].program_fault):
        mixed.insert(data.draw(st.integers(0, len(mixed))), other)
    verdicts = [
        verdict for (cause, _), verdict in zip(mixed, run(*mixed), strict=True) if cause.program_fault
    ]
    judged = [(verdict.allowed, verdict.backoff_ms, verdict.ledger.streak) for verdict in verdicts]
    assert judged == [(verdict.allowed, verdict.backoff_ms, verdict.ledger.streak) for verdict in run(*own)]


@given(steps=STEPS, policy=st.builds(RestartPolicy, max_restarts=st.integers(0, 10)))
def test_faults_without_progress_end(
    steps: list[tuple[Cause, CheckpointRef | None]], policy: RestartPolicy
) -> None:
    """From any ledger: max_restarts + 1 more faults that reach no further step are refused at the end."""
    ledger = run(*steps, policy=policy)[-1].ledger if steps else Ledger()
    stuck = ledger.progress
    assert not run(*faults(policy.max_restarts + 1, stuck), policy=policy, ledger=ledger)[-1].allowed
