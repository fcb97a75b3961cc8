"""Tasks that are let end by themselves: asked with SIGTERM, killed when their time is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.events import LauncherGone, LauncherSaid, Tick
from agent.core.instructions import FollowCommits, StopFollowing
from agent.core.step_context import KILL_AGAIN_MS, KILL_TIMES
from agent.inside import protocol
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.observed import ExitReason
from supervisor.contract.timing import FAST
from tests.agent.core import ORDER
from tests.agent.running_core import RunningCore

GRACE_MS = 3_000
PATIENCE_MS = KILL_TIMES * FAST.kill_time_ms


def test_what_a_launcher_wrote_before_it_died_is_why_its_attempt_ended() -> None:
    name = str(ORDER.attempt_id)
    wrote = protocol.Exited(name, None, 9, 99_000, "devices_lost", confirmed_dead=True, detail="GPU-1")
    core = RunningCore(ORDER)
    core.take(LauncherGone("L", "it left", exits=(replace(wrote, attempt="another"), wrote)))
    end = core.state.attempts[ORDER.attempt_id].end
    assert end is not None
    assert (end.reason, end.detail) == (ExitReason.DEVICES_LOST, "GPU-1")
    assert not end.confirmed_dead, "the launcher may have been wrong, or not the writer: fencing confirms"


def test_a_launcher_that_wrote_nothing_takes_its_attempt_along() -> None:
    core = RunningCore(ORDER)
    core.take(LauncherGone("L"))
    end = core.state.attempts[ORDER.attempt_id].end
    assert end is not None
    assert end.reason is ExitReason.LAUNCHER_LOST


@pytest.mark.parametrize(("reason", "usable"), [("exit", True), ("lost", False), ("devices_lost", False)])
def test_a_launcher_that_leaves_after_its_attempt_gets_no_other(reason: str, usable: bool) -> None:
    """Chaos: the next attempt was given to it, and ended with it."""
    core = RunningCore(ORDER)
    core.take(
        LauncherSaid(
            "L", protocol.Exited(str(ORDER.attempt_id), None, 9, 99_000, reason, confirmed_dead=True)
        )
    )
    end = core.state.attempts[ORDER.attempt_id].end
    assert end is not None
    assert end.confirmed_dead
    assert core.state.launchers["L"].usable is usable


def switch(phase: JobPhase, grace_ms: int = GRACE_MS) -> JobSwitch:
    return JobSwitch("job", "u", phase, 1, "p1", save_grace_ms=grace_ms)


def test_a_stop_with_time_asks_first_and_kills_when_time_is_over() -> None:
    core = RunningCore(ORDER)
    said = core.observe(switch(JobPhase.STOPPING))
    name = str(ORDER.attempt_id)
    assert said == [protocol.Terminate(name)]
    later = core.wait(GRACE_MS - 200)
    assert later
    assert set(later) == {protocol.Terminate(name)}, "it is asked again, should the first word be lost"
    assert any(isinstance(each, protocol.Kill) for each in core.wait(300))


def test_a_server_is_not_asked_and_dies_when_the_leader_says_that_all_have_saved() -> None:
    core = RunningCore(replace(ORDER, role="ps", serves=True))
    assert core.observe(switch(JobPhase.STOPPING)) == []
    assert core.wait(GRACE_MS - 200) == []
    (kill,) = core.observe(switch(JobPhase.STOPPING, 0))
    assert isinstance(kill, protocol.Kill)


def test_a_launcher_that_a_kill_takes_long_in_keeps_its_warm_start() -> None:
    """A busy machine: all launchers of a job were fenced a second after its flip, and imported anew."""
    core = RunningCore(ORDER)
    flipped = JobSwitch("job", "u", JobPhase.RUNNING, 2, "p2")
    (kill,) = core.observe(flipped)
    assert isinstance(kill, protocol.Kill)
    assert set(core.wait(PATIENCE_MS - KILL_AGAIN_MS)) == {kill}
    assert not core.state.launchers["L"].doomed
    core.wait(KILL_AGAIN_MS)
    assert core.state.launchers["L"].doomed, "it pulls, and neither kills nor says that it cannot"


def test_a_launcher_that_says_that_it_cannot_kill_is_not_fenced_for_it() -> None:
    core = RunningCore(ORDER)
    core.observe(JobSwitch("job", "u", JobPhase.RUNNING, 2, "p2"))
    core.wait(PATIENCE_MS - KILL_AGAIN_MS)
    name = str(ORDER.attempt_id)
    core.take(LauncherSaid("L", protocol.Exited(name, None, 9, core.now_ms, "killed", confirmed_dead=False)))
    core.wait(3 * KILL_AGAIN_MS)
    assert not core.state.launchers["L"].doomed


@pytest.mark.parametrize(
    ("follow", "serves", "spared"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_when_training_is_over_only_an_evaluator_has_time(follow: bool, serves: bool, spared: bool) -> None:
    core = RunningCore(replace(ORDER, role="evaluator", follow=follow, serves=serves))
    said = core.observe(switch(JobPhase.FINISHING))
    assert [type(each) for each in said] == ([] if spared else [protocol.Kill])
    if spared:
        assert core.wait(GRACE_MS + FAST.commit_deadline_ms - 200) == []
        assert core.wait(400)


def test_commits_are_brought_to_an_evaluator_until_it_has_judged_the_last() -> None:
    core = RunningCore(replace(ORDER, role="evaluator", follow=True, checkpoint_uri="file:///c"))
    assert core.state.following == {"job": ("u", 1, True)}
    assert core.following(switch(JobPhase.FINISHING)) == []
    assert core.following(switch(JobPhase.FINISHING, 0)) == [StopFollowing("u", 1)]
    assert core.following(JobSwitch("job", "u", JobPhase.RUNNING, 1, "p1")) == [
        FollowCommits("job", "u", 1, None, "file:///c", plan_id="p1")
    ]


def test_nobody_else_gets_commits_brought() -> None:
    assert RunningCore(ORDER).state.following == {}


FAILED = JobSwitch("job", "u", JobPhase.FAILED, 1, "p1", held=(ORDER.task.member,))
HOLD_MS = 20_000


def test_what_is_kept_for_inspection_is_stopped_once_and_killed_when_its_time_is_over() -> None:
    core = RunningCore(replace(ORDER, hold_on_failure_ms=HOLD_MS))
    name = str(ORDER.attempt_id)
    assert core.suspended(FAILED) == [name]
    assert core.suspended(FAILED) == []
    assert core.wait(HOLD_MS - 200) == []
    kills = core.wait(400)
    assert kills
    assert all(isinstance(each, protocol.Kill) for each in kills)


@pytest.mark.parametrize(
    "later",
    [
        replace(FAILED, held=()),
        replace(FAILED, phase=JobPhase.WAITING, held=()),
        replace(FAILED, plan_id="p2", generation=2, phase=JobPhase.RUNNING, held=()),
        replace(FAILED, job_uuid="v"),
    ],
)
def test_it_is_killed_at_once_when_the_job_is_stopped_started_or_another(later: JobSwitch) -> None:
    core = RunningCore(replace(ORDER, hold_on_failure_ms=HOLD_MS))
    core.suspended(FAILED)
    (kill,) = core.observe(later)
    assert isinstance(kill, protocol.Kill)


def test_nothing_is_kept_past_the_deadline_of_rule_3() -> None:
    core = RunningCore(replace(ORDER, hold_on_failure_ms=HOLD_MS))
    core.suspended(FAILED)
    core.state = replace(core.state, deadline_ms=core.now_ms)
    assert any(isinstance(each, protocol.Kill) for each in core.take(Tick()))
