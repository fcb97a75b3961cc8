"""The lines of `explain` about one incident."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.cli.jobs.look import show_incident
from supervisor.cli.render import BAR, time_line
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.incident import Outcome
from supervisor.contract.views.jobs import IncidentView

LOST = IncidentView(
    id="g2-node-n1",
    job="digits",
    cause="node_lost",
    task="digits/worker:1",
    node="n1",
    rule="async.node.all",
    scope="all",
    detail="n1 is lost",
    from_step=187,
    to_step=141,
    phases_ms={},
    total_ms=0,
    outcome=Outcome.RECOVERED,
    generation=3,
    wall_ms=0,
)


@pytest.mark.parametrize(
    ("incident", "told"),
    [
        (
            replace(LOST, base=CheckpointRef(2, 140), lost_steps=47),
            (
                "went back to checkpoint g2-s140, saved by generation 2",
                "47 steps are made again from there, up to step 187",
                "was at step 187, first step after the restart: 141",
            ),
        ),
        (
            replace(LOST, from_scratch=True, lost_steps=187, to_step=1),
            (
                "began from scratch: there was no checkpoint to go back to",
                "187 steps are made again from there, up to step 187",
            ),
        ),
        (
            replace(LOST, base=CheckpointRef(2, 140), from_step=-1, to_step=-1),
            (
                "went back to checkpoint g2-s140, saved by generation 2",
                "how many steps are made again is not known: none was seen before the restart",
            ),
        ),
        (
            replace(LOST, base=CheckpointRef(2, 21), from_step=20, to_step=-1),
            (
                "went back to checkpoint g2-s21, saved by generation 2",
                "steps are made again is not known: the last one seen was 20 before the restart",
            ),
        ),
        (
            replace(LOST, base=CheckpointRef(2, 140), from_step=187, to_step=1, lost_steps=186),
            (
                "checkpoint g2-s140 was in $CHECKPOINT_DIR, but its steps began at 1: it does not restore",
                "186 steps are made again, up to step 187",
                "was at step 187, first step after the restart: 1",
            ),
        ),
    ],
)
def test_the_base_is_named_and_what_is_made_again_is_counted_from_it(
    incident: IncidentView, told: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    show_incident(incident)
    printed = capsys.readouterr().out
    assert [line for line in told if line not in printed] == []


def test_the_first_start_of_a_job_is_told_as_a_start(capsys: pytest.CaptureFixture[str]) -> None:
    show_incident(
        replace(LOST, cause="submitted", rule="submit.all", from_scratch=True, from_step=-1, to_step=1)
    )
    printed = capsys.readouterr().out
    assert "decided: start all, by the rule submit.all" in printed
    assert "began from scratch\n    first step: 1\n" in printed
    assert "again" not in printed
    show_incident(replace(LOST, cause="submitted", rule="submit.all", from_step=-1, outcome=Outcome.OPEN))
    assert "began" not in capsys.readouterr().out, "it has not begun"


def test_steps_that_lost_servers_took_back_are_counted_up_to_the_step_of_the_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_incident(replace(LOST, scope="task", from_step=187, to_step=180, lost_steps=7))
    assert "7 steps are made again, up to step 187" in capsys.readouterr().out


def test_of_a_task_that_was_restarted_alone_no_base_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    show_incident(replace(LOST, scope="task", from_step=187, to_step=190))
    printed = capsys.readouterr().out
    assert "made again" not in printed
    assert "was at step 187, first step after the restart: 190" in printed


def test_phases_are_drawn_where_they_lie() -> None:
    drawn = time_line({"detected": 0, "decided": 100, "ready": 300, "first_step": 600})
    assert [line.split()[0] for line in drawn] == ["detected", "decided", "ready", "first"]
    bars = [(line.index(BAR), line.count(BAR)) for line in drawn]
    assert bars == [(12, 1), (12, 5), (17, 15), (32, 30)]
    assert drawn[-1].endswith(" 600 ms")
    assert time_line({"detected": 5}) == time_line({}) == time_line({"detected": 0, "decided": 0}) == []
