"""The directory of an attempt that failed can be kept for inspection."""

from __future__ import annotations

from pathlib import Path

from agent.core.instructions import Follow
from agent.logs.task_logs import HELD, AttemptFiles
from supervisor.contract.ids import AttemptId, TaskId
from tests.support.sinks import ListSink


def attempt(number: int) -> AttemptId:
    return AttemptId(TaskId("job", "worker", 0), 1, number)


async def test_what_is_held_stays_though_space_is_needed(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path, ListSink(), budget_bytes=0)
    directories = []
    for number, hold_ms in ((1, 600_000), (2, 0), (3, -1), (4, -1)):
        directory = Path(files.directory("u", attempt(number)))
        directory.mkdir(parents=True)
        (directory / "output.log").write_bytes(b"x" * 1000)
        files.follow(Follow(attempt(number), "u", (), 0))
        if hold_ms >= 0:
            assert files.hold(attempt(number), hold_ms) == str(directory)
        directories.append(directory)
    for number in (1, 2, 3):
        files.unfollow(attempt(number))
    await files.tidy()
    # One is held, the hold of one has passed, one never was, and one still runs.
    assert [each.exists() for each in directories] == [True, False, False, True]


def test_the_first_report_of_an_end_fixes_how_long(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path, ListSink())
    directory = Path(files.directory("u", attempt(1)))
    directory.mkdir(parents=True)
    files.follow(Follow(attempt(1), "u", (), 0))
    files.hold(attempt(1), 600_000)
    first = (directory / HELD).read_text()
    files.hold(attempt(1), 900_000)
    assert (directory / HELD).read_text() == first
    assert files.hold(attempt(2), 1) == ""


async def test_a_hold_of_an_earlier_boot_is_void(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path, ListSink(), budget_bytes=0)
    directory = Path(files.directory("u", attempt(1)))
    directory.mkdir(parents=True)
    (directory / HELD).write_text("another-boot 99999999999999")
    (directory / "output.log").write_bytes(b"x")
    files.follow(Follow(attempt(2), "u", (), 0))
    files.unfollow(attempt(2))
    await files.tidy()
    assert not directory.exists()
