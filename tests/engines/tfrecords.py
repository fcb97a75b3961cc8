"""Files of TFRecords, read as the format says."""

from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c

from recovery.formats.sstable import unmask


def read_records(path: Path) -> list[bytes]:
    """The records of a file: each has its length, the checksum of that, itself, and its checksum."""
    raw, found = path.read_bytes(), []
    while raw:
        (size, length_crc) = struct.unpack_from("<QI", raw)
        record = raw[12 : 12 + size]
        (crc,) = struct.unpack_from("<I", raw, 12 + size)
        assert (unmask(length_crc), unmask(crc)) == (
            google_crc32c.value(raw[:8]),
            google_crc32c.value(record),
        )
        found.append(record)
        raw = raw[16 + size :]
    return found
