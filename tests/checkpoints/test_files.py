"""What is copied for programs, by an agent that may read more than they."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from recovery import files


def test_a_link_is_not_copied_as_what_it_names(tmp_path: Path) -> None:
    """A program could put it in the place of a file of its checkpoint after it was looked at."""
    secret, link, copy = (tmp_path / name for name in ("secret", "ckpt.index", "copy"))
    secret.write_text("of the machine")
    link.symlink_to(secret)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        files.copy_file(link, copy)
    assert not copy.stat().st_size


@pytest.mark.timeout(60)
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
