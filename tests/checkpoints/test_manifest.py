"""The manifest: what an operator reads, and what nobody may make us believe."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.formats.manifest import (
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    Manifest,
    ManifestFile,
    encode_manifest,
    parse_manifest,
    utc_text,
)
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import BadCheckpoint, IncompatibleRecord

MANIFEST = Manifest(
    job_uuid="u" * 32,
    job="digits",
    ref=CheckpointRef(3, 120),
    parent=CheckpointRef(2, 80),
    node="n1",
    incarnation="i" * 32,
    prefix="model.ckpt-120",
    wall_ms=1_700_000_000_000,
    files=(
        ManifestFile("model.ckpt-120.data-00000-of-00001", 1000, "0badcafe"),
        ManifestFile("model.ckpt-120.index", 10, "00000000"),
        ManifestFile("model.ckpt-120.meta", 99, "ffffffff"),
    ),
    tensors=14,
    tf_version="2.21.0",
)
READABLE = """\
{
  "version": 1,
  "job": "digits",
  "job_uuid": "uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu",
  "generation": 3,
  "step": 120,
  "parent": {"generation": 2, "step": 80},
  "saved_at": "2023-11-14T22:13:20Z",
  "wall_ms": 1700000000000,
  "node": "n1",
  "incarnation": "iiiiiiiiiiiiiiiiiiiiiiiiiiiiiiii",
  "tensorflow": "2.21.0",
  "prefix": "model.ckpt-120",
  "tensors": 14,
  "bytes": 1109,
  "files": [
    {"name": "model.ckpt-120.data-00000-of-00001", "size": 1000, "crc32c": "0badcafe"},
    {"name": "model.ckpt-120.index", "size": 10, "crc32c": "00000000"},
    {"name": "model.ckpt-120.meta", "size": 99, "crc32c": "ffffffff"}
  ]
}
"""
TWICE = '    {"name": "model.ckpt-120.index", "size": 10, "crc32c": "00000000"}'
Change = Callable[[str], str]


def put(field: str, value: object) -> Change:
    """A change of one field's line."""

    def change(text: str) -> str:
        lines = text.split("\n")
        (at,) = (number for number, line in enumerate(lines) if line.startswith(f'  "{field}": '))
        lines[at] = f'  "{field}": {json.dumps(value)},'
        return "\n".join(lines)

    return change


def swap(old: str, new: str) -> Change:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return change


def test_an_operator_can_read_it() -> None:
    assert encode_manifest(MANIFEST).decode() == READABLE
    assert json.loads(READABLE)["files"][1] == {
        "name": "model.ckpt-120.index",
        "size": 10,
        "crc32c": "00000000",
    }


def test_manifest_round_trip() -> None:
    plain = replace(MANIFEST, prefix="", files=(ManifestFile("a/größe.h5", 0, "0" * 8),), tensors=0)
    for manifest in (MANIFEST, plain, replace(MANIFEST, parent=None, tf_version="")):
        assert parse_manifest(encode_manifest(manifest)) == manifest


@given(st.integers(0, 253_402_300_799_999))
def test_the_time_for_people_is_that_of_the_calendar(wall_ms: int) -> None:
    assert utc_text(wall_ms) == datetime.fromtimestamp(wall_ms // 1000, UTC).strftime("%4Y-%m-%dT%H:%M:%SZ")


def test_the_ends_of_years_and_months() -> None:
    for text in (
        "1970-01-01",
        "1999-12-31",
        "2000-02-29",
        "2024-02-29",
        "2024-03-01",
        "2100-02-28",
        "9999-12-31",
    ):
        moment = datetime.fromisoformat(f"{text}T23:59:59+00:00")
        assert utc_text(int(moment.timestamp()) * 1000 + 999) == f"{text}T23:59:59Z"


@given(st.binary(max_size=200))
def test_rubbish_is_a_bad_checkpoint(raw: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        parse_manifest(raw)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(set(json.loads(READABLE)) - {"files"})), _JSON)
def test_one_wrong_field_is_a_bad_checkpoint_or_another_valid_manifest(name: str, value: object) -> None:
    raw = put(name, value)(READABLE).encode()
    try:
        assert encode_manifest(parse_manifest(raw)) == raw
    except (BadCheckpoint, IncompatibleRecord):
        pass


@pytest.mark.parametrize("size", [len(READABLE) - 1, len(READABLE) // 2, 1, 0])
def test_a_torn_manifest(size: int) -> None:
    with pytest.raises(BadCheckpoint):
        parse_manifest(READABLE.encode()[:size])


def test_no_flipped_bit_passes_unnoticed_as_the_same_manifest() -> None:
    for position in range(len(READABLE)):
        raw = bytearray(READABLE.encode())
        raw[position] ^= 1 << position % 8
        try:
            assert parse_manifest(bytes(raw)) != MANIFEST
        except (BadCheckpoint, IncompatibleRecord):
            pass


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "",
        ".",
        "..",
        "a/b.index",
        "manifest.json",
        "checkpoint",
        "a\0b",
        "x" * 300,
        "\ud800",
        "%2e%2e/x",
    ],
)
def test_hostile_file_names(name: str) -> None:
    first = {"name": name, "size": 1, "crc32c": "00000000"}
    raw = READABLE.replace('"files": [\n', f'"files": [\n    {json.dumps(first)},\n')
    with pytest.raises(BadCheckpoint):
        parse_manifest(raw.encode())


@pytest.mark.parametrize(
    "change",
    [
        lambda _: "[" * 100_000,
        lambda _: "1" * 100_000,
        lambda _: "{" + '"a":' * 50_000,
        lambda _: " " * (MAX_MANIFEST_BYTES + 1),
        lambda _: json.dumps({"version": 1, "files": [[[[[[]]]]]]}),
        lambda text: text + " ",
        lambda text: json.dumps(json.loads(text)),
        swap('  "job":', '  "extra": 1,\n  "job":'),
        swap('  "job":', '  "job": "digits",\n  "job":'),
        swap('"size": 10,', '"size": 10, "mode": 7,'),
        swap('"size": 10,', '"size": 10.0,'),
        swap('"size": 10,', '"size": true,'),
        swap('"size": 10,', '"size": -1,'),
        swap('"size": 10,', f'"size": {10**30},'),
        swap('"0badcafe"', '"0BADCAFE"'),
        swap('"0badcafe"', '"badcafe"'),
        swap('"0badcafe"', "null"),
        swap(',\n    {"name": "model.ckpt-120.index", "size": 10, "crc32c": "00000000"}', ""),
        swap("model.ckpt-120.meta", "other"),
        swap('    {"name": "model.ckpt-120.meta"', f"{TWICE},\n" + '    {"name": "model.ckpt-120.meta"'),
        swap('"generation": 2, ', ""),
        swap('"generation": 2, ', '"generation": 2, "x": 1, '),
        put("parent", [2, 80]),
        put("parent", {"generation": 2, "step": "80"}),
        put("generation", -1),
        put("generation", 10**8),
        put("step", 10**12),
        put("step", True),
        put("bytes", 1),
        put("tensors", -1),
        put("tensors", None),
        put("saved_at", "2023-11-14T22:13:21Z"),
        put("wall_ms", 10**30),
        put("job", ""),
        put("job", "x" * 600),
        put("node", "\x1b[2J"),
        put("tensorflow", "\n"),
        put("tensorflow", None),
        put("prefix", ["model.ckpt-120"]),
        put("version", 0),
        put("version", "1"),
    ],
)
def test_hostile_manifests(change: Change) -> None:
    with pytest.raises(BadCheckpoint):
        parse_manifest(change(READABLE).encode())


def test_a_newer_manifest_says_nothing_about_its_checkpoint() -> None:
    raw = READABLE.replace('"version": 1', '"version": 3,\n  "new": {}').encode()
    with pytest.raises(IncompatibleRecord, match="upgrade"):
        parse_manifest(raw)


SEVERAL = replace(
    MANIFEST,
    version=2,
    prefix="run/ckpt",
    files=(
        ManifestFile("best.data-00000-of-00001", 3, "0badcafe"),
        ManifestFile("best.index", 5, "00000000"),
        ManifestFile("checkpoint", 7, "00000000"),
        ManifestFile("run/checkpoint", 7, "00000000"),
        ManifestFile("run/ckpt.data-00000-of-00001", 3, "0badcafe"),
        ManifestFile("run/ckpt.index", 5, "00000000"),
    ),
)


def test_a_manifest_of_several_checkpoints_has_another_version() -> None:
    raw = encode_manifest(SEVERAL)
    assert parse_manifest(raw) == SEVERAL
    assert SEVERAL.bundles == ("best", "run/ckpt")
    assert SEVERAL.state == b"", "the state files are among the files"
    assert [file.name for file in SEVERAL.files if not SEVERAL.in_place(file.name)] == [
        "best.data-00000-of-00001",
        "run/ckpt.data-00000-of-00001",
    ]
    with pytest.raises(BadCheckpoint):
        parse_manifest(raw.replace(b'"version": 2', b'"version": 1'))
    for hostile in ("../x", "/x", "run/../../x", "manifest.json", "a/" * 8 + "b"):
        with pytest.raises(BadCheckpoint):
            encode_manifest(
                replace(SEVERAL, files=tuple(sorted((*SEVERAL.files, ManifestFile(hostile, 1, "0" * 8)))))
            )


@pytest.mark.parametrize(
    "manifest",
    [
        replace(MANIFEST, files=()),
        replace(SEVERAL, prefix="run/other"),
        replace(SEVERAL, prefix="", files=SEVERAL.files[:2]),
        replace(MANIFEST, files=MANIFEST.files[::-1]),
        replace(MANIFEST, files=(*MANIFEST.files, MANIFEST.files[0])),
        replace(MANIFEST, files=MANIFEST.files[1:]),
        replace(MANIFEST, prefix="", files=(ManifestFile("../x", 1, "0" * 8),)),
        replace(MANIFEST, wall_ms=-1),
        replace(MANIFEST, job=""),
        replace(MANIFEST, ref=CheckpointRef(1, 10**12)),
        replace(
            MANIFEST,
            prefix="",
            files=tuple(ManifestFile(f"{n:04d}{'x' * 250}", 1, "0" * 8) for n in range(MAX_FILES)),
        ),
    ],
)
def test_what_nobody_could_read_back_is_not_written(manifest: Manifest) -> None:
    with pytest.raises(BadCheckpoint):
        encode_manifest(manifest)
