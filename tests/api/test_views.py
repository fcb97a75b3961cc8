"""The views for operators, over the leader's real decisions and scripted agents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor.api import views
from supervisor.api.nodes import node_list
from supervisor.contract import keys
from supervisor.contract.desired import JobPhase, LeaderRecord
from supervisor.contract.errors import NotFound
from supervisor.contract.ids import AttemptId
from supervisor.contract.incident import Event
from supervisor.contract.job.spec import Strategy
from supervisor.contract.observed import TaskBeat
from supervisor.contract.views.jobs import TaskView
from supervisor.control.decide.snapshot import Versioned
from tests.control.world import World
from tests.support.builders import job_spec


def tasks(world: World) -> dict[str, TaskView]:
    return {task.task: task for task in views.job_view(world.snapshot(), world.job()).tasks}


def test_a_running_job() -> None:
    world = World().start()
    status = views.cluster_status(
        world.snapshot(), "c", LeaderRecord("s0", "unix:/s0", 7), views.shown_jobs(world.snapshot())
    )
    assert [entry.supervisor for entry in status.supervisors] == ["s0"]
    (job,) = status.jobs
    assert (job.name, job.phase, job.generation) == ("digits", JobPhase.RUNNING, 1)
    assert {task.state for task in job.tasks} == {"running"}
    assert all(task.pid > 0 and task.address and task.node and task.attempt == 1 for task in job.tasks)
    assert job.step == max(task.step for task in job.tasks) > 0
    assert job.waiting_for == ""


def test_before_anything_runs_the_tasks_wait() -> None:
    world = World()
    world.submit()
    assert {task.state for task in tasks(world).values()} == {"waiting"}
    world.decide()
    assert {task.state for task in tasks(world).values()} == {"preparing"}
    view = views.job_view(world.snapshot(), world.job())
    assert view.waiting_for


def test_a_lost_worker_and_its_incident() -> None:
    world = World().start()
    world.end_task("worker.0", signal=9)
    assert tasks(world)["digits/worker:0"].state == "exited"
    assert tasks(world)["digits/worker:0"].detail == "signal 9"
    world.until(lambda: tasks(world)["digits/worker:0"].attempt == 2)
    world.until(lambda: tasks(world)["digits/worker:0"].state == "running")
    story = views.explanation(world.snapshot(), "digits")
    assert [incident.cause for incident in story.incidents] == ["submitted", "killed"]
    last = story.incidents[-1]
    assert (last.task, last.scope) == ("digits/worker:0", "task")
    assert last.total_ms == sum(last.phases_ms.values())


def test_a_silent_node_is_said_to_be_silent_and_then_lost() -> None:
    world = World().start()
    node = world.running()["worker.0"].node
    world.agents[node].acting = False
    world.until(lambda: any(view.state == "suspected" for view in node_list(world.snapshot()).nodes))
    assert tasks(world)["digits/worker:0"].state in ("running", "lost")
    world.until(lambda: any(view.state == "lost" for view in node_list(world.snapshot()).nodes))
    (lost,) = [view for view in node_list(world.snapshot()).nodes if view.state == "lost"]
    assert lost.node == node
    assert lost.reason


def test_checkpoints_newest_first_with_their_use() -> None:
    world = World().start()
    world.commit(1, 100)
    newest = world.commit(1, 200)
    listed = views.checkpoint_list(world.snapshot(), "digits").checkpoints
    assert [entry.ref.step for entry in listed] == [200, 100]
    assert [entry.use for entry in listed] == ["newest", ""]
    assert all(entry.on_lineage for entry in listed)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    listed = views.checkpoint_list(world.snapshot(), "digits").checkpoints
    assert [entry.use for entry in listed if entry.ref == newest] == ["base"]


def test_an_unknown_job_names_the_known_ones() -> None:
    world = World().start()
    with pytest.raises(NotFound, match="no job 'x'; jobs here: digits"):
        list(views.shown_jobs(world.snapshot(), "x"))
    with pytest.raises(NotFound, match="no job 'x'"):
        views.explanation(world.snapshot(), "x")


def test_the_budget_that_is_used_counts_the_programs_own_faults() -> None:
    world = World().start()
    world.end_task("worker.0", code=1)
    world.until(lambda: tasks(world)["digits/worker:0"].attempt == 2)
    world.until(lambda: tasks(world)["digits/worker:0"].state == "running")
    world.end_task("worker.1", signal=9)
    world.until(lambda: tasks(world)["digits/worker:1"].attempt == 2)
    budget = views.job_view(world.snapshot(), world.job()).budget
    policy = world.spec.restart
    assert (budget.in_a_row, budget.in_a_row_allowed) == (1, policy.max_restarts)
    assert (budget.in_window, budget.in_window_allowed) == (1, policy.max_in_window)
    assert budget.window_ms == policy.window_ms


def test_where_tensorboard_is() -> None:
    world = World(job_spec({"worker": 1, "tensorboard": 1}, Strategy.PLAIN)).start()
    job = views.job_view(world.snapshot(), world.job())
    address = next(task.address for task in job.tasks if task.role == "tensorboard")
    assert job.tensorboard == f"http://{address}"
    world.end_task("tensorboard.0", signal=9)
    assert views.job_view(world.snapshot(), world.job()).tensorboard == ""


def test_a_straggler_is_marked() -> None:
    world = World(job_spec({"worker": 3}, Strategy.PLAIN)).start()

    def at(pace: float) -> Callable[[TaskBeat], TaskBeat]:
        return lambda beat: replace(beat, pace=pace)

    for member, pace in (("worker.0", 10.0), ("worker.1", 10.0), ("worker.2", 2.0)):
        attempt = str(AttemptId(world.job().task(member), 1, 1))
        world.agents[world.running()[member].node].tells[attempt] = at(pace)
    world.until(lambda: tasks(world)["digits/worker:2"].straggler)
    assert tasks(world)["digits/worker:2"].detail == "5 times slower than its peers"
    assert not tasks(world)["digits/worker:0"].straggler


def test_a_task_that_a_signal_has_stopped_before_its_first_step_is_told_to_be() -> None:
    """It showed `running`, and nothing else, until `limits.startup`."""
    world = World(job_spec({"worker": 2}, Strategy.PLAIN)).start()
    attempt = str(AttemptId(world.job().task("worker.0"), 1, 1))
    node = world.agents[world.running()["worker.0"].node]
    node.tells[attempt] = lambda beat: TaskBeat(beat.attempt, stopped=True)
    world.until(lambda: bool(tasks(world)["digits/worker:0"].detail))
    assert tasks(world)["digits/worker:0"].detail == "is stopped by a signal"
    node.tells[attempt] = lambda beat: beat
    world.until(lambda: not tasks(world)["digits/worker:0"].detail)
    assert tasks(world)["digits/worker:1"].detail == ""


def test_an_event_that_is_written_late_is_told_all_the_same() -> None:
    world = World().start()

    def told(*written: tuple[int, int], after: int) -> tuple[list[int], int]:
        """Serials, of events with these serials and revisions."""
        events = tuple(
            Versioned(keys.event(serial), Event(1, "k", "digits", "t"), revision, revision, 0, 0)
            for serial, revision in sorted(written)
        )
        found, last = views.events_after(replace(world.snapshot(), events=events), "", after)
        return [event.serial for event in found], last

    first, early, late = (7, 100), (9, 101), (8, 102)
    assert told(first, after=-1) == ([7], 100)
    assert told(first, early, after=100) == ([9], 101)
    assert told(first, early, late, after=101) == ([8], 102), "begun before the other, and written after it"
    assert told(first, early, late, after=102) == ([], 102)
    assert told(first, early, late, after=-1) == ([7, 9, 8], 102)
    assert told(first, after=102) == ([7], 100), "the store has lost its data"
