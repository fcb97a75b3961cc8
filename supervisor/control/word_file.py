"""A supervisor's word on disk: replaced whole, durable before anything depends on it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from supervisor.adapters.clock import boot_id
from supervisor.adapters.failpoints import effect
from supervisor.contract import codec
from supervisor.contract.errors import IncompatibleRecord, Refused, UserError
from supervisor.contract.promise import Word

NAME = "promises.json"


class StateDirWordFile:
    """`DIR/promises.json`. A file that is absent was lost, or this is the first start: nobody can tell."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / NAME

    def boot_id(self) -> str:
        """Changes whenever the machine boots."""
        return boot_id()

    def read(self) -> Word | None:
        """What an earlier life has left. Raises Refused; UserError for a file that makes no sense."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refused(f"cannot read {self._path}: {error.strerror}") from error
        try:
            return codec.decode(Word, raw)
        except IncompatibleRecord as error:
            raise UserError(
                f"{self._path} is damaged or from a newer release ({error}); delete it and start again: this "
                "supervisor then declares no node lost for promise_for + D"
            ) from error

    async def save(self, word: Word) -> None:
        """Replace it; durable when this returns. Raises Refused."""
        await asyncio.to_thread(self._replace, codec.encode(word))

    def _replace(self, raw: bytes) -> None:
        spare = self._path.with_suffix(".new")
        try:
            with effect("word_file.write"):
                self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                with os.fdopen(fd, "wb") as file:
                    file.write(raw)
                    file.flush()
                    os.fsync(fd)
            with effect("word_file.rename"):
                spare.replace(self._path)
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with effect("word_file.sync"):
                    os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise Refused(f"cannot write {self._path}: {error.strerror}") from error
