"""The screen of `supervisorctl top`, drawn from documents, and its refusals."""

from __future__ import annotations

import io
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from supervisor.cli.cluster.screen import FRAME, Screen
from supervisor.contract.desired import JobPhase
from supervisor.contract.views.jobs import ClusterStatus, EventView, GoodputView, JobView, SupervisorView
from supervisor.contract.views.nodes import NodeList, NodeView
from tests.cli.shell import ctl

WIDTH = 120


def a_job(name: str, phase: JobPhase = JobPhase.RUNNING, *, waiting_for: str = "") -> JobView:
    return JobView(
        name=name,
        uuid="u",
        strategy="async",
        phase=phase,
        generation=2,
        step=40,
        rate=12.5,
        base=None,
        newest_commit=None,
        commit_lag_steps=0,
        restarts_program=1,
        restarts_infrastructure=2,
        restarts_left=3,
        reason="",
        waiting_for=waiting_for,
        submitted_wall_ms=0,
    )


def a_node(name: str, state: str = "ready") -> NodeView:
    return NodeView(
        node=name, state=state, incarnation="i", host=name, beat_age_ms=150, cpus=2, memory_bytes=1, gpus=0
    )


def a_status(*jobs: JobView, paused: str = "") -> ClusterStatus:
    leader = SupervisorView("s1", "127.0.0.1:1", True, 1)
    return ClusterStatus("lab", "fast", 4000, (leader,), jobs, paused=paused)


def lines(screen: Screen, height: int, width: int = WIDTH) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as shown:
        console.print(screen.draw(width, height))
    return [line.rstrip() for line in shown.get().splitlines()]


def test_what_needs_an_eye_comes_first() -> None:
    jobs = (
        a_job("b"),
        a_job("done", JobPhase.SUCCEEDED),
        a_job("late", JobPhase.WAITING, waiting_for="2 GPUs"),
    )
    nodes = NodeList((a_node("n1"), a_node("n2", "lost")))
    shown = lines(Screen(a_status(*jobs, paused="paused by uid:0: a test"), nodes), 40)
    assert shown[0] == "cluster lab: s1 leads; 1 of 3 jobs run, 1 of 2 nodes are ready"
    assert shown[1] == "nothing is restarted or moved: paused by uid:0: a test"
    first_words = [line.split()[0] for line in shown if line]
    assert [word for word in first_words if word in {"b", "done", "late"}] == ["late", "b", "done"]
    assert [word for word in first_words if word in {"n1", "n2"}] == ["n2", "n1"]
    assert any("2 GPUs" in line for line in shown)


def test_each_job_has_the_productive_share_of_its_time() -> None:
    spent = GoodputView(0, 1_000, {"productive": 934, "starting": 66}, "productive", 0.934)
    heads, _, counted, new = lines(Screen(a_status(replace(a_job("a"), goodput=spent), a_job("b"))), 40)[1:5]
    at = heads.index("goodput")
    assert counted[at:].startswith("93.4 %")
    assert new[at:].startswith("- ")


def test_80_columns_show_names_phases_and_the_beginning_of_notes() -> None:
    late = a_job("digits-nightly", JobPhase.WAITING, waiting_for="2 GPUs of 16 GiB on one node, " * 3)
    screen = Screen(a_status(late), NodeList((replace(a_node("gpu-1"), reason="cordoned: " * 20),)))
    _, heads, _, job, *_ = shown = lines(screen, 24, width=80)
    assert heads.split() == ["job", "phase", "step", "committed", "tasks", "restarts", "note"]
    assert job.split()[:2] == ["digits-nightly", "waiting"]
    assert "2 GPUs of 16" in job
    assert ["gpu-1", "ready"] in [line.split()[:2] for line in shown]
    assert max(map(len, shown)) <= 80


@pytest.mark.parametrize("height", [24, 40, 100])
def test_a_thousand_jobs_fit_on_the_screen(height: int) -> None:
    screen = Screen(
        a_status(*(a_job(f"job-{number}") for number in range(1000))),
        NodeList(tuple(a_node(f"n{number}") for number in range(500))),
        deque(EventView(number, 1000 * number, "kind", "job", text="long " * 100) for number in range(100)),
    )
    shown = lines(screen, height)
    assert len(shown) <= height
    assert f"and {1000 - (height - FRAME) // 2} more" in shown
    assert max(map(len, shown)) <= WIDTH


def test_an_old_answer_says_that_it_is_old_and_names_steer_no_terminal() -> None:
    screen = Screen(a_status(a_job("[red]\x1b[2J")), trouble="the cluster does not answer")
    shown = lines(screen, 30)
    assert "the cluster does not answer" in shown
    assert any(line.startswith(r"[red]\x1b[2J") for line in shown)


@pytest.mark.parametrize("arguments", [("top",), ("top", "--output", "json")])
def test_it_says_what_to_use_where_there_is_no_terminal(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = ctl(tmp_path, *arguments)
    assert done.returncode == 2
    assert "events -f" in done.stderr
