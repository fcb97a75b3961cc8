"""Tasks of a failed job that are kept for inspection: stopped instead of killed, for a while."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.api.views import job_view
from supervisor.contract import keys
from supervisor.contract.desired import JobPhase
from supervisor.contract.job.spec import JobSpec, Limits, ProgressSpec, RestartPolicy, Rule
from supervisor.contract.observed import Exit, ExitReason
from supervisor.contract.timing import FAST
from supervisor.control.decide.nodes.offers import offers
from supervisor.control.decide.plan import Action, put
from supervisor.control.decide.reconcile import reconcile
from tests.control.world import World
from tests.support.builders import job_spec, resources, role

HOLD_MS = 60_000


def holding(spec: JobSpec | None = None, *, wall_time_ms: int | None = None) -> JobSpec:
    """A job that fails on any hang or NaN, and is looked at afterwards."""
    spec = spec or job_spec(restart=RestartPolicy(rules={"hang": Rule.FAIL}))
    limits = Limits(hold_on_failure_ms=HOLD_MS, wall_time_ms=wall_time_ms)
    return replace(spec, limits=limits, progress=ProgressSpec(watch_nan=True))


def print_nan(world: World, member: str) -> None:
    report = world.running()[member]
    world.agents[report.node].tells[str(report.attempt)] = lambda beat: replace(beat, nan=True)


def failed(world: World, member: str = "worker.0") -> World:
    print_nan(world, member)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    return world


def test_who_is_blamed_is_kept_and_said_where() -> None:
    world = failed(World(holding()).start())
    assert world.switch().held == ("worker.0",)
    report = world.running()["worker.0"]
    said = f"kept, stopped, for 60 s: digits/worker:0 (pid {report.pid} on {report.node}); attach there with"
    assert said in world.switch().reason
    assert said in world.incidents()["g1-worker.0-a1"].detail
    task = next(
        each for each in job_view(world.snapshot(), world.job()).tasks if each.task.endswith("worker:0")
    )
    assert (task.state, task.pid, task.detail) == ("stopped", report.pid, "kept for inspection")


def test_where_nobody_is_blamed_all_that_run_are_kept() -> None:
    world = World(holding(wall_time_ms=30_000)).start()
    world.end_task("worker.1", code=0)
    world.until(lambda: world.switch().phase is JobPhase.FAILED, step_ms=500)
    assert world.switch().held == ("chief.0", "ps.0", "worker.0")


@pytest.mark.parametrize("asked", [True, False])
def test_what_has_ended_and_what_did_not_ask_for_it_is_not_kept(asked: bool) -> None:
    spec = holding(job_spec(restart=RestartPolicy(rules={"program_exit": Rule.FAIL})))
    world = World(spec if asked else replace(spec, limits=Limits())).start()
    if asked:
        world.end_task("worker.0", code=1)
    else:
        print_nan(world, "worker.0")
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    assert world.switch().held == ()
    assert "kept" not in world.switch().reason


def test_who_obeys_by_keeping_it_is_not_given_up_but_who_keeps_it_for_longer_is() -> None:
    world = failed(World(holding()).start())
    for _ in range(HOLD_MS // 1_000):
        world.tick(1_000)
    assert "node_cordoned" not in world.done
    for _ in range(3 * FAST.d_ms // 1_000):
        world.tick(1_000)
    assert "node_cordoned" in world.done


def test_when_it_has_ended_the_switch_says_so() -> None:
    world = failed(World(holding()).start())
    world.tick()
    assert world.switch().held
    world._exited(world.running()["worker.0"], Exit(ExitReason.KILLED, None, 9, 0, True))
    world.tick()
    assert world.switch().held == ()
    assert world.done.count("hold_over") == 1


def test_a_start_ends_it_before_the_next_generation() -> None:
    world = failed(World(holding()).start())
    world.intend(serial=1)
    world.tick()
    assert (world.switch().phase, world.switch().held) == (JobPhase.WAITING, ())
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 4)


def test_nobody_is_placed_where_it_still_has_what_it_asked_for() -> None:
    need = resources(cpus=3)
    world = failed(World(holding(job_spec((role("chief", 1), role("worker", 1, need))))).start())
    report = world.running()["worker.0"]
    assert free_cpus(world)[report.node] == 1
    world.write(put(keys.switch("digits"), replace(world.switch(), held=())))
    assert free_cpus(world)[report.node] == 1, "it may be alive"
    world._exited(report, Exit(ExitReason.KILLED, None, 9, 0, True))
    assert free_cpus(world)[report.node] == 4


def free_cpus(world: World) -> dict[str, float]:
    """The CPUs that another job is offered, by node."""
    found = offers(world.snapshot(), None)
    return {each.node: each.resources.cpus - each.used_cpus for each in found.by_node.values()}


def test_a_healthy_hold_writes_nothing() -> None:
    world = failed(World(holding()).start())
    for _ in range(5):
        world.tick()
    assert [each for each in reconcile(world.snapshot()) if isinstance(each, Action)] == []
