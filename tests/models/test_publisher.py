"""What a task exports becomes versions for model servers: whole, in order, once, and by one attempt alone."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent.models.publisher import NotTried
from recovery.formats.meta_graph import SAVED_MODEL
from recovery.models.index import claim_objection, rolled_back
from recovery.models.store import ModelStore
from recovery.outputs.note import OutputState
from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.job.serving import Exports
from supervisor.contract.job.spec import ModelCheck
from tests.models.exported import export
from tests.models.site import JOB, MODEL, Site, state
from tests.support.clocks import ManualClock

LOAD = ModelCheck.LOAD


@pytest.fixture(params=["local", "memory"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    made: CheckpointStore = (
        LocalStore(tmp_path / "store") if request.param == "local" else MemoryCheckpointStore()
    )
    await made.prepare()
    return Site(tmp_path, made)


@pytest.fixture
async def local(tmp_path: Path) -> Site:
    store = LocalStore(tmp_path / "store")
    await store.prepare()
    return Site(tmp_path, store)


async def test_each_export_becomes_the_next_version_and_the_newest_are_kept(site: Site) -> None:
    files = {
        number: export(site.out, f"export/{10 - number}", b"%d" % number, number) for number in (1, 2, 3)
    }
    await site.publisher(state(keep=2)).look(final=False)
    assert await site.seen() == {2: files[2], 3: files[3]}, "in the order in which they were written"
    assert await site.rest() == []
    assert list(site.spool.iterdir()) == []
    index = await site.index()
    assert (index.job, index.last, index.find(3).source) == (JOB, 3, "export/7")


async def test_the_same_files_are_published_once_and_changed_ones_again(site: Site) -> None:
    first = export(site.out, "export/latest", b"1")
    publisher = site.publisher()
    await publisher.look(final=False)
    await publisher.look(final=True)
    await site.publisher(state(attempt=2)).look(final=True)
    assert await site.seen() == {1: first}, "also after a restart of the agent, and of the task"
    second = export(site.out, "export/latest", b"2", age=1)
    await publisher.look(final=True)
    await site.publisher(state(attempt=2)).look(final=True)
    assert await site.seen() == {1: first, 2: second}


async def test_a_new_life_of_the_job_publishes_the_same_files_again(site: Site) -> None:
    files = export(site.out, "export/1", b"1")
    await site.publisher().look(final=True)
    await site.publisher(replace(state(2), job_uuid="uuid-2")).look(final=True)
    assert await site.seen() == {1: files, 2: files}


async def test_an_export_that_is_being_written_waits(site: Site) -> None:
    export(site.out, "export/1", b"1")
    (site.out / "export/1/assets/more").write_bytes(b"just now")
    publisher = site.publisher()
    await publisher.look(final=False)
    assert await site.seen() == {}
    await publisher.look(final=True)
    assert list(await site.seen()) == [1], "its program is dead, so nothing more comes"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("variables/variables.index", "variables/variables.index or one of its data files is missing"),
        ("variables/variables.data-00000-of-00001", "or one of its data files is missing"),
    ],
)
async def test_an_export_that_lacks_files_is_refused(local: Site, name: str, why: str) -> None:
    export(local.out, "export/1", b"1")
    (local.out / "export/1" / name).unlink()
    publisher = local.publisher()
    await publisher.look(final=True)
    assert await local.seen() == {}
    assert why in publisher.refused["export/1"]
    assert why in (await local.index()).refused["export/1"]


async def test_damaged_variables_are_refused_and_a_repaired_export_is_taken(local: Site) -> None:
    good = export(local.out, "export/1", b"good weights")
    data = local.out / "export/1/variables/variables.data-00000-of-00001"
    data.write_bytes(b"evil weights")
    publisher = local.publisher()
    await publisher.look(final=True)
    assert await local.seen() == {}
    assert "its checksum is wrong" in publisher.refused["export/1"]
    data.write_bytes(b"good weights")
    await publisher.look(final=True)
    assert await local.seen() == {1: good}
    assert publisher.refused == (await local.index()).refused == {}


@pytest.mark.parametrize("graph", [b"", b"\x08\x01", b"garbage", b"\x08\x01\x12\x02\x0a\x00"])
async def test_a_saved_model_without_a_graph_is_refused(local: Site, graph: bytes) -> None:
    export(local.out, "export/1", b"1")
    (local.out / "export/1" / SAVED_MODEL).write_bytes(graph)
    publisher = local.publisher()
    await publisher.look(final=True)
    assert await local.seen() == {}
    assert publisher.refused["export/1"].startswith(SAVED_MODEL)


async def test_a_link_leads_to_no_file_of_others(local: Site) -> None:
    """An export that is a link is none, and one with a link in it is not whole without what it leads to."""
    outside = local.root / "outside"
    export(outside, "model", b"secret")
    export(local.out, "export/1", b"1")
    (local.out / "export/2").symlink_to(outside / "model")
    (local.out / "export/1/more").symlink_to(outside / "model")
    publisher = local.publisher()
    await publisher.look(final=True)
    assert await local.seen() == {}
    assert publisher.refused == {"export/1": "export/1/more: it is a symbolic link"}


async def test_an_export_beyond_the_budget_is_refused(local: Site) -> None:
    export(local.out, "export/1", b"1" * 1000)
    publisher = local.publisher(state(budget=1000))
    await publisher.look(final=True)
    assert "more than limits.output_budget" in publisher.refused["export/1"]


async def test_a_model_that_cannot_be_loaded_is_not_published(local: Site) -> None:
    export(local.out, "export/1", b"1")
    tried: list[list[str]] = []

    async def load(_uuid: str, exports: Exports, copy: Path) -> str:
        assert exports.serving.check is LOAD
        tried.append(sorted(each.name for each in copy.iterdir()))
        return "ValueError: Op type not registered" if len(tried) == 1 else ""

    publisher = local.publisher(state(check=LOAD), load)
    await publisher.look(final=True)
    await publisher.look(final=True)
    assert len(tried) == 1, "the same files are not tried again"
    assert publisher.refused["export/1"] == "it cannot be loaded: ValueError: Op type not registered"
    export(local.out, "export/2", b"2", age=1)
    await publisher.look(final=True)
    assert tried == [["assets", SAVED_MODEL, "variables"]] * 2
    index = await local.index()
    assert (list(await local.seen()), index.find(1).check) == ([1], "load")


async def test_a_check_that_is_killed_is_made_again_a_few_times(local: Site) -> None:
    export(local.out, "export/1", b"1")
    tries = 0

    async def load(_uuid: str, _exports: Exports, _copy: Path) -> str:
        nonlocal tries
        tries += 1
        raise NotTried("killed")

    publisher = local.publisher(state(check=LOAD), load)
    await publisher.look(final=False)
    assert (tries, publisher.refused) == (1, {})
    await publisher.look(final=True)
    assert publisher.refused["export/1"] == "killed"


class HandClock(ManualClock):
    """Only a test lets time go by, but files have the times of this machine."""

    def wall_ms(self) -> int:
        return BootClock().wall_ms()


async def test_models_that_hang_hold_up_a_look_and_the_end_of_their_task_for_a_bounded_time(
    local: Site,
) -> None:
    for number in range(10):
        export(local.out, f"export/{number}", b"%d" % number, number)
    clock = local.clock = HandClock()

    async def load(_uuid: str, _exports: Exports, _copy: Path) -> str:
        clock.ms += 240_000
        return "that takes longer than 240 s"

    publisher = local.publisher(state(check=LOAD), load)
    begun_ms = clock.ms
    await publisher.look(final=False)
    assert (clock.ms - begun_ms, len(publisher.refused)) == (240_000, 1), "the rest waits for the next look"
    begun_ms = clock.ms
    await publisher.look(final=True)
    assert (clock.ms - begun_ms, len(publisher.refused)) == (3 * 240_000, 10)
    why = "it was not tried: other exports of its task took 10 minutes to try"
    assert list(publisher.refused.values()).count(why) == 6


async def test_a_node_tries_so_many_models_at_once(tmp_path: Path) -> None:
    places, met, busy, most = asyncio.Semaphore(2), asyncio.Event(), 0, 0

    async def load(_uuid: str, _exports: Exports, _copy: Path) -> str:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        if busy == 2:
            met.set()
        await asyncio.wait_for(met.wait(), 20)
        busy -= 1
        return ""

    looks = []
    for number in range(4):
        store = LocalStore(tmp_path / f"store-{number}")
        await store.prepare()
        site = Site(tmp_path / str(number), store)
        export(site.out, "export/1", b"1")
        looks.append(site.publisher(state(check=LOAD), load, trials=places).look(final=True))
    await asyncio.gather(*looks)
    assert most == 2


async def test_a_node_that_cannot_load_models_says_so_in_the_index(local: Site) -> None:
    export(local.out, "export/1", b"1")
    await local.publisher(state(check=LOAD)).look(final=True)
    assert (await local.index()).find(1).check == "checksums"


async def test_an_attempt_that_is_over_publishes_nothing(site: Site) -> None:
    """Two nodes with the outputs of one task: the one of the later attempt publishes alone."""
    export(site.out, "export/1", b"1")
    early, late = site.publisher(state(1)), site.publisher(state(2))
    await early.look(final=True)
    await late.look(final=True)
    export(site.out, "export/2", b"2", age=1)
    await early.look(final=True)
    assert list(await site.seen()) == [1]
    assert any("not published from here any more" in event for _, event, _ in site.sink.lines)
    await late.look(final=True)
    assert list(await site.seen()) == [1, 2]


@pytest.mark.parametrize("other", [state(job="other"), state(2)])
async def test_a_model_that_is_anothers_is_told_of(site: Site, other: OutputState) -> None:
    """Of two jobs with one store, or of a job of another cluster. Both attempts are in force."""
    export(site.out, "export/1", b"1")
    await site.publisher(other).look(final=True)
    publisher = site.publisher(state(1))
    await publisher.look(final=True)
    (why,) = publisher.refused.values()
    assert why == claim_objection(await site.index(), "job", 1, 1)
    later = site.publisher(replace(other, generation=3))
    await later.look(final=True)
    assert later.refused == {}


async def test_a_generation_that_the_cluster_has_left_publishes_nothing(site: Site) -> None:
    export(site.out, "export/1", b"1")
    site.in_force = False
    await site.publisher().look(final=True)
    assert (await site.seen(), (await site.index()).serial) == ({}, 0)


async def test_a_later_attempt_finishes_what_an_earlier_one_has_begun(site: Site) -> None:
    """The earlier one is killed between its index and the rename."""
    files = export(site.out, "export/1", b"1")
    await site.publisher().look(final=True)
    name = (await site.index()).find(1).id
    await site.store.rename(f"models/{MODEL}/1", f".models/{MODEL}/kept/{name}")
    shutil.rmtree(site.out / "export")
    await site.store.write_bytes(f".models/{MODEL}/kept/g1.1-0/{SAVED_MODEL}", b"half")
    await site.publisher(state(2)).look(final=False)
    assert await site.seen() == {1: files}
    assert await site.rest() == [], "uploads of attempts before it that got into no index are removed"


async def test_exports_after_a_rollback_wait_for_an_operator(site: Site) -> None:
    first, second = (export(site.out, f"export/{number}", b"%d" % number, number) for number in (1, 2))
    publisher = site.publisher()
    await publisher.look(final=True)
    models = ModelStore(site.store, MODEL)
    await models.update(lambda index, _: rolled_back(index, None))
    await models.settle()
    assert await site.seen() == {1: first}
    export(site.out, "export/3", b"3", age=3)
    await publisher.look(final=True)
    assert await site.seen() == {1: first}
    await models.update(lambda index, _: replace(index, held=False))
    await site.publisher(state(2)).look(final=True)
    assert second not in (await site.seen()).values(), "nothing that was withdrawn comes back by itself"


async def test_a_directory_in_the_way_is_left_alone_and_reported(local: Site) -> None:
    """Somebody puts a directory where a version goes, after its number was chosen."""
    export(local.out, "export/1", b"1")
    await local.publisher().look(final=True)
    name = (await local.index()).find(1).id
    await local.store.rename(f"models/{MODEL}/1", f".models/{MODEL}/kept/{name}")
    await local.store.write_bytes(f"models/{MODEL}/1/theirs", b"x")
    models = ModelStore(local.store, MODEL)
    await models.settle()
    assert models.blocked == (1,)
    assert await local.seen() == {1: {"theirs": b"x"}}
    export(local.out, "export/2", b"2", age=1)
    await local.publisher(state(2, keep=1)).look(final=True)
    assert sorted(await local.seen()) == [1, 2], "and another one's directory is not removed as ours"


async def test_a_model_is_one_jobs(site: Site) -> None:
    export(site.out, "export/1", b"1")
    await site.publisher().look(final=True)
    export(site.out, "export/2", b"2", age=1)
    await site.publisher(state(9, job="other")).look(final=True)
    assert list(await site.seen()) == [1]
    assert any(
        "is job job's; name another one in serving.model" in str(fields) for _, _, fields in site.sink.lines
    )
