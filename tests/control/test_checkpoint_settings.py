"""Settings of a job's checkpoints reach the agents and the leader that act on them."""

from __future__ import annotations

from dataclasses import replace

from recovery.formats.retention import DAY_MS
from supervisor.contract import keys
from supervisor.contract.checkpoint import Verify
from supervisor.contract.job.spec import CheckpointSpec
from supervisor.control.decide.checkpoints.collecting import fates_of
from supervisor.control.decide.plan import put
from tests.control.world import World
from tests.support.builders import job_spec


def test_the_agents_learn_how_a_save_gets_to_the_store() -> None:
    spec = replace(job_spec(), checkpoint=CheckpointSpec("file:///c", mode="mounted", verify=Verify.SIZE))
    world = World(spec).start()
    assigned = [held.value for held in world.job().assignments.values()]
    assert len(assigned) == 4
    assert {(each.checkpoint_mode, each.checkpoint_verify) for each in assigned} == {("mounted", Verify.SIZE)}


def test_agents_and_the_leader_reach_a_store_as_the_user_in_the_jobs_record() -> None:
    world = World(replace(job_spec(), checkpoint=CheckpointSpec("hdfs://prod/c", keep=1)))
    record = replace(world.job().record.value, owner="user:ann", hdfs_user="ann")
    world.write(put(keys.job_record(world.spec.name), record))
    world.start()
    assigned = [held.value for held in world.job().assignments.values()]
    assert {each.checkpoint_uri for each in assigned} == {"hdfs://ann@prod/c"}
    for step in (100, 200, 300):
        world.commit(1, step)
    for _ in range(5):
        world.decide()
    assert {each.uri for each in world.deleted} == {"hdfs://ann@prod/c"}


def test_the_leader_keeps_what_the_job_asks_to_keep() -> None:
    kept = CheckpointSpec("file:///c", keep=2, keep_every=300, keep_for_ms=7 * DAY_MS)
    world = World(replace(job_spec(), checkpoint=kept)).start()
    for step in range(100, 1000, 100):
        world.commit(1, step)
    world.pass_time(8 * DAY_MS)
    going = [fate.record.ref.step for fate in fates_of(world.snapshot(), world.job()) if fate.goes]
    assert going == [200, 400, 500, 700]
    for _ in range(20):
        world.decide()
    assert sorted(ref.step for ref in world.job().commits) == [100, 300, 600, 800, 900]
