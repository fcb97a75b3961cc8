"""`job_disk`: a job that takes more of a node's disks than its agent allows ends there, and no other does."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from agent.core.events import Event, OverDisk
from agent.host import disk
from agent.host.disk import DiskWatch
from recovery.io.trees import TooMany, space_below
from supervisor.contract.observed import ExitReason
from tests.agent.core import ORDER, RUNNING, WAITING
from tests.agent.two_jobs import OTHER, TwoJobs

MIB = 1 << 20


@pytest.fixture
def watch(tmp_path: Path) -> DiskWatch:
    """One that allows a MiB."""
    return DiskWatch(MIB, tmp_path / "tasks", tmp_path / "attempts", tmp_path / "launchers")


def fill(file: Path, size: int = MIB) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(os.urandom(size))


@pytest.mark.parametrize(
    "where", ["tasks/u/g1/ckpt", "tasks/u/.outbox/x", "attempts/u/a/log", "launchers/l/x"]
)
def test_whatever_a_job_fills_counts_and_is_named(where: str, watch: DiskWatch, tmp_path: Path) -> None:
    fill(tmp_path / "tasks" / "another" / "ckpt", 3 * MIB)
    assert watch.look("u", {"l"}) == ""
    fill(tmp_path / where, MIB // 2)
    assert watch.look("u", {"l"}) == ""
    fill(tmp_path / where, 2 * MIB)
    why = watch.look("u", {"l"})
    assert f"most of it in {tmp_path}/{'/'.join(where.split('/')[:2])}; `job_disk`" in why
    assert "takes 0.00 GiB" in why


def test_a_sparse_file_and_a_second_name_take_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "file")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "again").hardlink_to(tmp_path / "file")
    (tmp_path / "link").symlink_to("/usr")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert MIB <= space_below(tmp_path, 100) < 2 * MIB


def test_what_hides_from_the_look_counts_as_too_much(watch: DiskWatch, tmp_path: Path) -> None:
    deep = tmp_path / "tasks" / "u" / Path(*["d"] * 150)
    deep.mkdir(parents=True)
    assert "nested more than 100 deep, and `job_disk`" in watch.look("u", ())


def test_a_directory_whose_files_nobody_may_look_at_counts_as_too_much(
    watch: DiskWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of mode 0444. Root may look, so the answer of the kernel is put in."""
    fill(tmp_path / "tasks" / "u" / "x" / "f")

    def refuse(*_: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", refuse)
        why = watch.look("u", ())
    assert "cannot be looked at, and `job_disk`" in why
    with pytest.raises(TooMany, match="more than 3 files"):
        space_below(tmp_path, 3)


async def test_jobs_that_run_here_are_looked_at(
    watch: DiskWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LOOK_S", 0.01)
    fill(tmp_path / "tasks" / "u" / "ckpt", 2 * MIB)
    fill(tmp_path / "tasks" / "old" / "ckpt", 2 * MIB)
    posted: asyncio.Queue[Event] = asyncio.Queue()
    running = asyncio.create_task(watch.run(lambda: {"v": set(), "u": {"l"}}, posted.put_nowait))
    async with asyncio.timeout(20):
        found = [await posted.get() for _ in range(2)]
    running.cancel()
    assert [(type(each), getattr(each, "job_uuid", "")) for each in found] == [(OverDisk, "u")] * 2


def test_its_attempts_end_with_the_reason_and_those_of_others_go_on() -> None:
    two = TwoJobs().see_both(WAITING).see_both(RUNNING)
    assert two.runs(ORDER)
    two.feed(OverDisk(ORDER.job_uuid, "its job takes 2 GiB"))
    two.live(4)
    end = two.reports["job"].exit
    assert end is not None
    assert (end.reason, end.confirmed_dead) == (ExitReason.START_FAILED, True)
    assert end.detail == "cannot go on: its job takes 2 GiB"
    assert not two.runs(ORDER)
    assert two.runs(OTHER)
