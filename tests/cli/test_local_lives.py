"""Machines that share the directory of an embedded cluster: one at a time has it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.cli.local import lives
from supervisor.cli.local.lives import Hold, Life, Lives
from supervisor.contract.errors import Conflict

TAKE_S = 1.5


@pytest.fixture
def found(tmp_path: Path) -> Lives:
    return Lives(tmp_path / "lives")


def of_another_machine(found: Lives, *, ended: bool = False) -> Life:
    """The newest life, as another machine would have written it."""
    life, _ = found.claim()
    life = replace(life, host="n7", boot="other", ended=ended)
    found.write(life)
    return life


@contextmanager
def held(found: Lives, life: Life, end: Callable[[], None], stop_s: float = 60.0) -> Iterator[Hold]:
    hold = Hold(found, life, end, beat_s=0.1, stop_s=stop_s)
    hold.start()
    yield hold
    hold.close()


def unexpected() -> None:
    raise AssertionError


def test_a_life_follows_one_of_this_machine_at_once(found: Lives) -> None:
    first, none = found.claim()
    second, before = found.claim()
    assert (first.number, none, second.number, before) == (1, None, 2, first)


def test_while_another_machine_writes_nobody_begins(found: Lives) -> None:
    life = of_another_machine(found)
    with held(found, life, unexpected), pytest.raises(Conflict, match="runs on n7"):
        found.claim(20)


def test_after_the_end_of_another_machines_cluster_the_next_begins_at_once(found: Lives) -> None:
    life = of_another_machine(found)
    with held(found, life, unexpected):
        pass
    began = time.monotonic()
    assert found.claim(40)[0].number == life.number + 1
    assert time.monotonic() - began < 20


def test_a_machine_that_writes_nothing_any_more_is_waited_for(found: Lives) -> None:
    of_another_machine(found)
    began = time.monotonic()
    assert found.claim(TAKE_S)[0].number == 2
    assert time.monotonic() - began > TAKE_S


def test_of_two_machines_that_begin_at_once_one_does(found: Lives) -> None:
    of_another_machine(found, ended=True)
    last = found._last
    gate = threading.Barrier(2)

    def together(take_s: float) -> Life | None:
        seen = last(take_s)
        gate.wait(10)
        return seen

    got: list[object] = []

    def begin() -> None:
        try:
            got.append(found.claim()[0].number)
        except Conflict as error:
            got.append(str(error))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lives, "_last", lambda _, take_s: together(take_s))
        threads = [threading.Thread(target=begin) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(20)
    assert 2 in got
    assert [each for each in got if each != 2] == [
        f"another machine has just started the cluster in {found.directory.parent}"
    ]


def test_a_cluster_that_has_a_successor_is_killed(found: Lives) -> None:
    killed = threading.Event()
    life, _ = found.claim()
    with held(found, life, killed.set):
        found.claim()
        assert killed.wait(20)


def test_a_cluster_whose_directory_is_not_there_is_killed_in_time(found: Lives) -> None:
    killed = threading.Event()
    life, _ = found.claim()
    hanging = threading.Event()

    class Hanging(Lives):
        def write(self, life: Life) -> None:
            hanging.wait(20)

    began = time.monotonic()
    hold = Hold(Hanging(found.directory), life, killed.set, beat_s=0.1, stop_s=1.0)
    hold.start()
    assert killed.wait(20)
    assert time.monotonic() - began < 10
    hanging.set()


def test_a_takeover_leaves_the_former_files_of_etcd_alone(found: Lives, tmp_path: Path) -> None:
    etcd = tmp_path / "etcd"
    (etcd / "data" / "member").mkdir(parents=True)
    (etcd / "data" / "member" / "wal").write_text("records")
    of_another_machine(found)
    # What that machine has open is no file of the next life.
    late = (etcd / "data" / "member" / "wal").open("a")
    life, before = found.claim(TAKE_S)
    life = found.take_over(life, before, etcd)
    late.write(", late")
    late.close()
    assert [each.name for each in etcd.iterdir()] == [life.data]
    assert (etcd / life.data / "member" / "wal").read_text() == "records"
    assert found.newest() == life


def test_a_claim_that_was_cut_off_keeps_the_place_of_etcds_data(found: Lives) -> None:
    life, _ = found.claim()
    found.write(replace(life, data="data-7"))
    (found.directory / "2").touch()
    newest = found.newest()
    assert newest is not None
    assert (newest.number, newest.data, newest.ended) == (2, "data-7", False)
    assert lives.FIRST_DATA != "data-7"
