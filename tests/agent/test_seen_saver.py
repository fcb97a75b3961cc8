"""The agent of the task that the switch names commits, and takes the last looks that the switch asks for."""

from __future__ import annotations

from dataclasses import replace

from agent.core.events import Drained, Reported
from agent.core.instructions import Commit, Drain, Instruction, Report, StopCommit
from agent.core.state import ReportLevel
from agent.inside import protocol
from supervisor.contract.desired import LAST_LOOK, LOOK_ASIDE, LOOK_FOR_JUDGES, JobPhase, JobSwitch
from supervisor.contract.observed import AttemptReport
from tests.agent.core import ORDER, RUNNING, SAVES, Core, only

ANOTHER = replace(RUNNING, saver="worker.1")
FINISHING = replace(SAVES, phase=JobPhase.FINISHING)


def told(core: Core, said: list[Instruction]) -> list[AttemptReport]:
    """Every report that is owed reaches etcd; those that were written."""
    written: list[AttemptReport] = []
    while reports := only(Report, said):
        written += [each.record for each in reports]
        said = core.feed(*(Reported(each.record.attempt, each.serial, True) for each in reports))
    return written


def exits(core: Core) -> list[AttemptReport]:
    exited = protocol.Exited(str(ORDER.attempt_id), 0, None, core.now_ms, "exit", confirmed_dead=True)
    return told(core, core.hear(exited))


def looks(core: Core, switch: JobSwitch, left: str = "") -> AttemptReport:
    """The switch asks for a look, which is taken; its last report."""
    (drain,) = only(Drain, core.see(switch, ORDER))
    (*_, last) = told(core, core.feed(Drained(ORDER.attempt_id, drain.look, left)))
    return last


def test_the_task_that_the_switch_names_commits_until_it_names_another() -> None:
    core = Core().running()
    assert [each.saver for each in only(Commit, core.see(SAVES, ORDER))] == [ORDER.task]
    said = core.see(ANOTHER, ORDER)
    assert len(only(StopCommit, said)) == 1
    assert not only(Commit, said)
    (*_, last) = exits(core)
    assert last.drained, "what it saved is not committed any more"
    assert not only(Drain, core.said)


def test_the_last_save_is_looked_for_when_the_switch_says_so_and_not_when_the_saver_ends() -> None:
    core = Core().running()
    core.see(SAVES, ORDER)
    (dead,) = exits(core)
    assert (dead.drained, dead.look) == (False, 0)
    core.see(FINISHING, ORDER)
    assert not only(Drain, core.said), "another task may still save"
    last = looks(core, replace(FINISHING, look=LAST_LOOK), "g1-s20 (no space)")
    assert (last.drained, last.look, last.uncommitted) == (True, LAST_LOOK, "g1-s20 (no space)")


def test_there_is_another_look_after_the_judges_have_ended() -> None:
    core = Core().running()
    core.see(SAVES, ORDER)
    exits(core)
    first = looks(core, replace(FINISHING, look=LOOK_FOR_JUDGES))
    assert (first.drained, first.look) == (False, LOOK_FOR_JUDGES)
    last = looks(core, replace(FINISHING, look=LAST_LOOK))
    assert (last.drained, last.look) == (True, LAST_LOOK)


def test_what_had_ended_before_it_was_seen_to_save_is_looked_at_and_reported_again() -> None:
    core = Core().running()
    core.see(ANOTHER, ORDER)
    (*_, before) = exits(core)
    assert (before.drained, before.look) == (True, 0)
    assert core.attempt.told is ReportLevel.DRAINED
    assert len(only(Commit, core.see(FINISHING, ORDER))) == 1
    last = looks(core, replace(FINISHING, look=LAST_LOOK))
    assert (last.drained, last.look) == (True, LAST_LOOK)


def test_a_task_that_is_not_the_saver_is_looked_at_aside_and_reported_again() -> None:
    core = Core().running()
    core.see(ANOTHER, ORDER)
    assert exits(core)[-1].drained
    ends = replace(ANOTHER, phase=JobPhase.FINISHING)
    core.see(replace(ends, look=LAST_LOOK), ORDER)
    assert not only(Drain, core.said), "the saver's node looks first"
    last = looks(core, replace(ends, look=LOOK_ASIDE), "g1-s20")
    assert (last.drained, last.look, last.uncommitted) == (True, LOOK_ASIDE, "g1-s20")
    (drain,) = only(Drain, core.said)
    assert drain.aside is not None
    assert drain.aside.saver == ORDER.task
    assert not only(Commit, core.said)


def test_a_node_that_has_the_saver_does_not_look_aside() -> None:
    core = Core().running()
    core.see(SAVES, ORDER)
    exits(core)
    looks(core, replace(FINISHING, look=LAST_LOOK))
    assert not only(Drain, core.see(replace(FINISHING, look=LOOK_ASIDE), ORDER)), "it has looked"


def test_the_last_attempt_is_looked_at_if_the_job_ends_before_the_next_one_starts() -> None:
    core = Core().running()
    core.see(SAVES, ORDER)
    exits(core)
    following = replace(ORDER, attempt=2)
    (drain,) = only(Drain, core.see(replace(SAVES, phase=JobPhase.STOPPING, look=LAST_LOOK), following))
    assert drain.attempt == ORDER.attempt_id


def test_an_attempt_that_another_has_followed_is_not_looked_at() -> None:
    core = Core().running()
    core.see(SAVES, ORDER)
    exits(core)
    core.see(replace(SAVES, look=LAST_LOOK), replace(ORDER, attempt=2))
    assert not only(Drain, core.said)
    assert core.state.attempts[ORDER.attempt_id].drained


def test_a_task_beside_the_new_saver_on_its_node_takes_over_its_committing() -> None:
    core = Core().running()
    beside = replace(ORDER, index=1)
    assert [each.saver for each in only(Commit, core.see(ANOTHER, ORDER, beside))] == [beside.task]
    said = core.see(SAVES, ORDER, beside)
    kinds = [type(each) for each in said if isinstance(each, Commit | StopCommit)]
    assert kinds == [StopCommit, Commit]
