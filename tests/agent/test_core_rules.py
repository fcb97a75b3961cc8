"""Rules of docs/design.md that an agent's core keeps, one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.events import (
    BeatSeen,
    Evicted,
    Fenced,
    Heard,
    Joined,
    KillRehearsed,
    LauncherSaid,
    OutputsReady,
    Reported,
    SpecRead,
    Tick,
    Written,
)
from agent.core.instructions import (
    Fence,
    Launch,
    PrepareOutputs,
    ReadSpec,
    Report,
    Say,
    Spawn,
    Write,
)
from agent.core.pool import silence_ms
from agent.core.saved import adopt
from agent.core.state import ReportLevel
from agent.inside import protocol
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import InvalidTransition
from supervisor.contract.job.serving import Exports
from supervisor.contract.job.spec import ServingSpec
from supervisor.contract.observed import Prepared
from supervisor.contract.timing import FAST
from tests.agent.core import ME, NO_SPARES, ORDER, RUNNING, SPEC, WAITING, Core, kills, only

# Rule 1.


def test_steps_and_beats_are_not_written() -> None:
    core = Core().running()
    for _ in range(50):
        core.later(100, BeatSeen(core.now_ms), Heard(core.now_ms), Tick())
        core.hear(protocol.Pull(core.now_ms, "life1", str(ORDER.attempt_id)))
    assert len(only(Report, core.said)) == 1, "that it runs"
    assert len(only(Write, core.said)) == 1, "that it was prepared"


# Rule 3.


def test_the_deadline_counts_from_when_the_read_was_sent() -> None:
    core = Core()
    core.now_ms += 900
    core.feed(BeatSeen(core.now_ms - 400))
    assert core.state.deadline_ms == core.now_ms - 400 + FAST.d_ms
    assert core.state.read_ms == core.now_ms - 400


def test_a_watch_without_progress_for_d_is_etcd_lost() -> None:
    core = Core()
    core.feed(Heard(core.now_ms))
    before = core.now_ms
    for _ in range(2 * FAST.d_ms // 100):
        core.later(100, BeatSeen(core.now_ms + 100))
    assert core.state.deadline_ms is not None
    assert core.state.deadline_ms <= before + 2 * FAST.d_ms


def test_nothing_is_kept_past_the_deadline() -> None:
    core = Core().running()
    out = core.later(FAST.d_ms - FAST.reserve_ms, Tick())
    assert kills(out) == [str(ORDER.attempt_id)]


def test_a_node_on_which_kills_are_slow_ends_its_tasks_so_much_earlier() -> None:
    core = Core().running()
    core.feed(KillRehearsed(800))
    slower_ms = 2 * 800 - FAST.kill_time_ms
    out = core.later(FAST.d_ms - FAST.reserve_ms - slower_ms, Tick())
    assert kills(out) == [str(ORDER.attempt_id)]


def test_nothing_starts_past_the_deadline() -> None:
    core = Core().prepared()
    core.now_ms += FAST.d_ms - FAST.reserve_ms
    core.see(RUNNING, ORDER)
    core.feed(SpecRead("p1", SPEC))
    assert not only(Launch, core.said)


def test_an_outcast_kills_all_and_joins_anew_with_nothing() -> None:
    core = Core().running()
    out = core.feed(Evicted("marked lost for good"))
    (fence,) = only(Fence, out)
    assert set(fence.processes) == {(100, 1), (101, 1)}
    with pytest.raises(InvalidTransition):
        core.feed(Joined(replace(ME, incarnation="life2"), core.now_ms, adopt=False, d_ms=FAST.d_ms))


# Rule 4.


def test_a_grant_keeps_back_what_killing_takes() -> None:
    core = Core().running()
    core.feed(BeatSeen(core.now_ms))
    core.now_ms += 300
    assert core.granted_ms(core.now_ms - 20) == FAST.d_ms - 300 - FAST.kill_time_ms - FAST.drift_ms


def test_what_is_being_killed_is_granted_nothing() -> None:
    core = Core().running()
    core.see(replace(RUNNING, phase=JobPhase.STOPPING), ORDER)
    assert core.granted_ms(core.now_ms) <= 0


def test_a_launcher_that_misses_its_pulls_is_fenced() -> None:
    core = Core().running()
    for _ in range(silence_ms(core.state) // 100 + 1):
        core.later(100, BeatSeen(core.now_ms), Heard(core.now_ms))
    assert only(Fence, core.said)


def test_survivors_of_a_kill_are_not_confirmed_dead() -> None:
    core = Core().running()
    core.feed(Fenced(core.launcher_id, survivors=1))
    assert core.attempt.end is not None
    assert core.attempt.alive
    core.feed(Fenced(core.launcher_id, survivors=0))
    assert not core.attempt.alive


# Rule 6.


def test_a_plan_is_inert_until_the_switch_names_it() -> None:
    core = Core().prepared()
    core.see(replace(RUNNING, plan_id="p2"), ORDER)
    core.feed(SpecRead("p1", SPEC))
    assert not only(ReadSpec, core.said)
    assert not only(Launch, core.said)


def test_an_order_to_another_incarnation_is_not_obeyed() -> None:
    core = Core()
    core.see(WAITING, replace(ORDER, incarnation="somebody"))
    assert not only(Spawn, core.said)
    core.see(WAITING, replace(ORDER, incarnation="life0"))
    assert only(Spawn, core.said), "the one that it succeeded counts as its own"


def test_an_order_of_an_older_life_of_the_job_is_not_obeyed() -> None:
    core = Core()
    core.see(WAITING, replace(ORDER, job_uuid="older"))
    assert not only(Spawn, core.said)


def test_the_next_attempt_waits_until_the_one_before_is_confirmed_dead() -> None:
    core = Core().running()
    following = replace(ORDER, attempt=2)
    core.see(RUNNING, following)
    core.hear(protocol.Exited(str(ORDER.attempt_id), None, 9, core.now_ms, "killed", False, survivors=1))
    core.feed(Tick())
    assert following.attempt_id not in core.state.attempts
    core.hear(protocol.Exited(str(ORDER.attempt_id), None, 9, core.now_ms, "killed", True))
    assert only(Launch, core.said)[-1].assignment.attempt == 1
    for told in (ReportLevel.EXITED, ReportLevel.DEAD):
        core.feed(Reported(ORDER.attempt_id, told, True))
    assert only(Launch, core.said)[-1].assignment.attempt == 2


def delays_told(core: Core) -> list[str]:
    """The reasons for which the wanted attempt waits, as the leader is told of them."""
    written = [each.record for each in only(Write, core.said) if each.tag.startswith("delayed/")]
    return [each.delay for each in written if isinstance(each, Prepared)]


def test_an_attempt_starts_once_its_output_directory_is_there() -> None:
    core, order = Core(), replace(ORDER, output_budget_bytes=1000)
    core.prepared(order)
    core.feed(Written("prepared/p1.worker.0", ok=True))
    core.see(RUNNING, order)
    core.feed(SpecRead("p1", SPEC))
    assert [each.attempt for each in only(PrepareOutputs, core.said)] == [order.attempt_id]
    core.feed(Tick(), Tick())
    assert len(only(PrepareOutputs, core.said)) == 1, "it is asked for once"
    assert not only(Launch, core.said)
    assert delays_told(core) == []
    core.state = core.state.but(deadline_ms=core.now_ms + 10_000)
    core.later(2_000, Tick())
    (delay,) = delays_told(core)
    assert delay.startswith(f"it waits for its earlier outputs from {order.checkpoint_uri}, and starts")
    (written,) = [each for each in only(Write, core.said) if each.tag.startswith("delayed/")]
    core.feed(Written(written.tag, ok=True))
    core.feed(OutputsReady(order.attempt_id))
    assert [each.assignment for each in only(Launch, core.said)] == [order]
    core.feed(Tick())
    assert delays_told(core) == [delay, ""], "it waits no more"


def test_a_task_that_exports_models_has_its_python_named_for_trying_them() -> None:
    serving = ServingSpec("net", "export/*", "worker")
    core, order = (
        Core(),
        replace(ORDER, output_budget_bytes=1000, serving=serving, env={"PATH": "/opt/bin", "A": "b"}),
    )
    core.prepared(order)
    core.see(RUNNING, order)
    core.feed(SpecRead("p1", SPEC))
    (asked,) = only(PrepareOutputs, core.said)
    assert asked.exports == Exports(serving, order.argv[0], order.workdir, {"PATH": "/opt/bin"})


def test_an_output_directory_is_made_after_the_attempt_before_is_confirmed_dead() -> None:
    core = Core().running()
    following = replace(ORDER, attempt=2, output_budget_bytes=1000)
    core.see(RUNNING, following)
    assert not only(PrepareOutputs, core.said)
    core.hear(protocol.Exited(str(ORDER.attempt_id), None, 9, core.now_ms, "killed", True))
    for told in (ReportLevel.EXITED, ReportLevel.DEAD):
        core.feed(Reported(ORDER.attempt_id, told, True))
    assert [each.attempt for each in only(PrepareOutputs, core.said)] == [following.attempt_id]
    core.see(replace(RUNNING, generation=2, plan_id="p2"), following)
    core.feed(OutputsReady(following.attempt_id), Tick())
    assert not [each for each in only(Launch, core.said) if each.assignment == following]
    assert core.state.outputs == {}, "nobody asks for that attempt any more"


def test_what_the_switch_has_left_behind_is_killed() -> None:
    core = Core().running()
    out = core.see(replace(RUNNING, generation=2, plan_id="p2"), ORDER)
    assert kills(out) == [str(ORDER.attempt_id)]


# Rule 12.


def test_a_successor_finds_launchers_that_were_only_intended() -> None:
    core = Core()
    core.see(WAITING, ORDER)
    (spawn,) = only(Spawn, core.said)
    record = adopt.record_of(core.state)
    assert [each.launcher_id for each in record.launchers] == [spawn.launcher_id]
    heir = adopt.restore(record, NO_SPARES, "life2", "boot", core.now_ms, frozenset())
    assert set(heir.launchers) == {spawn.launcher_id}
    assert heir.predecessors[0] == "life1"


def test_launchers_are_served_only_when_etcd_has_the_incarnation() -> None:
    record = adopt.record_of(Core().running().state)
    core = Core()
    core.state = adopt.restore(record, NO_SPARES, "life2", "boot", core.now_ms, frozenset({(100, 1)}))
    hello = protocol.Hello(1, "life1-1", "job", 100, 1, "boot", True)
    running = protocol.RunningAttempt(str(ORDER.attempt_id), 101, 1, 20000, "life1")
    out = core.feed(LauncherSaid("life1-1", replace(hello, attempt=running)))
    assert not only(Say, out)
    heir = replace(ME, incarnation="life2", succeeds=("life1",))
    out = core.feed(Joined(heir, core.now_ms, adopt=True, d_ms=FAST.d_ms))
    assert isinstance(only(Say, out)[0].message, protocol.Welcome)


def test_an_attempt_that_is_not_in_the_state_file_is_not_adopted() -> None:
    core = Core().running()
    stranger = protocol.RunningAttempt("job/worker:0@1.7", 555, 1, 20000, "life1")
    out = core.hear(protocol.Hello(1, core.launcher_id, "job", 100, 1, "boot", True, (), stranger))
    assert only(Fence, out)
