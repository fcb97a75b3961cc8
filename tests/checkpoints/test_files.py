"""What is copied for programs, by an agent that may read more than they."""

from __future__ import annotations

import errno
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recovery import files
from recovery.stores.local_side import NewFile


def test_a_link_is_not_copied_as_what_it_names(tmp_path: Path) -> None:
    """A program could put it in the place of a file of its checkpoint after it was looked at."""
    secret, link, copy = (tmp_path / name for name in ("secret", "ckpt.index", "copy"))
    secret.write_text("of the machine")
    link.symlink_to(secret)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        files.copy_file(link, copy)
    assert not copy.stat().st_size


def test_a_fifo_that_somebody_writes_to_without_end_is_not_read(tmp_path: Path) -> None:
    fifo = tmp_path / "checkpoint"
    os.mkfifo(fifo)
    writer = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        for data in (b"", b"x"):
            os.write(writer, data)
            for read in (lambda: files.read_small(fifo, 10), lambda: files.crc32c_of_file(fifo)):
                with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
                    read()
    finally:
        os.close(writer)


def test_a_new_file_for_which_there_is_no_room_is_refused_before_it_is_written(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)], check=True)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            NewFile(small / "large", 1 << 20)
        assert list(small.iterdir()) == []
        fits = NewFile(small / "fits", 5)
        fits.write_at(2, b"llo")
        fits.write_at(0, b"he")
        fits.finish()
        fits.give_up()
        assert (small / "fits").read_bytes() == b"hello"
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


def test_what_is_copied_out_for_good_is_brought_to_the_disk_with_all_below(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"x")
    files.sync_tree(tmp_path)
    (tmp_path / "deep" / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        files.sync_tree(tmp_path)


def nest(directory: Path, levels: int) -> None:
    """Make directories inside each other, as a program can that changes into each one."""
    fd = os.open(directory, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def test_a_tree_of_thousands_of_levels_is_removed(tmp_path: Path) -> None:
    """A recursion would end the agent, and each of its successors."""
    tree, other = tmp_path / "tree", tmp_path / "other"
    (tree / "beside").mkdir(parents=True)
    other.mkdir()
    (other / "file").write_bytes(b"x")
    nest(tree, 3_000)
    (tree / "beside" / "file").write_bytes(b"x")
    (tree / "beside" / "link").symlink_to(other)
    files.remove_tree(tree)
    files.remove_tree(tree)
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["file", "other"]


def test_a_link_in_the_place_of_a_tree_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "tree").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)):
        files.remove_tree(tmp_path / "tree")
    assert (tmp_path / "other" / "deep").is_dir()


def test_two_that_remove_the_same_tree_do_not_disturb_each_other(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in range(200):
        (tree / str(name) / "deep" / "er").mkdir(parents=True)
    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(files.remove_tree, tree) for _ in range(4)]:
            each.result()
    assert not tree.exists()


def test_what_is_written_while_a_tree_is_removed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that its caller has given up must not remove what comes next."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "old").write_bytes(b"x")
    rmdir = os.rmdir

    def late(path: Path, *, dir_fd: int | None = None) -> None:
        (tree / "new").write_bytes(b"x")
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", late)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
        files.remove_tree(tree)
    assert [each.name for each in tree.iterdir()] == ["new"]
