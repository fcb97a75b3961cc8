"""Archives and HDF5 files: what tells that they are whole, and what damage is found."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from chaos.bundles import bundle, plain
from recovery.commit import archives
from recovery.commit.verify import Verified, verify_files
from recovery.formats.bundle import MAX_INDEX_BYTES
from recovery.formats.meta_graph import HEAD_BYTES as META_HEAD_BYTES
from recovery.formats.meta_graph import tf_version
from recovery.formats.soundness import (
    HEAD_BYTES,
    MAX_DIRECTORY_BYTES,
    TAIL_BYTES,
    directory_of,
    is_whole,
)
from supervisor.contract.errors import BadCheckpoint

HDF5 = """
import os, sys, h5py
name, version, how = sys.argv[1:]
file = h5py.File(name, "w", libver=version)
file["weights"] = list(range(1000))
file.flush()
if how == "killed":
    os._exit(0)
file.close()
"""


def verify(directory: Path, name: str, data: bytes) -> Verified:
    (directory / name).write_bytes(data)
    return verify_files(directory, "", [name])


def archive(kind: int, members: int = 3) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", kind) as file:
        for number in range(members):
            file.writestr(f"member-{number}", b"content %d " % number * 20)
    return data.getvalue()


@pytest.mark.parametrize("version", ["earliest", "v108", "v110", "latest"])
def test_an_hdf5_file_that_was_closed_is_whole_in_every_version(version: str, tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    subprocess.run([sys.executable, "-c", HDF5, str(path), version, "closed"], check=True)
    data = path.read_bytes()
    assert verify(tmp_path, "model.h5", data).tensors == 0
    for size in (0, 10, 63, len(data) // 2, len(data) - 1):
        with pytest.raises(BadCheckpoint, match="torn"):
            verify(tmp_path, "model.h5", data[:size])


@pytest.mark.parametrize("version", ["v108", "v110", "latest"])
def test_an_hdf5_file_whose_writer_was_killed_after_a_flush(version: str, tmp_path: Path) -> None:
    """Its length is right; that it was not closed is what it says."""
    path = tmp_path / "model.h5"
    subprocess.run([sys.executable, "-c", HDF5, str(path), version, "killed"], check=True)
    with pytest.raises(BadCheckpoint, match="torn"):
        verify_files(tmp_path, "", [path.name])


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_flipped_byte_of_an_archive_is_found_or_harmless(kind: int, tmp_path: Path) -> None:
    data = archive(kind)

    def members(raw: bytes) -> dict[str, bytes]:
        with zipfile.ZipFile(io.BytesIO(raw)) as file:
            return {name: file.read(name) for name in file.namelist()}

    assert verify(tmp_path, "a.zip", data).files[0].size == len(data)
    found = 0
    for at in range(len(data)):
        for mask in (1, 8, 64, 255):
            changed = data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
            try:
                verify(tmp_path, "a.zip", changed)
            except BadCheckpoint:
                found += 1
            else:
                assert members(changed) == members(data), at
    assert found > len(data)


def test_an_archive_that_does_not_name_all_its_members(tmp_path: Path) -> None:
    data = archive(zipfile.ZIP_STORED)
    end = len(data) - 22
    fewer = data[: end + 8] + struct.pack("<HH", 2, 2) + data[end + 12 :]
    with pytest.raises(BadCheckpoint, match="names 3 members, not 2"):
        verify(tmp_path, "a.npz", fewer)


def test_an_archive_with_a_list_that_would_fill_the_memory(tmp_path: Path) -> None:
    data = archive(zipfile.ZIP_STORED)
    end, size = len(data) - 22, MAX_DIRECTORY_BYTES + 1
    claims = data[: end + 12] + struct.pack("<I", size) + data[end + 16 :]
    with pytest.raises(BadCheckpoint, match=r"torn|at most"):
        verify(tmp_path, "a.keras", claims)
    path = tmp_path / "b.keras"
    with path.open("wb") as file:
        file.seek(size)
        file.write(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 3, 3, size, 0, 0))
    with pytest.raises(BadCheckpoint, match="at most"):
        verify_files(tmp_path, "", [path.name])


def with_list(data: bytes, entries: list[bytes]) -> bytes:
    """The archive with another list of members."""
    at = struct.unpack("<I", data[-6:-2])[0]
    listed = b"".join(entries)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, len(entries), len(entries), len(listed), at, 0)
    return data[:at] + listed + end


def test_members_that_overlap_are_refused_and_not_unpacked(tmp_path: Path) -> None:
    """66 KB that unpack to 1.28 GiB: a thousand members share their bytes."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", bytes(1 << 20))
    raw = data.getvalue()
    entry = raw[struct.unpack("<I", raw[-6:-2])[0] : -22]
    bomb = with_list(raw, [entry] * 1280)
    assert len(bomb) < 70_000
    began_s = time.thread_time()
    with pytest.raises(BadCheckpoint, match="'a' overlaps with what follows it"):
        verify(tmp_path, "a.keras", bomb)
    assert time.thread_time() - began_s < 0.5


def test_of_what_unpacks_to_far_more_than_it_has_the_first_members_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MOST_MORE", 1 << 20)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for name in "abcd":
            file.writestr(name, bytes(600_000))
    raw, looks = data.getvalue(), list[int]()
    (tmp_path / "a.keras").write_bytes(raw)
    verify_files(tmp_path, "", ["a.keras"], lambda: looks.append(1))
    assert len(looks) == 2, "the file itself, and the one member that fits"


def test_a_hidden_list_that_would_fill_the_memory_is_seen(tmp_path: Path) -> None:
    """`zipfile` believes the record for large archives also where nothing says that there is one."""
    size = MAX_DIRECTORY_BYTES + 1
    record = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 3, 3, size, 0)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, size, 1)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 3, 3, 100, 0, 0)
    with (tmp_path / "a.keras").open("wb") as file:
        file.seek(size)
        file.write(record + locator + end)
    with pytest.raises(BadCheckpoint, match="at most"):
        verify_files(tmp_path, "", ["a.keras"])


def test_members_that_nobody_here_can_unpack_are_not_bad(tmp_path: Path) -> None:
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        assert verify(tmp_path, "a.zip", archive(kind)).files
    data = archive(zipfile.ZIP_STORED, members=1)
    listed = data.index(b"PK\x01\x02")
    for at, bits in ((6, 1), (8, 97)):
        change = bytearray(data)
        change[at], change[listed + at + 2] = bits, bits
        assert verify(tmp_path, "a.zip", bytes(change)).files
        change[at] = 0
        with pytest.raises(BadCheckpoint, match="header"):
            verify(tmp_path, "a.zip", bytes(change))


def test_archives_of_more_than_four_gib() -> None:
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    record = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 70_000, 70_000, 5_000_000, 1 << 33)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, 1 << 34, 1)
    assert directory_of(b"x" * 100 + record + locator + end) == (70_000, 5_000_000)
    assert directory_of(end)[1] == 0xFFFFFFFF
    with pytest.raises(ValueError, match="no end"):
        directory_of(end[:-1])


def test_an_archive_of_very_many_members(tmp_path: Path) -> None:
    assert verify(tmp_path, "a.zip", archive(zipfile.ZIP_STORED, members=66_000)).files


def test_json_that_is_too_long_to_be_parsed_is_judged_by_its_end(tmp_path: Path) -> None:
    data = json.dumps({"words": [f"word-{number}" for number in range(20_000)]}).encode()
    assert len(data) > TAIL_BYTES
    assert is_whole("tokenizer.json", len(data), data[:HEAD_BYTES], data[-TAIL_BYTES:]) is None
    assert verify(tmp_path, "tokenizer.json", data + b"\n").files
    with pytest.raises(BadCheckpoint, match="torn"):
        verify(tmp_path, "tokenizer.json", data[:-5])


def test_the_index_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """Only one with the data files of a tensor bundle beside it is read as a bundle's."""
    assert verify(tmp_path, "vectors.index", b"not a table").tensors == 0
    saved = bundle("export/variables/variables", [{b"w": plain(4, [3], b"abc")}])
    (tmp_path / "export" / "variables").mkdir(parents=True)
    for name, data in saved.items():
        (tmp_path / name).write_bytes(data)
    names = [*saved, "vectors.index"]
    verified = verify_files(tmp_path, "", names)
    assert (verified.tensors, [file.name for file in verified.files]) == (1, sorted(names))
    (data_name,) = (name for name in saved if "data" in name)
    (tmp_path / data_name).write_bytes(b"abd")
    with pytest.raises(BadCheckpoint, match="w: its checksum is wrong"):
        verify_files(tmp_path, "", names)


def test_data_files_that_the_index_does_not_name(tmp_path: Path) -> None:
    """Two are there, whole by their names, and the index is that of another save with one."""
    one, two = bundle("m-1", [{}]), bundle("m-1", [{}, {}])
    for name, data in {**two, **one}.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(BadCheckpoint, match="names 1 data files"):
        verify_files(tmp_path, "m-1", list(two))


def test_links_and_directories_are_not_files(tmp_path: Path) -> None:
    (tmp_path / "real.bin").write_bytes(b"x")
    (tmp_path / "link.bin").symlink_to("real.bin")
    (tmp_path / "directory.bin").mkdir()
    for name in ("link.bin", "directory.bin"):
        with pytest.raises(OSError, match=r"symbolic links|Is a directory"):
            verify_files(tmp_path, "", [name])
    os.mkfifo(tmp_path / "m-1.index")
    (tmp_path / "m-1.data-00000-of-00001").write_bytes(b"")
    with pytest.raises(BadCheckpoint, match=r"m-1\.index"):
        verify_files(tmp_path, "m-1", ["m-1.index", "m-1.data-00000-of-00001"])


def test_work_that_nobody_waits_for_any_more_ends(tmp_path: Path) -> None:
    files = bundle("m-1", [{b"w": plain(4, [5 << 20], bytes(5 << 20))}])
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    seen: list[int] = []

    class GoneError(Exception):
        pass

    def go_on() -> None:
        if len(seen) == 3:
            raise GoneError

    with pytest.raises(GoneError):
        verify_files(tmp_path, "m-1", list(files), go_on, seen.append)
    assert sum(seen) < len(files["m-1.index"]) + (3 << 20)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    files = bundle("m-1", [{b"w": plain(4, [5 << 20], bytes(5 << 20))}])
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (data_name,) = (name for name in files if "data" in name)

    def cut() -> None:
        os.truncate(tmp_path / data_name, 2 << 20)

    with pytest.raises(BadCheckpoint, match="ends at byte 2097152"):
        verify_files(tmp_path, "m-1", list(files), cut)


def test_an_index_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    for name, data in bundle("m-1", [{}]).items():
        (tmp_path / name).write_bytes(data)
    os.truncate(tmp_path / "m-1.index", MAX_INDEX_BYTES + 1)
    with pytest.raises(BadCheckpoint, match="at most"):
        verify_files(tmp_path, "m-1", ["m-1.index", "m-1.data-00000-of-00001"])


def message(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2, len(value)]) + value


def test_the_version_in_a_meta_graph() -> None:
    graph = message(1, b"\x08\x01" + message(2, b"operators") + message(5, b"1.15.5") + message(6, b"v1"))
    assert tf_version("m-1.meta", graph + message(2, b"graph")) == "1.15.5"
    assert tf_version("m-1.meta", graph[:-4]) == ""
    for schema in (b"", b"\x08\x01"):
        assert tf_version("export/saved_model.pb", schema + message(2, graph)) == "1.15.5"
    for other in (
        b"",
        b"\x0a",
        message(2, b""),
        message(1, b""),
        message(1, b"\xff"),
        bytes(META_HEAD_BYTES),
    ):
        assert tf_version("m-1.meta", other) == ""
        assert tf_version("saved_model.pb", other) == ""
    for hostile in (b"\x1b[2J", b"x" * 65, b"\xff"):
        assert tf_version("m-1.meta", message(1, message(5, hostile))) in {"", "\ufffd"}
