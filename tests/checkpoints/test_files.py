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
    assert copy.read_bytes() == b""
