"""Uploads of code: an archive comes in chunks, its record is completed at last, under the leader token.

The chunks go to etcd, each under the leader token, or to the store of code, if one is configured. A store
compares no token. So each upload has a directory of its own there, which etcd names before anything is in it;
files in it are written once, and the digest decides whether they are the archive. A deposed leader can add
nothing to an archive that is whole.

Every call may be repeated, also at another leader: all that is known of an upload is in etcd and the store.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from recovery.io.deadline import within
from recovery.stores.code import CodeReader, DamagedChunk, OpenStore
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
    StoredCode,
    answer_s,
    chunk_count,
    chunk_size,
    is_digest,
    upload_directory,
)
from supervisor.contract.errors import (
    Conflict,
    CoordinationFull,
    CoordinationUnreachable,
    NotFound,
    Refused,
    StoreUnreachable,
    Unreachable,
    UserError,
)
from supervisor.contract.job.spec import CodeRef
from supervisor.control.decide.plan import put
from supervisor.control.decide.snapshot import Snapshot

MAX_ALL_BYTES = 512 * 1024 * 1024
"""The most bytes of all archives in etcd together: a quarter of its space as installed, with base64."""

TRIES = 4
AT_ONCE = 4
_GIVEN_UP = "another supervisor leads now, or the upload was given up; try again"


class CodeUploads:
    """The archives that nodes fetch.

    Args:
        leading: raises Unreachable while this supervisor follows.
        new_id: makes names that nothing has had before.

    Attributes:
        store: the URI of the store of code; empty: new archives go to etcd.
        open_store: opens it.
    """

    def __init__(
        self,
        coordination: Coordination,
        leading: Callable[[], Snapshot],
        open_store: OpenStore,
        new_id: Callable[[], str],
    ) -> None:
        self.store = ""
        self._coordination = coordination
        self._leading = leading
        self.open_store = open_store
        self._new_id = new_id

    async def find(self, ref: CodeRef) -> CodeState:
        """Whether the archive is there, whole. If it is, it stays for the while that a submit needs.

        One that is damaged is forgotten: it must be uploaded again. Raises Unreachable where that is not
        known, as its store does not answer.
        """
        _check(ref.digest, ref.size)
        self._leading()
        held = await self._held(ref.digest)
        record = _read(held)
        if held is None or record is None or not record.complete:
            return CodeState(ref.digest, complete=False)
        known = CodeRef(record.digest, record.size)
        async with _in_time(record.size, record.store):
            if await self._damage(known) is not None:
                await self._begin(known, held)
                return CodeState(ref.digest, complete=False)
            kept = await self._write([ModifiedAt(held.key, held.mod_revision)], [put(held.key, record)])
        return CodeState(ref.digest, complete=kept)

    async def put(self, part: CodePart) -> CodeState:
        """Take a chunk; with the last one, look whether the archive is whole.

        Raises:
            UserError: the part contradicts itself, or the archive is not what its digest says.
            Conflict: chunks are missing at the end; the upload must begin again.
            CoordinationFull: etcd holds too much code already.
            Unreachable, Refused: the store of code does not answer, or takes nothing.
        """
        data = _decoded(part)
        self._leading()
        async with _in_time(part.reads_back, self.store):
            return await self._put(part, data)

    async def _put(self, part: CodePart, data: bytes) -> CodeState:
        ref = CodeRef(part.digest, part.size)
        held = await self._held(part.digest)
        record = _read(held)
        if record is not None and record.complete:
            return CodeState(part.digest, complete=True)
        if held is None or record is None or (record.size, record.store) != (part.size, self.store):
            held = await self._begin(ref, held)
        await self._take(part, data, held)
        if part.index + 1 < chunk_count(part.size):
            return CodeState(part.digest, complete=False)
        damage = await self._damage(ref)
        if isinstance(damage, UserError):
            # Files in a store are written once: the next try needs others.
            await self._begin(ref, held)
        if damage is not None:
            raise damage
        await self._complete(ref, held)
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

    async def _begin(self, ref: CodeRef, held: KeyValue | None) -> KeyValue:
        snap = self._leading()
        key = keys.shipped(ref.digest)
        ops: list[Op] = [put(key, ShippedCode(ref.digest, ref.size, store=self.store))]
        others = [each.value for each in snap.codes.values() if each.value.digest != ref.digest]
        if not self.store:
            _check_room(sum(each.size for each in others if not each.store) + ref.size)
        else:
            if snap.cluster is None:
                raise Unreachable("this supervisor has only begun to lead; try again")
            if all(each.store != self.store for each in others):
                async with self._asked():
                    store = self.open_store(self.store)
                    await store.prepare()
            directory = upload_directory(snap.cluster.value.uuid, ref.digest, self._new_id())
            ops.append(put(keys.chunk(ref.digest, 0), CodeChunk("", StoredCode(self.store, directory))))
        await self._write([as_read(key, held)], ops)
        found = await self._held(ref.digest)
        if found is None:
            raise Unreachable("the upload could not begin; try again")
        return found

    async def _take(self, part: CodePart, data: bytes, held: KeyValue) -> None:
        if not self.store:
            chunk = put(keys.chunk(part.digest, part.index), CodeChunk(base64.b64encode(data).decode()))
            if not await self._write([CreatedAt(held.key, held.create_revision)], [chunk]):
                raise Unreachable(_GIVEN_UP)
            return
        first = await self._coordination.get(keys.chunk(part.digest, 0))
        stored = codec.decode(CodeChunk, first.value).stored if first is not None else None
        if stored is None or stored.store != self.store:
            raise Unreachable(_GIVEN_UP)
        async with self._asked():
            store = self.open_store(self.store)
            # A call that is repeated finds its file there. What is in it is read at the end.
            with suppress(Conflict):
                await store.write_bytes(stored.chunk(part.index), data)

    async def _complete(self, ref: CodeRef, held: KeyValue) -> None:
        """The chunks are those of the record as it was held: an upload that began anew changes it."""
        done = put(held.key, ShippedCode(ref.digest, ref.size, complete=True, store=self.store))
        if await self._write([ModifiedAt(held.key, held.mod_revision)], [done]):
            return
        record = _read(await self._held(ref.digest))
        if record is None or not record.complete:
            raise Unreachable(_GIVEN_UP)

    async def _damage(self, ref: CodeRef) -> Conflict | UserError | None:
        """Read everything back: what is complete must be so, whoever wrote the chunks. None: it is whole.

        Raises Unreachable, Refused where that cannot be known.
        """
        sha256 = hashlib.sha256()
        reader = CodeReader(self._coordination, self.open_store, ref.digest)
        count = chunk_count(ref.size)
        # The first says where the others are.
        later = (range(at, min(at + AT_ONCE, count)) for at in range(1, count, AT_ONCE))
        for wanted in (range(1), *later):
            found = await asyncio.gather(*(_tried(reader, index) for index in wanted))
            for index, data in zip(wanted, found, strict=True):
                if isinstance(data, DamagedChunk):
                    return UserError(str(data))
                if data is None:
                    return Conflict(
                        f"chunk {index} of code {ref.digest[:12]} has not arrived; upload it again"
                    )
                sha256.update(data)
        if sha256.hexdigest() != ref.digest:
            return UserError(
                f"what was uploaded as code {ref.digest[:12]} has another sha256; upload it again"
            )
        return None

    @asynccontextmanager
    async def _asked(self) -> AsyncIterator[None]:
        """Say of the store's errors whose store it is."""
        what = _shown(self.store)
        try:
            yield
        except StoreUnreachable as error:
            raise StoreUnreachable(f"{what} does not answer; try again later: {error}") from error
        except (Refused, UserError) as error:
            raise Refused(f"{what} takes no code: {error}") from error

    async def _held(self, digest: str) -> KeyValue | None:
        return await self._coordination.get(keys.shipped(digest))

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


@asynccontextmanager
async def _in_time(reads_back: int, store: str) -> AsyncIterator[None]:
    """End a call in the time in which its client still listens. `store`: its archive's; empty: etcd."""
    limit_s = answer_s(reads_back)
    took = f"the call took longer than {limit_s:g} s"
    async with within(limit_s, f"{_shown(store)} does not answer; try again later: {took}"):
        yield


def _shown(store: str) -> str:
    return f"the cluster's store of code (`code_store: {store}`)" if store else "etcd"


async def _tried(reader: CodeReader, index: int) -> bytes | DamagedChunk | None:
    try:
        return await reader.read(index)
    except NotFound:
        return None
    except DamagedChunk as error:
        return error


def _check_room(size: int) -> None:
    if size > MAX_ALL_BYTES:
        raise CoordinationFull(
            f"this job's code and that of the others take {size >> 20} MiB of etcd, and at most "
            f"{MAX_ALL_BYTES >> 20} MiB fit; ship less with code.exclude, submit an ended job again without "
            "its code, or have the cluster's operator configure a `code_store`"
        )


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
