"""The output of tasks on disk, and the steps in it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from agent.core.instructions import Follow
from agent.host.processes import usage_of
from agent.host.regular_files import open_regular, read_end, read_start, replace
from agent.inside import clock
from agent.inside.child.cadence import COMMIT, WANTED
from agent.logs.dump import dump_stacks, read_dump
from agent.logs.patterns import Budget, Matcher
from agent.logs.raised import read_raised
from agent.logs.steps import MEASURE_MS, OUTPUT, Followed, StepReader
from agent.retry_log import Tell, raise_it
from recovery.io.trees import TooMany, entries_below, remove_tree
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Logger
from supervisor.contract.containment import contained
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.incident import Raised
from supervisor.contract.observed import Saves, TaskBeat

TAIL_BYTES = 4096
RAISED_BYTES = 64 * 1024
"""Bytes of output in which the exception that ended a program is sought: its message may be long."""
MOST_LEARNT = 256
_MOST_DEEP, _MOST_ENTRIES = 32, 50_000
SIGNALLED = "signalled"
HELD = "held"
SAVED_LOOK_S = 0.05
_ATTEMPT_DIRECTORY = re.compile(r"(?P<member>.+)-g(?P<generation>[0-9]+)\.(?P<number>[0-9]+)")
_CONTROL = re.compile(r"[^\n\t\x20-\x7e\u00a0-\u2027\u202f-\u2065\u2070-\ufffd]")


class AttemptFiles:
    """`TaskFiles` below `root`, as `root/JOB_UUID/ATTEMPT/output.log`. Reads are bounded.

    `budget_bytes`: limit for the directories of ended attempts, kept by `tidy`; None: no limit.
    """

    def __init__(self, root: Path, sink: Logger, budget_bytes: int | None = None) -> None:
        self._root = root
        self._sink = sink
        self._budget_bytes = budget_bytes
        self._patterns_budget = Budget()
        self._followed: dict[AttemptId, Followed] = {}
        self._learnt: dict[tuple[str, TaskId], dict[str, int]] = {}
        self._measured_ms = -MEASURE_MS
        self._tidying = asyncio.Lock()

    def directory(self, job_uuid: str, attempt: AttemptId) -> str:
        """Absolute path of an attempt's directory."""
        return str(self._root / job_uuid / attempt.dirname)

    def follow(self, follow: Follow) -> None:
        """Read steps from this attempt's output from now on."""
        attempt = follow.attempt
        if attempt not in self._followed:
            matcher = Matcher(
                follow.patterns, self._sink, watch_nan=follow.watch_nan, budget=self._patterns_budget
            )
            reader = StepReader(Path(self.directory(follow.job_uuid, attempt)), matcher)
            process = (follow.pid, follow.start_ticks)
            learnt = self._learnt.get((follow.job_uuid, attempt.task), {})
            self._followed[attempt] = Followed(reader, follow.started_ms, *process, learnt)

    def progress(
        self, now_ms: int, gpus: Mapping[AttemptId, float] | None = None, tell: Tell = raise_it
    ) -> tuple[TaskBeat, ...]:
        """The progress of all followed attempts."""
        for attempt, followed in self._followed.items():
            with contained(partial(tell, attempt)):
                followed.look(now_ms)
        if now_ms - self._measured_ms >= MEASURE_MS:
            self._measured_ms = now_ms
            self._measure(now_ms, gpus or {}, tell)
        beats = []
        for attempt, followed in self._followed.items():
            with contained(partial(tell, attempt)):
                beats.append(followed.beat(attempt, now_ms))
        return tuple(beats)

    def _measure(self, now_ms: int, gpus: Mapping[AttemptId, float], tell: Tell) -> None:
        processes = {each.process for each in self._followed.values() if each.process is not None}
        used = usage_of(processes) if processes else {}
        for attempt, followed in self._followed.items():
            process = followed.process
            usage = used.get(process) if process is not None else None
            with contained(partial(tell, attempt)):
                followed.measure(now_ms, usage, gpus.get(attempt))

    def wrote(self, attempt: AttemptId, now_ms: int) -> bool:
        """Read new output now; True if it holds the attempt's first step.

        After that the beats read often enough.

        The same holds for output above MOST_LINES: each launcher asks up to fifty times a second.
        """
        followed = self._followed.get(attempt)
        if followed is None or followed.first_ms >= 0 or followed.reader.floods:
            return False
        return followed.look(now_ms)

    def last_step(self, attempt: AttemptId) -> int:
        """The newest step, after reading to the end."""
        followed = self._followed.get(attempt)
        return followed.reader.read() if followed is not None else -1

    def saves(self, attempt: AttemptId) -> Saves:
        """The places of its saves, as its process notes them."""
        followed = self._followed.get(attempt)
        return followed.saves() if followed is not None else Saves()

    def has_stepped(self, attempt: AttemptId) -> bool:
        """Whether it has made a step of any number."""
        followed = self._followed.get(attempt)
        return followed is not None and followed.reader.matcher.reports > 0

    def newest_step(self, task: TaskId, generation: int) -> int:
        """The newest step that was read of a task's attempts in a generation."""
        return max(
            (
                each.reader.matcher.step
                for attempt, each in self._followed.items()
                if attempt.task == task and attempt.generation == generation
            ),
            default=-1,
        )

    def note_commit(self, task: TaskId, generation: int, took_ms: int, seen_ms: int) -> None:
        """Tell the task's attempts how long the last commit took: they save no more often than that.

        `seen_ms`: when its save was seen, on CLOCK_BOOTTIME. One from before an ask is no answer to it.
        """
        for attempt, each in self._followed.items():
            if attempt.task == task and attempt.generation == generation:
                with suppress(OSError):  # a full disk, or a program that has put something else there
                    replace(each.reader.directory / COMMIT, f"{took_ms}\n")
                    if each.asked_ms <= seen_ms:
                        (each.reader.directory / WANTED).unlink(missing_ok=True)

    def want_saves(self) -> None:
        """Ask the tasks that may be asked to save now.

        Each file that asks is there until a save is committed that was seen later.
        """
        for each in self._followed.values():
            _want_save(each)

    async def save(self, task: TaskId, within_s: float) -> str:
        """Ask a task to save, and wait for the commit; returns what came of it, empty if it is not asked."""
        found = [(attempt, each) for attempt, each in self._followed.items() if attempt.task == task]
        asked = [each for each in found if _want_save(each[1])]
        if not asked:
            return ""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while any(_waits(each) for _, each in asked):
            if not any(self.is_followed(attempt) for attempt, _ in asked):
                return "has ended"
            if loop.time() > until:
                return f"was asked to save, and nothing was committed within {within_s:g} s"
            await asyncio.sleep(SAVED_LOOK_S)
        return "has saved"

    def tail(self, attempt: AttemptId) -> str:
        """The last lines of its output."""
        followed = self._followed.get(attempt)
        return read_tail(followed.reader.directory) if followed is not None else ""

    def raised(self, attempt: AttemptId, *, aborted: bool) -> tuple[Raised, ...]:
        """The exception that ended its main thread, then those that it came from."""
        followed = self._followed.get(attempt)
        if followed is None:
            return ()
        directory = followed.reader.directory
        return read_raised(directory, read_tail(directory, RAISED_BYTES), aborted=aborted)

    async def dump(self, attempt: AttemptId) -> bool:
        """Write a dump of its stacks."""
        followed = self._followed.get(attempt)
        if followed is None or not followed.pid:
            return False
        place = (followed.reader.directory, followed.pid, followed.start_ticks)
        return bool(await asyncio.to_thread(dump_stacks, *place))

    def stack(self, attempt: AttemptId) -> str:
        """The beginning of its dump."""
        followed = self._followed.get(attempt)
        return read_dump(followed.reader.directory) if followed is not None else ""

    def hold(self, attempt: AttemptId, hold_ms: int) -> str:
        """Keep its directory for `hold_ms`, at most until the machine boots; returns the directory."""
        followed = self._followed.get(attempt)
        if followed is None:
            return ""
        directory = followed.reader.directory
        with suppress(OSError):
            fd = open_regular(directory / HELD, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(fd, "w") as file:
                file.write(f"{clock.boot_id()} {clock.now_ms() + hold_ms}")
        return str(directory)

    def unfollow(self, attempt: AttemptId) -> None:
        """Forget its progress."""
        followed = self._followed.pop(attempt, None)
        if followed is not None:
            followed.reader.close()
            self._remember(followed, attempt.task)

    def _remember(self, followed: Followed, task: TaskId) -> None:
        """Remember its learnt pauses for the next attempt of this task."""
        key = (followed.reader.directory.parent.name, task)
        self._learnt.pop(key, None)
        self._learnt[key] = followed.learnt()
        while len(self._learnt) > MOST_LEARNT:
            del self._learnt[next(iter(self._learnt))]

    async def tidy(self) -> None:
        """Make room if old directories take too much; in a thread, as removing gigabytes takes seconds."""
        if self._budget_bytes is None:
            return
        async with self._tidying:
            keep = {each.reader.directory for each in self._followed.values()}
            removed = await asyncio.to_thread(make_room, self._root, keep, self._budget_bytes)
        if removed:
            self._sink.info("removed old output of tasks, to stay within the limit", directories=removed)

    def on_disk(self, job_uuid: str, task: TaskId) -> tuple[AttemptId, ...]:
        """The attempts of a task with output here, including earlier lives of this agent; oldest first."""
        found = []
        for directory in (self._root / job_uuid).glob(f"{task.member}-g*.*"):
            match = _ATTEMPT_DIRECTORY.fullmatch(directory.name)
            if match is not None and match["member"] == task.member:
                found.append(AttemptId(task, int(match["generation"]), int(match["number"])))
        return tuple(sorted(found))

    def is_followed(self, attempt: AttemptId) -> bool:
        """Whether more output may come: it is alive, or its end is not recorded yet."""
        return attempt in self._followed

    def note_signal(self, job_uuid: str, attempt: AttemptId, number: int, now_ms: int) -> None:
        """Remember a signal that an operator is about to send, for the report of the attempt's end."""
        directory = Path(self.directory(job_uuid, attempt))
        with suppress(OSError):  # a full disk: it gets the signal all the same
            replace(directory / SIGNALLED, f"{number} {now_ms}")

    def signalled(self, attempt: AttemptId) -> tuple[int, int] | None:
        """The last signal that an operator sent to a followed attempt, and when; None without one."""
        followed = self._followed.get(attempt)
        if followed is None:
            return None
        try:
            number, sent_ms = read_start(followed.reader.directory / SIGNALLED, 64).split()
            return int(number), int(sent_ms)
        except (OSError, ValueError):
            return None


def read_tail(directory: Path, most_bytes: int = TAIL_BYTES) -> str:
    """The last bytes of output at most, also where a new file was just begun, safe to print."""
    raw = b""
    for name in (OUTPUT, f"{OUTPUT}.1"):
        with suppress(OSError):
            raw = read_end(directory / name, most_bytes - len(raw)) + raw
    text = raw.decode(errors="replace")
    return (
        _CONTROL.sub("\N{MIDDLE DOT}", text.replace("\r", "\n"))
        .encode()[-most_bytes:]
        .decode(errors="ignore")
    )


def held(root: Path) -> set[Path]:
    """The directories of attempts that are kept for inspection now."""
    found = set()
    for marker in root.glob(f"*/*/{HELD}"):
        with suppress(OSError, ValueError):
            boot_id, until_ms = read_start(marker, 128).decode().split()
            if boot_id == clock.boot_id() and clock.now_ms() < int(until_ms):
                found.add(marker.parent)
    return found


def _on_disk(directory: Path) -> int:
    """Bytes on disk of an attempt's directory. A sparse file may have any size; links are not followed."""
    found: dict[tuple[int, int], int] = {}
    with suppress(TooMany):
        for _, _, entry in entries_below(directory, _MOST_DEEP, _MOST_ENTRIES):
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                found[status.st_dev, status.st_ino] = 512 * status.st_blocks
    return sum(found.values())


def _want_save(followed: Followed) -> bool:
    """Ask an attempt to save now, if it has a saver that may be asked. The program may hinder that."""
    directory = followed.reader.directory
    if followed.saves().pace.own_ms < 0 or not (directory / COMMIT).exists():
        return False
    followed.asked_ms = clock.now_ms()
    try:
        file = open_regular(directory / WANTED, os.O_WRONLY | os.O_CREAT)
        os.utime(file)
        os.close(file)
    except OSError:
        return False
    return True


def _waits(followed: Followed) -> bool:
    """Whether nothing that was saved since it was asked is committed."""
    return (followed.reader.directory / WANTED).exists()


def make_room(root: Path, keep: Iterable[Path], budget_bytes: int) -> int:
    """Remove the oldest attempts' directories beyond the budget, but none that is held; returns how many."""
    kept = set(keep) | held(root)
    found = []
    for directory in root.glob("*/*"):
        with suppress(OSError):  # a launcher rotates, or another call removes, what is looked at
            found.append((directory.lstat().st_mtime, _on_disk(directory), directory))
    total = sum(size for _, size, _ in found)
    removed = 0
    for _, size, directory in sorted(found):
        if total <= budget_bytes:
            break
        if directory not in kept:
            with effect("agent.remove_logs"), suppress(OSError):
                remove_tree(directory)
            total -= size
            removed += 1
    return removed
