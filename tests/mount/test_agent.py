"""A real agent, with a real etcd, runs a job whose directory is a mount."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agent.checkpoints.keeper import NodeCheckpoints
from agent.checkpoints.mounts import NodeMounts
from agent.core.instructions import Commit
from recovery.formats.manifest import MANIFEST_FILE, parse_manifest
from recovery.mount.layout import MOUNTED
from recovery.mount.points import layers, take_away
from recovery.mount.record import MountFiles
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import ModifiedAt, Put
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, Verify
from supervisor.contract.desired import JobPhase
from supervisor.contract.ids import TaskId
from supervisor.contract.observed import Incarnation
from tests.agent.cluster import Job, Node, is_alive
from tests.checkpoints.world import JOB, UUID
from tests.mount.world import local_site
from tests.support.etcd_server import EtcdServer
from tests.support.sinks import ListSink
from tests.support.waiting import until

PROGRAM = """
import os, sys, time
sys.path.insert(0, {root!r})
from tests.mount.test_take import save
from pathlib import Path
from supervisor.contract.checkpoint import CheckpointRef
generation, step = int(os.environ["TFSUP_GENERATION"]), int(os.environ["TFSUP_BASE_STEP"])
directory = Path(os.environ["CHECKPOINT_DIR"])
print("found", sorted(os.listdir(directory)), flush=True)
step = max(step, 0)
while True:
    step += 10
    try:
        save(directory, CheckpointRef(generation, step))
    except OSError as error:
        print("not saved", error, flush=True)
    print("step", step, flush=True)
    while not os.path.exists({root_dir!r} + "/go"):
        time.sleep(0.02)
    os.unlink({root_dir!r} + "/go")
"""


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    with EtcdServer() as etcd:
        # On a busy machine an agent's successor may need longer to start than the fast profile gives it.
        node = Node(etcd.endpoint, profile="default")
        repository = str(Path(__file__).parents[2])
        (node.root / "prog.py").write_text(PROGRAM.format(root=repository, root_dir=str(node.root)))
        node.start()
        yield node
        await node.close()
    for generation in range(4):
        files, directory = mount_of(node, generation)
        beat = files.read_beat()
        if beat is not None:
            files.forget_wish()
            await node.until(partial(gone, directory), 60)


def mount_of(node: Node, generation: int = 1) -> tuple[MountFiles, Path]:
    parent = node.root / "ckpt" / "job-uuid"
    return MountFiles(parent, generation), parent / f"g{generation}"


async def gone(directory: Path) -> bool | None:
    return True if layers(directory) == 0 else None


def mounted_job(node: Node, me: Incarnation) -> Job:
    job = Job(node, me)
    job.assignment = replace(job.assignment, checkpoint_mode="mounted")
    job.saves = True
    return job


async def committed(node: Node, ref: CheckpointRef) -> CommitRecord:
    return await node.until(lambda: node.read(CommitRecord, keys.commit("job", ref)), 60)


def go(node: Node) -> None:
    (node.root / "go").touch()


async def test_a_mounted_job_commits_restarts_from_its_base_and_leaves_nothing(node: Node) -> None:
    job = mounted_job(node, await node.until_joined())
    await job.run()
    record = await committed(node, CheckpointRef(1, 10))
    assert record.tensors == 1
    job.next_generation()
    prepared = await job.prepare()
    staged = await job.stage(CheckpointRef(1, 10))
    assert staged.failure is None, staged.detail
    await job.flip(prepared.address)
    report = await job.running()
    _, old = mount_of(node, 1)
    await node.until(lambda: gone(old), 60)
    await committed(node, CheckpointRef(2, 20))
    job.switch = replace(job.switch, phase=JobPhase.SUCCEEDED)
    await job.write()
    _, directory = mount_of(node, 2)
    await node.until(lambda: gone(directory), 60)
    assert not is_alive(report)


async def test_a_mount_that_is_killed_is_healed_under_the_program(node: Node) -> None:
    job = mounted_job(node, await node.until_joined())
    await job.run()
    await committed(node, CheckpointRef(1, 10))
    files, directory = mount_of(node)
    beat = files.read_beat()
    assert beat is not None
    os.kill(beat.pid, signal.SIGKILL)

    async def healed() -> bool | None:
        now = files.read_beat()
        return True if now is not None and now.ready and now.pid != beat.pid else None

    await node.until(healed, 60)
    go(node)
    await committed(node, CheckpointRef(1, 20))
    assert layers(directory) == 2


async def test_a_manifest_says_which_tensorflow_was_imported_for_it(node: Node) -> None:
    """The files themselves do not say it."""
    (node.root / "modules").mkdir()
    (node.root / "modules" / "tensorflow.py").write_text("__version__ = '2.99.1'\n")
    job = mounted_job(node, await node.until_joined())
    job.assignment = replace(
        job.assignment, env={"PYTHONPATH": str(node.root / "modules")}, preload=("tensorflow",)
    )
    await job.run()
    record = await committed(node, CheckpointRef(1, 10))
    raw = (node.root / "store" / record.path / MANIFEST_FILE).read_bytes()
    assert parse_manifest(raw).tf_version == "2.99.1"


FAILING = """
import os, sys, time
with open(os.environ["CHECKPOINT_DIR"] + "/open", "w") as file:
    print("step 1", flush=True)
    while not os.path.exists({root_dir!r} + "/go"):
        time.sleep(0.02)
    file.write("x")
"""


@pytest.mark.parametrize(("killed", "healed"), [(True, True), (True, False), (False, False)])
async def test_an_error_after_the_mount_has_failed_the_program_is_the_stores(
    node: Node, killed: bool, healed: bool
) -> None:
    (node.root / "prog.py").write_text(FAILING.format(root_dir=str(node.root)) + "\nsys.exit(3)\n")
    job = mounted_job(node, await node.until_joined())
    await job.run()
    await node.until(lambda: said(node, job, "step 1"), 60)
    files, _ = mount_of(node)
    beat = files.read_beat()
    assert beat is not None
    if killed:
        os.kill(beat.pid, signal.SIGKILL)
    if healed:
        await node.until(lambda: _other(files, beat.pid), 60)
    go(node)
    end = (await job.exited()).exit
    assert end is not None
    assert end.code == (1 if killed else 3)
    assert end.store_lost is killed
    assert ("the store behind its checkpoint directory failed it" in end.detail) is killed
    if killed:
        # Nothing else would unmount what has no process.
        await node.until(lambda: _other(files, beat.pid), 60)


async def test_an_attempt_waits_for_a_mount_that_is_being_healed_and_finds_its_checkpoint(node: Node) -> None:
    job = mounted_job(node, await node.until_joined())
    await job.run()
    await committed(node, CheckpointRef(1, 10))
    files, directory = mount_of(node)
    beat = files.read_beat()
    assert beat is not None
    with in_the_place_of(files, beat.pid):
        # As a new process that has not mounted yet: nothing lies below but an empty directory.
        take_away(directory)
        job.assignment = replace(job.assignment, attempt=2)
        await job.write()
        await node.until(lambda: said(node, job, "is not mounted"), 60)
        assert list(directory.iterdir()) == []
        assert await said(node, job, "found") is None
    found = await node.until(lambda: said(node, job, "found"), 60)
    assert "'model.ckpt-10.index'" in found


@contextmanager
def in_the_place_of(files: MountFiles, pid: int) -> Iterator[None]:
    """Hold the mount's lock as soon as its process is killed: no other one can mount meanwhile."""
    with files.log_path.with_suffix(".lock").open("rb") as file:
        os.kill(pid, signal.SIGKILL)
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def said(node: Node, job: Job, what: str) -> str | None:
    """The line of the attempt's output that holds this."""
    for path in node.root.rglob(f"{job.assignment.attempt_id.dirname}/output.log"):
        for line in path.read_text().splitlines():
            if what in line:
                return line
    return None


async def test_a_mount_that_hangs_is_replaced(node: Node) -> None:
    job = mounted_job(node, await node.until_joined())
    await job.run()
    await committed(node, CheckpointRef(1, 10))
    files, _ = mount_of(node)
    beat = files.read_beat()
    assert beat is not None
    os.kill(beat.pid, signal.SIGSTOP)

    async def healed() -> bool | None:
        now = files.read_beat()
        return True if now is not None and now.ready and now.pid != beat.pid else None

    await node.until(healed, 60)
    go(node)
    await committed(node, CheckpointRef(1, 20))


async def test_a_mount_outlives_its_agent_and_the_next_one_looks_after_it(node: Node) -> None:
    me = await node.until_joined()
    job = mounted_job(node, me)
    report = await job.run()
    await committed(node, CheckpointRef(1, 10))
    files, directory = mount_of(node)
    beat = files.read_beat()
    assert beat is not None
    node.kill()
    assert layers(directory) == 2
    node.start()
    await node.until_joined(me.incarnation)
    go(node)
    await committed(node, CheckpointRef(1, 20))
    assert is_alive(report)
    now = files.read_beat()
    assert now is not None
    assert now.pid == beat.pid
    os.kill(beat.pid, signal.SIGKILL)
    await node.until(lambda: _other(files, beat.pid), 60)
    go(node)
    await committed(node, CheckpointRef(1, 30))


async def _other(files: MountFiles, pid: int) -> bool | None:
    now = files.read_beat()
    return True if now is not None and now.ready and now.pid != pid else None


async def test_what_an_agent_left_mounted_is_ended_by_the_next(node: Node) -> None:
    me = await node.until_joined()
    job = mounted_job(node, me)
    await job.run()
    _, directory = mount_of(node)
    node.kill()
    job.switch = replace(job.switch, phase=JobPhase.FAILED)
    await node.coordination.txn((), [Put(keys.switch("job"), codec.encode(job.switch))])
    node.start()
    await node.until(lambda: gone(directory), 60)


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


async def test_a_program_cannot_wish_for_a_mount(tmp_path: Path) -> None:
    """It may write in its job's directory, in a container too, and its agent mounts outside of it."""
    site = local_site(tmp_path)
    mounts = NodeMounts(
        site.home, MemoryCoordination(MemoryStore()), site.stores, HadoopSettings(), BootClock(), ListSink()
    )
    wish, parent = site.wish(node=UUID), site.home / UUID
    files = MountFiles(parent, 1)
    files.write_wish(wish)
    assert mounts._wished() == (wish,)
    assert not files.wish_path.is_relative_to(parent)
    forged = parent / files.wish_path.parent.parent.name / files.wish_path.name
    forged.parent.mkdir(parents=True)
    files.wish_path.rename(forged)
    assert mounts._wished() == ()
    await mounts.end_but(UUID, ())
    assert forged.exists()
    assert not files.wish_path.parent.exists()


async def test_a_mount_that_has_only_begun_ends_with_its_generation(tmp_path: Path) -> None:
    """Its process has no beat yet by which it could be found, and gets on too slowly to see for itself."""
    site = local_site(tmp_path)
    mounts = NodeMounts(
        site.home, MemoryCoordination(MemoryStore()), site.stores, HadoopSettings(), BootClock(), ListSink()
    )
    parent = site.home / UUID
    files = MountFiles(parent, 1)
    files.write_wish(site.wish(node=UUID))
    child = mounts._healer._children[files.wish_path] = _sleeper()
    await mounts.end_but(UUID, ())
    assert child.returncode is not None
    assert files.read_wish() is None
    assert not mounts._healer._children


async def test_commits_that_fail_are_no_failure_of_the_mount(tmp_path: Path) -> None:
    """The program never sees them: its own error at that time is its own."""
    site, clock, sink = local_site(tmp_path), BootClock(), ListSink()
    coordination = MemoryCoordination(MemoryStore())
    node = NodeCheckpoints("n1", site.home, coordination, site.stores.open, clock, sink, lambda: "id")
    node.mounts = NodeMounts(site.home, coordination, site.stores, HadoopSettings(), clock, sink)
    saver = TaskId(JOB, "worker", 0)
    commit = Commit(JOB, UUID, 1, None, site.uri, saver, (), Verify.CRC, mode=MOUNTED, plan_id="plan")
    node.commit(commit, lambda: ModifiedAt("node", 1), "i1", lambda: 1)
    await until(lambda: any("is not mounted" in beat.trouble for beat in node.beats()))
    assert node.store_failed_ms(UUID, 1) == -1
    files = MountFiles(site.home / UUID, 1)
    files.write_wish(site.wish(node=UUID))
    files.write_failed(7)
    assert node.store_failed_ms(UUID, 1) == 7
    await node.close()
