"""Names in the store, and which live directories may go."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.formats.paths import staging_path, stored_path
from recovery.mount.layout import (
    LIVE,
    MAX_LINK_BYTES,
    Place,
    link_name,
    linked_path,
    live_generation,
    live_path,
    parse_place,
    place_shown,
)
from recovery.retention.collect import StoreScan, finished_live, scan_store
from recovery.stores.local import LocalStore
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import JobPhase, JobSwitch

REFS = st.builds(CheckpointRef, st.integers(0, 99_999), st.integers(0, 10**9))


@given(REFS, st.text("0123456789abcdef", min_size=1, max_size=16))
def test_a_link_says_where_a_file_is(ref: CheckpointRef, name: str) -> None:
    staged = staging_path(ref, name)
    place = Place(stored_path(ref, name), staged.rpartition("/")[2])
    assert parse_place(place.name) == place
    assert place.ref == ref
    assert place.directories == (place.stored, staged, place.stored)
    committed = Place(place.stored)
    assert parse_place(committed.name) == committed
    assert committed.directories == (place.stored,)


@pytest.mark.parametrize("name", ["", "+", "a", "1-a+", "+../x", "1-a+b/c"])
def test_what_is_no_link_leads_nowhere(name: str) -> None:
    assert parse_place(name) is None


@given(st.text(st.sampled_from("a%2F5/é"), min_size=1, max_size=120))
def test_a_path_is_read_back_from_the_name_of_its_link(path: str) -> None:
    name = link_name(path)
    assert name is None or ("/" not in name and linked_path(name) == path)
    assert (name is None) == (len(path.replace("%", "%25").replace("/", "%2F").encode()) > MAX_LINK_BYTES)


def test_links_of_files_at_the_top_are_called_as_they_always_were() -> None:
    assert link_name("model.ckpt-7.index") == "model.ckpt-7.index"


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        (".tfsup", (None, "")),
        (".tfsup/places", (None, "")),
        (".tfsup/places/+g00001-s0000000007.a", (Place("g00001-s0000000007.a"), "")),
        (".tfsup/places/+g00001-s0000000007.a/x/y", (Place("g00001-s0000000007.a"), "x/y")),
        (".tfsup/places/+.live/x", None),
        (".tfsup/places/.live+g00001-s0000000007.a/x", None),
        (".tfsup/links/x", None),
        ("x", None),
    ],
)
def test_what_is_shown_of_places(path: str, leads_to: object) -> None:
    assert place_shown(path) == leads_to


def switch(phase: JobPhase, generation: int, plan: str) -> JobSwitch:
    return JobSwitch("job", "u", phase, generation, plan)


def names(*of: tuple[int, str]) -> tuple[str, ...]:
    return tuple(live_path(*each).removeprefix(f"{LIVE}/") for each in of)


def test_live_directories_go_when_another_generation_is_in_force() -> None:
    scan = StoreScan((), live=names((1, "a"), (2, "b"), (2, "lost"), (3, "c")))
    running = finished_live(scan, switch(JobPhase.RUNNING, 2, "b"))
    assert running == (live_path(1, "a"), live_path(2, "lost"))
    # Generation 3 may be in preparation.
    ended = finished_live(scan, switch(JobPhase.SUCCEEDED, 2, "b"))
    assert ended == (live_path(1, "a"), live_path(2, "b"), live_path(2, "lost"))


async def test_a_generation_that_only_wrote_is_never_used_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    await store.prepare()
    (tmp_path / "store" / live_path(17, "plan")).mkdir(parents=True)
    (tmp_path / "store" / LIVE / "strange").mkdir()
    scan = await scan_store(store)
    assert scan.live == names((17, "plan"))
    assert scan.max_generation == 17
    assert live_generation("g00017.plan") == 17
