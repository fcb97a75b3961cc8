"""The records of a program's directory in etcd: one for each archive, and the archive in chunks or its place
in the store of code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from supervisor.contract.codec import NEEDED

MIB = 1 << 20

MAX_PACKED_BYTES = 16 * MIB
"""Most bytes of one archive. etcd may hold it, so it is meant for programs, not for data."""

MAX_UNPACKED_BYTES = 128 * MIB
"""Most bytes of all files of an archive together."""

MAX_FILES = 10_000
"""Files, directories and links of an archive."""

MAX_PATH = 1024
"""Characters of a path in an archive, and of what a link names."""

MAX_PATH_PARTS = 64
"""Directories of a path in an archive, and the name in the last one."""

CHUNK_BYTES = 384 * 1024
"""Bytes of the archive in one chunk; in base64 that is 512 KiB of etcd's 1.5 MiB for a request."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_UPLOAD = re.compile(r"([0-9a-f]{64})\.[0-9A-Za-z-]+", re.ASCII)


def is_digest(text: str) -> bool:
    """Whether this is a sha256 in lower-case hex."""
    return _DIGEST.fullmatch(text) is not None


def chunk_count(size: int) -> int:
    """How many chunks an archive of `size` bytes has; at least one."""
    return max(1, -(-size // CHUNK_BYTES))


def chunk_size(size: int, index: int) -> int:
    """Bytes in chunk `index` of an archive of `size` bytes."""
    return min(CHUNK_BYTES, size - index * CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class ShippedCode:
    """An archive of code. Without `complete` it is being uploaded, and no job may refer to it.

    `complete` is written last, by a leader that has read all chunks back and found the digest in them.
    `store`: the URI of the store that holds the chunks; empty: etcd holds them. What counts for readers is
    the first chunk in etcd: an earlier release that rewrites this record leaves the field out.
    """

    digest: str
    size: int
    complete: bool = False
    store: str = ""


@dataclass(frozen=True, slots=True)
class StoredCode:
    """The place of an archive's chunks in the store of code: a directory that no other upload ever uses."""

    store: str
    directory: str

    def chunk(self, index: int) -> str:
        """The path of a chunk. In the order of their names the chunks are the archive."""
        return f"{self.directory}/{index:05d}"


@dataclass(frozen=True, slots=True)
class CodeChunk:
    """A piece of an archive, in base64; or, as its first piece, the place of all of them in a store."""

    data: str
    stored: StoredCode | None = field(default=None, metadata=NEEDED)


def answer_s(size: int) -> float:
    """The seconds in which a leader answers a call that reads back so many bytes of an archive.

    It then tells why it could not. A client waits longer.
    """
    return 6.0 + size / MIB


def upload_directory(cluster: str, digest: str, upload: str) -> str:
    """The directory of one upload, in that of its cluster, which is named by the cluster's UUID."""
    return f"{cluster}/{digest}.{upload}"


def digest_of(name: str) -> str:
    """The digest in the name of an upload's directory; empty for a foreign name."""
    found = _UPLOAD.fullmatch(name)
    return found[1] if found is not None else ""


@dataclass(frozen=True, slots=True)
class CodePart:
    """A request of the API: chunk `index` of the archive `digest` of `size` bytes, in base64.

    Sending one again does no harm. The last one ends the upload.
    """

    digest: str
    size: int
    index: int
    data: str

    @property
    def reads_back(self) -> int:
        """The bytes that are read back: all of them with the last chunk."""
        return self.size if self.index + 1 == chunk_count(self.size) else 0


@dataclass(frozen=True, slots=True)
class CodeState:
    """The answer: whether the whole archive is there, so that jobs may refer to it."""

    digest: str
    complete: bool
