"""Taking finished files that are not TensorFlow's own, by the patterns of the job (`checkpoint.pattern`).

Programs overwrite such files in place. So they are copied, never linked. A copy counts under three
conditions: no process had a file open for writing when it began, no file has changed when it ends, and the
files pass the tests of their kind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

from recovery.commit.outbox import (
    Looks,
    SavingJob,
    Seen,
    TakenCheckpoint,
    generation_directory,
    put_in_outbox,
    taken_of,
)
from recovery.commit.sight import MAX_ENTRIES, mark_below, mark_by, relative_states, write_state
from recovery.commit.verify import verify_files
from recovery.families.plain_files import Save, gather, judge_files
from recovery.families.watch_rule import IDLE, FileMark, Unfinished, Unusable
from recovery.formats.manifest import MAX_FILES, Manifest, check_file_name
from recovery.formats.soundness import HEAD_BYTES, TAIL_BYTES, is_whole
from recovery.formats.tf_files import STATE_FILE, is_state_file, names_of_bundles
from recovery.io import files
from recovery.io.deadline import Motion
from recovery.io.files import mapped_errors
from recovery.io.trees import TooMany, entries_below
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Clock, Moved
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import BadCheckpoint, UserError
from supervisor.contract.job.file_pattern import MAX_DEPTH


class PlainWatcher:
    """Takes each save of one generation's program once it is finished. Call `look` about each 100 ms.

    A save gets the step in its files' names, else the newest step that the program had reported when the save
    was first seen, else the next number. At the start the base is not taken, and a save that an earlier life
    of the agent took is found again. `motion` is called while a save is taken.
    """

    def __init__(
        self,
        parent: Path,
        job: SavingJob,
        generation: int,
        base: Manifest | None,
        patterns: Sequence[str],
        clock: Clock,
        executor: Executor | None = None,
        last_step: int = -1,
    ) -> None:
        self._parent = parent
        self._directory = generation_directory(parent, generation)
        self._job = job
        self._generation = generation
        self._base = base
        self._patterns = tuple(patterns)
        self._clock = clock
        self._looks = Looks(executor)
        self._began = False
        self._before: Save | None = None
        self._before_step = -1
        self._taken: Save | None = None
        self._last_step = last_step
        self._refused: Save | None = None
        self.motion = Motion(clock)

    async def look(self, step: int, *, final: bool = False, clean: bool = False) -> Seen:
        """Look once.

        Args:
            step: the newest step that the program has reported, -1 before any.
            final: the program is confirmed dead; then Idle means that every save is taken.
            clean: the program ended by itself without an error, so it has closed its files.

        Raises as `CheckpointWatcher.look` does. Do not run two looks of one watcher at a time.
        """
        return await self._looks.run(lambda: self._look(step, final=final, clean=clean))

    def _look(self, step: int, *, final: bool, clean: bool) -> Seen:
        with mapped_errors(f"take a checkpoint from {self._directory}"):
            now = gather(self._patterns, list(_marks(self._directory)))
            if not self._began:
                self._began = True
                recalled = self._recall(now)
                if recalled is not None:
                    return recalled
            before, self._before = self._before, now
            if before != now:
                self._before_step = step
            judgement = judge_files(self._patterns, before, now, self._taken, final=final)
            if not isinstance(judgement, Save):
                return judgement
            if not final and any(is_being_written(self._directory, mark.name) for mark in judgement.marks):
                return Unfinished(self._patterns[-1])
            if judgement == self._refused:
                return IDLE
            try:
                return self._take(judgement, trusting=not final or clean) or Unfinished(self._patterns[-1])
            except BadCheckpoint as error:
                self._refused = judgement
                return Unusable(self._patterns[-1], str(error))

    def _take(self, save: Save, *, trusting: bool) -> TakenCheckpoint | None:
        told = save.step
        if told is None:
            told = max(self._before_step, (self._base.ref.step if self._base is not None else 0) + 1)
        ref = CheckpointRef(self._generation, max(told, self._last_step + 1))
        taken = put_in_outbox(self._parent, lambda into: self._fill(into, save, ref, trusting=trusting))
        if taken is not None:
            self._taken, self._last_step = save, taken.manifest.ref.step
        return taken

    def _fill(self, into: Path, save: Save, ref: CheckpointRef, *, trusting: bool) -> Manifest | None:
        sizes = take_plain(self._directory, into, save.marks, self.motion, trusting=trusting)
        if sizes is None:
            return None
        for name, state in relative_states(self._directory, sizes, self._job.adopt).items():
            write_state(into, name, state)
            sizes[name] = len(state)
        found = verify_files(into, "", sorted(sizes), moved=self.motion)
        if {file.name: file.size for file in found.files} != sizes:
            return None
        names = {file.name for file in found.files}
        return Manifest(
            job_uuid=self._job.job_uuid,
            job=self._job.job,
            ref=ref,
            parent=self._base.ref if self._base is not None else None,
            node=self._job.node,
            incarnation=self._job.incarnation,
            prefix="",
            wall_ms=self._clock.wall_ms(),
            files=found.files,
            tensors=found.tensors,
            tf_version=found.tf_version or self._job.tensorflow(),
            version=2 if STATE_FILE in names else 1,
        )

    def _recall(self, now: Save | None) -> TakenCheckpoint | None:
        """After a restart of the agent: the checkpoint that was taken here before, if it is still the newest.

        It may not have been committed yet.
        """
        if now is None:
            return None
        for taken in taken_of(self._parent, self._generation):
            self._last_step = max(self._last_step, taken.manifest.ref.step)
            if self._is_in_place(taken.manifest, now):
                self._taken = now
                return taken
        if self._base is not None and self._is_in_place(self._base, now):
            self._taken = now
        return None

    def _is_in_place(self, manifest: Manifest, now: Save) -> bool:
        """Whether the checkpoint holds the files that are there now.

        Files of an older step may be there too.
        """
        own = [file for file in manifest.files if not is_state_file(file.name)]
        if {file.name for file in own} != {mark.name for mark in now.marks if not is_state_file(mark.name)}:
            return False
        try:
            return all(
                _checksum(self._directory, file.name) == (file.size, int(file.crc32c, 16)) for file in own
            )
        except FileNotFoundError:
            return False


def take_plain(
    source: Path, target: Path, marks: Sequence[FileMark], moved: Moved, *, trusting: bool
) -> dict[str, int] | None:
    """Copy the files; None when one changed meanwhile. Raises OSError where a link is in a directory's place.

    Raises BadCheckpoint for files larger than the disk and, unless `trusting`, for a file of a kind without a
    test. `verify_files` tests the others.
    """
    room, size = os.statvfs(target), sum(mark.size for mark in marks)
    if size > room.f_blocks * room.f_frsize:
        # Room is made for a save at the cost of other jobs' copies. For this one that would be in vain.
        raise BadCheckpoint(f"its files have {size} bytes, more than all of this node's disk")
    if size > room.f_bavail * room.f_frsize:
        # A sparse file would fill the disk, for all jobs, before it is found not to fit.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
    try:
        for mark in marks:
            copy = target / mark.name
            with effect("outbox.copy_plain"):
                copy.parent.mkdir(parents=True, exist_ok=True)
                with files.beneath(source, mark.name) as (fd, name):
                    files.copy_file(Path(name), copy, moved=moved, dir_fd=fd)
        if any(mark_below(source, mark.name) != mark for mark in marks):
            return None
    except FileNotFoundError:
        return None
    tensors = names_of_bundles([mark.name for mark in marks])
    for mark in marks:
        if mark.name in tensors or is_state_file(mark.name):
            # Each tensor has its checksum; a state file comes into its place by a rename.
            continue
        whole = is_whole(mark.name, mark.size, *_ends(target / mark.name, mark.size))
        if whole is None and not trusting:
            raise BadCheckpoint(f"its writer was killed, and nothing shows that {mark.name} is whole")
    return {mark.name: mark.size for mark in marks}


def is_being_written(directory: Path, name: str) -> bool:
    """Whether any process has the file open for writing: the kernel grants no read lease on such a file.

    False too where the file system, or another owner of the file, does not allow the question. Then a file
    counts as closed when it no longer changes.
    """
    with files.beneath(directory, name) as (parent_fd, last):
        fd = files.open_to_read(last, parent_fd)
    try:
        # Who opens the file for writing meanwhile makes the kernel signal us: by SIGIO, which would end this
        # process, unless another is asked for. Nobody hears SIGURG who did not ask.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        # Given back at once: while it is held, a program that opens the file for writing would wait.
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _marks(directory: Path) -> Iterator[FileMark]:
    """The marks of all regular files below, to a bounded depth and number, without names that no checkpoint
    may have.

    The program may replace a directory by a link at any time, so no file is looked up by its path.
    """
    found = 0
    with suppress(FileNotFoundError, TooMany):
        for path, fd, entry in entries_below(directory, MAX_DEPTH, MAX_ENTRIES):
            try:
                check_file_name(path)
                status = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
            except (UserError, FileNotFoundError):
                continue
            if stat.S_ISREG(status.st_mode):
                found += 1
                if found > MAX_FILES:
                    return
                yield mark_by(status, path)


def _checksum(directory: Path, name: str) -> tuple[int, int]:
    with files.beneath(directory, name) as (fd, last):
        return files.crc32c_of_file(Path(last), dir_fd=fd)


def _ends(path: Path, size: int) -> tuple[bytes, bytes]:
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        file.seek(max(0, size - TAIL_BYTES))
        return head, file.read(TAIL_BYTES)
