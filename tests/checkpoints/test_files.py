"""Copies that an agent makes for programs, although it may read more files than they may."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from recovery.io import files
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
