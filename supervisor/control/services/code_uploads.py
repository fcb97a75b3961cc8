"""Uploads of code: an archive comes in chunks, each written under the leader token, its record at last.

Every call may be repeated, also at another leader: all that is known of an upload is in etcd.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence

from supervisor.adapters.failpoints import effect
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import (
    Compare,
    Coordination,
    CreatedAt,
    KeyValue,
    ModifiedAt,
    Op,
    as_read,
)
from supervisor.contract.code import (
    MAX_PACKED_BYTES,
    CodeChunk,
    CodePart,
    CodeState,
    ShippedCode,
    chunk_count,
    chunk_size,
    is_digest,
)
from supervisor.contract.errors import (
    Conflict,
    CoordinationFull,
    CoordinationUnreachable,
    Unreachable,
    UserError,
)
from supervisor.contract.job.spec import CodeRef
from supervisor.control.decide.plan import put
from supervisor.control.decide.snapshot import Snapshot

MAX_ALL_BYTES = 512 * 1024 * 1024
"""The most bytes of all archives together: a quarter of etcd's space as installed, with base64."""

TRIES = 4
AT_ONCE = 4


class CodeUploads:
    """The archives that nodes fetch, in etcd. `leading` raises Unreachable while this supervisor follows."""

    def __init__(self, coordination: Coordination, leading: Callable[[], Snapshot]) -> None:
        self._coordination = coordination
        self._leading = leading

    async def find(self, ref: CodeRef) -> CodeState:
        """Whether the archive is there. If it is, it stays for the while that a submit needs."""
        _check(ref.digest, ref.size)
        held = await self._held(ref.digest)
        record = _read(held)
        if held is None or record is None or not record.complete:
            return CodeState(ref.digest, complete=False)
        kept = await self._write([ModifiedAt(held.key, held.mod_revision)], [put(held.key, record)])
        return CodeState(ref.digest, complete=kept)

    async def put(self, part: CodePart) -> CodeState:
        """Take a chunk; with the last one, look whether the archive is whole.

        Raises:
            UserError: the part contradicts itself, or the archive is not what its digest says.
            Conflict: chunks are missing at the end; the upload must begin again.
            CoordinationFull: the cluster holds too much code already.
        """
        data = _decoded(part)
        held = await self._held(part.digest)
        record = _read(held)
        if record is not None and record.complete:
            return CodeState(part.digest, complete=True)
        if held is None or record is None or record.size != part.size:
            held = await self._begin(part, held)
        chunk = put(keys.chunk(part.digest, part.index), CodeChunk(base64.b64encode(data).decode()))
        await self._must_write([CreatedAt(held.key, held.create_revision)], [chunk])
        if part.index + 1 < chunk_count(part.size):
            return CodeState(part.digest, complete=False)
        await self._verify(part)
        done = put(held.key, ShippedCode(part.digest, part.size, complete=True))
        await self._must_write([CreatedAt(held.key, held.create_revision)], [done])
        return CodeState(part.digest, complete=True)

    async def require(self, ref: CodeRef) -> ModifiedAt:
        """The compare of a transaction that comes to need this archive.

        Raises Conflict when it is not there, or not whole.
        """
        held = await self._held(ref.digest)
        record = _read(held)
        if held is None or record is None or not record.complete or record.size != ref.size:
            raise Conflict(
                f"the code {ref.digest[:12]} of this job is not on the cluster; submit it again with a "
                "supervisorctl of this release, which uploads it first"
            )
        return ModifiedAt(held.key, held.mod_revision)

    async def _begin(self, part: CodePart, held: KeyValue | None) -> KeyValue:
        others = [
            each.value.size for each in self._leading().codes.values() if each.value.digest != part.digest
        ]
        if sum(others) + part.size > MAX_ALL_BYTES:
            raise CoordinationFull(
                f"the jobs of this cluster hold {sum(others) >> 20} MiB of code already, and at most "
                f"{MAX_ALL_BYTES >> 20} MiB fit; ship less with code.exclude, or submit an ended job again "
                "without its code"
            )
        key = keys.shipped(part.digest)
        await self._write([as_read(key, held)], [put(key, ShippedCode(part.digest, part.size))])
        found = await self._held(part.digest)
        if found is None:
            raise Unreachable("the upload could not begin; try again")
        return found

    async def _verify(self, part: CodePart) -> None:
        """Read everything back: what is complete must be so, whoever wrote the chunks."""
        sha256 = hashlib.sha256()
        count = chunk_count(part.size)
        for first in range(0, count, AT_ONCE):
            wanted = range(first, min(first + AT_ONCE, count))
            found = await asyncio.gather(
                *(self._coordination.get(keys.chunk(part.digest, index)) for index in wanted)
            )
            for index, entry in zip(wanted, found, strict=True):
                if entry is None:
                    raise Conflict(
                        f"chunk {index} of code {part.digest[:12]} has not arrived; upload it again"
                    )
                sha256.update(base64.b64decode(codec.decode(CodeChunk, entry.value).data))
        if sha256.hexdigest() != part.digest:
            raise UserError(
                f"what was uploaded as code {part.digest[:12]} has another sha256; upload it again"
            )

    async def _held(self, digest: str) -> KeyValue | None:
        return await self._coordination.get(keys.shipped(digest))

    async def _must_write(self, compares: Sequence[Compare], ops: Sequence[Op]) -> None:
        if not await self._write(compares, ops):
            raise Unreachable("another supervisor leads now, or the upload was given up; try again")

    async def _write(self, compares: Sequence[Compare], ops: Sequence[Op]) -> bool:
        """One fenced transaction; repeated when etcd is slow to take it, which any of them may be."""
        token = self._leading().token
        for left in reversed(range(TRIES)):
            try:
                with effect("code_uploads.write", CoordinationUnreachable):
                    return (await self._coordination.txn([token.compare(), *compares], ops)).succeeded
            except Unreachable:
                if not left:
                    raise
        raise AssertionError("unreachable")


def _read(held: KeyValue | None) -> ShippedCode | None:
    return codec.decode(ShippedCode, held.value) if held is not None else None


def _check(digest: str, size: int) -> None:
    if not is_digest(digest):
        raise UserError(f"{digest[:80]!r} is not a sha256 in lower-case hex")
    if not 0 < size <= MAX_PACKED_BYTES:
        raise UserError(f"code of {size} bytes; 1 to {MAX_PACKED_BYTES} are possible")


def _decoded(part: CodePart) -> bytes:
    _check(part.digest, part.size)
    if not 0 <= part.index < chunk_count(part.size):
        raise UserError(f"code of {part.size} bytes has no chunk {part.index}")
    try:
        data = base64.b64decode(part.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UserError(f"chunk {part.index} is not base64: {error}") from error
    if len(data) != chunk_size(part.size, part.index):
        raise UserError(
            f"chunk {part.index} has {len(data)} bytes instead of {chunk_size(part.size, part.index)}"
        )
    return data
