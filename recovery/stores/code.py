"""The chunks of a shipped archive, read where they are: in etcd, or in the store that etcd names."""

from __future__ import annotations

import base64
from collections.abc import Callable

from supervisor.contract import codec, keys
from supervisor.contract.boundaries import CheckpointStore, Coordination
from supervisor.contract.code import CHUNK_BYTES, CodeChunk
from supervisor.contract.errors import NotFound, Refused, StoreUnreachable, UserError

OpenStore = Callable[[str], CheckpointStore]


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

        Raises NotFound, Unreachable; Refused where this daemon may not read the store.
        """
        if self._first is None:
            self._first = await self._in_etcd(0)
        first = self._first
        if first.stored is None:
            chunk = first if index == 0 else await self._in_etcd(index)
            return base64.b64decode(chunk.data)
        self.place = first.stored.store
        try:
            if self._store is None:
                self._store = self._open_store(first.stored.store)
            return await self._store.read_bytes(first.stored.chunk(index), CHUNK_BYTES)
        except StoreUnreachable as error:
            raise StoreUnreachable(f"the store of code does not answer: {error}") from error
        except UserError as error:
            why = str(error).removeprefix("checkpoint.uri ")
            raise Refused(f"the store of code cannot be read here: {why}") from error

    async def _in_etcd(self, index: int) -> CodeChunk:
        found = await self._coordination.get(keys.chunk(self._digest, index))
        if found is None:
            raise NotFound(f"chunk {index} of code {self._digest[:12]} is not in etcd")
        return codec.decode(CodeChunk, found.value)
