"""A GPU is in one exclusive attempt of a node at most: the next waits for the confirmed death of the last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.compose import device_env
from agent.core.desired import name_of, recipe_of
from agent.core.events import Joined, Observed, Tick
from agent.core.gpus.health import GpuBook, GpuSight, KnownGpu
from agent.core.gpus.report import utilisation
from agent.core.instructions import Instruction, Launch, Report
from agent.core.reporting import report
from agent.core.saved.adopt import record_of, restore
from agent.core.saved.record import End
from agent.core.state import AgentState, Attempt, HoldState, Launcher, PortReservation
from agent.core.step import step
from agent.core.step_context import Work
from supervisor.contract.desired import Assignment, ClusterSpec, JobPhase, JobSwitch, RoleAddresses
from supervisor.contract.observed import ExitReason, Gpu
from supervisor.contract.timing import FAST
from tests.agent.core import ME, SETTINGS

NOW_MS = 100_000
OLD = Assignment("old", "u", "worker", 0, 1, "p1", "n1", "life1", 1, ("x",), "/", gpus=("GPU-a", "GPU-b"))
NEW = Assignment("new", "v", "worker", 0, 1, "p2", "n1", "life1", 1, ("x",), "/", gpus=("GPU-b",))
SPEC = ClusterSpec("new", 1, "p2", (RoleAddresses("worker", ("h:20001",)),))


def attempt(order: Assignment, end: End | None = None) -> Attempt:
    return Attempt(
        order.attempt_id,
        order.job_uuid,
        order.plan_id,
        "L-old",
        20000,
        "h:20000",
        warm=True,
        asked=True,
        pid=6,
        end=end,
        gpus=order.gpus,
        gpus_shared=order.gpus_shared,
    )


def state(old: Assignment, end: End | None, new: Assignment) -> AgentState:
    """`old` runs, or has ended so; a launcher waits with a port for `new`."""
    made = AgentState(SETTINGS, "life1", "boot", FAST.d_ms)
    made.launchers["L-old"] = _launcher("L-old", old, 5)
    made.launchers["L-new"] = _launcher("L-new", new, 7)
    held = PortReservation("new", "p2", "worker.0", "L-new", HoldState.HELD, port=20001, answered=True)
    made.holds[name_of(new)] = held
    made.attempts[old.attempt_id] = attempt(old, end)
    made.specs["p2"] = SPEC
    return made


def _launcher(name: str, order: Assignment, pid: int) -> Launcher:
    recipe = recipe_of(order, "process")
    return Launcher(name, recipe, NOW_MS, order.task.member, pid=pid, start_ticks=pid)


def launched(made: AgentState, *orders: Assignment) -> list[str]:
    """The attempts that are started now; the job of `old` wants its task no more."""
    made, _ = step(made, [Joined(ME, NOW_MS, adopt=True, d_ms=FAST.d_ms)], NOW_MS)
    launchers = {name: replace(each, welcomed=True) for name, each in made.launchers.items()}
    made = replace(made, deadline_ms=NOW_MS + FAST.d_ms, launchers=launchers)
    switches = [JobSwitch(each.job, each.job_uuid, JobPhase.RUNNING, 1, each.plan_id) for each in orders]
    told: tuple[Instruction, ...]
    made, told = step(made, [Observed(orders, tuple(switches), NOW_MS)], NOW_MS)
    made, more = step(made, [Tick()], NOW_MS + 1)
    starts = [each for each in (*told, *more) if isinstance(each, Launch)]
    return [str(each.assignment.attempt_id) for each in starts]


def dead(*, confirmed: bool) -> End:
    return End(ExitReason.EXIT, 0, None, NOW_MS, confirmed)


@pytest.mark.parametrize("end", [None, dead(confirmed=False)])
def test_who_has_its_gpu_is_confirmed_dead_first(end: End | None) -> None:
    assert launched(state(OLD, end, NEW), NEW) == []


def test_then_it_starts() -> None:
    assert launched(state(OLD, dead(confirmed=True), NEW), NEW) == [str(NEW.attempt_id)]


def test_nobody_waits_for_the_gpus_of_others() -> None:
    apart = replace(NEW, gpus=("GPU-c",))
    assert launched(state(OLD, None, apart), OLD, apart) == [str(apart.attempt_id)]


@pytest.mark.parametrize(("one", "other", "starts"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_only_those_share_a_gpu_who_both_agree(one: bool, other: bool, starts: int) -> None:
    old, new = replace(OLD, gpus_shared=one), replace(NEW, gpus_shared=other)
    assert len(launched(state(old, None, new), old, new)) == starts


def test_what_an_attempt_holds_outlives_its_agent_and_is_reported() -> None:
    before = state(OLD, None, NEW)
    after = restore(record_of(before), SETTINGS, "life2", "boot", NOW_MS, {(5, 5), (7, 7)})
    assert after.attempts[OLD.attempt_id].gpus == OLD.gpus
    work = Work(after, NOW_MS)
    report(work)
    assert [each.record.gpus for each in work.out if isinstance(each, Report)] == [OLD.gpus]


def test_a_task_sees_its_gpus_and_no_others() -> None:
    assert device_env(("GPU-a", "GPU-b"), shared=False) == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert device_env((), shared=False) == {"CUDA_VISIBLE_DEVICES": "-1"}
    shared = device_env(("GPU-a",), shared=True)
    assert shared == {"CUDA_VISIBLE_DEVICES": "GPU-a", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def gpu_state(*sights: GpuSight) -> AgentState:
    made = state(OLD, None, NEW)
    known = {each.uuid: KnownGpu(Gpu(each.uuid, each.index, "x", 1), each) for each in sights}
    return replace(made, gpus=GpuBook(known=known))


def test_the_gpus_of_an_attempt_are_taken_together() -> None:
    sights = [GpuSight("GPU-a", 0, "x", utilisation=30), GpuSight("GPU-b", 1, "x", utilisation=50)]
    assert utilisation(gpu_state(*sights)) == {OLD.attempt_id: 80.0}
    assert utilisation(gpu_state(sights[0])) == {}
    made = gpu_state(*sights)
    made.attempts[OLD.attempt_id] = replace(attempt(OLD), gpus_shared=True)
    assert utilisation(made) == {}
