"""Removing and looking through what programs of tasks have written, whatever that is."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from agent.host.ownership import give_tree
from recovery.io import trees

ROOT = os.geteuid() == 0
NOBODY = 65534
PR_SET_DUMPABLE = 4


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
    nest(tree, 1_500)
    (tree / "beside" / "file").write_bytes(b"x")
    (tree / "beside" / "link").symlink_to(other)
    trees.remove_tree(tree)
    trees.remove_tree(tree)
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["file", "other"]


def test_a_link_in_the_place_of_a_tree_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "tree").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)):
        trees.remove_tree(tmp_path / "tree")
    assert (tmp_path / "other" / "deep").is_dir()


def test_two_that_remove_the_same_tree_do_not_disturb_each_other(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in range(200):
        (tree / str(name) / "deep" / "er").mkdir(parents=True)
    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(trees.remove_tree, tree) for _ in range(4)]:
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
        trees.remove_tree(tree)
    assert [each.name for each in tree.iterdir()] == ["new"]


def odd(tree: Path) -> None:
    """All that a program may leave behind."""
    (tree / "d" / "e").mkdir(parents=True)
    os.mkfifo(tree / "d" / "fifo")
    (tree / "d" / "link").symlink_to("/etc")
    (tree / "d" / "loop").symlink_to("loop")
    os.link(tree / "d" / "loop", tree / "d" / "twice", follow_symlinks=False)
    unspeakable = tree / "d" / os.fsdecode(b"\xff\n\\")
    unspeakable.mkdir()
    (unspeakable / os.fsdecode(b"\xfe")).write_bytes(b"x")
    os.truncate(unspeakable / os.fsdecode(b"\xfe"), 1 << 42)
    (tree / ".removing-").mkdir()
    (tree / "d" / "e" / "file").write_bytes(b"x")
    for directory, mode in (("d/e", 0o000), ("d", 0o500), (".", 0o000)):
        (tree / directory).chmod(mode)


def as_nobody(work: Callable[[], None]) -> int:
    """Do it in a child without any rights; its exit status."""
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            # As in a program that such a user has started: /proc/self is its own.
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_odd_files_keep_nothing(tmp_path: Path) -> None:
    odd(tmp_path / "tree")
    trees.remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not ROOT, reason="only root can become another user")
def test_rights_that_are_taken_away_keep_nothing_from_an_agent_without_root() -> None:
    place = Path(tempfile.mkdtemp(prefix="odd-"))
    try:
        os.chown(place, NOBODY, NOBODY)
        assert as_nobody(lambda: odd(place / "tree")) == 0
        assert as_nobody(lambda: trees.remove_tree(place / "tree")) == 0
        assert list(place.iterdir()) == []
    finally:
        trees.remove_tree(place)


@pytest.fixture
def immutable(tmp_path: Path) -> Iterator[Path]:
    """A directory that holds one in which nothing can be removed."""
    tree = tmp_path / "tree"
    stuck = tree / "a" / "stuck"
    stuck.mkdir(parents=True)
    (stuck / "file").write_bytes(b"x")
    done = subprocess.run(["chattr", "+i", str(stuck)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("the file system here knows no immutable files")
    yield tree
    subprocess.run(["chattr", "-R", "-i", str(tree)], check=False)


def test_what_cannot_go_keeps_nothing_else(immutable: Path) -> None:
    for name in ("before", "z"):
        (immutable / name / "deep").mkdir(parents=True)
    with pytest.raises(PermissionError):
        trees.remove_tree(immutable)
    left = [path.name for path in immutable.rglob("*")]
    assert "file" in left
    assert not {"before", "z", "deep"} & {*left}
    subprocess.run(["chattr", "-R", "-i", str(immutable)], check=True)
    trees.remove_tree(immutable)
    assert not immutable.exists()


def test_a_mounted_file_system_is_left_alone(tmp_path: Path) -> None:
    tree, point = tmp_path / "tree", tmp_path / "tree" / "deep" / "point"
    point.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "none", point], capture_output=True, check=False).returncode:
        pytest.skip("cannot mount here")
    try:
        (point / "precious").write_bytes(b"x")
        (tree / "deep" / "file").write_bytes(b"x")
        with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
            trees.remove_tree(tree)
        assert (point / "precious").exists()
        assert not (tree / "deep" / "file").exists()
        # The same where the mount is right below.
        with pytest.raises(OSError, match="another file system|" + os.strerror(errno.EBUSY)):
            trees.remove_tree(tree / "deep")
        assert (point / "precious").exists()
    finally:
        subprocess.run(["umount", point], check=True)
    trees.remove_tree(tree)


def test_a_call_ends_in_time_and_the_next_one_goes_on(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(50):
        (tree / str(number) / "deep").mkdir(parents=True)
    with pytest.raises(trees.Unfinished):
        trees.remove_tree(tree, most_s=0)
    trees.remove_tree(tree)
    assert not tree.exists()


def test_more_directories_than_are_kept_in_mind_all_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "MOST_WAITING", 3)
    tree = tmp_path / "tree"
    for number in range(20):
        for inner in range(5):
            (tree / str(number) / str(inner) / "deep").mkdir(parents=True)
    trees.remove_tree(tree)
    assert not tree.exists()


def test_a_tree_that_is_filled_meanwhile_does_not_hold_the_call_for_ever(tmp_path: Path) -> None:
    tree, over = tmp_path / "tree", threading.Event()
    (tree / "a").mkdir(parents=True)

    def fill() -> None:
        number = 0
        while not over.is_set():
            number += 1
            with suppress(OSError):
                (tree / f"{number}").mkdir(parents=True)
                (tree / f"{number}" / "file").write_bytes(b"x")

    with ThreadPoolExecutor(1) as threads:
        filling = threads.submit(fill)
        began_s = time.monotonic()
        try:
            for _ in range(5):
                with suppress(OSError):
                    trees.remove_tree(tree, most_s=0.2)
        finally:
            over.set()
        filling.result()
    assert time.monotonic() - began_s < 20


def test_below_a_directory_all_is_found_to_a_bounded_depth_and_number(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    found = [path for path, _, _ in trees.entries_below(tmp_path, 9, 9)]
    assert sorted(found) == ["a", "a/b", "a/b/file", "link"]
    assert sorted(path for path, _, _ in trees.entries_below(tmp_path, 2, 9)) == ["a", "a/b", "link"]
    with pytest.raises(trees.TooMany):
        list(trees.entries_below(tmp_path, 9, 3))
    nest(tmp_path, 1_500)
    assert len(list(trees.entries_below(tmp_path, 40, 10_000))) == 44
    trees.remove_tree(tmp_path / "d")  # no test's own cleaning can


@pytest.mark.skipif(not ROOT, reason="only root gives files away")
def test_a_tree_of_thousands_of_levels_is_given_as_deep_as_checkpoints_are(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "file").write_bytes(b"x")
    (tree / "link").symlink_to("/etc/hostname")
    owner = Path("/etc/hostname").stat().st_uid
    nest(tree, 1_500)
    give_tree(tree, (NOBODY, NOBODY))
    given = [tree, tree / "sub", tree / "sub" / "file", tree / "link", tree / "d" / "d"]
    assert {path.lstat().st_uid for path in given} == {NOBODY}
    assert Path("/etc/hostname").stat().st_uid == owner
    trees.remove_tree(tree)
