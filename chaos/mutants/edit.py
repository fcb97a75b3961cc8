"""Mistakes as data, and the copy of the tree that they are made in. The tree itself is never touched."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("supervisor", "agent", "recovery", "chaos", "tests", "pyproject.toml")


class BadEdit(Exception):
    """The text that a mistake replaces is not there exactly once, or what comes of it is no program."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in one file.

    Attributes:
        file: relative to the root of the tree.
        snippet: what is there; occurs exactly once.
        broken: what a plausible mistake would have in its place.
    """

    file: str
    snippet: str
    broken: str

    def mistaken(self, text: str) -> str:
        """The file with the mistake in it. Raises BadEdit."""
        found = text.count(self.snippet)
        if found != 1:
            raise BadEdit(f"{self.file} has {found} times, not once: {self.snippet!r}")
        mistaken = text.replace(self.snippet, self.broken)
        if mistaken == text:
            raise BadEdit(f"{self.file}: nothing is replaced in {self.snippet!r}")
        try:
            # Not `ast.parse`: in Python 3.11 two threads at once break it ("recursion depth mismatch").
            compile(mistaken, self.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise BadEdit(f"{self.file}: {error}") from error
        return mistaken

    def make(self, tree: Path) -> Path:
        """Make the mistake in a copy of the tree; returns the file. Raises BadEdit."""
        assert tree.resolve() != ROOT.resolve(), "mistakes are made in copies"
        path = tree / self.file
        _write(path, self.mistaken(path.read_text()))
        return path

    @contextmanager
    def made(self, tree: Path) -> Iterator[Path]:
        """The mistake is in a copy of the tree within the block, and nowhere after it. Raises BadEdit."""
        sound = (tree / self.file).read_text()
        path = self.make(tree)
        try:
            yield path
        finally:
            _write(path, sound)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    # Bytecode is told from its source by size and second, which may both be the same.
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def copy_tree(target: Path) -> Path:
    """The sources as git knows them, without what was built or written beside them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *COPIED],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target
