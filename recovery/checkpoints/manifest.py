"""The manifest: what a checkpoint consists of, kept beside its files. One canonical JSON form. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NoReturn

import google_crc32c

from recovery.checkpoints.paths import split_path
from recovery.checkpoints.tf_files import STATE_FILE, FileSet, require_set
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import BadCheckpoint, IncompatibleRecord, UserError
from supervisor.contract.file_pattern import MAX_DEPTH

MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20
MAX_FILES = 4096
VERSION = 1
_MAX_SIZE = 1 << 62
_MAX_GENERATION = 10**8 - 1
_MAX_STEP = 10**12 - 1
_MAX_TEXT = 512
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, order=True)
class ManifestFile:
    """One file of a checkpoint; `crc32c` is 8 hex digits."""

    name: str
    size: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was saved, by whom, and the checksum of every file. `parent` is the base of its generation.

    `wall_ms` is for people. The files, sorted by name, are exactly one TensorFlow checkpoint called `prefix`;
    without a prefix they are the program's own, and their names are paths.
    """

    job_uuid: str
    job: str
    ref: CheckpointRef
    parent: CheckpointRef | None
    node: str
    incarnation: str
    prefix: str
    wall_ms: int
    files: tuple[ManifestFile, ...]

    @property
    def size(self) -> int:
        """Bytes, all files together."""
        return sum(file.size for file in self.files)

    def in_place(self, name: str) -> bool:
        """Whether the program may write this file in place, so that a copy must be a copy."""
        return not self.prefix or self._file_set.in_place(name)

    @property
    def _file_set(self) -> FileSet:
        return require_set(self.prefix, [file.name for file in self.files])


def hex_crc32c(value: int) -> str:
    """The spelling of a checksum in manifests and records."""
    return f"{value:08x}"


def crc32c_of_bytes(data: bytes) -> str:
    """The checksum of `data`, spelt as in records."""
    return hex_crc32c(google_crc32c.value(data))


def encode_manifest(manifest: Manifest) -> bytes:
    """The canonical JSON form; equal manifests give equal bytes."""
    body = {
        "version": VERSION,
        "job_uuid": manifest.job_uuid,
        "job": manifest.job,
        "ref": _plain_ref(manifest.ref),
        "parent": _plain_ref(manifest.parent),
        "node": manifest.node,
        "incarnation": manifest.incarnation,
        "prefix": manifest.prefix,
        "wall_ms": manifest.wall_ms,
        "files": [[file.name, file.size, file.crc32c] for file in manifest.files],
    }
    return json.dumps(body, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


def parse_manifest(raw: bytes) -> Manifest:
    """Read a manifest that may be damaged or hostile.

    Raises:
        BadCheckpoint: it is not a canonical manifest of this version.
        IncompatibleRecord: a newer release wrote it; says nothing about the checkpoint.
    """
    if len(raw) > MAX_MANIFEST_BYTES:
        raise BadCheckpoint(f"manifest has {len(raw)} bytes; at most {MAX_MANIFEST_BYTES} are allowed")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"manifest is not JSON: {str(error)[:200]}") from error
    fields = _Fields(body)
    version = fields.integer("version", 1, 1 << 31)
    if version > VERSION:
        raise IncompatibleRecord(
            f"manifest has version {version}; this release reads up to {VERSION}: upgrade"
        )
    ref = fields.ref("ref")
    if ref is None:
        fields.wrong("ref")
    manifest = Manifest(
        job_uuid=fields.text("job_uuid"),
        job=fields.text("job"),
        ref=ref,
        parent=fields.ref("parent"),
        node=fields.text("node"),
        incarnation=fields.text("incarnation"),
        prefix=fields.prefix(),
        wall_ms=fields.integer("wall_ms", 0, _MAX_SIZE),
        files=fields.files(),
    )
    if manifest.prefix:
        require_set(manifest.prefix, [file.name for file in manifest.files])
    if encode_manifest(manifest) != raw:
        raise BadCheckpoint("manifest is not in canonical form: unknown, repeated or unsorted fields")
    return manifest


def check_file_name(name: str, most_parts: int = 1) -> str:
    """Return the name, or raise UserError: a short path, and none that this project uses itself."""
    if len(split_path(name)) > most_parts or name in {MANIFEST_FILE, STATE_FILE}:
        raise UserError(f"{name!r} cannot be a file of a checkpoint")
    return name


class _Fields:
    """Typed, bounded access to parsed JSON; every failure is a BadCheckpoint that names the field."""

    def __init__(self, body: object) -> None:
        if not isinstance(body, dict):
            raise BadCheckpoint(f"manifest is a JSON {type(body).__name__}, not an object")
        self._body = body

    def wrong(self, name: str) -> NoReturn:
        value = repr(self._body.get(name))
        raise BadCheckpoint(f"manifest field {name!r} is wrong: {value[:80]}")

    def integer(self, name: str, low: int, high: int) -> int:
        value = self._body.get(name)
        if type(value) is not int or not low <= value <= high:
            self.wrong(name)
        return value

    def text(self, name: str) -> str:
        value = self._body.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT or not value.isprintable():
            self.wrong(name)
        return value

    def prefix(self) -> str:
        return self.text("prefix") if self._body.get("prefix") else ""

    def ref(self, name: str) -> CheckpointRef | None:
        value = self._body.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2:
            self.wrong(name)
        generation, step = value
        if type(generation) is not int or type(step) is not int:
            self.wrong(name)
        if not (0 <= generation <= _MAX_GENERATION and 0 <= step <= _MAX_STEP):
            self.wrong(name)
        return CheckpointRef(generation, step)

    def files(self) -> tuple[ManifestFile, ...]:
        value = self._body.get("files")
        if not isinstance(value, list) or not 0 < len(value) <= MAX_FILES:
            self.wrong("files")
        found = tuple(self._file(item) for item in value)
        names = [file.name for file in found]
        if names != sorted(set(names)):
            raise BadCheckpoint("manifest files are not sorted by name, or a name is repeated")
        return found

    def _file(self, item: object) -> ManifestFile:
        if not isinstance(item, list) or len(item) != 3:
            self.wrong("files")
        name, size, crc = item
        if not isinstance(name, str) or type(size) is not int or not isinstance(crc, str):
            self.wrong("files")
        if not 0 <= size <= _MAX_SIZE or len(crc) != 8 or not _HEX.issuperset(crc):
            self.wrong("files")
        try:
            return ManifestFile(check_file_name(name, 1 if self.prefix() else MAX_DEPTH), size, crc)
        except UserError as error:
            raise BadCheckpoint(f"manifest file name is not allowed: {error}") from error


def _plain_ref(ref: CheckpointRef | None) -> list[int] | None:
    return None if ref is None else [ref.generation, ref.step]
