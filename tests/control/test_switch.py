"""One writer of a job's switch: only what the table has is written; what it does not have parks one job."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from itertools import product

import pytest

from supervisor.contract import codec, keys
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import Closing, JobPhase, JobSwitch, Parked
from supervisor.contract.errors import InvalidTransition
from supervisor.control.decide.snapshot import Versioned
from supervisor.control.decide.switch import (
    Changes,
    SwitchState,
    Transition,
    check_removal,
    first_switch,
    state_of,
    turn,
)
from tests.support.design_page import CALLS, PAGE, ROOT, SWITCH, deciders

CLOSING = Closing("plan-2", CheckpointRef(1, 10))
IN_STATE: dict[SwitchState, Changes] = {
    SwitchState.WAITING: {"phase": JobPhase.WAITING},
    SwitchState.WAITING_CLOSED: {"phase": JobPhase.WAITING, "closing": CLOSING},
    SwitchState.RUNNING: {"phase": JobPhase.RUNNING},
    SwitchState.RUNNING_CLOSED: {"phase": JobPhase.RUNNING, "closing": CLOSING},
    SwitchState.FINISHING: {"phase": JobPhase.FINISHING},
    SwitchState.STOPPING: {"phase": JobPhase.STOPPING},
    SwitchState.SUCCEEDED: {"phase": JobPhase.SUCCEEDED},
    SwitchState.FAILED: {"phase": JobPhase.FAILED},
    SwitchState.FAILED_HOLDING: {"phase": JobPhase.FAILED, "held": ("worker.0",)},
    SwitchState.STOPPED: {"phase": JobPhase.STOPPED},
    SwitchState.PARKED: {"phase": JobPhase.FAILED, "parked": Parked(JobPhase.RUNNING, "odd", "here")},
    SwitchState.MIXED: {"phase": JobPhase.STOPPING, "closing": CLOSING},
}
PLAIN: Changes = {"closing": None, "held": (), "parked": None}


def held(state: SwitchState) -> Versioned[JobSwitch]:
    value = replace(JobSwitch("digits", "uuid", JobPhase.RUNNING, 3, "plan-1"), **IN_STATE[state])
    return Versioned(keys.switch("digits"), value, 1, 7, 0, 0)


def is_legal(transition: Transition, source: SwitchState, target: SwitchState) -> bool:
    """Whether a transition that changes what it must and no more is written."""
    changes: Changes = {**PLAIN, **IN_STATE[target]}
    if "generation" in transition.value.changes:
        changes["generation"] = 4
    try:
        written = turn(held(source), transition, **changes)
    except InvalidTransition:
        return False
    return state_of(codec.decode(JobSwitch, written.value)) is target


@pytest.mark.parametrize("transition", [each for each in Transition if each not in CALLS])
def test_a_transition_makes_the_moves_of_its_row_and_no_others(transition: Transition) -> None:
    made = {(old, new) for old, new in product(IN_STATE, IN_STATE) if is_legal(transition, old, new)}
    assert made == {(old, new) for old, to in transition.value.moves.items() for new in to}


def test_a_job_is_submitted_in_place_of_one_that_has_ended_alone() -> None:
    def first(before: SwitchState | None) -> JobSwitch:
        switch = held(before) if before is not None else None
        made = first_switch(switch, "digits", "new", generation=3, base=None, restart_serial=5, on_hold="")
        return codec.decode(JobSwitch, made.value)

    fresh = JobSwitch("digits", "new", JobPhase.WAITING, 3, restart_serial=5)
    for before in (None, SwitchState.SUCCEEDED, SwitchState.FAILED, SwitchState.STOPPED, SwitchState.PARKED):
        assert first(before) == fresh
    for before in set(IN_STATE) - set(Transition.SUBMIT.value.moves):
        with pytest.raises(InvalidTransition, match="submit"):
            first(before)


def test_a_switch_goes_with_a_job_that_has_ended_alone() -> None:
    for state in IN_STATE:
        if state in Transition.DELETE.value.moves:
            check_removal(held(state))
        else:
            with pytest.raises(InvalidTransition, match="delete"):
                check_removal(held(state))


def test_a_restart_in_place_changes_no_plan() -> None:
    with pytest.raises(InvalidTransition, match="it may not change generation, plan_id"):
        turn(held(SwitchState.RUNNING), Transition.RESTART, plan_id="plan-2", generation=4)


def test_a_flip_takes_a_new_generation() -> None:
    with pytest.raises(InvalidTransition, match="generation 3 is not above 3"):
        turn(held(SwitchState.RUNNING_CLOSED), Transition.FLIP, generation=3, plan_id="plan-2", closing=None)


def test_the_story_of_an_illegal_transition() -> None:
    with pytest.raises(InvalidTransition) as raised:
        turn(
            held(SwitchState.FINISHING),
            Transition.FLIP,
            phase=JobPhase.RUNNING,
            generation=4,
            saver="a" * 999,
        )
    what, *story = str(raised.value).splitlines()
    assert what == (
        "illegal transition `flip` of job digits, generation 3, from `finishing` to `running`: "
        "it begins in `waiting, closed` or `running, closed`."
    )
    assert story == [
        f"  It serves 6.4 and 7.5 of docs/design.md: {Transition.FLIP.value.when}.",
        "  The switch is at revision 7, with plan plan-1, incident none.",
        "  phase: JobPhase.FINISHING -> JobPhase.RUNNING.",
        "  generation: 3 -> 4.",
        f"  saver:  -> {'a' * 97}....",
    ]


def test_no_other_module_writes_a_switch() -> None:
    write = re.compile(
        r"\bput\(\s*(?:[\w.]*\bswitch\.key\b|keys\.switch\()|\bPut\(\s*[\w.]*switch|\bJobSwitch\("
    )
    writers = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "supervisor/control").rglob("*.py"))
        if write.search(path.read_text())
    ]
    assert writers == [SWITCH]


@pytest.mark.parametrize("transition", Transition)
def test_a_row_names_rules_and_fields_that_there_are_and_somebody_decides_on_it(
    transition: Transition,
) -> None:
    page = PAGE.read_text()
    assert [rule for rule in transition.value.rules if f"\n{rule}. " not in page] == []
    assert set(transition.value.changes) <= {field.name for field in fields(JobSwitch)}
    assert deciders(transition)
