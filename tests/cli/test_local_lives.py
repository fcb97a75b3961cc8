"""Machines that share the directory of an embedded cluster: one at a time has it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.adapters.files.private import sync
from supervisor.cli.local import lives
from supervisor.cli.local.lives import Claim, Hold, Life, Lives
from supervisor.contract.errors import Conflict, Unreachable

TAKE_S = 1.5
AT_ONCE = 0.0


@pytest.fixture
def found(tmp_path: Path) -> Lives:
    """The lives, as this machine sees them."""
    return Lives(tmp_path / "lives", "here")


@pytest.fixture
def there(found: Lives) -> Lives:
    """The lives, as another machine sees them."""
    return replace(found, boot="there")


@pytest.fixture
def etcd(tmp_path: Path) -> Path:
    etcd = tmp_path / "etcd"
    etcd.mkdir()
    return etcd


def hold_of(found: Lives, claim: Claim, end: Callable[[], None], stop_s: float = 60.0) -> Hold:
    return Hold(found, claim.life, claim.since_s, end, lambda: None, beat_s=0.1, stop_s=stop_s)


@contextmanager
def held(found: Lives, claim: Claim, end: Callable[[], None]) -> Iterator[Hold]:
    hold = hold_of(found, claim, end)
    hold.start()
    yield hold
    hold.close()


def unexpected() -> None:
    raise AssertionError


def run_etcd(found: Lives, etcd: Path, *, ended: bool, records: str = "records") -> Life:
    """A life in which etcd has written records."""
    claim = found.claim(AT_ONCE)
    hold = hold_of(found, claim, unexpected)
    hold.take_over(etcd)
    (etcd / claim.life.data / "wal").write_text(records)
    if ended:
        hold.start()
        hold.close()
    return found.read(claim.life.number)


def test_a_life_follows_one_of_this_machine_at_once(found: Lives) -> None:
    first, second = found.claim(), found.claim()
    assert (first.life.number, first.before) == (1, None)
    assert (second.life.number, second.before) == (2, first.life)


def test_while_another_machine_writes_nobody_begins(found: Lives, there: Lives) -> None:
    claim = there.claim()
    with held(there, claim, unexpected), pytest.raises(Conflict, match=f"runs on {claim.life.host}"):
        found.claim(20)


def test_after_the_end_of_another_machines_cluster_the_next_begins_at_once(
    found: Lives, there: Lives
) -> None:
    claim = there.claim()
    with held(there, claim, unexpected):
        pass
    began = time.monotonic()
    assert found.claim(40).life.number == claim.life.number + 1
    assert time.monotonic() - began < 20


def test_a_machine_that_writes_nothing_any_more_is_waited_for(found: Lives, there: Lives) -> None:
    there.claim()
    began = time.monotonic()
    assert found.claim(TAKE_S).life.number == 2
    assert time.monotonic() - began > TAKE_S


def at_its_claim(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something happen once between the last look at the former life and the next one."""
    last = Lives._last

    def then_act(self: Lives, take_s: float) -> Life | None:
        seen = last(self, take_s)
        patch.setattr(Lives, "_last", last)
        act()
        return seen

    patch.setattr(Lives, "_last", then_act)


def test_of_two_machines_that_begin_at_once_one_does(
    found: Lives, there: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_its_claim(monkeypatch, there.claim)
    with pytest.raises(Conflict, match="another machine has just started"):
        found.claim()
    newest = found.newest()
    assert newest is not None
    assert newest.boot == "there"


def test_a_link_whose_answer_was_lost_counts(found: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def twice(fresh: Path, path: Path) -> None:
        link(fresh, path)
        link(fresh, path)

    monkeypatch.setattr(os, "link", twice)
    assert found.claim().life == found.newest()


def test_a_number_that_became_free_again_is_no_life(
    found: Lives, there: Lives, etcd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_etcd(there, etcd, ended=True)

    def live_twice() -> None:
        for _ in range(2):
            run_etcd(there, etcd, ended=True)

    at_its_claim(monkeypatch, live_twice)
    with pytest.raises(Conflict, match="another machine has just started"):
        found.claim()
    assert not (etcd / "data-2").exists()


def test_a_former_life_that_goes_on_after_all_keeps_its_data(
    found: Lives, there: Lives, etcd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_etcd(there, etcd, ended=False)
    copying = found.claim(AT_ONCE)
    hold = hold_of(found, copying, unexpected)
    assert (copying.life.data, copying.life.source) == ("data-2", "data")
    at_its_claim(monkeypatch, lambda: hold.take_over(etcd))
    with pytest.raises(Conflict, match="went on meanwhile"):
        replace(found, boot="third").claim(AT_ONCE)
    newest = found.newest()
    assert newest is not None
    assert (newest.number, newest.boot, newest.data, newest.ready) == (3, "here", "data-2", True)


def test_a_life_that_has_a_successor_removes_nothing(found: Lives, there: Lives, etcd: Path) -> None:
    run_etcd(there, etcd, ended=False)
    copying = found.claim(AT_ONCE)
    successor = there.claim(AT_ONCE)
    assert successor.life.source == "data"
    with pytest.raises(Conflict, match="another machine has just started"):
        hold_of(found, copying, unexpected).take_over(etcd)
    hold_of(there, successor, unexpected).take_over(etcd)
    assert (etcd / successor.life.data / "wal").read_text() == "records"


def test_a_cluster_that_has_a_successor_is_killed(found: Lives) -> None:
    killed = threading.Event()
    with held(found, found.claim(), killed.set):
        found.claim()
        assert killed.wait(20)


def test_a_claim_that_stood_still_is_no_life_any_more(found: Lives) -> None:
    claim = found.claim()
    late = replace(claim, since_s=claim.since_s - lives.STOP_S)
    with pytest.raises(Conflict, match="too slow"):
        found.check(late.life, late.since_s)
    killed = threading.Event()
    hold = Hold(found, late.life, late.since_s, killed.set, unexpected)
    hold.start()
    assert killed.wait(20)


def test_a_cluster_whose_directory_is_not_there_is_killed_in_time(found: Lives) -> None:
    killed = threading.Event()
    claim = found.claim()
    hanging = threading.Event()

    class Hanging(Lives):
        def write(self, life: Life) -> None:
            hanging.wait(20)

    began = time.monotonic()
    hold = hold_of(Hanging(found.directory, "here"), claim, killed.set, stop_s=1.0)
    hold.start()
    assert killed.wait(20)
    assert time.monotonic() - began < 10
    hanging.set()


def test_a_takeover_leaves_the_former_files_of_etcd_alone(found: Lives, there: Lives, etcd: Path) -> None:
    run_etcd(there, etcd, ended=False)
    # The next life has other files than those that this machine has open.
    late = (etcd / "data" / "wal").open("a")
    (etcd / "data-of-mine").mkdir()
    claim = found.claim(AT_ONCE)
    hold_of(found, claim, unexpected).take_over(etcd)
    late.write(", late")
    late.close()
    assert sorted(each.name for each in etcd.iterdir()) == ["data-2", "data-of-mine"]
    assert (etcd / "data-2" / "wal").read_text() == "records"
    newest = found.newest()
    assert newest is not None
    assert (newest.data, newest.ready) == ("data-2", True)
    assert [each.name for each in found.directory.iterdir()] == ["2"]


def test_a_takeover_that_failed_is_tried_again_with_a_copy(found: Lives, there: Lives, etcd: Path) -> None:
    run_etcd(there, etcd, ended=False)
    failed = found.claim(AT_ONCE)
    (etcd / failed.life.data).mkdir()
    (etcd / failed.life.data / "half").touch()
    again = found.claim(AT_ONCE)
    assert (again.life.data, again.life.source) == ("data-3", "data")
    hold_of(found, again, unexpected).take_over(etcd)
    assert [each.name for each in etcd.iterdir()] == ["data-3"]
    assert [each.name for each in (etcd / "data-3").iterdir()] == ["wal"]


def test_a_copy_is_on_the_disk_before_its_source_is_removed(
    found: Lives, there: Lives, etcd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_etcd(there, etcd, ended=False)
    claim = found.claim(AT_ONCE)
    synced: list[str] = []

    def noting(path: Path) -> None:
        assert (etcd / "data").exists()
        assert not found.read(claim.life.number).ready
        synced.append(path.name)
        sync(path)

    monkeypatch.setattr(lives, "sync", noting)
    hold_of(found, claim, unexpected).take_over(etcd)
    assert synced == ["wal", "data-2", "etcd"]


@pytest.mark.parametrize("ended", [True, False])
def test_etcd_does_not_begin_empty_where_its_data_are_gone(
    found: Lives, there: Lives, etcd: Path, ended: bool
) -> None:
    run_etcd(there, etcd, ended=ended)
    (etcd / "data").rename(etcd / "away")
    hold = hold_of(found, found.claim(AT_ONCE), unexpected)
    with pytest.raises(Unreachable, match="data"):
        hold.take_over(etcd)
    (etcd / "away").rename(etcd / "data")
    assert run_etcd(found, etcd, ended=True).ready


def test_a_life_that_could_not_start_leaves_the_word_of_the_one_before(
    found: Lives, there: Lives, etcd: Path
) -> None:
    before = run_etcd(there, etcd, ended=True)
    found.give_back(found.claim())
    assert found.newest() == replace(before, number=2)
    assert found.claim().life.ready
