"""The highest revision of etcd: kept on disk by each supervisor, compared by the next life."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.adapters.etcd.mirror import Mirror, MirrorUpdate
from supervisor.contract.boundaries import Delete, Put
from supervisor.contract.desired import ClusterRecord
from supervisor.contract.errors import Refused, UserError
from supervisor.control.loop.etcd_identity import EtcdGuard, Mark
from supervisor.control.loop.state_files import ETCD, StateDirMarkFile
from tests.support.sinks import ListSink

VALUES = (b"%d" % number for number in count())
AT_40 = MirrorUpdate(40, (), relisted=True)
C1, C2 = (ClusterRecord("c", "fast", 4_000, uuid=uuid) for uuid in ("c1", "c2"))


class Life:
    """A supervisor's mark, over an etcd whose mirror is filled by hand."""

    def __init__(self, store: MemoryStore, file: StateDirMarkFile) -> None:
        self.etcd = MemoryCoordination(store)
        self.sink = ListSink()
        self.mirror = Mirror(self.etcd, "", lambda _update: None, BootClock(), self.sink)
        self.file = file
        self.guard = EtcdGuard(file, self.mirror, self.sink)
        self.guard.open()

    async def see(self) -> None:
        """All that there is now is seen, and on disk."""
        await self.mirror._relist()
        revision = self.mirror.revision
        assert revision is not None
        self.guard.take(C1, MirrorUpdate(revision, (), relisted=True))
        await self.until(lambda: (self.file.read() or Mark("", 0)).revision == revision)

    async def until(self, condition: Callable[[], bool]) -> None:
        keeping = asyncio.create_task(self.guard.keep())
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        keeping.cancel()


@pytest.fixture
def file(tmp_path: Path) -> StateDirMarkFile:
    return StateDirMarkFile(tmp_path / "state")


def write(store: MemoryStore, *names: str) -> None:
    """Each time with another value."""
    for name in names:
        assert store.commit([], [Put(name, next(VALUES))], []).succeeded


@pytest.mark.parametrize("more", [0, 1, 2, 9])
async def test_a_later_life_finds_that_a_snapshot_was_restored(file: StateDirMarkFile, more: int) -> None:
    """However much was written to it since."""
    store = MemoryStore()
    write(store, "a", "b")
    backup = store.backup()
    write(store, "a", "c")
    await Life(store, file).see()
    store.restore(backup)
    write(store, *("a", "z") * more)
    heir = Life(store, file)
    heir.guard.take(C1, AT_40)
    with pytest.raises(UserError, match="A snapshot was restored"):
        await heir.guard.check(heir.etcd)


@pytest.mark.parametrize("later", [("z", "z", "z"), ("a", "a", "z"), ("z", "a", "z")])
async def test_a_snapshot_shows_though_the_history_is_compacted(
    file: StateDirMarkFile, later: tuple[str, ...]
) -> None:
    """The key's last write is older than the one that was seen, or another at the same revision."""
    store = MemoryStore()
    write(store, "a", "b")
    backup = store.backup()
    write(store, "b", "a")
    await Life(store, file).see()
    store.restore(backup)
    write(store, *later)
    store.compact(store.revision)
    heir = Life(store, file)
    heir.guard.take(C1, AT_40)
    with pytest.raises(UserError, match="A snapshot was restored"):
        await heir.guard.check(heir.etcd)


@pytest.mark.parametrize("later", [(), ("a", "b", "c"), ("a", "a")])
async def test_what_has_only_come_further_is_gone_on_from(
    file: StateDirMarkFile, later: tuple[str, ...]
) -> None:
    store = MemoryStore()
    write(store, "a", "b", "c")
    await Life(store, file).see()
    write(store, *later)
    assert store.commit([], [Delete("b")], []).succeeded
    for _ in range(2):
        heir = Life(store, file)
        heir.guard.take(C1, AT_40)
        await heir.guard.check(heir.etcd)
        store.compact(store.revision)


async def test_another_cluster_counts_from_the_start(file: StateDirMarkFile) -> None:
    store = MemoryStore()
    write(store, "a", "b", "c")
    await Life(store, file).see()
    store.lose()
    heir = Life(store, file)
    heir.guard.take(C2, replace(AT_40, revision=2, forked=True))
    await heir.guard.check(heir.etcd)
    with pytest.raises(UserError, match="it is at revision 1, was at 2"):
        heir.guard.take(C2, replace(AT_40, revision=1))


async def test_what_an_earlier_life_saw_is_kept_until_it_was_compared(file: StateDirMarkFile) -> None:
    store = MemoryStore()
    write(store, "a")
    await Life(store, file).see()
    before, heir = file.read(), Life(store, file)
    heir.guard.take(C1, AT_40)
    keeping = asyncio.create_task(heir.guard.keep())
    await asyncio.wait({keeping}, timeout=0.7)
    assert file.read() == before
    await heir.guard.check(heir.etcd)
    await heir.until(lambda: file.read() != before)
    keeping.cancel()


def test_a_file_that_makes_no_sense_is_named(file: StateDirMarkFile, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / ETCD).write_text("{")
    with pytest.raises(UserError, match=r"etcd.json is damaged .*; delete it and start again"):
        Life(MemoryStore(), file)


class FullDisk(StateDirMarkFile):
    """Refuses twice."""

    tries = 0

    async def save(self, mark: Mark) -> None:
        self.tries += 1
        if self.tries < 3:
            raise Refused("cannot write etcd.json: No space left on device")
        await super().save(mark)


async def test_a_full_disk_is_told_once_and_tried_again(tmp_path: Path) -> None:
    life = Life(MemoryStore(), FullDisk(tmp_path))
    life.guard.take(C1, AT_40)
    await life.until(lambda: bool(life.guard.trouble))
    assert life.guard.trouble == "cannot write etcd.json: No space left on device"
    await life.until(lambda: life.file.read() == Mark("c1", 40))
    await life.until(lambda: not life.guard.trouble)
    assert [event for _, event, _ in life.sink.lines] == [
        "cannot write etcd's newest revision to disk; trying again"
    ]
