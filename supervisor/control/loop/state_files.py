"""The files of a supervisor: each is replaced whole, and is durable before anything depends on it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TypeVar

from supervisor.adapters.clock import boot_id
from supervisor.adapters.failpoints import effect
from supervisor.contract import codec
from supervisor.contract.errors import IncompatibleRecord, Refused, UserError
from supervisor.contract.promise import Word
from supervisor.control.loop.etcd_identity import Mark

T = TypeVar("T")
PROMISES, ETCD = "promises.json", "etcd.json"


class StateDirWordFile:
    """`DIR/promises.json`. A file that is absent was lost, or this is the first start: nobody can tell."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / PROMISES

    def boot_id(self) -> str:
        """Changes whenever the machine boots."""
        return boot_id()

    def read(self) -> Word | None:
        """The record of an earlier process, or None. Raises Refused; UserError for a damaged file."""
        without = "this supervisor then declares no node lost for promise_for + D"
        return _read(self._path, Word, without)

    async def save(self, word: Word) -> None:
        """Replace it; durable when this returns. Raises Refused."""
        await asyncio.to_thread(_replace, self._path, codec.encode(word))


class StateDirMarkFile:
    """`DIR/etcd.json`: how far etcd had come."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / ETCD

    def read(self) -> Mark | None:
        """The record of an earlier process, or None. Raises Refused; UserError for a damaged file."""
        return _read(self._path, Mark, "an etcd that was restored from a snapshot by now is not noticed then")

    async def save(self, mark: Mark) -> None:
        """Replace it; durable when this returns. Raises Refused."""
        await asyncio.to_thread(_replace, self._path, codec.encode(mark))


def _read(path: Path, kind: type[T], without: str) -> T | None:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    try:
        return codec.decode(kind, raw)
    except IncompatibleRecord as error:
        raise UserError(
            f"{path} is damaged or from a newer release ({error}); delete it and start again: {without}"
        ) from error


def _replace(path: Path, raw: bytes) -> None:
    spare = path.with_suffix(".new")
    try:
        with effect("state_files.write"):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(fd)
        with effect("state_files.rename"):
            spare.replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with effect("state_files.sync"):
                os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}") from error
