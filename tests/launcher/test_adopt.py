"""A path of the program's own shows the job's checkpoint directory: by a mount, or by a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.inside import adopt, protocol
from tests.launcher.harness import Agent, Rig, launcher

PROGRAM = """
import os, sys
path = sys.argv[1]
print("sees", sorted(os.listdir(path)), os.path.islink(path))
with open(os.path.join(path, "saved"), "a") as file:
    file.write("x")
print("same", os.path.samefile(path, os.environ["CHECKPOINT_DIR"]))
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount in a namespace")


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """The parent of a job's checkpoint directories, with two generations."""
    found = tmp_path / "checkpoints" / "uuid"
    for generation in (1, 2):
        (found / f"g{generation}").mkdir(parents=True)
        (found / f"g{generation}" / f"base{generation}").touch()
    return found


def _run(rig: Rig, agent: Agent, path: str, directory: Path, **options: object) -> protocol.Exited:
    rig.write("prog.py", PROGRAM)
    env = {"CHECKPOINT_DIR": str(directory)}
    return rig.run(agent, "python", "prog.py", path, env=env, adopt=path, **options)


@needs_root
@pytest.mark.parametrize("warm", [True, False])
def test_a_mount_shows_the_directory_to_its_attempt_alone(
    parent: Path, tmp_path: Path, *, warm: bool
) -> None:
    path = tmp_path / "own" / "work"
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        for generation in (1, 2):
            directory = parent / f"g{generation}"
            assert _run(rig, agent, str(path), directory, warm=warm).code == 0, rig.log()
            assert f"sees ['base{generation}'] False" in rig.log().decode()
            assert "same True" in rig.log().decode()
            assert (directory / "saved").read_text() == "x"
            assert not any(path.iterdir()), "nobody else sees it"
    adopt.forget(str(parent))
    assert not path.parent.exists()


def test_a_link_follows_the_generation(parent: Path, tmp_path: Path) -> None:
    path = tmp_path / "own" / "work"
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        for generation in (1, 2):
            # As for a mounted directory, whose launcher makes no mount of its own.
            directory = parent / f"g{generation}"
            sign = str(directory / f"base{generation}")
            assert _run(rig, agent, str(path), directory, must_see=sign).code == 0, rig.log()
            assert f"sees ['base{generation}'] True" in rig.log().decode()
            assert (directory / "saved").read_text() == "x"
            assert path.readlink() == directory
    adopt.forget(str(parent))
    assert not path.parent.exists()
    assert (parent / "g2" / "saved").exists()


def test_a_relative_path_begins_at_the_working_directory(parent: Path) -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        assert _run(rig, agent, "train_dir", parent / "g1").code == 0, rig.log()
        assert (parent / "g1" / "saved").exists()


def test_what_somebody_else_has_put_there_stays_and_is_told(parent: Path, tmp_path: Path) -> None:
    path = tmp_path / "work"
    path.mkdir()
    (path / "mine").touch()
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        exited = _run(rig, agent, str(path), parent / "g1")
        assert (exited.reason, exited.code) == ("start_failed", adopt.NOT_ADOPTED)
        assert "holds files that are not this job's (mine)" in exited.detail
        assert [each.name for each in path.iterdir()] == ["mine"]


def _link(path: Path, directory: Path) -> str:
    return adopt.adopt(str(path), str(directory), mounting=False)


def test_links_and_files_of_others_are_refused(parent: Path, tmp_path: Path) -> None:
    path = tmp_path / "work"
    path.symlink_to("/usr")
    assert "it is a link to" in _link(path, parent / "g1")
    path.unlink()
    path.write_text("")
    assert "it is a file" in _link(path, parent / "g1")
    assert "is below it" in _link(parent.parent, parent / "g1")
    assert (parent / "g1" / "base1").exists()
    assert "name a path that its task may create" in _link(path / "below", parent / "g1")


def test_an_empty_directory_a_dangling_link_and_the_directory_itself_are_taken(
    parent: Path, tmp_path: Path
) -> None:
    path = tmp_path / "work"
    path.mkdir()
    assert _link(path, parent / "g1") == ""
    assert path.readlink() == parent / "g1"
    path.unlink()
    path.symlink_to(tmp_path / "of-a-job-that-is-gone" / "g7")
    assert _link(path, parent / "g2") == ""
    assert path.readlink() == parent / "g2"
    assert _link(parent / "g1", parent / "g1") == ""
    assert not (parent / "g1").is_symlink()


@pytest.mark.parametrize("record", [b"", b"[]", b"{}", b'{"path": 1, "made": 2}', b"\xff"])
def test_a_forged_record_removes_nothing(parent: Path, tmp_path: Path, record: bytes) -> None:
    (parent / adopt.RECORDS).mkdir()
    (parent / adopt.RECORDS / "x").write_bytes(record)
    adopt.forget(str(parent))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "full")
    forged = f'{{"path": "{tmp_path}/link", "made": ["{tmp_path}/full"]}}'
    (parent / adopt.RECORDS / "x").write_text(forged)
    adopt.forget(str(parent))
    assert (tmp_path / "full" / "file").exists()
    assert (tmp_path / "link").is_symlink()
