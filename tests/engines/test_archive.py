"""The archive of an installation: what is in it, and files that are none."""

from __future__ import annotations

import hashlib
import json
import sysconfig
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from supervisor.contract.errors import NotFound, Refused, UserError
from supervisor.engines.installation import archive
from tests.cli.shell import ctl

PACKAGES = f"lib/python{sysconfig.get_python_version()}/site-packages"


@pytest.fixture
def _two_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that this program needs takes seconds to pack."""
    few = {"tf_supervisor": metadata.distribution("tf-supervisor"), "click": metadata.distribution("click")}
    monkeypatch.setattr(archive, "_closure", lambda _: few)
    monkeypatch.setattr(archive, "_PARTS", ("agent/inside", "supervisor/wire", "tfsup.py"))


@pytest.mark.usefixtures("_two_packages")
def test_the_same_installation_gives_the_same_archive(tmp_path: Path) -> None:
    path = archive.pack(tmp_path, [])
    found = archive.read(path)
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (found.python, found.abi) == (sysconfig.get_python_version(), sysconfig.get_config_var("SOABI"))
    assert path.name == f"tfsup-{metadata.version('tf-supervisor')}-{found.sha256[:12]}.tar.gz"
    (tmp_path / "again").mkdir()
    assert archive.pack(tmp_path / "again", []).name == path.name
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == [path.name]
    _check_members(path)


def _check_members(path: Path) -> None:
    with tarfile.open(path) as tar:
        members = {each.name: each for each in tar}
        assert next(iter(members)) == archive.MANIFEST
        assert all(
            each.isreg() and (each.mtime, each.uid, each.gid) == (0, 0, 0) for each in members.values()
        )
        for name in ("supervisor/wire/tfsup.proto", "agent/inside/shim.py", "tfsup.py", "click/core.py"):
            assert f"{PACKAGES}/{name}" in members
        version = metadata.version("tf-supervisor")
        assert f"{PACKAGES}/tf_supervisor-{version}.dist-info/METADATA" in members
        assert members["bin/supervisorctl"].mode == 0o755
        # Where this machine has it is nobody's business, and no use elsewhere.
        assert not any(
            name.endswith(("direct_url.json", ".pth", ".pyc")) or "/tests/" in name for name in members
        )


def test_a_package_comes_with_what_it_needs() -> None:
    own = archive._closure(["tf-supervisor"])
    assert {"click", "grpcio", "pydantic_core"} <= own.keys()
    assert not {"tensorflow_cpu", "pytest", "pip"} & own.keys()
    more = archive._closure(["tf-supervisor", "tf-supervisor[demo]"])
    assert {"tensorflow_cpu", "keras", "scikit_learn"} <= more.keys() - own.keys()
    assert "pytest" not in more


def test_a_package_that_cannot_be_packed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"--with no-such-package: no such package is installed for /"):
        archive.pack(tmp_path, ["no-such-package"])
    with pytest.raises(UserError, match=r"'--x' is not the name of a package"):
        archive.pack(tmp_path, ["--x"])
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: mine\nVersion: 1.0\n")
    (info / "RECORD").write_text("mine.pth,,\n")
    (info / "direct_url.json").write_text(json.dumps({"url": "file:///src", "dir_info": {"editable": True}}))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="mine is installed from its sources, or not by pip"):
        archive._files_of(metadata.distribution("mine"))
    (info / "direct_url.json").unlink()
    (info / "RECORD").unlink()
    with pytest.raises(UserError, match="mine is installed from its sources, or not by pip"):
        archive._files_of(metadata.distribution("mine"))


@pytest.mark.usefixtures("_two_packages")
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"cannot write an archive in /.*/none: No such file"):
        archive.pack(tmp_path / "none", [])


@pytest.mark.parametrize("content", [b"", b"text", b"\x1f\x8b\x08", "other.tar.gz"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "file.tar.gz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with tarfile.open(path, "w:gz") as tar:
            tar.addfile(tarfile.TarInfo(content))
    with pytest.raises(UserError, match=r"file.tar.gz is no archive that `supervisorctl pool pack` makes"):
        archive.read(path)
    with pytest.raises(NotFound, match="no such file; `supervisorctl pool pack` makes one"):
        archive.read(tmp_path / "none")


def test_the_verb_names_what_it_cannot_pack(tmp_path: Path) -> None:
    done = ctl(tmp_path, "pool", "pack", "--with", "no-such-package")
    assert (done.returncode, "no-such-package: no such package" in done.stderr) == (2, True), done.stderr
