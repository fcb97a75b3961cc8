"""The chunks of a shipped archive, read where they are: in etcd, or in the store that etcd names."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from supervisor.contract import codec, keys
from supervisor.contract.boundaries import CheckpointStore, Coordination
from supervisor.contract.code import CHUNK_BYTES, CodeChunk
from supervisor.contract.errors import NotFound, Refused, StoreUnreachable, UserError

OpenStore = Callable[[str], CheckpointStore]


class DamagedChunk(Refused):
    """Something else is in the place of a chunk. Another upload of the archive mends that."""


class CodeReader:
    """One archive. `place` names its carrier, once the first chunk was asked for."""

    def __init__(self, coordination: Coordination, open_store: OpenStore, digest: str) -> None:
        self.place = "etcd"
        self._coordination = coordination
        self._open_store = open_store
        self._digest = digest
        self._first: CodeChunk | None = None
        self._store: CheckpointStore | None = None

    async def read(self, index: int) -> bytes:
        """A chunk, as it was found: its content is not checked.

        Raises NotFound, Unreachable; DamagedChunk; Refused where this daemon may not read the store.
        """
        if self._first is None:
            self._first = await self._in_etcd(0)
        first = self._first
        if first.stored is None:
            chunk = first if index == 0 else await self._in_etcd(index)
            try:
                return base64.b64decode(chunk.data, validate=True)
            except (binascii.Error, ValueError) as error:
                raise self._damaged(index, error) from error
        self.place = first.stored.store
        try:
            if self._store is None:
                self._store = self._open_store(first.stored.store)
        except UserError as error:
            why = str(error).removeprefix("checkpoint.uri ")
            raise Refused(f"the store of code cannot be read here: {why}") from error
        try:
            return await self._store.read_bytes(first.stored.chunk(index), CHUNK_BYTES)
        except StoreUnreachable as error:
            raise StoreUnreachable(f"the store of code does not answer: {error}") from error
        except UserError as error:
            # A link, a directory, a file that is too large.
            raise self._damaged(index, error) from error

    def _damaged(self, index: int, why: Exception) -> DamagedChunk:
        chunk = f"chunk {index} of code {self._digest[:12]} in {self.place}"
        return DamagedChunk(f"{chunk} is damaged; submit the job again: {why}")

    async def _in_etcd(self, index: int) -> CodeChunk:
        found = await self._coordination.get(keys.chunk(self._digest, index))
        if found is None:
            raise NotFound(f"chunk {index} of code {self._digest[:12]} is not in etcd")
        return codec.decode(CodeChunk, found.value)
