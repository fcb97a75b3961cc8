"""Files of a real TensorFlow: read as TensorFlow reads them, and any flipped or missing byte is found."""

from __future__ import annotations

import fcntl
import json
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import pytest

from chaos.bundles import Value, bundle, mask, plain, strings, variants
from recovery.commit.verify import verify_bundle, verify_files
from recovery.formats.bundle import STRING, VARIANT, read_index
from recovery.formats.manifest import ManifestFile, hex_crc32c
from recovery.io.files import crc32c_of_file
from supervisor.contract.errors import BadCheckpoint

SCRIPT = Path(__file__).with_name("real_checkpoints.py")
REPOSITORY = SCRIPT.parents[2]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
Description = dict[str, tuple[int, list[int], int | None]]


@dataclass(frozen=True, slots=True)
class Real:
    """Checkpoints that TensorFlow saved: kind -> (prefix, what TensorFlow reads in it)."""

    root: Path
    version: str
    bundles: dict[str, tuple[str, Description]]


def save_all(root: Path, huge_mib: int, *kinds: str) -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(root), str(huge_mib), *kinds]
    subprocess.run(
        command, check=True, env={**os.environ, **QUIET, "PYTHONPATH": str(REPOSITORY)}, timeout=280
    )


def read_back(root: Path) -> Real:
    found = json.loads((root / "expected.json").read_text())
    return Real(root, found["version"], found["bundles"])


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    """Made once, by whichever worker comes first."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    root = shared / "real-checkpoints"
    with (shared / "real-checkpoints.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "expected.json").exists():
            save_all(root, 32)
    return read_back(root)


BUNDLES = {
    "blocks": 3000,
    "empty": 4,
    "huge": 2,
    "iterator": 3,
    "many": 200,
    "max-shard": 4,
    "names": 3,
    "only-empty": 1,
    "saved-model/export/variables": 9,
    "sharded": 6,
    "slices": 3,
    "small": 3,
    "strings": 3,
    "tf1": 5,
    "tf2": 19,
    "types": 20,
}


def test_every_kind_was_made(real: Real) -> None:
    assert {kind: len(expected) for kind, (_, expected) in real.bundles.items()} == BUNDLES


@pytest.mark.parametrize("kind", BUNDLES)
def test_it_is_read_as_tensorflow_reads_it(real: Real, kind: str) -> None:
    prefix, expected = real.bundles[kind]
    summary = verify_bundle(real.root / kind, prefix)
    found = {tensor.name: (tensor.dtype, list(tensor.shape)) for tensor in summary.bundle.tensors}
    assert found == {name: (dtype, shape) for name, (dtype, shape, _) in expected.items()}
    for piece in summary.bundle.pieces:
        if piece.name in expected and expected[piece.name][2] is not None:
            assert piece.crc32c == expected[piece.name][2], piece.name
    for file in summary.files:
        assert (file.size, int(file.crc32c, 16)) == crc32c_of_file(real.root / kind / file.name)
    assert {file.name for file in summary.files} == {
        path.name for path in (real.root / kind).iterdir() if path.suffix not in {".meta", ""}
    }


def test_what_the_kinds_are_there_for(real: Real) -> None:
    """Each has in it what it is to try."""

    def index(kind: str) -> bytes:
        return (real.root / kind / f"{real.bundles[kind][0]}.index").read_bytes()

    assert read_index(index("sharded")).num_shards == 2
    assert {piece.shard for piece in read_index(index("sharded")).pieces} == {0, 1}
    assert {piece.shard for piece in read_index(index("max-shard")).pieces} == {0, 1, 2}
    for kind in ("slices", "tf1", "sharded", "max-shard"):
        assert [piece.name for piece in read_index(index(kind)).pieces if "[" in piece.name]
    assert VARIANT in {piece.dtype for piece in read_index(index("iterator")).pieces}
    assert STRING in {piece.dtype for piece in read_index(index("tf2")).pieces}
    assert {piece.size for piece in read_index(index("only-empty")).pieces} == {0}
    assert len(index("blocks")) > 1 << 19, "it has several blocks"


def test_a_checkpoint_as_the_agent_takes_it(real: Real) -> None:
    for kind in ("tf1", "sharded"):
        prefix = real.bundles[kind][0]
        names = [path.name for path in (real.root / kind).iterdir() if path.name != "checkpoint"]
        verified = verify_files(real.root / kind, prefix, names)
        assert verified.tf_version == real.version
        assert verified.tensors == BUNDLES[kind]
        assert [file.name for file in verified.files] == sorted(names)
        without_meta = [name for name in names if not name.endswith(".meta")]
        assert verify_files(real.root / kind, prefix, without_meta).tf_version == ""
        with pytest.raises(BadCheckpoint, match="lacks its index or a data file"):
            verify_files(real.root / kind, prefix, names[1:] if "data" in names[0] else [names[0]])


def test_files_of_keras_and_a_saved_model(real: Real) -> None:
    for kind, tensors, version in (
        ("keras", 0, ""),
        ("keras-weights", 0, ""),
        ("saved-model", 9, real.version),
    ):
        root = real.root / kind
        names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
        verified = verify_files(root, "", names)
        assert (verified.tensors, verified.tf_version) == (tensors, version)
        assert [file.name for file in verified.files] == sorted(names)


# Damage.

SMALL = ("small", "slices", "sharded", "only-empty")
LARGER = ("iterator", "max-shard", "types", "tf1", "tf2", "empty", "names", "saved-model/export/variables")


def damaged(data: bytes, *, every_bit: bool) -> Iterator[tuple[str, bytes]]:
    """Each byte flipped, each byte missing, each shorter length, and a byte more."""
    for at in range(len(data)):
        for bits in (1, 2, 4, 8, 16, 32, 64, 128, 255) if every_bit else (1 << at % 8,):
            yield f"byte {at} ^ {bits}", data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
        yield f"byte {at} missing", data[:at] + data[at + 1 :]
        yield f"cut at {at}", data[:at]
    for more in (b"\0", b"x"):
        yield "a byte more", data + more


def files_of(real: Real, kind: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in (real.root / kind).iterdir()
        if path.suffix == ".index" or ".data-" in path.name
    }


def unnoticed(originals: dict[str, bytes], prefix: str, scratch: Path, *, every_bit: bool) -> list[str]:
    """The damages of this checkpoint that are not found."""
    found = []
    for name, data in originals.items():
        (scratch / name).write_bytes(data)
    verify_bundle(scratch, prefix)
    for name, data in originals.items():
        for how, changed in damaged(data, every_bit=every_bit):
            (scratch / name).write_bytes(changed)
            try:
                verify_bundle(scratch, prefix)
            except BadCheckpoint:
                continue
            found.append(f"{name}: {how}")
        (scratch / name).write_bytes(data)
    return found


@pytest.mark.parametrize("kind", SMALL)
def test_any_flipped_or_missing_byte_is_found(real: Real, kind: str, tmp_path: Path) -> None:
    assert unnoticed(files_of(real, kind), real.bundles[kind][0], tmp_path, every_bit=False) == []


def test_any_flipped_or_missing_byte_of_strings_variants_and_padding_is_found(tmp_path: Path) -> None:
    texts, parts = strings([3], [b"ab", b"", b"c" * 130]), variants([2], [b"", b"variant"])
    shards = [{b"t": texts, b"v": parts}, {b"w": plain(4, [3], b"abc"), b"x": plain(4, [1], b"d")}]
    made = bundle("m-1", shards, alignment=8)
    assert unnoticed(made, "m-1", tmp_path, every_bit=True) == []


def wrong(dtype: int, elements: int, data: bytes, checked: bytes) -> Value:
    """A value whose entry agrees with it, whatever is in it."""
    return Value(dtype, (elements,), data, google_crc32c.value(checked))


def fixed(value: int, size: int = 4) -> bytes:
    return value.to_bytes(size, "little")


LENGTH = fixed(mask(google_crc32c.value(fixed(2))))
ELEMENT = fixed(2, 8) + b"ab"
ELEMENT_CRC = fixed(mask(google_crc32c.value(ELEMENT)))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(
            wrong(STRING, 1, b"\2" + LENGTH + b"ab", fixed(2) + LENGTH + b"ab"), "", id="a good string"
        ),
        pytest.param(
            wrong(VARIANT, 1, b"\2ab" + ELEMENT_CRC, ELEMENT + ELEMENT_CRC), "", id="a good variant"
        ),
        pytest.param(
            wrong(STRING, 1, b"\2" + LENGTH + b"ab" + b"more", fixed(2) + LENGTH + b"ab"),
            "longer or shorter",
            id="bytes behind the strings",
        ),
        pytest.param(
            wrong(STRING, 1, b"\3" + LENGTH + b"ab", fixed(2) + LENGTH + b"ab"),
            "longer or shorter",
            id="too few",
        ),
        pytest.param(
            wrong(STRING, 1, b"\2" + bytes(4) + b"ab", fixed(2) + bytes(4) + b"ab"),
            "checksum inside",
            id="a wrong checksum of the lengths",
        ),
        pytest.param(
            wrong(STRING, 10, b"\x80\1" * 7, b""), "fewer strings", id="fewer lengths than elements"
        ),
        pytest.param(wrong(STRING, 1, b"\x80" * 7, b""), "cut short", id="an endless length"),
        pytest.param(
            wrong(VARIANT, 1, b"\2ab" + ELEMENT_CRC + b"more", ELEMENT + ELEMENT_CRC),
            "shorter than it is",
            id="bytes behind the variants",
        ),
        pytest.param(
            wrong(VARIANT, 1, b"\3ab" + ELEMENT_CRC, ELEMENT + ELEMENT_CRC),
            "longer than it is",
            id="a long variant",
        ),
        pytest.param(
            wrong(VARIANT, 1, b"\2ab" + bytes(4), ELEMENT + bytes(4)), "checksum inside", id="a wrong variant"
        ),
    ],
)
def test_values_that_are_not_what_their_entry_says(value: Value, reason: str, tmp_path: Path) -> None:
    for name, data in bundle("m-1", [{b"v": value}]).items():
        (tmp_path / name).write_bytes(data)
    if not reason:
        assert verify_bundle(tmp_path, "m-1").bundle.pieces[0].dtype == value.dtype
        return
    with pytest.raises(BadCheckpoint, match=f"v: .*{reason}"):
        verify_bundle(tmp_path, "m-1")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "every_bit"), [*((k, True) for k in SMALL), *((k, False) for k in LARGER)])
def test_any_damage_to_any_kind_is_found(real: Real, kind: str, tmp_path: Path, every_bit: bool) -> None:
    prefix = real.bundles[kind][0]
    assert unnoticed(files_of(real, kind), prefix, tmp_path, every_bit=every_bit) == []


def random_damage(root: Path, prefix: str, tries: int) -> None:
    """Flip one byte somewhere in a data file, and put it back."""
    dice = random.Random(5)
    for path in sorted(root.glob(f"{prefix}.data-*")):
        size = path.stat().st_size
        with path.open("r+b", buffering=0) as file:
            for at in (0, 1, size - 1, *(dice.randrange(size) for _ in range(tries))):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1 << at % 8]))
                with pytest.raises(BadCheckpoint):
                    verify_bundle(root, prefix)
                file.seek(at)
                file.write(byte)
        os.truncate(path, size - 1)
        with pytest.raises(BadCheckpoint):
            verify_bundle(root, prefix)


def test_a_flipped_byte_in_a_large_file_is_found(real: Real, tmp_path: Path) -> None:
    for kind in ("huge", "strings", "many"):
        for path in (real.root / kind).iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        verify_bundle(tmp_path, "m-1")
        random_damage(tmp_path, "m-1", 20)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_huge_tensor(tmp_path: Path) -> None:
    save_all(tmp_path, 512, "shapes")
    summary = verify_bundle(tmp_path / "huge", "m-1")
    assert summary.files[1].size > 512 << 20
    assert {piece.name: piece.crc32c for piece in summary.bundle.pieces} == {
        name: crc for name, (_, _, crc) in read_back(tmp_path).bundles["huge"][1].items()
    }
    random_damage(tmp_path / "huge", "m-1", 20)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_an_archive_of_keras_is_found_to_be_damaged_or_holds_the_same(
    real: Real, tmp_path: Path, stride: int
) -> None:
    data = (real.root / "keras" / "m.keras").read_bytes()
    target = tmp_path / "m.keras"

    def members() -> dict[str, bytes]:
        with zipfile.ZipFile(target) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    target.write_bytes(data)
    whole, harmless = members(), 0
    places = {*range(0, len(data), stride), *range(len(data) - 400, len(data))}
    for at in sorted(places):
        target.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        try:
            verify_files(tmp_path, "", ["m.keras"])
        except BadCheckpoint:
            continue
        assert members() == whole, f"byte {at}"
        harmless += 1
    assert harmless < len(places) / 10, "only times, attributes and the like"
    for size in range(0, len(data), 7 * stride):
        target.write_bytes(data[:size])
        with pytest.raises(BadCheckpoint):
            verify_files(tmp_path, "", ["m.keras"])


def test_weights_that_are_cut_short(real: Real, tmp_path: Path) -> None:
    data = (real.root / "keras-weights" / "m.weights.h5").read_bytes()
    target = tmp_path / "m.weights.h5"
    for size in (*range(100), *range(100, len(data), 97), len(data) - 1):
        target.write_bytes(data[:size])
        with pytest.raises(BadCheckpoint):
            verify_files(tmp_path, "", [target.name])
    target.write_bytes(data + b"x")
    with pytest.raises(BadCheckpoint):
        verify_files(tmp_path, "", [target.name])


def test_the_checksums_of_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.bin").write_bytes(b"abc")
    (tmp_path / "b.bin").write_bytes(b"")
    verified = verify_files(tmp_path, "", ["sub/a.bin", "b.bin"])
    assert verified.files == (
        ManifestFile("b.bin", 0, hex_crc32c(0)),
        ManifestFile("sub/a.bin", 3, hex_crc32c(crc32c_of_file(tmp_path / "sub" / "a.bin")[1])),
    )
    with pytest.raises(BadCheckpoint, match="missing"):
        verify_files(tmp_path, "", ["c.bin"])
