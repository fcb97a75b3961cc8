"""A program's notes on its saves (`agent.inside.child.saves`), read from its attempt's directory.

The file is the program's own to write: its size and every value in it are bounded here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from agent.host.regular_files import read_start
from agent.inside.child.saves import AGAIN, FILE, KEPT, MOST_PLACES, SAVING
from supervisor.contract.bounds import MAX_DURATION_MS
from supervisor.contract.observed import Pace, Saves

_MOST_BYTES = 32 * 1024
_MOST_COUNT = 1 << 31
_LONGEST = 300
_MOST_ELSEWHERE = 3


@dataclass(slots=True)
class SavesReader:
    """Reads the file of one attempt when it has changed, and detects a save that is under way.

    `again`: how often the program has made a session again after a loss, by the file.
    """

    directory: Path
    again: int = 0
    _raw: bytes = b""
    _found: Saves = field(default_factory=Saves)
    _mark: tuple[int, int] | None = None
    _marked_ms: int = -1

    def read(self) -> Saves:
        """The saves in the file; empty if the file cannot be parsed."""
        try:
            raw = read_start(self.directory / FILE, _MOST_BYTES)
        except OSError:
            return self._found
        if raw != self._raw:
            body = _body(raw)
            self._raw, self._found, self.again = raw, _saves(body), _made_again(body)
        return self._found

    def saving_ms(self, now_ms: int) -> int:
        """Milliseconds since the save that is under way was first seen; -1 if there is none."""
        try:
            found = os.lstat(self.directory / SAVING)
        except OSError:
            self._mark = None
            return -1
        mark = (found.st_ino, found.st_mtime_ns)
        if mark != self._mark:
            self._mark, self._marked_ms = mark, now_ms
        return now_ms - self._marked_ms


def parse(raw: bytes) -> Saves:
    """The saves in the file, without entries that no launcher would write."""
    return _saves(_body(raw))


def _body(raw: bytes) -> dict[str, object]:
    """The object in the file; empty if there is none."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _saves(body: dict[str, object]) -> Saves:
    told = body.get("places")
    if not isinstance(told, list):
        return Saves()
    places = [each for each in told[:MOST_PLACES] if isinstance(each, dict)]
    inside, outside, elsewhere, restored = 0, 0, [], False
    for place in places:
        count = place.get("restored")
        restored |= place.get("below") == KEPT[0] and type(count) is int and count > 0
        below, saved, directory = place.get("below"), place.get("saved"), _plain(place.get("directory"))
        if type(saved) is not int or not 0 < saved < _MOST_COUNT:
            continue
        if below == KEPT[0]:
            inside += saved
        elif below == "" and directory:
            outside += saved
            elsewhere.append(directory)
    kept = tuple(elsewhere[:_MOST_ELSEWHERE])
    pace, recovers = _pace(body.get("pace")), body.get("recovers") is True
    return Saves(inside, outside, kept, watched=True, pace=pace, recovers=recovers, restored=restored)


def _made_again(body: dict[str, object]) -> int:
    again = body.get(AGAIN)
    return again if type(again) is int else 0


def _pace(told: object) -> Pace:
    """Nothing, where it is not what a launcher of ours would tell."""
    if not isinstance(told, dict):
        return Pace()
    every_ms, cost_ms, pays_ms, own_ms = (
        told.get(f"{name}_ms", -1) for name in ("every", "cost", "pays", "own")
    )
    why = told.get("why", "")
    for each in (every_ms, cost_ms, pays_ms, own_ms):
        if type(each) is not int or not -1 <= each <= MAX_DURATION_MS:
            return Pace()
    if not isinstance(why, str) or not why.isprintable() or len(why) > _LONGEST:
        why = ""
    return Pace(every_ms=every_ms, cost_ms=cost_ms, pays_ms=pays_ms, own_ms=own_ms, why=why)


def _plain(directory: object) -> str:
    """A path or a URI for people: shortened, without control characters."""
    if not isinstance(directory, str) or not directory.isprintable() or len(directory) > _LONGEST:
        return ""
    return directory if directory.startswith("/") or "://" in directory else ""
