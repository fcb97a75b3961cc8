"""Records the contents of a job's checkpoint store by polling: which directories are whole.

The form of a stored checkpoint is restated here from `docs/checkpoints.md`, on purpose.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from chaos.history.etcd_client import now_ms
from chaos.history.formats import ABSENT, BROKEN, STORE, WHOLE, StoreLine
from chaos.history.lines import append

LOOK_S = 0.5
MANIFEST = "manifest.json"
CHECKPOINT = re.compile(r"g\d{5}-s\d{10}\.[0-9a-f]{16}")
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """A directory as one look shows it."""

    found: str
    why: str = ""
    manifest: str = ""
    size: int = 0


NOTHING = Found(ABSENT, "there is no such directory")


def examine(directory: Path) -> Found:
    """Compare a checkpoint's files with its manifest: names, sizes and crc32c of every byte."""
    try:
        raw = (directory / MANIFEST).read_bytes()
        manifest = json.loads(raw)
        expected = [(str(file["name"]), int(file["size"]), str(file["crc32c"])) for file in manifest["files"]]
        for name, size, crc in expected:
            found_size, found_crc = _checksum(directory / name)
            if (found_size, found_crc) != (size, crc):
                return Found(BROKEN, f"{name}: {found_size} bytes, {found_crc}; {size} bytes, {crc} expected")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if not directory.is_dir():
            return NOTHING
        return Found(BROKEN, f"{type(error).__name__}: {error}")
    return Found(WHOLE, "", _hex(google_crc32c.value(raw)), sum(size for _, size, _ in expected))


def _checksum(path: Path) -> tuple[int, str]:
    size = crc = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            size, crc = size + len(piece), google_crc32c.extend(crc, piece)
    return size, _hex(crc)


def _hex(crc: int) -> str:
    return f"{crc:08x}"


class StoreRecorder:
    """One thread that looks at a store in a directory of this machine, which may not be there yet."""

    def __init__(self, root: Path, directory: Path) -> None:
        self._root = root
        self._file = directory / STORE
        self._known: dict[str, Found] = {}
        self._stamps: dict[str, tuple[tuple[str, int, int, int], ...]] = {}
        self._before_ms = now_ms()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> bool:
        """End, with a look at every byte that is still there. False if it had ended by itself before."""
        whole = self._thread.is_alive()
        self._done.set()
        self._thread.join()
        self._stamps.clear()
        self._look()
        return whole

    def _run(self) -> None:
        while not self._done.is_set():
            self._look()
            self._done.wait(LOOK_S)

    def _look(self) -> None:
        began_ms = now_ms()
        there = self._directories()
        fresh = []
        for name in sorted(there | self._known.keys()):
            if name in there and not self._changed(name):
                continue
            found = examine(self._root / name)
            if found != self._known.get(name):
                self._known[name] = found
                fresh.append(
                    StoreLine(began_ms, now_ms(), name, found.found, found.why, found.manifest, found.size)
                )
        append(self._file, fresh)
        self._before_ms = began_ms

    def _directories(self) -> set[str]:
        try:
            return {path.name for path in self._root.iterdir() if CHECKPOINT.fullmatch(path.name)}
        except OSError:
            return set()

    def _changed(self, name: str) -> bool:
        """Whether a file came, went or was written since its bytes were read."""
        try:
            stats = [(path.name, path.stat()) for path in sorted((self._root / name).iterdir())]
        except OSError:
            return True
        stamp = tuple((each, stat.st_ino, stat.st_size, stat.st_mtime_ns) for each, stat in stats)
        if self._stamps.get(name) == stamp:
            return False
        self._stamps[name] = stamp
        return True
