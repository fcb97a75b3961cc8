"""An agent reads the file in which a program notes its saves; the program may write anything there."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.checkpoints.saves import SavesReader, parse
from agent.inside.child.saves import FILE
from supervisor.contract import codec
from supervisor.contract.observed import Pace, Saves, TaskBeat


def place(directory: object, saved: object = 1, below: object = "") -> dict[str, object]:
    return {"directory": directory, "below": below, "saved": saved, "restored": 0, "last": "m"}


def said(*places: object) -> bytes:
    return json.dumps({"places": places}).encode()


def test_saves_are_told_apart_by_where_they_are() -> None:
    raw = said(
        place("/c/a", 2, "CHECKPOINT_DIR"),
        place("/c/b", 3, "CHECKPOINT_DIR"),
        place("/out", 1, "TFSUP_OUTPUT_DIR"),
        place("/tmp/x", 4),
        place("/models/pretrained", 0),
        place("gs://bucket/x", 1),
    )
    assert parse(raw) == Saves(5, 5, ("/tmp/x", "gs://bucket/x"), watched=True)
    read = [place("/c/a", 0, "CHECKPOINT_DIR"), place("/models/pretrained", 0)]
    found = [parse(said({**each, "restored": 1}, *read)).restored for each in read]
    assert found == [True, False], "a pretrained model is no checkpoint of the job's"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"places": 3}',
        b'{"places": {"a": 1}}',
        b"[" * 30_000,
        said(3, None, []),
        said(place("/x", "1"), place("/x", -1), place("/x", 1 << 40), place("/x", True)),
        said(place("/x\x1b[2J"), place("/x\n"), place("relative"), place("/" + "x" * 1_000), place(None)),
        said(place("/x", below=["CHECKPOINT_DIR"])),
        said({**place("/x", 0, "CHECKPOINT_DIR"), "restored": "1"}),
    ],
)
def test_nothing_is_taken_from_what_no_launcher_of_ours_would_write(raw: bytes) -> None:
    assert replace(parse(raw), watched=False) == Saves()


PACE = {"every_ms": 9_000, "cost_ms": 36, "pays_ms": 9_000, "own_ms": 600_000, "why": ""}


def test_a_pace_is_taken_whole_or_not_at_all() -> None:
    def pace(**told: object) -> Pace:
        return parse(json.dumps({"places": [], "pace": {**PACE, **told}}).encode()).pace

    whole = Pace(every_ms=9_000, cost_ms=36, pays_ms=9_000, own_ms=600_000)
    assert pace() == whole
    assert pace(more=1) == whole, "a later launcher may tell more"
    assert pace(why="x\x1b[2J") == pace(why="x" * 1_000) == pace(why=3) == whole
    for wrong in (-2, 1 << 60, 0.5, True, "9", None):
        assert pace(cost_ms=wrong) == Pace()
    assert parse(b'{"places": [], "pace": []}').pace == Pace()
    assert parse(b'{"places": []}').pace == Pace(), "an earlier launcher tells none"


def test_a_flood_of_places_is_cut(tmp_path: Path) -> None:
    found = parse(said(*(place(f"/p{n}") for n in range(500))))
    assert found.outside == 16
    assert len(found.elsewhere) == 3


def test_a_file_that_is_no_file_or_too_long_says_nothing(tmp_path: Path) -> None:
    reader = SavesReader(tmp_path)
    assert reader.read() == Saves()
    os.mkfifo(tmp_path / FILE)
    assert reader.read() == Saves(), "and nobody waits for its writer"
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to("/etc/passwd")
    assert reader.read() == Saves()
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).write_bytes(said(place("/x")))
    assert reader.read().elsewhere == ("/x",)
    (tmp_path / FILE).write_bytes(said(place("/y")) + b" " * 100_000)
    assert reader.read().elsewhere == ("/y",), "only the beginning is read"


def test_a_beat_of_an_earlier_release_says_nothing_of_saves() -> None:
    told = json.dumps({"saves": codec.to_plain(Saves())}, separators=(",", ":"), sort_keys=True)
    raw = codec.encode(TaskBeat("a", 3)).replace(f",{told[1:-1]}".encode(), b"")
    assert b"saves" not in raw
    assert codec.decode(TaskBeat, raw) == TaskBeat("a", 3)
