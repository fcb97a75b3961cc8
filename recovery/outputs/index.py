"""The index of a task's outputs in the store, and the join of changes by two writers.

The store replaces nothing. A file is a sequence of pieces; a file that grows gets one more piece, and small
pieces at its end are sent again as one, so that their number stays logarithmic. Each change writes the next
index, under a name that can be taken once. Of two writers one gets a conflict, reads the other's index, and
joins both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from recovery.formats.crc32c import joined
from supervisor.contract import codec
from supervisor.contract.errors import IncompatibleRecord

OUTPUTS = ".outputs"
INDEX, PIECES = "index", "pieces"
PIECE_BYTES = 256 << 20
"""Size of a piece in bytes. A larger file is sent in several, so that a broken transfer repeats only the last
one."""
MAX_FILES = 10_000
MAX_DEPTH = 32
MAX_PATH_BYTES = 1024
MAX_INDEX_BYTES = 32 << 20
MAX_NAMED = 20
"""Most names of left-out files in an index; the others are only counted."""
_MEMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\.[0-9]{1,6}", re.ASCII)
_PIECE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,120}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file: `size` of them from `offset`, in the store under `name`."""

    name: str
    offset: int
    size: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file.

    Attributes:
        modified_ms: the time of the program's last write, on the wall clock of its node.
        version: changes when the file is sent anew, and stays while it only grows.
        generation, attempt: of the attempt that wrote it.
    """

    size: int
    modified_ms: int
    version: str
    pieces: tuple[Piece, ...]
    generation: int = 0
    attempt: int = 0

    @property
    def writer(self) -> tuple[int, int]:
        """Attempts of a task in their order."""
        return self.generation, self.attempt

    def is_same(self, other: OutputFile | None) -> bool:
        """Whether both have the same bytes."""
        return other is not None and (self.version, self.size) == (other.version, other.size)


@dataclass(frozen=True, slots=True)
class OutputIndex:
    """All files of a task.

    Attributes:
        serial: its number and name; the highest one is valid.
        writing: `attempt` may still write, and its node may have more to send.
        node: the node of that attempt.
        left_out: path -> reason; at most `MAX_NAMED` of them.
        left_out_count: the number of all left-out files.
    """

    job: str
    member: str
    serial: int
    files: dict[str, OutputFile] = field(default_factory=dict)
    node: str = ""
    generation: int = 0
    attempt: int = 0
    writing: bool = False
    left_out: dict[str, str] = field(default_factory=dict)
    left_out_count: int = 0

    @property
    def writer(self) -> tuple[int, int]:
        """The newest attempt that has sent anything."""
        return self.generation, self.attempt

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a writer makes to the index.

    Attributes:
        files: path -> its new state.
        base: path -> the state that this writer knew to be in the store, for the paths in `files` and `gone`.
        gone: paths of files that the program has removed.
    """

    node: str
    generation: int
    attempt: int
    writing: bool
    files: Mapping[str, OutputFile]
    base: Mapping[str, OutputFile]
    gone: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def writer(self) -> tuple[int, int]:
        """The attempt that wrote it."""
        return self.generation, self.attempt


def joined_index(index: OutputIndex, change: Change) -> tuple[OutputIndex, tuple[str, ...]]:
    """The next index, and the paths for which a later attempt has written another state meanwhile.

    Those stay as the later attempt wrote them.
    """
    files, late = dict(index.files), []
    for path, file in change.files.items():
        found, base = files.get(path), change.base.get(path)
        if found is None or found.is_same(base) or change.writer >= found.writer:
            files[path] = file
        elif not found.is_same(file):
            late.append(path)
    for path in change.gone:
        found = files.get(path)
        if found is not None and found.is_same(change.base.get(path)):
            del files[path]
    result = replace(index, serial=index.serial + 1, files=files)
    if change.writer >= index.writer:
        result = replace(
            result,
            node=change.node,
            generation=change.generation,
            attempt=change.attempt,
            writing=change.writing,
            left_out=dict(list(change.left_out.items())[:MAX_NAMED]),
            left_out_count=len(change.left_out),
        )
    return result, tuple(late)


def pieces_kept(pieces: tuple[Piece, ...], size: int) -> tuple[Piece, ...]:
    """The pieces that stay when the file has grown to `size`. The bytes after them are sent.

    A piece is sent again if it is no larger than the bytes after it. So each byte is sent at most once per
    doubling of the file's size, and the number of pieces stays small.
    """
    kept = list(pieces)
    while kept and kept[-1].size < PIECE_BYTES and kept[-1].size <= size - kept[-1].offset - kept[-1].size:
        kept.pop()
    return tuple(kept)


def directory_of(job_uuid: str, member: str) -> str:
    """The directory of a task's outputs, below the root of the store."""
    return f"{OUTPUTS}/{job_uuid}/{member}"


def index_name(serial: int) -> str:
    """The name of an index; names sort by serial."""
    return f"{serial:010d}"


def is_member(name: str) -> bool:
    """Whether this is the name of a task's directory."""
    return _MEMBER.fullmatch(name) is not None


def path_objection(path: str) -> str:
    """The reason to leave out a file of this path below an output directory; empty if it is taken."""
    parts = path.split("/")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "its name is not valid UTF-8"
    if size > MAX_PATH_BYTES:
        return f"its path is longer than {MAX_PATH_BYTES} bytes"
    if len(parts) > MAX_DEPTH:
        return f"it is more than {MAX_DEPTH} directories deep"
    if any(part in {"", ".", ".."} for part in parts):
        return "its path has an empty part, '.' or '..'"
    return "its name has a control character" if _CONTROL.search(path) else ""


def encode_index(index: OutputIndex) -> bytes:
    """The index as it is stored."""
    return codec.encode(index)


def parse_index(raw: bytes) -> OutputIndex:
    """Read an index. Another writer of the store may have written anything, so every path is checked.

    Raises IncompatibleRecord.
    """
    index = codec.decode(OutputIndex, raw)
    if not is_member(index.member):
        raise IncompatibleRecord(f"an index of outputs is of {index.member[:80]!r}, which is no task")
    if len(index.files) > MAX_FILES:
        raise IncompatibleRecord(f"an index of outputs names {len(index.files)} files, more than {MAX_FILES}")
    for path, file in index.files.items():
        if objection := path_objection(path):
            raise IncompatibleRecord(f"an index of outputs names {json.dumps(path)[:200]}: {objection}")
        end = 0
        for piece in file.pieces:
            if piece.offset != end or piece.size < 0 or not _PIECE.fullmatch(piece.name):
                raise IncompatibleRecord(f"an index of outputs has wrong pieces of {path[:200]!r}")
            end += piece.size
        if end != file.size:
            raise IncompatibleRecord(f"an index of outputs has {end} of {file.size} bytes of {path[:200]!r}")
    return index


def crc_of_pieces(file: OutputFile) -> int:
    """The crc32c of all its bytes, computed from its pieces."""
    return joined((piece.size, piece.crc32c) for piece in file.pieces)
