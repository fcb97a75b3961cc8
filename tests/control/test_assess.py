"""The assessment of a job: made once in a snapshot, of the job's own records and of what it runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from supervisor.contract import keys
from supervisor.contract.desired import Cordon, LeaderToken
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import Resources
from supervisor.contract.observed import Gpu, GpuAction, GpuHealth
from supervisor.control.decide.assess import assess as assessing
from supervisor.control.decide.assess.assess import Assessments, assess
from supervisor.control.decide.assess.assessment import Assessment
from supervisor.control.decide.assess.stacks import to_dump
from supervisor.control.decide.plan import put
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.decide.snapshot import JobState, Snapshot
from tests.control.world import World
from tests.support.builders import job_spec, role


class Unread(Mapping[Any, Any]):
    """Records that nobody may look at."""

    def __getitem__(self, key: object) -> NoReturn:
        raise AssertionError(f"{key} is read")

    def __iter__(self) -> Iterator[object]:
        raise AssertionError("all are read")

    def __len__(self) -> NoReturn:
        raise AssertionError("they are counted")


def starts() -> World:
    return World()


def runs() -> World:
    return World(nodes=5).start()


def fails() -> World:
    world = runs()
    world.end_task("worker.0", code=1)
    return world


def loses_a_node() -> World:
    world = runs()
    world.agents[world.node_of("ps.0")].beating = False
    world.until(lambda: world.snapshot().nodes[world.node_of("ps.0")].marks)
    return world


def hangs() -> World:
    world = runs()
    report = world.running()["worker.0"]
    world.agents[report.node].tells[str(report.attempt)] = lambda beat: replace(beat, step_age_ms=90_000)
    world.tick(leader=False)
    return world


def is_drained() -> World:
    world = runs()
    node = world.node_of("ps.0")
    world.write(put(keys.cordon(node), Cordon(node, "a disk", drain=True)))
    return world


def loses_a_gpu() -> World:
    world = World(job_spec((role("chief"), role("worker", 2, Resources(gpus=1)))))
    for node in world.agents:
        world.see_gpus(node, Gpu(f"GPU-{node}", 0, "H100", 1))
    world.start()
    node = world.node_of("worker.0")
    harmed = replace(
        Gpu(f"GPU-{node}", 0, "H100", 1),
        health=GpuHealth.FAULTY,
        action=GpuAction.RESET_GPU,
        fault=1,
    )
    world.see_gpus(node, harmed)
    return world


def is_done() -> World:
    world = runs()
    for member in ("chief.0", "worker.0", "worker.1"):
        world.end_task(member, code=0)
    return world


CASES: tuple[tuple[Callable[[], World], Cause | None], ...] = (
    (starts, Cause.SUBMITTED),
    (runs, None),
    (fails, Cause.PROGRAM_EXIT),
    (loses_a_node, Cause.NODE_LOST),
    (hangs, Cause.HANG),
    (is_drained, Cause.DRAINED),
    (loses_a_gpu, Cause.GPU),
    (is_done, None),
)


def alone(snap: Snapshot) -> Snapshot:
    """All that an assessment may read; the records of jobs are not among it."""
    return replace(
        snap,
        revision=-1,
        token=LeaderToken("", 0),
        jobs=Unread(),
        aside=Unread(),
        deleted=Unread(),
        codes=Unread(),
        strays=(),
        claims=None,
        cluster=None,
        time=None,
    )


@pytest.mark.parametrize(("case", "cause"), CASES, ids=[case.__name__ for case, _ in CASES])
def test_a_job_is_assessed_by_its_own_records_and_those_of_nodes(
    case: Callable[[], World], cause: Cause | None
) -> None:
    snap = case().snapshot()
    job = snap.jobs["digits"]
    found = assess(snap, job)
    assert (found.need.cause if found.need is not None else None) is cause
    assert assess(alone(snap), replace(job)) == found


def test_of_a_node_that_a_job_is_not_placed_on_it_counts_only_whether_it_is_usable() -> None:
    snap = fails().snapshot()
    job = snap.jobs["digits"]
    assert job.plan_in_force is not None
    mine = {placement.node for placement in job.plan_in_force.value.placements}
    other = next(each for name, each in snap.nodes.items() if name not in mine)
    assert other.beat is not None
    bare = replace(other, appeals={}, gpus=None, beat=replace(other.beat, tasks={}))
    without_others = {name: each for name, each in snap.nodes.items() if name in mine}
    changed = replace(snap, nodes={**without_others, other.node: bare})
    assert assess(changed, job) == assess(snap, job)


def test_a_job_is_assessed_once_for_a_decision_and_for_the_beats_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, made = hangs(), list[str]()

    def counted(snap: Snapshot, job: JobState) -> Assessment:
        made.append(job.name)
        return assess(snap, job)

    monkeypatch.setattr(assessing, "assess", counted)
    assessments = Assessments(world.snapshot())
    assert reconcile(assessments.snap, assessments)
    asked = [
        each for node in world.agents for each in to_dump(assessments, ["digits"], node, lambda *_: None)
    ]
    assert (asked, made) == (["digits/worker:0@1.1"], ["digits"])
