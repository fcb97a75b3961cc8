"""The manifest: the list of a checkpoint's files, kept beside them. Pure.

It is JSON that an operator can read without a tool, in one canonical form: equal manifests are equal bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NoReturn

import google_crc32c

from recovery.formats.paths import split_path
from recovery.formats.tf_files import STATE_FILE, complete_set, is_shard, render_state, require_set
from supervisor.contract.bounds import STEPS
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import BadCheckpoint, IncompatibleRecord, UserError
from supervisor.contract.job.file_pattern import MAX_DEPTH

MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20
MAX_FILES = 4096
VERSION = 2
_MAX_SIZE = 1 << 62
_MAX_GENERATION = 10**8 - 1
_MAX_STEP = STEPS - 1
MAX_TEXT = 512
_MAX_WALL_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""

_MAX_TENSORS = 1 << 30
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, order=True)
class ManifestFile:
    """One file of a checkpoint; `crc32c` is 8 hex digits."""

    name: str
    size: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint's job, generation, step and saver, and the checksum of every file.

    `parent` is the generation's base.

    `wall_ms` is for people. In version 1 the files, sorted by name, are exactly one TensorFlow checkpoint
    called `prefix`, and a state file that names it belongs beside them; without a prefix they are the
    program's own, and their names are paths. In version 2 names are always paths, and the files are all that
    there is, TensorFlow's state files too: one checkpoint or several; training goes on from `prefix`.

    Attributes:
        tensors: the number of tensors in the files, each verified; 0 for files that are not a tensor bundle.
        tf_version: the version of the TensorFlow that saved it; empty if unknown.
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
    tensors: int = 0
    tf_version: str = ""
    version: int = 1

    @property
    def size(self) -> int:
        """The size of all files together, in bytes."""
        return sum(file.size for file in self.files)

    def in_place(self, name: str) -> bool:
        """Whether the program may write this file in place. Such a file is copied, not linked."""
        return not self.prefix or not is_shard(name)

    @property
    def state(self) -> bytes:
        """The content of the state file that belongs beside the files; empty if none is added to them."""
        return render_state(self.prefix) if self.version == 1 and self.prefix else b""

    @property
    def bundles(self) -> tuple[str, ...]:
        """The prefixes of all its TensorFlow checkpoints; none for a program's own files."""
        if self.version == 1 or not self.prefix:
            return (self.prefix,) if self.prefix else ()
        names = {file.name for file in self.files}
        found = (name.removesuffix(".index") for name in sorted(names) if name.endswith(".index"))
        return tuple(prefix for prefix in found if complete_set(prefix, names) is not None)


def hex_crc32c(value: int) -> str:
    """The spelling of a checksum in manifests and records."""
    return f"{value:08x}"


def crc32c_of_bytes(data: bytes) -> str:
    """The checksum of `data`, spelt as in records."""
    return hex_crc32c(google_crc32c.value(data))


def encode_manifest(manifest: Manifest) -> bytes:
    """The canonical form. Raises BadCheckpoint for a manifest that `parse_manifest` would refuse."""
    raw = _render(manifest)
    if _read(raw) != manifest:
        raise BadCheckpoint("it has a name, size or number that a manifest cannot hold")
    return raw


def _render(manifest: Manifest) -> bytes:
    body = {
        "version": manifest.version,
        "job": manifest.job,
        "job_uuid": manifest.job_uuid,
        "generation": manifest.ref.generation,
        "step": manifest.ref.step,
        "parent": _plain_ref(manifest.parent),
        "saved_at": utc_text(manifest.wall_ms),
        "wall_ms": manifest.wall_ms,
        "node": manifest.node,
        "incarnation": manifest.incarnation,
        "tensorflow": manifest.tf_version,
        "prefix": manifest.prefix,
        "tensors": manifest.tensors,
        "bytes": manifest.size,
    }
    files = [{"name": file.name, "size": file.size, "crc32c": file.crc32c} for file in manifest.files]
    return _in_lines(body, "files", files).encode()


def _in_lines(body: dict[str, object], last: str, items: list[dict[str, object]]) -> str:
    """A JSON object with a line for each field, and for each item of its last one, a list."""
    fields = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in body.items()]
    rows = ",\n".join(f"    {json.dumps(item)}" for item in items)
    return ",\n".join(["{\n" + fields[0], *fields[1:], f"  {json.dumps(last)}: [\n{rows}\n  ]\n}}\n"])


def parse_manifest(raw: bytes) -> Manifest:
    """Read a manifest that may be damaged or hostile.

    Raises:
        BadCheckpoint: it is not a canonical manifest of this version.
        IncompatibleRecord: a newer release wrote it; the checkpoint may be good.
    """
    manifest = _read(raw)
    if _render(manifest) != raw:
        raise BadCheckpoint("manifest is not in canonical form: unknown, repeated or unsorted fields")
    return manifest


def _read(raw: bytes) -> Manifest:
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
    manifest = Manifest(
        job_uuid=fields.text("job_uuid"),
        job=fields.text("job"),
        ref=fields.ref(),
        parent=fields.parent(),
        node=fields.text("node"),
        incarnation=fields.text("incarnation"),
        prefix=fields.text_or_none("prefix"),
        wall_ms=fields.integer("wall_ms", 0, _MAX_WALL_MS),
        files=fields.files(),
        tensors=fields.integer("tensors", 0, _MAX_TENSORS),
        tf_version=fields.text_or_none("tensorflow"),
        version=version,
    )
    names = [file.name for file in manifest.files]
    if manifest.prefix and version == 1:
        require_set(manifest.prefix, names)
    elif manifest.prefix and complete_set(manifest.prefix, names) is None:
        raise BadCheckpoint(f"checkpoint {manifest.prefix!r} lacks its index or a data file")
    elif not manifest.prefix and version > 1 and STATE_FILE not in names:
        raise BadCheckpoint("manifest has version 2, and says nothing that needs it")
    return manifest


def utc_text(wall_ms: int) -> str:
    """A time of the wall clock for people: ISO 8601, in UTC, to the second."""
    seconds = wall_ms // 1000
    days, second = divmod(seconds, 86_400)
    # Days are counted from 1 March of the year 0, so that a leap day is the last of its year.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    date = day - (153 * month + 2) // 5 + 1
    number = month + 3 if month < 10 else month - 9
    clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"{era * 400 + year + (number <= 2):04d}-{number:02d}-{date:02d}T{clock}Z"


def check_file_name(name: str, most_parts: int = MAX_DEPTH, version: int = VERSION) -> str:
    """Return the name, or raise UserError: a short path, and none that this project uses itself."""
    kept = {MANIFEST_FILE, STATE_FILE} if version == 1 else {MANIFEST_FILE}
    if len(split_path(name)) > most_parts or name in kept:
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
        if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable():
            self.wrong(name)
        return value

    def text_or_none(self, name: str) -> str:
        return "" if self._body.get(name) == "" else self.text(name)

    def ref(self) -> CheckpointRef:
        return CheckpointRef(
            self.integer("generation", 0, _MAX_GENERATION), self.integer("step", 0, _MAX_STEP)
        )

    def parent(self) -> CheckpointRef | None:
        value = self._body.get("parent")
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong("parent")
        return _Fields(value).ref()

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
        if not isinstance(item, dict):
            self.wrong("files")
        name, size, crc = item.get("name"), item.get("size"), item.get("crc32c")
        if not isinstance(name, str) or type(size) is not int or not isinstance(crc, str):
            self.wrong("files")
        if not 0 <= size <= _MAX_SIZE or len(crc) != 8 or not _HEX.issuperset(crc):
            self.wrong("files")
        version = self.integer("version", 1, VERSION)
        flat = version == 1 and self._body.get("prefix")
        try:
            return ManifestFile(check_file_name(name, 1 if flat else MAX_DEPTH, version), size, crc)
        except UserError as error:
            raise BadCheckpoint(f"manifest file name is not allowed: {error}") from error


def _plain_ref(ref: CheckpointRef | None) -> dict[str, int] | None:
    return None if ref is None else {"generation": ref.generation, "step": ref.step}
