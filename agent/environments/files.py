"""Files that users have put into a store themselves, outside any checkpoint store: they are only read."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from recovery.io.daemon_threads import DaemonThreads
from recovery.io.files import mapped_errors, open_to_read
from recovery.stores.open import Stores
from supervisor.adapters.failpoints import effect
from supervisor.adapters.files.store_uri import Scheme, StoreUri
from supervisor.contract.errors import BadArchive, NotFound, UserError

PIECE_BYTES = 4 << 20
THREADS = 4
"""Threads for directories of this machine. One that hangs keeps its thread, and holds up nothing else."""

T = TypeVar("T")


class PlainFiles:
    """Reads files by their URI, where this daemon may."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._threads = DaemonThreads(THREADS, "files")

    async def names(self, uri: str) -> Mapping[str, int]:
        """The plain files of a directory, with their sizes.

        Raises NotFound, Unreachable, Refused, UserError (the place is not allowed).
        """
        place = self._place(uri)
        if place.scheme is Scheme.FILE:
            return await self._in_thread(lambda: _names(place.path))
        found = await self._stores.client(place).list(place.path)
        return {each.path.rpartition("/")[2]: each.size for each in found if not each.is_dir}

    async def fetch(self, uri: str, target: Path, most_bytes: int) -> str:
        """Copy a file to the new file `target`; returns its sha256.

        Raises as `names`, and BadArchive for one that is too large.
        """
        place = self._place(uri)
        sha256, left = hashlib.sha256(), most_bytes

        def add(data: bytes) -> None:
            sha256.update(data)
            with target.open("ab") as file:
                file.write(data)

        with mapped_errors(f"copy {place} to {target}"), effect("environment.fetch"):
            await self._in_thread(partial(add, b""))  # an empty file is one, too
            async for data in self._pieces(place):
                left -= len(data)
                if left < 0:
                    raise BadArchive(f"{place} has more than {most_bytes >> 20} MiB")
                await self._in_thread(partial(add, data))
        return sha256.hexdigest()

    def _place(self, uri: str) -> StoreUri:
        try:
            place = self._stores.place(uri)
        except UserError as error:
            raise UserError(str(error).removeprefix("checkpoint.uri ")) from error
        if place.scheme is Scheme.HDFS and self._stores.proxies:
            raise UserError(
                f"{place}: a cluster that reaches HDFS as a job's owner (`hadoop.proxy_users`) reads no "
                "other files there; put this into a directory that all nodes have"
            )
        return place

    async def _pieces(self, place: StoreUri) -> AsyncIterator[bytes]:
        if place.scheme is Scheme.HDFS:
            reader, at = await self._stores.client(place).open(place.path), 0
            while data := await reader.read(at, PIECE_BYTES):
                at += len(data)
                yield data
            return
        fd = await self._in_thread(lambda: _open(place.path))
        try:
            while data := await self._in_thread(lambda: os.read(fd, PIECE_BYTES)):
                yield data
        finally:
            os.close(fd)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _names(path: str) -> Mapping[str, int]:
    try:
        with os.scandir(path) as entries:
            return {each.name: each.stat().st_size for each in entries if each.is_file()}
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{path} is no directory on this node") from error


def _open(path: str) -> int:
    try:
        return open_to_read(path)
    except FileNotFoundError as error:
        raise NotFound(f"{path} is not on this node") from error
