"""A worker that moves inside its generation, as the agents of its nodes see it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent.core.compose import start_message
from agent.core.desired import wants
from agent.core.events import FirewallSet, Observed, Reported, Spawned, SpecRead
from agent.core.instructions import FollowCommits, Instruction, Launch, ReadSpec, Report, Say, SetFirewall
from agent.core.saved.adopt import record_of
from agent.inside import protocol
from supervisor.contract.desired import ClusterSpec, RoleAddresses
from supervisor.contract.observed import STAYS, AttemptReport, ExitReason
from tests.agent.core import ME, ORDER, RUNNING, SPEC, Core, kills, only

MOVED = replace(ORDER, attempt=2, joins=True)
CHIEF = replace(ORDER, hears_moves=True)
"""The one task of these tests, as if it were a chief."""
LATER = replace(RUNNING, edition=1)
THERE = ClusterSpec("job", 1, "p1", (RoleAddresses("worker", ("h:20000", "g:1")),), edition=1)


def joining(*, joins: bool = True) -> Core:
    """The task has moved here, from a node of the same address: its launcher says hello."""
    core = Core()
    core.see(RUNNING, MOVED)
    core.feed(SpecRead("p1", SPEC))
    core.feed(Spawned(core.launcher_id, 100, 1))
    core.hear(protocol.Hello(1, core.launcher_id, "job", 100, 1, "boot", True, joins=joins))
    return core


def words(instructions: list[Instruction]) -> list[object]:
    return [each.message for each in only(Say, instructions)]


def peers(instructions: list[Instruction]) -> list[protocol.Peers]:
    return [each for each in words(instructions) if isinstance(each, protocol.Peers)]


def leading() -> Core:
    """A chief runs here, whose launcher can tell it of moves."""
    core = Core().prepared(CHIEF)
    core.see(RUNNING, CHIEF)
    core.feed(SpecRead("p1", SPEC))
    core.hear(protocol.Started(str(CHIEF.attempt_id), 101, 1, core.now_ms, True))
    core.feed(Reported(CHIEF.attempt_id, only(Report, core.said)[-1].serial, True))
    return core


def test_a_moved_worker_takes_a_port_of_its_own_and_is_told_of_it_itself() -> None:
    core = joining()
    asked = [each for each in words(core.said) if isinstance(each, protocol.Reserve)]
    assert [each.reuse for each in asked] == [None], "others may know its former port"
    core.hear(protocol.Reserved("p1.worker.0", 20007))
    (launch,) = only(Launch, core.said)
    message = start_message(launch, "life1", "/a", "/c")
    assert message.joins
    assert json.loads(message.env["TF_CONFIG"])["cluster"]["worker"] == ["h:20007"]
    assert core.state.attempts[MOVED.attempt_id].end is None, "its address is not gone"


def test_a_launcher_that_makes_nothing_join_gives_way() -> None:
    core = joining(joins=False)
    core.hear(protocol.Reserved("p1.worker.0", 20007))
    assert not only(Launch, core.said)
    assert core.state.launchers[core.launcher_id].doomed


def test_its_directory_is_made_and_no_commit_is_brought_there() -> None:
    (follow,) = only(FollowCommits, joining().said)
    assert not follow.brings


@pytest.mark.parametrize(
    ("joins", "version", "takes", "why"),
    [
        (True, "2.21.0", True, ""),
        (True, "2.3.0", True, "that was not tried with TensorFlow 2.3.0"),
        (True, "", True, "its launcher has imported no TensorFlow"),
        (True, "2.21.0", False, "it was started cold, or by a command that is no Python program"),
        (False, "2.21.0", True, "its launcher makes no program join"),
    ],
)
def test_the_leader_is_told_whether_a_program_can_take_part_in_a_move(
    joins: bool, version: str, takes: bool, why: str
) -> None:
    core = joining(joins=joins)
    launcher = core.state.launchers[core.launcher_id]
    core.hear(protocol.Reserved("p1.worker.0", 20007))
    if not joins:
        core = Core().prepared()
        core.see(RUNNING, ORDER)
        core.feed(SpecRead("p1", SPEC))
    order = MOVED if joins else ORDER
    core.hear(protocol.Started(str(order.attempt_id), 101, 1, core.now_ms, True, version, takes))
    assert only(Report, core.said)[-1].record.stays == why
    assert launcher.joins == joins


def test_a_report_of_an_earlier_release_says_that_its_task_stays() -> None:
    assert AttemptReport.__dataclass_fields__["stays"].default == STAYS


def test_a_chief_is_told_once_of_each_edition_and_again_after_a_reconnect() -> None:
    core = leading()
    assert not peers(core.said)
    out = core.see(LATER, CHIEF)
    assert only(ReadSpec, out), "what it has is an earlier edition"
    out = core.feed(SpecRead("p1", THERE))
    assert peers(out) == [protocol.Peers(str(CHIEF.attempt_id), {"worker": ["h:20000", "g:1"]})]
    assert not peers(core.see(LATER, CHIEF))
    running = protocol.RunningAttempt(str(CHIEF.attempt_id), 101, 1, 20000, "life1", "2.21.0")
    out = core.hear(protocol.Hello(1, core.launcher_id, "job", 100, 1, "boot", True, attempt=running))
    assert len(peers(out)) == 1


def test_a_chief_is_not_told_of_a_worker_that_does_not_listen_yet_nor_of_those_after_it() -> None:
    core = leading()
    core.see(LATER, CHIEF)
    grown = replace(THERE, roles=(RoleAddresses("worker", ("h:20000", "g:1", "h:0", "h:3")),))
    out = core.feed(SpecRead("p1", grown))
    assert peers(out) == [protocol.Peers(str(CHIEF.attempt_id), {"worker": ["h:20000", "g:1"]})]


def test_no_other_task_is_told() -> None:
    core = Core().running()
    core.see(LATER, ORDER)
    assert not peers(core.feed(SpecRead("p1", THERE)))


def test_a_chief_that_cannot_be_told_is_ended_with_the_reason() -> None:
    core = leading()
    core.see(LATER, CHIEF)
    core.feed(SpecRead("p1", THERE))
    out = core.hear(protocol.PeersFailed(str(CHIEF.attempt_id), "no such context"))
    assert kills(out) == [str(CHIEF.attempt_id)]
    end = core.attempt.end
    assert end is not None
    assert (end.reason, end.confirmed_dead) == (ExitReason.KILLED, False)
    assert "no such context" in end.detail
    assert core.granted_ms(core.now_ms) <= 0, "also if the word to kill is lost"
    dead = protocol.Exited(str(CHIEF.attempt_id), None, 9, core.now_ms, "killed", confirmed_dead=True)
    core.hear(dead)
    core.feed(Reported(CHIEF.attempt_id, only(Report, core.said)[-1].serial, True))
    assert only(Report, core.said)[-1].record.exit == replace(end, confirmed_dead=True).as_exit()


def test_an_attempt_whose_task_is_to_leave_ends_and_no_other_starts() -> None:
    core = Core().running()
    leaves = replace(ORDER, ends=True)
    assert kills(core.see(RUNNING, leaves)) == [str(ORDER.attempt_id)]
    core.hear(protocol.Exited(str(ORDER.attempt_id), None, 9, core.now_ms, "killed", confirmed_dead=True))
    assert only(Report, core.said)[-1].record.confirmed_dead
    assert len(only(Launch, core.said)) == 1
    assert not wants(Observed((leaves,), (RUNNING,), 0), ME).run


def test_what_starts_later_is_started_with_the_edition_in_force() -> None:
    core = Core().prepared()
    core.see(LATER, ORDER)
    core.feed(SpecRead("p1", SPEC))
    assert not only(Launch, core.said)
    core.feed(SpecRead("p1", THERE))
    (launch,) = only(Launch, core.said)
    assert launch.spec == THERE


def test_the_firewall_lets_a_moved_worker_in() -> None:
    core = Core()
    core.state = replace(core.state, settings=replace(core.state.settings, firewall=True))
    core.prepared()
    core.see(RUNNING, ORDER)
    core.feed(SpecRead("p1", SPEC))
    while core.state.firewall.setting:
        core.feed(FirewallSet(only(SetFirewall, core.said)[-1].openings))
    core.hear(protocol.Started(str(ORDER.attempt_id), 101, 1, core.now_ms, True))
    core.see(LATER, ORDER)
    core.feed(SpecRead("p1", THERE))
    assert [each.addresses for each in record_of(core.state).addresses] == [("h:20000", "g:1")]
    assert "g:1" in only(SetFirewall, core.said)[-1].openings[0].addresses
