"""The blame where a failure returns: a node, a checkpoint, or the program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery.policy.suspects import BaseVerdict
from supervisor.contract.checkpoint import CommitState
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import RestartPolicy, Scope
from supervisor.contract.observed import Exit, ExitReason
from supervisor.control.decide.checkpoints.quarantine import with_acquittal
from supervisor.control.decide.facts.history import newest_commit
from supervisor.control.decide.nodes import cordons
from supervisor.control.decide.nodes.cordons import COOLDOWN_MS
from supervisor.control.decide.plan import Action, put
from tests.control.failing import (
    BUG,
    EVALUATED,
    FLIPPED,
    back,
    end,
    failures,
    kill,
    only_the_evaluator_tells,
    quiet,
    settled,
    spec_with,
)
from tests.control.world import Telling, World
from tests.support.builders import job_spec, resources, role


def restart_all(world: World, member: str, tail: str) -> None:
    """The chief fails; returns when the next generation runs, or the job has ended."""
    generation = world.switch().generation
    end(world, member, tail)
    world.until(
        lambda: (
            world.switch().phase.ended
            or (world.switch().generation > generation and len(world.running()) == len(world.spec.tasks()))
        )
    )


def test_what_returns_on_one_node_is_tried_on_another() -> None:
    world = quiet(World(spec_with(max_restarts=9)).start())
    node = world.running()["worker.0"].node
    for number in (2, 3):
        end(world, "worker.0", code=None, signal=11)
        back(world, "worker.0", number)
        world.agents[node].started.clear()
    end(world, "worker.0", code=None, signal=11)
    world.until(lambda: world.switch().generation == 2 and "worker.0" in world.running())
    assert world.running()["worker.0"].node != node
    last = failures(world)[-1]
    assert f"program_signal 3 times in a row on {node}" in last.rule
    assert world.snapshot().nodes[node].cordon is None, "it may be the fault of this one task"


def test_a_node_on_which_several_tasks_fail_alike_gets_no_new_task_for_a_while() -> None:
    world = quiet(World(spec_with(max_restarts=9), nodes=2).start())
    tasks = world.running()
    node = tasks["worker.0"].node
    (other,) = {"chief.0", "worker.1"} & {name for name, task in tasks.items() if task.node == node}
    end(world, "worker.0", code=None, signal=11)
    back(world, "worker.0", 2)
    end(world, "worker.0", code=None, signal=11)
    back(world, "worker.0", 3)
    end(world, other, code=None, signal=11)
    world.until(lambda: world.snapshot().nodes[node].cordon is not None)
    held = world.snapshot().nodes[node].cordon
    assert held is not None
    assert held.value.cooldown_ms == COOLDOWN_MS
    assert "program_signal 3 times in a row" in held.value.reason
    assert world.done.count("node_cordoned") == 1


def is_cordoned(world: World, node: str) -> bool:
    return world.snapshot().nodes[node].cordon is not None


def crash(world: World, member: str, node: str) -> bool:
    """It is ended by SIGSEGV; returns whether its node is cordoned for that instead of all running again."""
    end(world, member, code=None, signal=11)
    count = len(world.spec.tasks())
    world.until(lambda: len(world.running()) == count or is_cordoned(world, node), limit_ms=200_000)
    return is_cordoned(world, node)


@pytest.mark.parametrize("by", ["its time", "an operator"])
def test_a_node_whose_cordon_is_lifted_is_tried_again_and_what_was_counts_no_more(by: str) -> None:
    """The job has no room elsewhere: the failure that waits is the one that the node was cordoned for."""
    need = resources(cpus=2.0)
    policy = RestartPolicy(max_restarts=30, max_in_window=90)
    spec = job_spec((role("chief", 1, need), role("ps", 1, need), role("worker", 2, need)), restart=policy)
    world = quiet(World(spec, nodes=2).start())
    tasks = world.running()
    node = tasks["worker.0"].node
    (other,) = {"chief.0", "worker.1"} & {name for name, task in tasks.items() if task.node == node}

    def fail(member: str) -> bool:
        return crash(world, member, node)

    assert [fail(member) for member in ("worker.0", "worker.0", other)] == [False, False, True]
    settled(world)
    assert other not in world.running(), "there is no room for it"
    held = world.snapshot().nodes[node].cordon
    assert held is not None
    if by == "an operator":
        world.run(cordons.lift(world.snapshot(), held, "let go"))
    world.until(lambda: other in world.running(), limit_ms=2 * COOLDOWN_MS, step_ms=1_000)
    world.new_leader()
    quiet(settled(world))
    assert world.done.count("node_cordoned") == 1
    # It takes as many as the first time: what waited is not one of them, though it was recorded since.
    assert [fail(member) for member in ("worker.0", other, "worker.0")] == [False, False, True]


def test_several_that_waited_for_their_node_do_not_cordon_it_again_among_themselves() -> None:
    need = resources(cpus=1.0)
    policy = RestartPolicy(max_restarts=30, max_in_window=90)
    spec = job_spec((role("chief", 1, need), role("ps", 1, need), role("worker", 6, need)), restart=policy)
    world = quiet(World(spec, nodes=2).start())
    tasks = world.running()
    node = next(
        task.node for name, task in tasks.items() if name != "ps.0" and task.node != tasks["ps.0"].node
    )
    first, *others = [name for name, task in sorted(tasks.items()) if task.node == node]

    for _ in range(2):
        end(world, first, code=None, signal=11)
        world.until(lambda: len(world.running()) == len(spec.tasks()), limit_ms=200_000)
    for member in others:
        end(world, member, code=None, signal=11)
    world.until(lambda: is_cordoned(world, node), limit_ms=200_000)
    waiting = [member for member in others if member not in settled(world).running()]
    assert len(waiting) == 3, "there is no room for them"
    world.until(lambda: len(world.running()) == len(spec.tasks()), limit_ms=2 * COOLDOWN_MS, step_ms=1_000)
    quiet(settled(world))
    assert world.done.count("node_cordoned") == 1


def test_an_attempt_that_began_before_a_cordon_was_lifted_is_not_held_against_its_node() -> None:
    need = resources(cpus=1.0)
    policy = RestartPolicy(max_restarts=30, max_in_window=90)
    spec = job_spec((role("chief", 1, need), role("ps", 1, need), role("worker", 6, need)), restart=policy)
    world = quiet(World(spec, nodes=2).start())
    workers = [name for name in world.running() if name.startswith("worker")]
    node = world.node_of(workers[0])
    first, second, old = [name for name in workers if world.node_of(name) == node][:3]

    def fail(member: str) -> bool:
        return crash(world, member, node)

    assert [fail(member) for member in (first, first, second)] == [False, False, True]
    world.until(lambda: second in world.running(), limit_ms=2 * COOLDOWN_MS, step_ms=1_000)
    assert [fail(member) for member in (second, second, old)] == [False, False, False]
    assert fail(old)


def test_a_checkpoint_whose_restore_fails_twice_is_set_aside_and_the_one_before_restored() -> None:
    world = World(spec_with(max_restarts=9)).start()
    good, bad = world.commit(1, 100), world.commit(1, 200)
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2 and "chief.0" in world.running())
    quiet(world)
    restart_all(world, "chief.0", FLIPPED)
    assert world.switch().base == bad
    restart_all(world, "chief.0", FLIPPED)
    record = world.job().commits[bad].value
    assert (record.state, record.suspected) == (CommitState.QUARANTINED, True)
    assert "data_loss before the first step in 2 generations" in record.reason
    assert world.switch().base == good


def test_so_it_is_though_an_evaluator_has_read_it_well() -> None:
    """Fault `unrestorable`: its word was taken for a step of training, and the job failed."""
    world = World(job_spec(EVALUATED, restart=RestartPolicy(max_restarts=3))).start()
    good, bad = world.commit(1, 100), world.commit(1, 200)
    only_the_evaluator_tells(world, 2, 3)
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 4)
    restart_all(world, "chief.0", FLIPPED)
    restart_all(world, "chief.0", FLIPPED)
    assert world.job().commits[bad].value.suspected
    assert world.switch().base == good
    assert [each.from_step for each in failures(world)[1:]] == [-1, -1]


def test_a_node_is_suspected_though_an_evaluator_on_another_reads_on() -> None:
    """Fault `node-bad`."""
    world = World(job_spec(EVALUATED, restart=RestartPolicy(max_restarts=3))).start()
    world.commit(1, 100)
    only_the_evaluator_tells(world, 2, 3, 4)
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 4)
    node = world.running()["ps.0"].node
    for _ in range(3):
        restart_all(world, "ps.0", BUG)
    assert world.switch().phase is JobPhase.RUNNING
    assert world.running()["ps.0"].node != node


def test_the_last_checkpoint_is_never_set_aside() -> None:
    world = World(spec_with(max_restarts=9)).start()
    only = world.commit(1, 100)
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2 and "chief.0" in world.running())
    quiet(world)
    restart_all(world, "chief.0", FLIPPED)
    restart_all(world, "chief.0", FLIPPED)
    assert world.switch().phase is JobPhase.FAILED
    assert "no other checkpoint is left" in world.switch().reason
    assert world.job().commits[only].value.state is CommitState.COMMITTED


def test_what_returns_from_two_checkpoints_is_the_programs_and_the_checkpoint_is_cleared() -> None:
    world = Telling(spec_with(max_restarts=9)).start()
    older, newer = world.commit(1, 100), world.commit(1, 200)
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2 and "chief.0" in world.running())
    quiet(world)
    first = world.running()["chief.0"].node
    restart_all(world, "chief.0", BUG)
    restart_all(world, "chief.0", BUG)
    assert world.running()["chief.0"].node != first
    assert world.switch().base == newer
    restart_all(world, "chief.0", BUG)
    assert world.job().commits[newer].value.state is CommitState.QUARANTINED
    told = next(held.value for held in world.snapshot().events if held.value.kind == "checkpoint_quarantined")
    assert told.text.endswith("; the next start is from the one before it"), "also where the job ends now"
    assert world.switch().base == older
    restart_all(world, "chief.0", BUG)
    assert world.switch().phase is JobPhase.FAILED
    assert "it is not the checkpoint's fault" in world.switch().reason
    assert world.job().commits[newer].value.state is CommitState.COMMITTED
    assert newest_commit(world.job()) == newer, "it is on the lineage again"
    again = replace(world.job().intent.value, restart_serial=world.job().intent.value.restart_serial + 1)
    world.write(put(world.job().intent.key, again))
    world.until(lambda: world.switch().phase is JobPhase.RUNNING)
    assert world.switch().base == newer, "a mended program starts from it (rule 8.5)"


def test_a_program_whose_steps_cannot_be_read_has_no_checkpoint_suspected() -> None:
    world = quiet(World(spec_with(max_restarts=9)))
    world.until(lambda: len(world.running()) == 4)
    world.commit(1, 100)
    newest = world.commit(1, 200)
    for _ in range(4):
        restart_all(world, "chief.0", BUG)
    assert world.job().commits[newest].value.state is CommitState.COMMITTED
    assert world.switch().base == newest


def test_a_checkpoint_that_is_being_collected_is_not_cleared() -> None:
    world = World(spec_with(max_restarts=9)).start()
    older, newer = world.commit(1, 100), world.commit(1, 200)
    held = world.job().commits[newer]
    going = replace(held.value, state=CommitState.COLLECTING, suspected=True)
    world.write(put(held.key, going))
    verdict = BaseVerdict(older, quarantine=False, reason="returns", acquitted=(newer,))
    failing = Action("job_failed", "digits", "job failed", (), ())
    assert with_acquittal(world.job(), failing, verdict) == failing, "its files may be gone already (rule 9)"


def lose_launcher(world: World, member: str, *, ran: bool = True) -> None:
    """Its launcher dies while the task makes steps, or before; returns when the job has answered that."""
    report = world.running()[member]
    attempt = report.attempt
    gone = Exit(ExitReason.LAUNCHER_LOST, None, None, 10, True, detail="its launcher died")
    world._exited(report if ran else replace(report, pid=0), gone)
    world.until(
        lambda: (
            world.switch().phase.ended
            or (member in world.running() and world.running()[member].attempt != attempt)
        )
    )
    for _ in range(5):
        world.tick()


def test_a_job_that_always_ends_its_launcher_fails_although_it_makes_steps() -> None:
    world = World().start()
    for row in range(6):
        assert world.switch().phase is JobPhase.RUNNING, row
        lose_launcher(world, "worker.0")
    assert world.switch().phase is JobPhase.FAILED
    assert "a launcher was lost 6 times in a row" in world.switch().reason
    assert world.switch().ledger.program == 0


@pytest.mark.parametrize("saves", [True, False])
def test_a_newer_checkpoint_or_a_minute_ends_a_row_of_lost_launchers(*, saves: bool) -> None:
    world = World().start()
    for row in range(1, 8):
        lose_launcher(world, "worker.0")
        if saves:
            world.commit(1, 1_000 * row)
        else:
            world.until(lambda began=world.now_ms: world.now_ms > began + 60_000, 90_000, step_ms=1_000)
    assert world.switch().phase is JobPhase.RUNNING


def test_lost_launchers_of_different_tasks_are_no_row() -> None:
    world = World(job_spec((role("chief"), role("ps"), role("worker", 5)))).start()
    for index in range(5):
        lose_launcher(world, f"worker.{index}")
    lose_launcher(world, "ps.0")
    causes = [(each.cause, each.scope) for each in failures(world)]
    assert causes == [(Cause.LAUNCHER_LOST, Scope.TASK)] * 5 + [(Cause.LAUNCHER_LOST, Scope.ALL)]
    assert world.switch().phase is JobPhase.RUNNING


def test_attempts_that_never_ran_are_no_launchers_that_the_program_ended() -> None:
    world = World().start()
    for _ in range(8):
        lose_launcher(world, "worker.0", ran=False)
    lose_launcher(world, "worker.0")
    assert world.switch().phase is JobPhase.RUNNING
    assert {each.cause for each in failures(world)} == {Cause.LAUNCHER_LOST}
    assert "did not start: its launcher died" in failures(world)[0].detail
