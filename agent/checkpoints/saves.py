"""What a program says of its saves (`agent.inside.child.saves`), read from its attempt's directory.

The file is the program's own to write: its size and every value in it are bounded here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from agent.host.regular_files import read_start
from agent.inside.child.saves import FILE, KEPT, MOST_PLACES, SAVING
from supervisor.contract.observed import Saves

_MOST_BYTES = 32 * 1024
_MOST_COUNT = 1 << 31
_LONGEST = 300
_MOST_ELSEWHERE = 3


@dataclass(slots=True)
class SavesReader:
    """Reads the file of one attempt when it has changed, and sees whether a save is under way."""

    directory: Path
    _raw: bytes = b""
    _found: Saves = field(default_factory=Saves)
    _mark: tuple[int, int] | None = None
    _marked_ms: int = -1

    def read(self) -> Saves:
        """What it says now; nothing where it says nothing that can be understood."""
        try:
            raw = read_start(self.directory / FILE, _MOST_BYTES)
        except OSError:
            return self._found
        if raw != self._raw:
            self._raw, self._found = raw, parse(raw)
        return self._found

    def saving_ms(self, now_ms: int) -> int:
        """How long ago the save that is under way was seen first; -1 where none is."""
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
    """The saves that the file tells of. An entry that no launcher of ours would write is left out."""
    try:
        body = json.loads(raw)
        places = [each for each in body["places"][:MOST_PLACES] if isinstance(each, dict)]
    except (ValueError, RecursionError, LookupError, TypeError):
        return Saves()
    inside, outside, elsewhere = 0, 0, []
    for place in places:
        below, saved, directory = place.get("below"), place.get("saved"), _plain(place.get("directory"))
        if type(saved) is not int or not 0 < saved < _MOST_COUNT:
            continue
        if below == KEPT[0]:
            inside += saved
        elif below == "" and directory:
            outside += saved
            elsewhere.append(directory)
    return Saves(inside, outside, tuple(elsewhere[:_MOST_ELSEWHERE]), watched=True)


def _plain(directory: object) -> str:
    """A path or a URI that can be shown to people: of a bearable length, without control characters."""
    if not isinstance(directory, str) or not directory.isprintable() or len(directory) > _LONGEST:
        return ""
    return directory if directory.startswith("/") or "://" in directory else ""
