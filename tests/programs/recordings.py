"""Recorded output of the zoo's programs, with its times: fixtures in `recorded/`.

One file for each task, named PROGRAM.ROLE-INDEX.txt, empty for a task that prints nothing. A line of it is
the time in seconds since the job was submitted, a tab, and a line of output; one that ended in a carriage
return ends in `\\r`. Long recordings are trimmed in the middle, and directories are left out.

Made anew by `python -m tests.programs.table --record [--only NAME ...]`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

RECORDED = Path(__file__).with_name("recorded")
FIRST_LINES, LAST_LINES = 40, 25
_LONGEST = 200
_DIRECTORIES = re.compile(r"(?<![\w.:/])/(?:[\w.@+-]+/)+")
_ENDS = re.compile(rb"[^\r\n]*[\r\n]")
_OUTPUT = "output.log"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of output with its end, and when it was printed, in seconds."""

    at_s: float
    data: bytes


Tape = tuple[Line, ...]


def read(program: str, directory: Path = RECORDED) -> dict[str, Tape]:
    """The recordings of a program, by task, as `worker:0`."""
    found = {}
    for path in sorted(directory.glob(f"{program}.*.txt")):
        role, _, index = path.name.removesuffix(".txt").rpartition(".")[2].rpartition("-")
        found[f"{role}:{index}"] = tuple(map(_parse, path.read_text().splitlines()))
    return found


def write(program: str, tapes: dict[str, Tape], directory: Path = RECORDED) -> None:
    """Replace the recordings of a program."""
    directory.mkdir(exist_ok=True)
    for path in directory.glob(f"{program}.*.txt"):
        path.unlink()
    for task, tape in tapes.items():
        lines = [f"{line.at_s:.3f}\t{_plain(line.data)}\n" for line in trimmed(tape)]
        (directory / f"{program}.{task.replace(':', '-')}.txt").write_text("".join(lines))


def trimmed(tape: Tape) -> Tape:
    """Its first and its last lines; the last ones follow at the usual pace of the others."""
    if len(tape) <= FIRST_LINES + LAST_LINES:
        return tape
    first, last = tape[:FIRST_LINES], tape[-LAST_LINES:]
    pace_s = median(after.at_s - before.at_s for before, after in pairwise(tape))
    back_s = last[0].at_s - first[-1].at_s - pace_s
    return (*first, *(Line(line.at_s - back_s, line.data) for line in last))


def _plain(data: bytes) -> str:
    """One line of text: paths without their directories, which are those of the machine."""
    text = _DIRECTORIES.sub("/", data.decode(errors="replace").rstrip("\r\n"))[:_LONGEST]
    return text.replace("\\", "\\\\").replace("\x1b", "\\e") + ("\\r" if data.endswith(b"\r") else "")


def _parse(line: str) -> Line:
    at_s, _, text = line.partition("\t")
    end = "\r" if text.endswith("\\r") and not text.endswith("\\\\r") else "\n"
    text = text.removesuffix("\\r") if end == "\r" else text
    return Line(float(at_s), (text.replace("\\e", "\x1b").replace("\\\\", "\\") + end).encode())


@dataclass(slots=True)
class Recorder:
    """Reads the output of a job's first attempts as it grows: the job's uuid, in a cluster's directory."""

    state: Path
    uuid: str
    began_s: float = field(default_factory=time.monotonic)
    _offsets: dict[Path, int] = field(default_factory=dict)
    _tapes: dict[str, list[Line]] = field(default_factory=dict)

    def look(self) -> None:
        """Take in whole lines that are new."""
        now_s = time.monotonic() - self.began_s
        for path in self.state.glob(f"agent-*/attempts/{self.uuid}/*-g1.1/{_OUTPUT}"):
            role, _, index = path.parent.name.removesuffix("-g1.1").rpartition(".")
            tape = self._tapes.setdefault(f"{role}:{index}", [])
            for data in self._new_lines(path):
                tape.append(Line(now_s, data))

    def tapes(self) -> dict[str, Tape]:
        """All that was printed."""
        return {task: tuple(lines) for task, lines in self._tapes.items()}

    def _new_lines(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            raw = file.read()
        for found in _ENDS.finditer(raw):
            self._offsets[path] = self._offsets.get(path, 0) + len(found[0])
            yield found[0]
