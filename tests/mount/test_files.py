"""The mounted directory as programs see it, on a local store and on HDFS."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from recovery.mount.backends.backend import read_small, write_small
from recovery.mount.base import stage_live
from recovery.mount.layout import Place
from recovery.mount.writing import SMALL_BYTES
from tests.mount.world import Site, patterned

T = TypeVar("T")
WRITE = """
try:
    open("a", "w").write("one")
    print("written")
except OSError as error:
    print(type(error).__name__)
"""
BIG = SMALL_BYTES + 4_000_001


async def test_names_directories_and_small_files(site: Site) -> None:
    await stage_live(site.store(), site.live(), None)

    def work(top: Path) -> None:
        assert list(top.iterdir()) == []
        (top / "a").write_bytes(b"one")
        assert (top / "a").read_bytes() == b"one"
        (top / "a").write_bytes(b"two, longer")
        assert (top / "a").stat().st_size == 11
        with (top / "a").open("ab") as file:
            file.write(b"!")
        with (top / "a").open("r+b") as file:
            file.seek(4)
            file.write(b"X")
        assert (top / "a").read_bytes() == b"two,Xlonger!"
        (top / "d").mkdir()
        with pytest.raises(FileExistsError):
            (top / "d").mkdir()
        (top / "d" / "b").write_bytes(b"b")
        with pytest.raises(OSError, match="not empty"):
            (top / "d").rmdir()
        (top / "d" / "b").rename(top / "a")
        assert (top / "a").read_bytes() == b"b"
        assert list((top / "d").iterdir()) == []
        (top / "d").rename(top / "e")
        assert sorted(path.name for path in top.iterdir()) == ["a", "e"]
        assert (top / "e").is_dir()
        (top / "e").rmdir()
        with (top / "n").open("xb") as file:
            file.write(b"new")
        with pytest.raises(FileExistsError):
            (top / "n").open("xb")
        os.truncate(top / "n", 1)
        assert (top / "n").read_bytes() == b"n"
        (top / "empty").touch()
        assert (top / "empty").read_bytes() == b""
        (top / "a").unlink()
        for missing in ((top / "a").unlink, (top / "a").read_bytes, (top / "x").stat):
            with pytest.raises(FileNotFoundError):
                missing()
        with pytest.raises(FileNotFoundError):
            (top / "no" / "where").write_bytes(b"")

    with site.mounted() as directory:
        await asyncio.to_thread(work, directory)
    # What is in the store is what was written, once it is unmounted too.
    with site.mounted() as directory:
        assert await asyncio.to_thread(lambda: sorted(path.name for path in directory.iterdir())) == [
            "empty",
            "n",
        ]


async def test_large_files_are_streamed_read_anywhere_and_appended_to(site: Site) -> None:
    await stage_live(site.store(), site.live(), None)
    data = patterned(BIG)

    def work(top: Path) -> None:
        with (top / "big").open("wb", buffering=0) as file:
            view = memoryview(data)
            for start in range(0, len(view), 300_000):
                assert file.write(view[start : start + 300_000]) == len(view[start : start + 300_000])
        assert (top / "big").read_bytes() == data
        with (top / "big").open("rb", buffering=0) as file:
            for offset in (BIG - 10, 5, 4 << 20, (4 << 20) - 3, BIG // 2, 0):
                file.seek(offset)
                assert file.read(100_000) == data[offset : offset + 100_000]
        with (top / "big").open("ab") as file:
            file.write(b"tail")
        assert (top / "big").read_bytes() == data + b"tail"
        with (top / "big").open("ab", buffering=0) as file:
            file.write(b"!")
            # Somebody looks on while it is written on.
            assert (top / "big").read_bytes() == data + b"tail"
        assert (top / "big").read_bytes() == data + b"tail!"
        with (
            (top / "big").open("r+b", buffering=0) as file,
            pytest.raises(OSError, match="not supported") as refused,
        ):
            file.write(b"x")
        assert refused.value.errno == errno.EOPNOTSUPP

    with site.mounted() as directory:
        await asyncio.to_thread(work, directory)


async def test_a_large_file_may_be_changed_anywhere_until_it_is_closed(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    data = bytearray(patterned(BIG))

    def work(top: Path) -> None:
        with (top / "big").open("wb", buffering=0) as file:
            file.write(bytes(BIG))
            file.seek(0)
            file.write(bytes(data[: BIG // 2]))
            file.seek(BIG // 2)
            file.write(bytes(data[BIG // 2 :]))
            os.fsync(file.fileno())
            # Closed in the store, and written on.
            file.write(b"more")
        assert (top / "big").read_bytes() == bytes(data) + b"more"

    with local.mounted() as directory:
        await asyncio.to_thread(work, directory)


async def test_a_file_has_its_name_for_others_when_it_is_closed(site: Site) -> None:
    """Two nodes: what one writes is not there for the other, and then it is whole."""
    await stage_live(site.store(), site.live(), None)

    def work(one: Path, two: Path) -> None:
        (two / "f").write_bytes(b"old")
        with (one / "f").open("wb") as file:
            file.write(b"new and longer")
            file.flush()
            assert (two / "f").read_bytes() == b"old"
        assert (two / "f").read_bytes() == b"new and longer"
        (one / "dir").mkdir()
        (two / "dir" / "part-0").write_bytes(b"0")
        (one / "dir" / "part-1").write_bytes(b"1")
        assert sorted(path.name for path in (one / "dir").iterdir()) == ["part-0", "part-1"]
        (one / "dir" / "part-0").rename(one / "model-0")
        (one / "dir" / "part-1").rename(one / "model-1")
        assert (two / "model-0").read_bytes() + (two / "model-1").read_bytes() == b"01"
        (one / "dir").rmdir()
        assert not (two / "dir").exists()

    with site.mounted(node="n1") as one, site.mounted(node="n2") as two:
        await asyncio.to_thread(work, one, two)


async def test_an_open_file_stays_what_it_was(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)

    def work(top: Path) -> None:
        (top / "f").write_bytes(b"first")
        with (top / "f").open("rb") as reading:
            (top / "g").write_bytes(b"second, longer")
            (top / "g").rename(top / "f")
            assert reading.read() == b"first"
        with (top / "gone").open("wb") as writing:
            writing.write(b"x")
            (top / "gone").unlink()
        assert sorted(path.name for path in top.iterdir()) == ["f"]
        with (top / "from").open("wb") as writing:
            writing.write(b"moved")
            writing.flush()
            (top / "from").rename(top / "to")
            writing.write(b" and written on")
        assert (top / "to").read_bytes() == b"moved and written on"

    with local.mounted() as directory:
        await asyncio.to_thread(work, directory)


async def test_ordinary_tools_work(local: Site, tmp_path: Path) -> None:
    await stage_live(local.store(), local.live(), None)
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "one").write_bytes(patterned(100_000))
    (source / "sub" / "two").write_bytes(patterned(5))

    def work(top: Path) -> None:
        for command in (
            ["cp", "-a", str(source), str(top / "copy")],
            ["diff", "-r", str(source), str(top / "copy")],
            ["mv", str(top / "copy" / "one"), str(top / "one")],
            ["tar", "-C", str(top), "-cf", str(tmp_path / "all.tar"), "."],
            ["rm", "-r", str(top / "copy")],
            ["df", str(top)],
        ):
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), command
        shutil.copy(top / "one", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == patterned(100_000)

    with local.mounted() as directory:
        await asyncio.to_thread(work, directory)


async def test_our_own_names_are_neither_shown_nor_taken(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)

    def work(top: Path) -> None:
        assert list(top.iterdir()) == []
        for name in (".tfsup", ".tfsup/links", ".part-1"):
            with pytest.raises(OSError, match=r"Invalid argument|No such file|Is a directory"):
                (top / name).write_bytes(b"")
        with pytest.raises(OSError, match="Invalid argument"):
            (top / ".tfsup").rmdir()

    with local.mounted() as directory:
        await asyncio.to_thread(work, directory)


async def test_a_rename_that_must_not_replace_is_refused_rather_than_done(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    code = (
        "import ctypes, os, sys; call = ctypes.CDLL(None, use_errno=True).renameat2;"
        "done = call(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 1);"
        "print(done, ctypes.get_errno())"
    )

    def work(top: Path) -> None:
        (top / "a").write_bytes(b"a")
        done = subprocess.run(
            [sys.executable, "-c", code, str(top / "a"), str(top / "b")],
            check=True,
            capture_output=True,
            text=True,
        )
        assert done.stdout.split() == ["-1", str(errno.EINVAL)]
        assert (top / "a").read_bytes() == b"a"

    with local.mounted() as directory:
        await asyncio.to_thread(work, directory)


async def test_many_programs_at_once(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)

    def one(top: Path, number: int) -> None:
        data = patterned(3_000_000 + number, number)
        for turn in range(3):
            (top / f"f{number}.tmp").write_bytes(data)
            (top / f"f{number}.tmp").rename(top / f"f{number}")
            assert (top / f"f{number}").read_bytes() == data, turn

    with local.mounted() as directory:
        await asyncio.gather(*(asyncio.to_thread(one, directory, number) for number in range(1, 9)))


async def test_what_was_taken_is_seen_in_its_place_and_cannot_be_changed_there(local: Site) -> None:
    live, place = local.live(), Place("g00001-s0000000007.id")
    await stage_live(local.store(), live, None)
    await live.backend.mkdirs(f"{place.stored}/sub")
    await write_small(live.backend, f"{place.stored}/sub/f", b"committed")
    await live.backend.mkdirs("other")
    await write_small(live.backend, "other/f", b"not ours")
    await live.seed(["sub/f"], place)

    def work(top: Path) -> None:
        shown = top / ".tfsup/places" / place.name
        for path in (shown / "sub/f", top / "sub/f"):
            assert path.read_bytes() == b"committed"
        assert not (shown / "absent").exists()
        for other in ("+other", "+..", "+.live", "x+g00001-s0000000007.id"):
            with pytest.raises(OSError, match=r"Invalid argument|No such file"):
                (top / ".tfsup/places" / other).stat()
        for change in (
            lambda: (shown / "sub/f").write_bytes(b"x"),
            lambda: (shown / "sub/new").write_bytes(b"x"),
            (shown / "sub/f").unlink,
            lambda: (shown / "sub/f").rename(top / "mine"),
            lambda: (top / "sub").rename(top / "moved"),
            lambda: os.truncate(shown / "sub/f", 0),
            (shown / "sub").rmdir,
            (top / "sub").rmdir,
        ):
            with pytest.raises(OSError, match=r"Invalid argument|cross-device|not empty|No such file"):
                change()
        assert (shown / "sub/f").read_bytes() == b"committed"
        (top / "sub/f").write_bytes(b"mine")
        assert (shown / "sub/f").read_bytes() == b"committed"
        (top / "sub/f").unlink()
        (top / "sub").rmdir()
        assert list(top.iterdir()) == []

    with local.mounted() as directory:
        await asyncio.to_thread(work, directory)
    assert await read_small(live.backend, f"{place.stored}/sub/f", 100) == b"committed"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
async def test_a_mount_is_the_tasks_users_alone(site: Site) -> None:
    await stage_live(site.store(), site.live(), None)
    uid = 61_234

    def as_user(number: int, top: Path, code: str) -> str:
        """The output of `code` as this user, inside the mount: the directories above are the test's."""
        command = ["/usr/bin/python3", "-c", code]
        done = subprocess.run(
            command, cwd=top, user=number, group=number, extra_groups=[], stdout=subprocess.PIPE, check=False
        )
        return done.stdout.decode().strip()

    def work(top: Path) -> None:
        assert as_user(uid, top, WRITE) == "written"
        assert as_user(uid + 1, top, WRITE) == "PermissionError"
        assert as_user(uid + 1, top, "print(open('a').read())") == ""
        assert (top / "a").read_bytes() == b"one"
        assert ((top / "a").stat().st_uid, (top / "a").stat().st_mode & 0o777) == (uid, 0o600)

    wish = replace(site.wish(), user=(uid, uid))
    with site.mounted(wish=wish) as top:
        await asyncio.to_thread(work, top)
