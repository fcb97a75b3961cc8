"""Audit of a stored checkpoint: every byte is read back from the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from recovery.commit.stage import read_manifest
from recovery.formats.bundle import MAX_INDEX_BYTES, read_index
from recovery.formats.manifest import Manifest, ManifestFile, hex_crc32c
from recovery.formats.tf_files import complete_set
from supervisor.contract.boundaries import CheckpointStore, Moved, unwatched
from supervisor.contract.checkpoint import CommitRecord
from supervisor.contract.errors import BadCheckpoint, NotFound, UserError


async def audit(store: CheckpointStore, record: CommitRecord, moved: Moved = unwatched) -> Manifest:
    """Check a committed checkpoint against its manifest, and that against its record; returns the manifest.

    Raises:
        BadCheckpoint: a size or checksum is wrong, or a file is missing while the store is healthy.
        StoreUnreachable, Refused: it cannot be read; it may be good (rule 8).
        IncompatibleRecord: a newer release wrote the manifest.
    """
    manifest, _ = await read_manifest(store, record)
    await audit_files(store, record.path, manifest, moved)
    return manifest


async def audit_files(
    store: CheckpointStore, path: str, manifest: Manifest, moved: Moved = unwatched
) -> None:
    """Read back the files of `manifest` in the directory `path`. Raises as `audit`.

    The data files are compared with checksums that were taken while each tensor was verified. So of a tensor
    bundle only the index is parsed: it must name as many tensors.
    """
    sizes = await _sizes(store, path, manifest)
    for file in manifest.files:
        stored = f"{path}/{file.name}"
        if stored not in sizes:
            raise BadCheckpoint(f"{manifest.ref}: {stored} is missing")
        if sizes[stored] != file.size:
            raise BadCheckpoint(f"{manifest.ref}: {stored} has {sizes[stored]} bytes instead of {file.size}")
        await _check(store, manifest, file, stored, moved)
    await _check_indexes(store, path, manifest)


async def _check(
    store: CheckpointStore, manifest: Manifest, file: ManifestFile, stored: str, moved: Moved
) -> None:
    with _of_checkpoint(manifest, stored):
        crc = hex_crc32c(await store.crc32c(stored, moved))
    if crc != file.crc32c:
        raise BadCheckpoint(f"{manifest.ref}: {stored} has checksum {crc} instead of {file.crc32c}")


async def _check_indexes(store: CheckpointStore, path: str, manifest: Manifest) -> None:
    names = [file.name for file in manifest.files]
    tensors = shards = files = 0
    for prefix in manifest.bundles:
        found = complete_set(prefix, names)
        assert found is not None, f"{prefix} is no bundle of its manifest"
        stored = f"{path}/{found.index}"
        with _of_checkpoint(manifest, stored):
            raw = await store.read_bytes(stored, MAX_INDEX_BYTES)
        bundle = read_index(raw)
        tensors += len(bundle.tensors)
        shards += bundle.num_shards
        files += len(found.shards)
    if manifest.bundles and (tensors, shards) != (manifest.tensors, files):
        raise BadCheckpoint(
            f"{manifest.ref}: its indexes have {tensors} tensors in {shards} files; "
            f"its manifest {manifest.tensors} in {files}"
        )


@contextmanager
def _of_checkpoint(manifest: Manifest, stored: str) -> Iterator[None]:
    """Turn the store's findings about a file inside the block into BadCheckpoint."""
    try:
        yield
    except NotFound as error:
        raise BadCheckpoint(f"{manifest.ref}: {stored} is missing") from error
    except UserError as error:
        raise BadCheckpoint(f"{manifest.ref}: {error}") from error


async def _sizes(store: CheckpointStore, path: str, manifest: Manifest) -> dict[str, int]:
    parents = sorted({str(PurePosixPath(path, file.name).parent) for file in manifest.files})
    listings = [await store.list(parent) for parent in parents]
    return {file.path: file.size for listing in listings for file in listing.files}
