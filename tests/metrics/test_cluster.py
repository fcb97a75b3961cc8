"""What the leader tells of jobs, nodes and GPUs, from snapshots made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.adapters.metrics.samples import Metric, Rows
from supervisor.contract import keys
from supervisor.contract.boundaries import Put
from supervisor.contract.desired import Cordon, GpuQuarantine, JobPhase
from supervisor.contract.job.goodput import Category, Goodput
from supervisor.contract.job.pause import Pause
from supervisor.contract.observed import Gpu, GpuAction, GpuHealth, SaverBeat
from supervisor.control.decide.plan import put
from supervisor.control.decide.snapshot import Snapshot
from supervisor.metrics import cluster
from tests.control.world import World
from tests.support.builders import job_spec


def rows_of(snap: Snapshot) -> Rows:
    rows = Rows()
    cluster.fill(snap, rows)
    return rows


def value(rows: Rows, metric: Metric) -> dict[tuple[str, ...], float]:
    """The samples that are not 0."""
    return {labels: each for labels, each in rows.values.get(metric, {}).items() if each}


def test_a_job_that_waits_for_nodes() -> None:
    world = World(nodes=0)
    world.snapshot()
    world.now_ms += 5_000
    rows = rows_of(world.snapshot())
    assert value(rows, cluster.JOBS) == {("waiting",): 1}
    assert set(rows.values[cluster.JOBS]) == {(phase.value,) for phase in JobPhase}
    assert value(rows, cluster.JOB_PHASE) == {("digits", "waiting"): 1}
    assert value(rows, cluster.TASKS) == {("waiting",): len(world.spec.tasks())}
    assert value(rows, cluster.JOB_WAITING) == {("digits",): 5.0}
    assert cluster.JOB_STEP_AGE not in rows.values
    assert cluster.COMMIT_LAG not in rows.values
    assert value(rows, cluster.NODES) == {}


def test_a_job_that_trains() -> None:
    world = World().start()
    world.commit(1, 7)
    rows = rows_of(world.snapshot())
    tasks = len(world.spec.tasks())
    assert value(rows, cluster.JOBS) == {("running",): 1}
    assert value(rows, cluster.TASKS) == {("running",): tasks}
    assert value(rows, cluster.JOB_TASKS) == {("digits", "running"): tasks}
    assert value(rows, cluster.JOB_GENERATION) == {("digits",): 1}
    assert rows.get(cluster.JOB_STEP, "digits") >= 7
    assert rows.get(cluster.COMMITTED_STEP, "digits") == 7
    assert rows.get(cluster.JOB_STEP_AGE, "digits") < 1
    assert ("digits",) in rows.values[cluster.COMMIT_LAG]
    assert value(rows, cluster.NODES) == {("ready",): 3}
    assert value(rows, cluster.JOB) == {("digits", world.spec.strategy.value, ""): 1}
    world.now_ms += 3_000
    assert rows_of(world.snapshot()).get(cluster.JOB_STEP_AGE, "digits") >= 3


def test_restarts_are_told_by_their_cause() -> None:
    world = World().start()
    world.end_task("worker.0", code=1)
    world.until(lambda: world.switch().ledger.program == 1)
    world.lose("ps.0")
    world.until(lambda: world.switch().ledger.infrastructure == 1)
    rows = rows_of(world.snapshot())
    assert value(rows, cluster.JOB_RESTARTS) == {("digits", "program"): 1, ("digits", "infrastructure"): 1}
    assert rows.get(cluster.JOB_STREAK, "digits") == 1
    assert rows.get(cluster.JOB_STREAK_ALLOWED, "digits") == world.spec.restart.max_restarts
    assert rows.get(cluster.INCIDENTS_OPEN) >= 1


def test_a_lost_node_and_its_tasks_are_told_as_lost() -> None:
    world = World(nodes=1).start()
    node = world.lose("ps.0")
    world.until(lambda: rows_of(world.snapshot()).get(cluster.NODE_STATE, node, "lost") == 1)
    rows = rows_of(world.snapshot())
    assert value(rows, cluster.NODES) == {("lost",): 1}
    assert value(rows, cluster.NODE_STATE) == {(node, "lost"): 1}
    assert value(rows, cluster.TASKS) == {("lost",): len(world.spec.tasks())}
    assert (
        rows.get(cluster.NODE_BEAT_AGE, node) > world.view.snapshot(0, 0, 0, world.token).timing.d_ms / 1000
    )
    assert rows.get(cluster.JOB_RATE, "digits") == 0


def test_what_a_jobs_time_was_spent_on() -> None:
    world = World().start()
    world.wall_ms = 100_000
    ledger = Goodput(
        job="digits",
        job_uuid="uuid",
        since_wall_ms=50_000,
        wall_ms=94_000,
        category=Category.PRODUCTIVE,
        spent_ms={"starting": 4_000, "productive": 30_000, "stopped": 10_000},
    )
    world.write(put(keys.goodput_of("digits"), ledger))
    rows = rows_of(world.snapshot())
    assert value(rows, cluster.JOB_SPENT) == {
        ("digits", "starting"): 4,
        ("digits", "productive"): 36,
        ("digits", "stopped"): 10,
    }
    assert rows.get(cluster.JOB_GOODPUT, "digits") == 0.9
    world.write(put(keys.goodput_of("digits"), replace(ledger, job_uuid="of a job before")))
    assert cluster.JOB_SPENT not in rows_of(world.snapshot()).values


def test_an_error_about_a_job_leaves_the_nodes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a bug")

    snap, rows = World().start().snapshot(), Rows()
    monkeypatch.setattr(cluster, "_steps", broken)
    with pytest.raises(KeyError, match="a bug"):
        cluster.fill(snap, rows)
    assert value(rows, cluster.NODES) == {("ready",): 3}
    assert value(rows, cluster.JOB_PHASE) == {("digits", "running"): 1}


def test_a_pause_is_told_of_the_cluster_or_of_a_job() -> None:
    world = World().start()
    assert value(rows_of(world.snapshot()), cluster.JOB_PAUSED) == {}
    world.write(put(keys.intent("digits"), replace(world.job().intent.value, paused=Pause(by="user:a"))))
    rows = rows_of(world.snapshot())
    assert value(rows, cluster.JOB_PAUSED) == {("digits",): 1}
    assert value(rows, cluster.PAUSED) == {}
    world.write(put(keys.PAUSE, Pause(by="user:a", reason="the switch is replaced")))
    assert value(rows_of(world.snapshot()), cluster.PAUSED) == {(): 1}


def test_a_node_drains_as_long_as_it_has_tasks() -> None:
    world = World(nodes=5).start()
    node = world.node_of("ps.0")
    empty = next(
        name for name in world.agents if name not in {each.node for each in world.running().values()}
    )
    for name in (node, empty):
        world.write(put(keys.cordon(name), Cordon(name, "service", drain=True)))
    rows = rows_of(world.snapshot())
    assert rows.get(cluster.NODE_STATE, node, "draining") == 1
    assert rows.get(cluster.NODE_STATE, empty, "drained") == 1


def test_a_job_that_has_ended_has_a_phase_and_no_tasks() -> None:
    world = World().start()
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.FAILED)))
    rows = rows_of(world.snapshot())
    assert value(rows, cluster.JOB_PHASE) == {("digits", "failed"): 1}
    assert value(rows, cluster.TASKS) == {}
    for metric in (cluster.JOB_STEP_AGE, cluster.COMMIT_LAG, cluster.JOB_TASKS):
        assert metric not in rows.values


def test_a_save_that_waits_and_why() -> None:
    world = World().start()
    saver = world.job().saver
    node = world.node_of(saver.member)
    snap = world.snapshot()
    picture = snap.nodes[node]
    assert picture.beat is not None
    told = SaverBeat("digits", 1, waiting_ms=9_000, skipped=3, trouble="HDFS is away", trouble_ms=8_000)
    beat = replace(picture.beat, savers={"digits": told})
    rows = rows_of(replace(snap, nodes={**snap.nodes, node: replace(picture, beat=beat)}))
    assert rows.get(cluster.SAVE_WAITING, "digits") == 9
    assert rows.get(cluster.SAVES_SKIPPED, "digits") == 3
    assert rows.get(cluster.COMMIT_TROUBLE, "digits") == 8
    assert rows.get(cluster.SAVE_BOUND, "digits") == (world.spec.checkpoint.lag_bound_ms or 0) / 1000


def test_gpus_by_health_and_those_that_get_no_task() -> None:
    world = World()
    gpus = (
        Gpu("GPU-secret-uuid-0", 0, "H200", 1 << 37),
        Gpu("GPU-1", 1, "H200", 1 << 37, health=GpuHealth.FAULTY, reason="XID 79", fault=1),
    )
    world.see_gpus("n0", *gpus)
    world.write(
        put(keys.quarantine("n0", "GPU-1"), GpuQuarantine("n0", "GPU-1", 1, "XID 79", GpuAction.RESET_GPU, 1))
    )
    rows = rows_of(world.snapshot())
    assert value(rows, cluster.GPUS) == {("ok",): 1, ("faulty",): 1}
    assert value(rows, cluster.GPU_QUARANTINED) == {("n0", "1"): 1}
    assert rows.get(cluster.QUARANTINED) == 1


def test_a_job_that_is_set_aside_is_told_as_parked() -> None:
    world = World()
    world.write(Put(keys.job_record("digits"), b"no record"))
    rows = rows_of(world.snapshot())
    assert value(rows, cluster.JOB_PHASE) == {("digits", "parked"): 1}
    assert value(rows, cluster.JOBS) == {("parked",): 1}


@pytest.mark.parametrize("secret", ["hunter2", "/home/alice/train.py", "10.9.8.7"])
def test_nothing_of_a_jobs_file_is_told_but_its_name(secret: str) -> None:
    spec = job_spec()
    roles = tuple(replace(role, command=("python", secret), env={"TOKEN": secret}) for role in spec.roles)
    world = World(replace(spec, roles=roles, workdir=f"/{secret}")).start()
    world.end_task("worker.0", code=1, tail=secret)
    world.until(lambda: bool(world.incidents()))
    rows = rows_of(world.snapshot())
    told = [label for values in rows.values.values() for labels in values for label in labels]
    assert "digits" in told
    assert [label for label in told if secret in label] == []
