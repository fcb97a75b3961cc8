"""An installation comes to a machine: whole and once, or not at all and with the reason."""

from __future__ import annotations

import ast
import hashlib
import inspect
import io
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervisor.engines.installation import bootstrap
from tests.support.waiting import wait_until

ABI = str(sysconfig.get_config_var("SOABI"))
BARE = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
PACKAGES = f"lib/python{sysconfig.get_python_version()}/site-packages"
SHOW = "import hello, sys; print(sys.prefix, hello.WORD, sys.argv[1:], flush=True); sys.stdin.read()"


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, link, len(content)
    return found


def pack(path: Path, word: str = "hi", more: Iterable[tarfile.TarInfo] = ()) -> Path:
    """A small installation, and members that the real `pack` makes never."""
    text = f"WORD = {word!r}\n".encode()
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(member("tfsup.json", b"x"), io.BytesIO(b"x"))
        tar.addfile(member(f"{PACKAGES}/hello.py", text), io.BytesIO(text))
        for each in more:
            tar.addfile(each)
    return path


class Machine:
    """A directory in which installations are unpacked, and bare Pythons that do so."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self,
        archive: Path,
        sha256: str = "",
        abi: str = ABI,
        most_bytes: int = -1,
    ) -> subprocess.Popen[str]:
        digest = sha256 or hashlib.sha256(archive.read_bytes()).hexdigest()
        limit = ["prlimit", f"--fsize={most_bytes}"] if most_bytes >= 0 else []
        command = [*limit, BARE, "-I", "-c", inspect.getsource(bootstrap)]
        self.started.append(
            subprocess.Popen(
                [*command, str(archive), digest, abi, str(self.root), "-c", SHOW, "--place", "n1"],
                env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "/nowhere"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self.started[-1]

    def run(self, archive: Path, sha256: str = "", abi: str = ABI) -> tuple[str, str]:
        """The output of one that has ended."""
        return self.start(archive, sha256, abi).communicate(timeout=60)

    def trees(self) -> set[str]:
        return {each.name for each in self.root.iterdir()} - {bootstrap.LOCK} if self.root.exists() else set()


@pytest.fixture
def machine(tmp_path: Path) -> Iterable[Machine]:
    found = Machine(tmp_path / "state" / "installations")
    yield found
    for each in found.started:
        each.kill()
        each.communicate()


def test_it_runs_on_any_python_and_says_which_one_it_needs(machine: Machine, tmp_path: Path) -> None:
    text = inspect.getsource(bootstrap)
    ast.parse(text, feature_version=(3, 6))
    # YARN would replace these in a command.
    assert "{{" not in text
    assert "}}" not in text
    _, told = machine.run(pack(tmp_path / "a"), abi="cpython-310-x86_64-linux-gnu")
    assert told.startswith(f"tfsup-bootstrap: {BARE} is Python {sysconfig.get_python_version()} ({ABI}), and")
    assert "is for cpython-310-x86_64-linux-gnu: name such a Python with `pool up --python`" in told
    assert machine.trees() == set()


def test_it_is_unpacked_once_and_runs_without_the_archive(machine: Machine, tmp_path: Path) -> None:
    path = pack(tmp_path / "a")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    said, told = machine.run(path)
    (name,) = machine.trees()
    tree = machine.root / name
    assert said == f"{tree} hi ['--place', 'n1']\n"
    assert told.startswith(f"tfsup-bootstrap: unpacked {path} into {tree} in ")
    path.unlink()
    assert machine.run(path, digest) == (said, "")
    python = tree / "bin" / "python"
    done = subprocess.run([python, "-c", "import hello"], check=True, capture_output=True, text=True)
    assert done.stderr == ""


def test_several_at_once_unpack_once(machine: Machine, tmp_path: Path) -> None:
    path = pack(tmp_path / "a")
    told = [each.communicate(timeout=60) for each in [machine.start(path) for _ in range(4)]]
    assert [each[0].split()[1] for each in told] == ["hi"] * 4
    assert sum("unpacked" in each[1] for each in told) == 1


def test_one_that_nothing_uses_any_more_is_removed(machine: Machine, tmp_path: Path) -> None:
    old = machine.start(pack(tmp_path / "old", "old"))
    assert old.stdout is not None
    assert "old" in old.stdout.readline()
    machine.run(pack(tmp_path / "new", "new"))
    assert len(machine.trees()) == 2
    old.communicate()
    machine.run(tmp_path / "new")
    (tree,) = machine.trees()
    assert (machine.root / tree / PACKAGES / "hello.py").read_text() == "WORD = 'new'\n"


@pytest.mark.parametrize(
    "evil",
    [
        member("../outside"),
        member("/tmp/outside"),
        member("a/../../outside"),
        member("./a"),
        member("link", kind=tarfile.SYMTYPE, link="/etc"),
        member("hard", kind=tarfile.LNKTYPE, link="tfsup.json"),
        member("pipe", kind=tarfile.FIFOTYPE),
    ],
    ids=lambda each: each.name,
)
def test_an_archive_with_anything_but_plain_files_is_refused(
    machine: Machine, tmp_path: Path, evil: tarfile.TarInfo
) -> None:
    said, told = machine.run(pack(tmp_path / "a", more=[evil]))
    assert said == ""
    assert told == f"tfsup-bootstrap: {tmp_path}/a has {evil.name!r}, which is no plain file in it\n"
    assert machine.trees() == set()


def test_another_file_than_the_pool_was_started_with_is_refused(machine: Machine, tmp_path: Path) -> None:
    path = pack(tmp_path / "a")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(path.read_bytes()[:-20])
    _, told = machine.run(path, digest)
    assert f", not {digest}: it is another file than the pool was started with, or is cut off" in told
    _, told = machine.run(path)
    assert f"{path} is damaged: Compressed file ended before" in told
    path.unlink()
    _, told = machine.run(path, digest)
    assert told.startswith(f"tfsup-bootstrap: there is no {path} on this machine: put it where all machines")
    assert machine.trees() == set()


def test_a_full_disk_leaves_nothing(machine: Machine, tmp_path: Path) -> None:
    path = pack(tmp_path / "a", word="x" * 9000)
    _, told = machine.start(path, most_bytes=5000).communicate(timeout=60)
    assert told == f"tfsup-bootstrap: cannot unpack {path} into {machine.root}: File too large\n"
    assert machine.trees() == set()


def test_what_a_killed_one_left_half_made_is_removed(machine: Machine, tmp_path: Path) -> None:
    path, slow = pack(tmp_path / "a"), tmp_path / "slow"
    os.mkfifo(slow)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    killed = machine.start(slow, digest)
    wait_until(lambda: machine.trees() != set(), "it has begun")
    killed.kill()
    killed.communicate()
    assert [each.endswith(bootstrap.FRESH) for each in machine.trees()] == [True]
    said, _ = machine.run(path)
    assert [said.split()[0]] == [str(machine.root / each) for each in machine.trees()]


def test_a_file_system_that_runs_no_programs_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(bootstrap.Failed, match=r"installations is on a file system that runs no programs"):
        bootstrap.install(str(pack(tmp_path / "a")), "", tmp_path / "installations")
    assert list((tmp_path / "installations").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories to another user")
def test_a_directory_that_another_user_has_made_is_refused(machine: Machine, tmp_path: Path) -> None:
    machine.root.parent.mkdir()
    os.chown(machine.root.parent, 65534, 65534)
    tmp_path.chmod(0o1777)
    _, told = machine.run(pack(tmp_path / "a"))
    assert told.startswith(
        f"tfsup-bootstrap: {machine.root.parent} belongs to another user, or every user may"
    )
    assert machine.trees() == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links to another user")
def test_a_link_that_another_user_can_turn_elsewhere_is_refused(tmp_path: Path) -> None:
    """It leads to a directory of our own as long as that is looked at."""
    tmp_path.chmod(0o1777)
    (tmp_path / "own").mkdir()
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    theirs.symlink_to("own")
    ours.symlink_to(theirs)
    assert bootstrap.exchangeable(ours / "below") is None
    os.lchown(theirs, 65534, 65534)
    for path in (theirs, theirs / "below", ours / "below"):
        assert bootstrap.exchangeable(path) == theirs
    theirs.unlink()
    theirs.symlink_to("sub/../theirs")  # a loop ends
    assert bootstrap.exchangeable(ours) is None
