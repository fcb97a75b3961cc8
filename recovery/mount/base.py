"""Staging the base of a mounted generation: the base is verified in the store, and shown by links."""

from __future__ import annotations

from zlib import crc32

from recovery.commit.stage import read_manifest
from recovery.formats.manifest import Manifest, ManifestFile, hex_crc32c
from recovery.formats.tf_files import STATE_FILE
from recovery.io.parallel import in_parallel
from recovery.mount.layout import Place, verified_path
from recovery.mount.live import LiveDirectory
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.checkpoint import CommitRecord
from supervisor.contract.errors import BadCheckpoint, NotFound, StoreUnreachable

FILES_AT_ONCE = 4


async def stage_live(
    store: CheckpointStore, live: LiveDirectory, record: CommitRecord | None, node: str = ""
) -> None:
    """Make the live directory show exactly the base, or nothing. Every node does it, at once; safe to repeat.

    Each node begins to verify at another file, and leaves out files that others have verified for this
    generation. Call it only before the first attempt of the generation starts.

    Raises:
        UserError: a path in it is too long for a mounted directory.
        BadCheckpoint: a size or checksum is wrong, or a file is missing while the store is healthy.
        StoreUnreachable, Refused: the store could not be read or written: unknown (rule 8).
    """
    if record is None:
        with effect("live.prepare", StoreUnreachable):
            await store.prepare()
        await live.make()
        return
    manifest, _ = await read_manifest(store, record)
    if not manifest.prefix:
        raise BadCheckpoint(
            f"{record.ref} is not a TensorFlow checkpoint; a mounted job can start from no other"
        )
    await live.make()
    await _verify(store, live, record, _begun_elsewhere(manifest, node))
    await live.seed([file.name for file in manifest.files], Place(record.path))
    if manifest.state:
        await live.write(STATE_FILE, manifest.state)
    else:
        # State files are among the files. One of a base that was given up would hide the link.
        with effect("live.clear_state", StoreUnreachable):
            await live.backend.delete(live.path(STATE_FILE), recursive=False)


def _begun_elsewhere(manifest: Manifest, node: str) -> list[ManifestFile]:
    """The files by size, largest first, rotated by an amount that depends on the node."""
    by_size = sorted(manifest.files, key=lambda file: file.size, reverse=True)
    first = crc32(node.encode()) % len(by_size)
    return by_size[first:] + by_size[:first]


async def _verify(
    store: CheckpointStore, live: LiveDirectory, record: CommitRecord, files: list[ManifestFile]
) -> None:
    async def check(file: ManifestFile) -> None:
        path = f"{record.path}/{file.name}"
        mark = verified_path(live.root, record.path, file.name)
        if await live.backend.info(mark) is not None:
            return
        try:
            crc = await store.crc32c(path)
        except NotFound as error:
            raise BadCheckpoint(f"{record.ref}: {path} is missing") from error
        if hex_crc32c(crc) != file.crc32c:
            raise BadCheckpoint(f"{record.ref}: {path} has a wrong size or checksum")
        with effect("live.mark_verified", StoreUnreachable):
            await live.backend.mkdirs(mark)

    await in_parallel(check, files, FILES_AT_ONCE)
