"""Files that are given to the user of tasks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.host import ownership


def test_a_link_put_in_the_way_gives_nothing_else_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that is staged again belongs to the tasks already, and one of them may run."""
    given, others = tmp_path / "g1" / "sub", tmp_path / "others"
    for directory in (given, others):
        directory.mkdir(parents=True)
        (directory / "file").touch()
    change = os.chown

    def interfere(
        path: str | Path, uid: int, gid: int, *, dir_fd: int | None = None, follow_symlinks: bool
    ) -> None:
        if not given.is_symlink():
            given.rename(tmp_path / "moved")
            given.symlink_to(others)
        change(path, uid, gid, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "chown", interfere)
    ownership.give_tree(tmp_path / "g1", (12345, 12345))
    wanted = 12345 if os.geteuid() == 0 else os.geteuid()
    assert (others / "file").stat().st_uid == os.geteuid()
    assert (tmp_path / "g1").stat().st_uid == wanted
