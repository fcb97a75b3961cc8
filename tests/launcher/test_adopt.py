"""A path of the program's own shows the job's checkpoint directory: by a mount, or by a link."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.checkpoints.adopted import forget, forget_shared
from agent.inside import protocol
from agent.inside.child import adopt
from supervisor.contract.job.spec import CheckpointSpec, ContainerSpec, JobSpec, Mount, RoleSpec, Strategy
from tests.launcher.harness import Agent, Rig, launcher

PROGRAM = """
import os, sys
path = sys.argv[1]
print("sees", sorted(os.listdir(path)), os.path.islink(path))
with open(os.path.join(path, "saved"), "a") as file:
    file.write("x")
print("same", os.path.samefile(path, os.environ["CHECKPOINT_DIR"]))
"""


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
            assert [each.name for each in path.iterdir()] == [".adopted-uuid"], "nobody else sees it"
    forget(parent)
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
    forget(parent)
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


def test_an_empty_directory_is_made_again_as_it_was(parent: Path, tmp_path: Path) -> None:
    path = tmp_path / "work"
    path.mkdir()
    path.chmod(0o2750)
    for generation in (1, 2):
        assert _link(path, parent / f"g{generation}") == ""
        assert path.readlink() == parent / f"g{generation}"
    forget(parent)
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o7777 == 0o2750


def test_a_link_of_somebody_else_is_left_alone_though_it_leads_nowhere_now(
    parent: Path, tmp_path: Path
) -> None:
    path = tmp_path / "work"
    path.symlink_to("/mnt/nfs/models/of-mine")
    assert "which is not this job's" in _link(path, parent / "g1")
    forget(parent)
    assert path.is_symlink()


def test_the_directory_itself_needs_nothing(parent: Path) -> None:
    assert _link(parent / "g1", parent / "g1") == ""
    assert not (parent / "g1").is_symlink()


def test_the_end_of_another_job_takes_no_mount_away(parent: Path, tmp_path: Path) -> None:
    """A directory that is removed takes the mounts of other namespaces along."""
    path, other = tmp_path / "work", parent.parent / "other"
    (other / "g1").mkdir(parents=True)
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        assert _run(rig, agent, str(path), other / "g1").code == 0
        source = (
            "import os, sys, time\nprint('begun', flush=True)\n"
            "while not os.path.exists('go'): time.sleep(0.01)\n"
            "open(os.path.join(sys.argv[1], 'late'), 'w').close()\n"
        )
        rig.write("waits.py", source)
        env = {"CHECKPOINT_DIR": str(parent / "g1")}
        name = rig.start(agent, "python", "waits.py", str(path), env=env, adopt=str(path))
        rig.logged("begun")
        forget(other)
        assert path.is_dir()
        rig.write("go", "")
        assert agent.expect(protocol.Exited, lambda each: each.attempt == name).code == 0, rig.log()
    assert (parent / "g1" / "late").exists()
    forget(parent)


NONSENSE = [b"", b"[]", b"{}", b'{"path": 1, "made": 2, "was": 3}', b"\xff", b"[" * 16_000, b"x" * 100_000]


@pytest.mark.parametrize("record", NONSENSE)
def test_a_forged_record_removes_nothing(parent: Path, tmp_path: Path, record: bytes) -> None:
    (parent / adopt.RECORDS).mkdir()
    (parent / adopt.RECORDS / "x").write_bytes(record)
    forget(parent)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "full")
    forged = f'{{"path": "{tmp_path}/link", "made": ["{tmp_path}/full"], "was": null}}'
    (parent / adopt.RECORDS / "x").write_text(forged)
    forget(parent)
    assert (tmp_path / "full" / "file").exists()
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_among_the_records_holds_nobody_up(parent: Path, tmp_path: Path) -> None:
    (parent / adopt.RECORDS).mkdir()
    os.mkfifo(parent / adopt.RECORDS / "a")
    assert _link(tmp_path / "work", parent / "g1") == ""
    forget(parent)
    assert not (tmp_path / "work").is_symlink()


def test_what_an_attempt_of_the_same_pid_has_left_is_in_nobodys_way(parent: Path, tmp_path: Path) -> None:
    """Two containers that share a directory of the machine number their processes alike."""
    path = tmp_path / "work"
    (tmp_path / f"work.{os.getpid()}.adopted").symlink_to(parent / "g1")
    assert _link(path, parent / "g1") == ""
    assert path.readlink() == parent / "g1"


def _spec(workdir: Path, path: Path | str, mounts: tuple[Mount, ...] = ()) -> JobSpec:
    role, checkpoint = RoleSpec("worker", 1, ("python",)), CheckpointSpec("file:///x", adopt=str(path))
    container = ContainerSpec(mounts=mounts)
    return JobSpec("job", Strategy.PLAIN, (role,), checkpoint, str(workdir), container=container)


def test_a_link_that_containers_made_in_a_directory_of_the_machine_goes_with_their_job(
    parent: Path, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "run").mkdir(parents=True)
    always = (Mount(str(scratch), str(scratch), read_only=False),)
    link = scratch / "run" / "ckpt"

    def is_left(spec: JobSpec, mounts: tuple[Mount, ...] = always) -> bool:
        link.unlink(missing_ok=True)
        link.symlink_to(parent / "g2")
        forget_shared(spec, mounts, parent)
        return link.is_symlink()

    assert not is_left(_spec(Path("/code"), link))
    assert not is_left(_spec(scratch / "run", "ckpt")), "a relative path begins at the working directory"
    mounted = Mount(str(scratch / "run"), "/data", read_only=False)
    assert not is_left(_spec(Path("/code"), "/data/ckpt", (mounted,)), ())
    # In a container of this job it was nobody's to write, or another place.
    assert is_left(_spec(Path("/code"), link), (replace(always[0], read_only=True),))
    assert is_left(_spec(Path("/code"), link, (Mount("/usr", str(link.parent)),)))
    assert not is_left(_spec(Path("/code"), link), (Mount("/", "/", read_only=False),)), "a plain process"
    assert is_left(_spec(Path("/code"), "/tmp/ckpt"))
    assert is_left(_spec(Path("/code"), ""))


def test_nothing_but_a_link_into_the_job_goes_from_a_directory_of_the_machine(
    parent: Path, tmp_path: Path
) -> None:
    scratch, elsewhere = tmp_path / "scratch", tmp_path / "elsewhere"
    scratch.mkdir()
    elsewhere.mkdir()
    always = (Mount(str(scratch), str(scratch), read_only=False),)
    link = scratch / "ckpt"
    link.symlink_to(parent.parent / "another" / "g1")
    forget_shared(_spec(tmp_path, link), always, parent)
    assert link.is_symlink()
    link.unlink()
    link.write_text("mine")
    forget_shared(_spec(tmp_path, link), always, parent)
    assert link.read_text() == "mine"
    # A container has put a link on the way.
    (scratch / "run").symlink_to(elsewhere)
    (elsewhere / "ckpt").symlink_to(parent / "g1")
    forget_shared(_spec(tmp_path, scratch / "run" / "ckpt"), always, parent)
    assert (elsewhere / "ckpt").is_symlink()


def test_a_place_that_cannot_be_written_is_named(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "work"

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), source, None, target)

    monkeypatch.setattr(os, "symlink", refuse)
    said = _link(path, parent / "g1")
    assert f"Read-only file system: {path}." in said
    assert said.endswith("name a path that its task may create, in a container one below /tmp")
