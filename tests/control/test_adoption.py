"""Records made again from any history: a start goes on from what is good, or stops; it never begins anew."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from recovery.formats.lineage import on_lineage
from recovery.formats.manifest import Manifest, ManifestFile
from recovery.formats.selection import Chosen, FromScratch, select_base
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState, Verify
from supervisor.contract.desired import JobPhase
from supervisor.control.decide.checkpoints.adoption import (
    Read,
    newest_base,
    next_generation,
    rebuild,
    record_of,
)
from supervisor.control.decide.facts.history import records_are_lost
from supervisor.control.decide.plan import put
from tests.control.world import World, check


@st.composite
def stores(draw: st.DrawFn) -> list[Read]:
    """Complete directories of any number of generations, some of them bad, some of their parents gone."""
    found: list[Read] = []
    for generation in range(1, draw(st.integers(1, 5)) + 1):
        parents = [None, *(each.manifest.ref for each in found), CheckpointRef(generation, 77)]
        parent = draw(st.sampled_from(parents))
        for step in sorted(draw(st.sets(st.integers(0, 40), max_size=5))):
            ref = CheckpointRef(generation, step)
            files = (ManifestFile("w", 1, "0" * 8),)
            manifest = Manifest("uuid", "digits", ref, parent, "n0", "i0", "", 5, files)
            found.append(Read(f"{ref}", manifest, draw(st.sampled_from(["", "", "torn"]))))
    return draw(st.permutations(found))


def lost(floor: int, base: CheckpointRef | None) -> World:
    """A job that was taken up from its store after etcd was lost."""
    world = World(nodes=1)
    switch = replace(world.switch(), phase=JobPhase.STOPPED, generation=floor, base=base)
    record = replace(world.job().record.value, generation_floor=floor)
    world.write(put(keys.switch("digits"), switch), put(keys.job_record("digits"), record))
    return world


@given(stores(), st.integers(0, 9))
def test_a_start_after_a_rebuild_takes_the_newest_good_one_or_stops(found: list[Read], more: int) -> None:
    if not found:
        return
    records = tuple(record_of(each, Verify.READBACK) for each in found)
    newest = max(record.ref for record in records)
    seen = newest.generation + more
    world = lost(newest.generation, newest)
    assert records_are_lost(world.job())
    for action in rebuild(world.job(), records, seen):
        assert world.run(action)
    check(world.snapshot())
    job = world.job()
    assert not records_are_lost(job)
    assert {ref: held.value for ref, held in job.commits.items()} == {each.ref: each for each in records}
    assert job.switch.value.generation > max(seen, newest.generation)
    assert next_generation(job) > job.switch.value.generation
    chosen = select_base(records, job.switch.value)
    assert not isinstance(chosen, FromScratch)
    good = newest_base(records)
    if good is None:
        assert not isinstance(chosen, Chosen)
    else:
        assert isinstance(chosen, Chosen)
        assert chosen.record.ref == good


@given(stores())
def test_what_is_taken_is_good_and_nothing_newer_on_its_lineage_is(found: list[Read]) -> None:
    records = [record_of(each, Verify.READBACK) for each in found]
    good = newest_base(records)
    if not records:
        assert good is None
        return
    last = max(records, key=lambda each: each.ref)
    lineage = on_lineage(records, "uuid", last.ref.generation, last.parent)
    usable = [each.ref for each in lineage if each.state is CommitState.COMMITTED]
    assert good == (usable[0] if usable else None)
    assert all(
        each.state is CommitState.COMMITTED or each.reason == "failed verification: torn" for each in records
    )


def test_a_record_that_is_made_again_is_the_one_that_was_lost() -> None:
    world = World().start()
    ref = world.commit(1, 100)
    was = world.job().commits[ref].value
    files = (ManifestFile("w", was.size, "0" * 8),)
    manifest = Manifest(
        was.job_uuid, "digits", ref, was.parent, was.node, was.incarnation, "", was.wall_ms, files
    )
    made = record_of(Read(was.path, manifest), Verify.READBACK)
    assert made == replace(was, manifest_crc32c=made.manifest_crc32c)
    world.write(Delete(keys.commit("digits", ref)))
    assert isinstance(made, CommitRecord)
