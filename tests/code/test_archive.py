"""Packing: the same tree is the same archive, and what cannot be shipped is an error that names it."""

from __future__ import annotations

import io
import os
import random
import socket
import tarfile
from pathlib import Path

import pytest

from supervisor.adapters.files import code_archive
from supervisor.adapters.files.code_archive import CodeArchive, pack
from supervisor.adapters.files.jobfile import CodeSource, load_job_file
from supervisor.contract.errors import UserError

WHERE = "job.yaml:7: code"


def packed(directory: Path, *exclude: str) -> CodeArchive:
    return pack(CodeSource(str(directory), exclude, WHERE))


def members(archive: CodeArchive) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive.data)) as tar:
        return {member.name: member for member in tar.getmembers()}


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def tree(root: Path) -> Path:
    write(root / "train.py", "print('step 1')\n")
    write(root / "lib" / "model.py")
    write(root / "lib" / "deep" / "er.py")
    write(root / "run.sh").chmod(0o700)
    (root / "latest.py").symlink_to("lib/model.py")
    (root / "lib" / "up").symlink_to("../run.sh")
    (root / "empty").mkdir()
    return root


def test_the_digest_depends_on_the_content_alone(tmp_path: Path) -> None:
    one, other = tree(tmp_path / "one"), tmp_path / "other"
    other.mkdir()
    # Made in another order, at another time, by a user with another umask.
    before = os.umask(0o077)
    try:
        (other / "empty").mkdir()
        tree_of = [path for path in sorted(one.rglob("*"), reverse=True) if path.is_file()]
        for path in tree_of:
            target = other / path.relative_to(one)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                target.symlink_to(path.readlink())
            else:
                target.write_bytes(path.read_bytes())
                target.chmod(0o555 if os.access(path, os.X_OK) else 0o400)
                os.utime(target, (1, 1))
    finally:
        os.umask(before)
    first = packed(one)
    assert packed(other) == first
    write(one / "train.py", "print('step 2')\n")
    assert packed(one).ref.digest != first.ref.digest


def test_names_modes_and_links_are_kept_and_nothing_else(tmp_path: Path) -> None:
    found = members(packed(tree(tmp_path)))
    assert list(found) == [
        *("empty", "latest.py", "lib", "lib/deep", "lib/deep/er.py", "lib/model.py", "lib/up"),
        *("run.sh", "train.py"),
    ]
    assert {(each.mtime, each.uid, each.gid, each.uname) for each in found.values()} == {(0, 0, 0, "")}
    assert found["run.sh"].mode == found["lib"].mode == 0o755
    assert found["train.py"].mode == 0o644
    assert found["lib/up"].linkname == "../run.sh"


def test_what_is_excluded_is_not_shipped(tmp_path: Path) -> None:
    root = tree(tmp_path)
    for name in (".git/HEAD", ".venv/bin/python", "lib/__pycache__/m.pyc", "old.pyc", "data/big", "a.log"):
        write(root / name)
    write(root / "keep.log")
    # Excluded things are not even looked at.
    os.mkfifo(root / "data" / "pipe")
    names = set(members(packed(root, "/data/", "*.log", "!keep.log", "!.git/")))
    assert "keep.log" in names
    assert not {name for name in names if name.startswith((".git", ".venv", "data", "a.log"))}
    assert not {name for name in names if name.endswith((".pyc", "__pycache__"))}


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("../outside", "leads to ../outside, outside the directory"),
        ("lib/../../outside", "outside the directory"),
        ("/etc/passwd", "leads to the absolute path /etc/passwd"),
    ],
)
def test_a_link_that_leads_outside_is_an_error(tmp_path: Path, target: str, told: str) -> None:
    root = tree(tmp_path / "root")
    write(tmp_path / "outside")
    (root / "bad").symlink_to(target)
    with pytest.raises(UserError) as caught:
        packed(root)
    assert str(caught.value).startswith(f"{WHERE}: the link bad ")
    assert told in str(caught.value)


def test_a_link_that_leads_outside_by_way_of_another_is_an_error(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    write(tmp_path / "outside" / "secret")
    (root / "lib" / "hop").symlink_to("deep")
    (root / "lib" / "deep" / "out").symlink_to("../../../outside")
    with pytest.raises(UserError, match="lib/deep/out leads to"):
        packed(root)


def test_pipes_sockets_and_unreadable_names_are_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is a pipe, which cannot be shipped"):
        packed(tmp_path)
    (tmp_path / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
    with pytest.raises(UserError, match="sock is a socket"):
        packed(tmp_path)
    (tmp_path / "sock").unlink()
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))).write_text("")
    with pytest.raises(UserError, match="is not UTF-8; rename it"):
        packed(tmp_path)


def test_too_much_names_the_largest_and_what_to_exclude(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "train.py")
    write(tmp_path / "data" / "small.bin", "x" * 2048)
    (tmp_path / "data" / "large.bin").write_bytes(random.Random(1).randbytes(3 << 20))
    monkeypatch.setattr(code_archive, "MAX_PACKED_BYTES", 1 << 20)
    with pytest.raises(UserError) as caught:
        packed(tmp_path)
    text = str(caught.value)
    assert text.startswith(f"{WHERE}: {tmp_path} packs to more than 1 MiB; ")
    assert "data/large.bin (3.0 MiB), data/small.bin (2 KiB)" in text
    assert text.endswith("exclude: [data/]")
    assert len(packed(tmp_path, "data/").data) < 1024


def test_far_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match=r"has 1048576 MiB, more than 128 MiB.*data\.bin"):
        packed(tmp_path)


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_archive, "MAX_FILES", 5)
    for number in range(6):
        write(tmp_path / "many" / str(number))
    with pytest.raises(UserError, match=r"more than 5 files.*exclude: \[many/\]"):
        packed(tmp_path)


def test_a_bad_pattern_is_an_error_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{WHERE}: exclude: "):
        packed(tmp_path, "!")


def test_a_file_with_a_code_block_ships_and_one_without_does_not(tmp_path: Path) -> None:
    head = "name: a\nstrategy: plain\ncommand: [./x]\nroles: {worker: {count: 1}}\n"
    path = write(tmp_path / "job.yaml", head)
    plain = load_job_file(path, checkpoint_base="file:///c")
    assert (plain.code, plain.spec.workdir) == (None, str(tmp_path))
    (tmp_path / "src").mkdir()
    path.write_text(head + "code:\n  exclude: [data/]\n  dir: src\n")
    shipped = load_job_file(path, checkpoint_base="file:///c")
    assert shipped.code == CodeSource(str(tmp_path / "src"), ("data/",), f"{path}:7: code")
    assert shipped.spec.workdir == str(tmp_path / "src")
    assert shipped.spec.code is None


def test_a_home_directory_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    head = "name: a\nstrategy: plain\ncommand: [./x]\nroles: {worker: {count: 1}}\ncode: {dir: .}\n"
    path = write(tmp_path / "job.yaml", head)
    with pytest.raises(UserError, match=r"job\.yaml:5: code\.dir: .* is your home directory"):
        load_job_file(path, checkpoint_base="file:///c")
