"""An attempt's output: from its pipe into rotated log files of bounded size, a bounded piece at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time

from ..failpoints import effect
from .mask import Masker

_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_TIMES_S = 1.0
_TIME = struct.Struct("<2Q")
_SET_PIPE_SIZE = 1031  # fcntl.F_SETPIPE_SZ, which Python has from 3.10 on


class Pump:
    """Reads `fd` (made non-blocking, closed by `close`) and appends to `directory`/output.log.

    When the file reaches `max_bytes` it becomes output.log.1, and so on: at most `files` of them exist.
    Output is written unchanged, except for the values that `masker` masks. If the disk refuses it, it is
    dropped and counted, so that a full disk stops no training.

    Beside each file are its times, output.times (.1, ...): first the inode number of that file and 0, then,
    at most once a second, an offset and the wall clock at which the bytes from there on came; each a pair of
    64-bit numbers.
    """

    def __init__(
        self, fd: int, directory: str, max_bytes: int, files: int, masker: Masker | None = None
    ) -> None:
        self.fd = fd
        self._masker = masker or Masker()
        self.total_bytes = 0
        self.dropped_bytes = 0
        self.error = ""
        self._unreported = 0
        self._path = os.path.join(directory, "output.log")
        self._times_path = os.path.join(directory, "output.times")
        self._times = -1
        self._noted_s = 0.0
        self._max_bytes = max(4096, max_bytes)
        self._files = max(1, files)
        os.makedirs(directory, exist_ok=True)
        self._log = self._open()
        os.set_blocking(fd, False)
        try:
            fcntl.fcntl(fd, _SET_PIPE_SIZE, _PIPE_BYTES)
        except OSError:
            pass  # the user's allowance of pipe memory is used up: a small pipe works, slower

    def read_some(self, limit_bytes: int) -> bool:
        """Move up to about `limit_bytes`. True at the end: every writer has closed the pipe."""
        moved = 0
        limit_bytes //= 1 + self._masker.patterns
        while moved < limit_bytes:
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                return False
            if not data:
                self._append(memoryview(self._masker.end()))
                return True
            moved += len(data)
            self.total_bytes += len(data)
            self._append(memoryview(self._masker.feed(data)))
        return False

    def close(self) -> None:
        """Stop; bytes in the pipe are lost."""
        os.close(self.fd)
        self._append(memoryview(self._masker.end()))
        self._close_files()

    def _append(self, data: memoryview) -> None:
        while data:
            room = max(0, self._max_bytes - self._size)
            piece = data[:room]
            if len(piece) < len(data):
                # Rotate between lines, so that each file holds whole ones, unless a line is too long.
                newline = bytes(piece).rfind(b"\n") + 1
                if newline or (self._size and b"\n" in bytes(data[: self._max_bytes])):
                    piece = piece[:newline]
            try:
                if self._log < 0:
                    self._log = self._open()
                if self._unreported:
                    self._report_loss()
                self._note_time()
                while piece:
                    written = os.write(self._log, piece)
                    self._size += written
                    piece, data = piece[written:], data[written:]
                if data:
                    self._rotate()
            except OSError as error:
                self.error = f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror}"
                self.dropped_bytes += len(data)
                self._unreported += len(data)
                return

    def _report_loss(self) -> None:
        note = f"\n[tf-supervisor: {self._unreported} bytes of output lost: {self.error}]\n".encode()
        self._size += os.write(self._log, note)
        self._unreported = 0

    def _note_time(self) -> None:
        """Note when the bytes that come next came. Without its note output is as good, only its time is not
        known.
        """
        now_s = time.time()
        if self._times < 0 or (self._size and abs(now_s - self._noted_s) < _TIMES_S):
            return
        self._noted_s = now_s
        self._add_time(self._size, int(now_s * 1000))

    def _add_time(self, offset: int, ms: int) -> None:
        try:
            cut = os.write(self._times, _TIME.pack(offset, ms)) < _TIME.size
        except OSError:
            cut = True
        if cut:
            self._stop_times()

    def _stop_times(self) -> None:
        times, self._times = self._times, -1
        if times >= 0:
            os.close(times)

    def _close_files(self) -> None:
        self._stop_times()
        log, self._log = self._log, -1
        if log >= 0:
            os.close(log)

    def _rotate(self) -> None:
        self._close_files()
        with effect("launcher.rotate_log"):
            for path in (self._path, self._times_path):
                if self._files == 1 and os.path.lexists(path):
                    os.unlink(path)
                for number in range(self._files - 1, 0, -1):
                    source = path if number == 1 else f"{path}.{number - 1}"
                    if os.path.exists(source):
                        os.replace(source, f"{path}.{number}")
        self._log = self._open()

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(self._path, flags, 0o640)
        found = os.fstat(log)
        self._size = found.st_size
        try:
            with effect("launcher.open_times"):
                self._times = os.open(self._times_path, flags | os.O_TRUNC, 0o640)
        except OSError:
            return log  # such as a link that the program has put there
        self._add_time(found.st_ino, 0)
        return log
