"""The state file and the reader of output."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.instructions import Follow
from agent.core.saved import adopt
from agent.core.saved.record import Saved
from agent.inside import clock
from agent.inside.child.cadence import COMMIT, WANTED
from agent.logs.task_logs import AttemptFiles, make_room, read_tail
from agent.state_file import SAVED, STATE, LockedStateFile
from supervisor.contract.errors import Conflict, Refused, UserError
from supervisor.contract.ids import AttemptId, TaskId
from tests.agent.core import SETTINGS
from tests.agent.daemon import RECORD
from tests.support.sinks import ListSink
from tests.support.waiting import until

ATTEMPT = AttemptId(TaskId("job", "worker", 0), 1, 1)


async def test_what_is_saved_is_read_by_a_successor(tmp_path: Path) -> None:
    first = LockedStateFile(tmp_path, tmp_path)
    assert first.read() is None
    await first.save(RECORD)
    first.close()
    assert LockedStateFile(tmp_path, tmp_path).read() == RECORD


async def test_a_second_agent_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    first = LockedStateFile(tmp_path, tmp_path)
    first.read()
    with pytest.raises(Conflict, match="another agent is running"):
        LockedStateFile(tmp_path, tmp_path).read()


async def test_a_write_that_was_torn_leaves_the_old_record(tmp_path: Path) -> None:
    first = LockedStateFile(tmp_path, tmp_path)
    first.read()
    await first.save(RECORD)
    first.close()
    (tmp_path / STATE).with_suffix(".new").write_bytes(b'{"half":')
    assert LockedStateFile(tmp_path, tmp_path).read() == RECORD


async def test_a_file_that_was_put_back_is_older_than_what_is_told_of_it(tmp_path: Path) -> None:
    state, run = tmp_path / "state", tmp_path / "run"
    first = LockedStateFile(state, run)
    assert first.read() is None
    assert first.saved() is None
    await first.save(replace(RECORD, serial=8, origin="o"))
    back = (state / STATE).read_bytes()
    await first.save(replace(RECORD, incarnation="x" * 32, serial=10_000, origin="o"))
    assert first.saved() == Saved("x" * 32, 10_000, "o")
    await first.save(replace(RECORD, incarnation="y", serial=10_001, origin="o"))
    first.close()
    (state / STATE).write_bytes(back)
    second = LockedStateFile(state, run)
    record, saved = second.read(), second.saved()
    assert record is not None
    assert (record.serial, saved) == (8, Saved("y", 10_001, "o"))
    assert adopt.is_older(record, saved)
    (run / SAVED).write_bytes(bytes(20))
    assert second.saved() is None, "what makes no sense tells nothing"


async def test_what_cannot_be_told_is_not_saved(tmp_path: Path) -> None:
    file = LockedStateFile(tmp_path, tmp_path / "run")
    file.read()
    (tmp_path / "run" / SAVED).mkdir()
    with pytest.raises(Refused, match=r"cannot write .*agent\.saved"):
        await file.save(RECORD)
    (tmp_path / "run" / SAVED).rmdir()
    await file.save(RECORD)
    assert file.saved() == Saved(RECORD.incarnation, RECORD.serial, "")


@pytest.mark.parametrize(
    ("record", "saved", "older"),
    [
        (None, None, False),
        ((3, "a"), None, False),
        # Between the two writes its agent died: nothing depended on the later one.
        ((4, "a"), (3, "a"), False),
        ((3, "a"), (3, "a"), False),
        ((2, "a"), (3, "a"), True),
        (None, (1, "a"), True),
        # The disk was lost with a boot, what is counted since began anew, and then the disk was put back.
        ((9, "a"), (1, "b"), True),
    ],
)
def test_the_number_that_is_kept_apart_is_never_ahead(
    record: tuple[int, str] | None, saved: tuple[int, str] | None, older: bool
) -> None:
    found = replace(RECORD, serial=record[0], origin=record[1]) if record is not None else None
    assert adopt.is_older(found, Saved("life1", *saved) if saved is not None else None) is older


def test_a_damaged_file_stops_the_agent_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / STATE).write_bytes(b'{"v":1,"kind":"Age')
    with pytest.raises(UserError, match="delete it and start the agent again"):
        LockedStateFile(tmp_path, tmp_path).read()


def test_after_a_reboot_nothing_is_adopted_and_every_end_is_told() -> None:
    state = adopt.restore(RECORD, SETTINGS, "life2", "boot2", 1000, frozenset())
    assert not state.launchers
    (attempt,) = state.attempts.values()
    assert attempt.end is not None
    assert attempt.end.confirmed_dead
    assert not attempt.drained  # the saver's last checkpoint is still to be looked for


def test_a_launcher_whose_process_is_another_now_is_not_adopted() -> None:
    kept = adopt.restore(RECORD, SETTINGS, "life2", "boot1", 1000, frozenset({(10, 11)}))
    lost = adopt.restore(RECORD, SETTINGS, "life2", "boot1", 1000, frozenset({(10, 99)}))
    assert [each.doomed for each in (*kept.launchers.values(), *lost.launchers.values())] == [False, True]


class Output:
    """An attempt's output as its launcher writes it."""

    def __init__(self, root: Path, patterns: tuple[str, ...] = (r"step (\d+)",)) -> None:
        self.sink = ListSink()
        self.files = AttemptFiles(root, self.sink)
        self.directory = Path(self.files.directory("u", ATTEMPT))
        self.directory.mkdir(parents=True)
        self.files.follow(Follow(ATTEMPT, "u", patterns, 0))

    def write(self, data: bytes) -> None:
        with (self.directory / "output.log").open("ab") as file:
            file.write(data)

    def steered(self) -> None:
        """Its process notes that its saver may be asked."""
        pace = {"every_ms": -1, "cost_ms": -1, "pays_ms": -1, "own_ms": 0, "why": ""}
        body = {"places": [], "pace": pace, "recovers": False, "again": 0}
        (self.directory / "saves.json").write_text(json.dumps(body))

    def step(self, now_ms: int = 0) -> int:
        (beat,) = self.files.progress(now_ms)
        return beat.step


def test_steps_come_from_whole_lines_and_fall_where_the_program_goes_back(tmp_path: Path) -> None:
    output = Output(tmp_path)
    output.write(b"step 1\nstep 2")
    assert output.step() == 1
    output.write(b"5\nstep 26\n")
    assert output.step() == 26
    output.write(b"step 13\n")
    assert output.step() == 13


def test_the_first_step_is_told_once_with_its_age(tmp_path: Path) -> None:
    output = Output(tmp_path)
    output.write(b"step 7\n")
    assert output.files.wrote(ATTEMPT, 100)
    assert not output.files.wrote(ATTEMPT, 110)
    (beat,) = output.files.progress(150)
    assert (beat.first_step, beat.first_step_age_ms) == (7, 50)


def test_a_hundred_megabytes_are_skipped_not_read(tmp_path: Path) -> None:
    output = Output(tmp_path)
    with (output.directory / "output.log").open("wb") as file:
        file.truncate(100 << 20)
    output.write(b"\nstep 5\n")
    assert output.step() == 5


def test_a_save_is_wanted_until_the_next_commit_of_a_task_that_may_be_asked(tmp_path: Path) -> None:
    output = Output(tmp_path)
    (output.directory / COMMIT).touch()
    output.files.want_saves()
    assert not (output.directory / WANTED).exists(), "no saver here looks for it"
    output.steered()
    output.files.want_saves()
    first_ns = (output.directory / WANTED).stat().st_mtime_ns
    os.utime(output.directory / WANTED, ns=(1, 1))
    output.files.want_saves()
    assert (output.directory / WANTED).stat().st_mtime_ns >= first_ns, "it is asked again"
    output.files.note_commit(ATTEMPT.task, ATTEMPT.generation, 5, clock.now_ms())
    assert not (output.directory / WANTED).exists()
    os.mkfifo(output.directory / WANTED)
    output.files.want_saves()


async def test_a_save_that_is_asked_for_is_over_with_its_commit(tmp_path: Path) -> None:
    output = Output(tmp_path)
    task = ATTEMPT.task
    assert await output.files.save(task, 10) == "", "no saver is asked"
    (output.directory / COMMIT).touch()
    output.steered()
    told = "was asked to save, and nothing was committed within 0 s"
    assert await output.files.save(task, 0) == told
    output.files.note_commit(task, ATTEMPT.generation, 5, clock.now_ms())
    before_ms = clock.now_ms() - 1
    saving = asyncio.create_task(output.files.save(task, 10))
    await until((output.directory / WANTED).exists)
    output.files.note_commit(task, ATTEMPT.generation, 5, before_ms)
    assert (output.directory / WANTED).exists(), "what was under way is no answer"
    output.files.note_commit(task, ATTEMPT.generation, 5, clock.now_ms())
    assert await saving == "has saved"
    saving = asyncio.create_task(output.files.save(task, 10))
    await until((output.directory / WANTED).exists)
    output.files.unfollow(ATTEMPT)
    assert await saving == "has ended"


def test_rotation_is_followed(tmp_path: Path) -> None:
    output = Output(tmp_path)
    output.write(b"step 1\n")
    assert output.step() == 1
    output.write(b"step 2\n")
    (output.directory / "output.log").rename(output.directory / "output.log.1")
    output.write(b"step 3\n")
    assert output.step() == 3


def test_the_hook_beats_the_log(tmp_path: Path) -> None:
    output = Output(tmp_path)
    (output.directory / "step").write_text(f"{42:20d}\n")
    assert output.step() == 42


def test_a_bad_pattern_is_warned_of_and_left_out(tmp_path: Path) -> None:
    output = Output(tmp_path, ("step (", r"n=(\d+)"))
    output.write(b"n=4\n")
    assert output.step() == 4
    assert any("pattern" in str(line) for line in output.sink.lines)


def test_the_tail_is_short_and_holds_no_escape_sequences(tmp_path: Path) -> None:
    output = Output(tmp_path)
    output.write(b"x" * 10_000 + b"\x1b[31mred\xff\x00 end\n")
    tail = read_tail(output.directory)
    assert len(tail.encode()) <= 4096
    assert "\x1b" not in tail
    assert "\x00" not in tail
    assert tail.endswith(" end\n")


def test_old_output_goes_when_room_is_needed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "u" / name).mkdir(parents=True)
        (tmp_path / "u" / name / "output.log").write_bytes(b"x" * 1000)
    assert make_room(tmp_path, [tmp_path / "u" / "a"], 1500) == 1
    assert (tmp_path / "u" / "a").exists()


def test_a_sparse_file_of_one_job_makes_no_other_jobs_output_go(tmp_path: Path) -> None:
    for job in ("others", "hostile"):
        (tmp_path / job / "a" / "deep").mkdir(parents=True)
        (tmp_path / job / "a" / "output.log").write_bytes(b"x" * 1000)
    sparse = tmp_path / "hostile" / "a" / "deep" / "sparse"
    sparse.touch()
    os.truncate(sparse, 1 << 42)
    os.link(sparse, sparse.with_name("again"))
    (tmp_path / "hostile" / "a" / "proc").symlink_to("/proc")
    (tmp_path / "hostile" / "b").symlink_to("/usr")
    assert make_room(tmp_path, (), 1 << 20) == 0
    sparse.write_bytes(b"x" * (600 << 10))
    assert make_room(tmp_path, (), 1 << 20) == 0, "two names are of one file"
    sparse.write_bytes(b"x" * (2 << 20))
    os.utime(tmp_path / "others" / "a", (1, 1))
    assert make_room(tmp_path, [tmp_path / "others" / "a"], 1 << 20) == 1, "what is below counts, too"
    assert (tmp_path / "others" / "a").exists()
    assert Path("/usr/bin").exists()


@pytest.mark.parametrize("name", ["output.log", "step", "signalled", "dump.txt"])
def test_a_pipe_or_a_device_in_the_place_of_a_file_holds_up_no_beat(tmp_path: Path, name: str) -> None:
    files = AttemptFiles(tmp_path, ListSink())
    directory = Path(files.directory("u", ATTEMPT))
    directory.mkdir(parents=True)
    os.mkfifo(directory / name)
    files.follow(Follow(ATTEMPT, "u", (), 0))
    (beat,) = files.progress(0)
    assert beat.step == -1
    files.note_signal("u", ATTEMPT, 15, 0)
    assert files.tail(ATTEMPT) == files.stack(ATTEMPT) == ""
    assert name != "signalled" or files.signalled(ATTEMPT) is None


def test_a_step_file_of_any_size_costs_a_few_bytes(tmp_path: Path) -> None:
    """A program that appends its steps, or links the file to a device, must not fill the agent's memory."""
    files = AttemptFiles(tmp_path, ListSink())
    directory = Path(files.directory("u", ATTEMPT))
    directory.mkdir(parents=True)
    (directory / "step").symlink_to("/dev/zero")
    files.follow(Follow(ATTEMPT, "u", (), 0))
    (beat,) = files.progress(0)
    assert beat.step == -1
