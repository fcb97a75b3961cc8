"""The agent's state file: one writer at a time, replaced whole, durable before anything depends on it."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from agent.core.saved.record import AgentRecord, Saved
from supervisor.adapters.failpoints import effect
from supervisor.contract import codec
from supervisor.contract.errors import Conflict, IncompatibleRecord, Refused, UserError

STATE = "agent.json"
SAVED = "agent.saved"
ROOM_BYTES = 64 * 1024
SAVED_BYTES = 256
"""Fixed size of the note, above that of its content, so that each write covers the one before."""
LOCK = "agent.lock"


class LockedStateFile:
    """`DIR/agent.json` under an flock on `DIR/agent.lock`, which is held until the process ends.

    `run` should be on another file system, best one that a boot clears: `agent.saved` there shows whether the
    file went back in time. It is not synced: it has to outlive only this process, and after a power failure
    it is older than the file, or unreadable.
    """

    def __init__(self, directory: Path, run: Path) -> None:
        self._directory = directory
        self._path = directory / STATE
        self._saved = run / SAVED
        self._lock = -1

    def read(self) -> AgentRecord | None:
        """Take the lock and read. Raises Conflict, Refused; UserError for an unreadable file."""
        self._take_lock()
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refused(f"cannot read {self._path}: {error.strerror}") from error
        try:
            return codec.decode(AgentRecord, raw)
        except IncompatibleRecord as error:
            # Starting without it could leave tasks of an earlier life running unseen.
            raise UserError(
                f"{self._path} is damaged or from a newer release ({error}); if no task of this node runs, "
                "delete it and start the agent again"
            ) from error

    def saved(self) -> Saved | None:
        """The note on the last save; None if it is gone or unreadable."""
        try:
            return codec.decode(Saved, self._saved.read_bytes())
        except (OSError, IncompatibleRecord):
            return None

    async def save(self, record: AgentRecord) -> None:
        """Replace the file; it is durable, and the note is written, when this returns. Raises Refused."""
        assert self._lock >= 0, "read it first"
        saved = codec.encode(Saved(record.incarnation, record.serial, record.origin))
        await asyncio.to_thread(self._save, codec.encode(record), saved.ljust(SAVED_BYTES))

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _take_lock(self) -> None:
        try:
            with effect("state_file.lock"):
                for each in (self._directory, self._saved.parent):
                    each.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._lock = os.open(self._directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise Conflict(
                f"another agent is running on {self._directory}: stop it, or give this one a `state_dir:` "
                "of its own"
            ) from error
        except OSError as error:
            self.close()
            raise Refused(f"cannot use the state directory {self._directory}: {error.strerror}") from error

    def _save(self, raw: bytes, saved: bytes) -> None:
        self._replace(raw)
        try:
            # In place: its room is taken once, and a full file system can bear it.
            with effect("state_file.tell"):
                fd = os.open(self._saved, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.pwrite(fd, saved, 0)
                finally:
                    os.close(fd)
        except OSError as error:
            raise Refused(f"cannot write {self._saved}: {error.strerror}") from error

    def _replace(self, raw: bytes) -> None:
        spare = self._path.with_suffix(".new")
        try:
            # Written over the room that was kept, and cut afterwards: a disk that is full can take it.
            with effect("state_file.write"):
                fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                with os.fdopen(fd, "wb") as file:
                    file.write(raw)
                    file.truncate()
                    file.flush()
                    os.fsync(fd)
            with effect("state_file.rename"):
                spare.replace(self._path)
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with effect("state_file.sync"):
                    os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise Refused(f"cannot write {self._path}: {error.strerror}") from error
        _keep_room(spare, max(ROOM_BYTES, 2 * len(raw)))


def _keep_room(path: Path, size: int) -> None:
    """Reserve space for the next record, so that a full disk does not stop the agent."""
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)
