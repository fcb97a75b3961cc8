"""The agent of a task that is seen to save commits; that of the task before stops."""

from __future__ import annotations

from dataclasses import replace

from agent.core.events import Drained, Reported
from agent.core.instructions import Commit, Drain, Instruction, Report, StopCommit
from agent.core.state import ReportLevel
from agent.inside import protocol
from supervisor.contract.desired import JobPhase
from tests.agent.core import ORDER, RUNNING, Core, only

EXPECTED = replace(ORDER, saver=True)
SEEN = replace(RUNNING, saver="worker.0")
ANOTHER = replace(RUNNING, saver="worker.1")


def told(core: Core, said: list[Instruction]) -> list[Report]:
    """Every report that is owed reaches etcd; those that were written."""
    written: list[Report] = []
    while reports := only(Report, said):
        written += reports
        said = core.feed(*(Reported(each.record.attempt, each.serial, True) for each in reports))
    return written


def exits(core: Core) -> list[Report]:
    exited = protocol.Exited(str(ORDER.attempt_id), 0, None, core.now_ms, "exit", confirmed_dead=True)
    return told(core, core.hear(exited))


def test_the_expected_one_commits_until_the_switch_names_another() -> None:
    core = Core().running()
    assert [each.saver for each in only(Commit, core.see(RUNNING, EXPECTED))] == [ORDER.task]
    said = core.see(ANOTHER, EXPECTED)
    assert len(only(StopCommit, said)) == 1
    assert not only(Commit, said)
    (*_, last) = exits(core)
    assert last.record.drained, "what it saved is not committed any more"
    assert not only(Drain, core.said)


def test_another_commits_once_the_switch_names_it_and_its_last_save_is_waited_for() -> None:
    core = Core().running()
    assert not only(Commit, core.see(RUNNING, ORDER))
    assert [each.saver for each in only(Commit, core.see(SEEN, ORDER))] == [ORDER.task]
    (dead,) = exits(core)
    assert not dead.record.drained
    assert len(only(Drain, core.said)) == 1
    (last,) = told(core, core.feed(Drained(ORDER.attempt_id)))
    assert (last.record.drained, last.record.saver) == (True, True)


def test_what_had_ended_before_it_was_seen_to_save_is_drained_and_told_again() -> None:
    core = Core().running()
    core.see(RUNNING, ORDER)
    (*_, before) = exits(core)
    assert (before.record.drained, before.record.saver) == (True, False)
    assert core.attempt.told is ReportLevel.DRAINED
    said = core.see(replace(SEEN, phase=JobPhase.FINISHING), ORDER)
    assert len(only(Commit, said)) == 1
    assert len(only(Drain, said)) == 1
    (last,) = told(core, core.feed(Drained(ORDER.attempt_id)))
    assert (last.record.drained, last.record.saver) == (True, True)


def test_a_task_beside_the_new_saver_on_its_node_takes_over_its_committing() -> None:
    core = Core().running()
    beside = replace(EXPECTED, index=1)
    assert [each.saver for each in only(Commit, core.see(RUNNING, ORDER, beside))] == [beside.task]
    said = core.see(SEEN, ORDER, beside)
    kinds = [type(each) for each in said if isinstance(each, Commit | StopCommit)]
    assert kinds == [StopCommit, Commit]
