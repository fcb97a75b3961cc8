"""An agent whose launchers are containers of a real dockerd, driven through a real etcd."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent.host.host_pids import pids_of
from agent.inside import protocol
from agent.inside.processes import fence
from agent.runtimes.weights import SHARES, WEIGHT, Weights
from chaos.dockerd import Dockerd
from supervisor.contract.job.spec import ContainerSpec, Mount, Pull, Resources
from supervisor.contract.observed import AttemptReport, ExitReason
from tests.agent.cluster import Job, fence_by_command, is_alive
from tests.runtimes.docker_node import DockerNode

LOOK_AROUND = """
import os, socket, time
status = open("/proc/self/status").read()
for name in ("CapEff", "NoNewPrivs", "Seccomp", "Uid", "Gid"):
    print([line for line in status.splitlines() if line.startswith(name + ":")][0])
inside = "/opt/tf-supervisor/inside"
mine = os.environ["CHECKPOINT_DIR"]
above = os.path.dirname(mine)
for path in ("/", "/etc", "/usr", os.getcwd(), inside, "/tmp", mine, above, above + "/summaries"):
    try:
        open(path + "/probe", "w").close()
        print("writes", path)
    except OSError as error:
        print("cannot write", path, error.strerror)
print("pids", sorted(int(each) for each in os.listdir("/proc") if each.isdigit()))
print("env", sorted(os.environ))
print("visible", os.environ["NVIDIA_VISIBLE_DEVICES"])
with socket.socket(socket.AF_UNIX) as probe:
    print("agent", probe.connect_ex(SOCKET))
    probe.sendall(HELLO)
    print("answer", probe.recv(4096))
print("done", flush=True)
time.sleep(60)
"""

WATCH = """
import os, time
place = os.path.dirname(os.environ["CHECKPOINT_DIR"]) + "/later"
print("watches", place, flush=True)
while not os.path.exists(place + "/sign"):
    time.sleep(0.05)
print("there", flush=True)
time.sleep(60)
"""

HOG = """
import os, time
def hog():
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20)))
"""


async def again(job: Job, node: DockerNode) -> AttemptReport:
    """The next attempt, in place."""
    job.assignment = replace(job.assignment, attempt=job.assignment.attempt + 1)
    await job.write()
    return await job.running()


async def lighter(weight: Path) -> bool | None:
    """True once a training container weighs less than one that starts."""
    full = SHARES if weight.name == "cpu.shares" else WEIGHT
    return int(weight.read_text()) < full // 4 or None


async def test_a_task_runs_in_a_container_and_starts_again_in_the_same(node: DockerNode) -> None:
    node.start()
    me = await node.until_joined()
    assert me.resources.runtime == "docker"
    job = node.job(me)
    running = await job.run()
    assert is_alive(running)
    levels = pids_of(running.pid)
    assert len(levels) == 2
    assert levels[0] == running.pid
    await node.until_printed("step")
    weight = Weights()._file(running.pid)
    assert weight is not None
    await node.until(lambda: lighter(weight), 30)
    launcher = fence.read_process(running.pid)
    assert launcher is not None
    held = [each.readlink() for each in Path(f"/proc/{launcher.parent}/fd").iterdir()]
    assert weight.resolve() in held, "a launcher can hasten what it kills without its agent"
    container = await node.container()
    labels = await node.labels(container)
    names = ("cluster", "node", "job", "role", "index", "generation", "attempt")
    assert {name: labels[f"tfsup.{name}"] for name in names} == {
        "cluster": "test",
        "node": node.name,
        "job": job.name,
        "role": "worker",
        "index": "0",
        "generation": "1",
        "attempt": "1",
    }
    # What changes is in a file: labels do not.
    name = node.root / node.name / "launchers" / labels["tfsup.launcher"] / "attempt"
    await node.until(lambda: holds(name, f"{job.assignment.attempt_id}\n"))
    os.kill(running.pid, signal.SIGKILL)
    ended = await job.exited()

    async def nobody() -> bool | None:
        return not name.exists() or None

    await node.until(nobody)
    assert ended.exit is not None
    assert (ended.exit.reason, ended.exit.signal) == (ExitReason.EXIT, signal.SIGKILL)
    assert ended.last_step >= 0
    second = await again(job, node)
    assert is_alive(second)
    assert await node.container() == container
    assert await node.labels(container) == labels
    await node.until(lambda: holds(name, f"{job.assignment.attempt_id}\n"))


async def holds(file: Path, text: str) -> bool | None:
    """The launcher tells of an attempt before it writes this."""
    return (file.exists() and file.read_text() == text) or None


@pytest.mark.slow
async def test_what_a_dead_agent_has_left_in_containers_is_dead_when_its_node_is_fenced(
    node: DockerNode,
) -> None:
    node.start()
    life = await node.until_joined()
    running = await node.job(life).run()
    node.kill()
    assert is_alive(running)
    done = await fence_by_command(node)
    assert done.returncode == 0, done.stderr
    assert not is_alive(running)
    assert await node.incarnation() == replace(life, fenced=True)


async def test_an_agent_that_dies_leaves_its_containers_to_the_next_one(node: DockerNode) -> None:
    node.start()
    first = await node.until_joined()
    job = node.job(first)
    running = await job.run()
    container = await node.container()
    node.kill()
    node.start()
    second = await node.until_joined(other_than=first.incarnation)
    assert second.succeeds[:1] == (first.incarnation,)

    async def adopted() -> AttemptReport | None:
        found = await job.report("running")
        return found if found is not None and found.incarnation == second.incarnation else None

    os.kill(running.pid, 0)
    assert is_alive(running)
    assert await node.container() == container
    os.kill(running.pid, signal.SIGKILL)
    assert (await job.exited()).incarnation == second.incarnation
    await again(job, node)
    assert await node.container() == container


async def test_what_a_task_sees_is_what_it_needs(node: DockerNode) -> None:
    node.start()
    me = await node.until_joined()
    socket = str(node.root / node.name / "tasks" / "agent.sock")
    hello = protocol.encode(protocol.Hello(protocol.PROTOCOL, "another-1", "job", 1, 1, "boot", False))
    node.program(LOOK_AROUND.replace("SOCKET", repr(socket)).replace("HELLO", repr(hello)))
    job = node.job(me)
    await job.run()
    seen = await node.until_printed("done")
    assert "CapEff:\t0000000000000000" in seen
    assert "NoNewPrivs:\t1" in seen
    assert "Seccomp:\t2" in seen
    assert "Uid:\t1000\t1000\t1000\t1000" in seen
    assert "Gid:\t1000\t1000\t1000\t1000" in seen
    for path in ("/", "/etc", "/usr", str(node.root / "work"), "/opt/tf-supervisor/inside"):
        assert f"cannot write {path} " in seen, seen
    assert "writes /tmp" in seen
    checkpoints = node.root / "ckpt" / job.uuid
    assert f"writes {checkpoints}/g1\n" in seen
    assert f"writes {checkpoints}/summaries\n" in seen
    assert f"cannot write {checkpoints} " in seen, "it could put a link in the place of a generation"
    assert "pids [1, " in seen
    assert "visible void" in seen
    assert "agent 0" in seen
    assert "this process is not that launcher" in seen
    made = await node.inspect(await node.container())
    mounts = made["Mounts"]
    assert isinstance(mounts, list)
    assert not [each for each in mounts if str(node.dockerd.socket).startswith(each["Source"])]
    assert {each["Type"] for each in mounts} == {"bind"}


async def test_a_process_that_the_oom_killer_ends_is_told_apart(node: DockerNode) -> None:
    node.start()
    me = await node.until_joined()
    node.program(HOG + "print('step 1', flush=True)\nhog()\n")
    job = node.job(me)
    job.assignment = replace(job.assignment, resources=Resources(memory_bytes=64 << 20))
    await job.run()
    ended = await job.exited()
    assert ended.exit is not None
    assert (ended.exit.signal, ended.exit.oom) == (signal.SIGKILL, True)
    container = await node.container()
    child = (
        "pid = os.fork()\nif pid == 0:\n    hog()\nos.waitpid(pid, 0)\ntime.sleep(1)\nraise SystemExit(3)\n"
    )
    node.program(HOG + child)
    job.assignment = replace(job.assignment, attempt=2)
    await job.write()
    ended = await job.exited()
    assert ended.exit is not None
    assert (ended.exit.code, ended.exit.oom) == (3, True), ended.exit
    assert await node.container() == container, "the launcher has survived both"


async def test_what_is_mounted_later_shows_in_a_running_container(endpoint: str, dockerd: Dockerd) -> None:
    """As the generations of a mounted job are, below its checkpoint parent; on a mount that is shared."""
    with shared_directory() as root:
        node = DockerNode(endpoint, dockerd, root)
        try:
            node.start()
            node.program(WATCH)
            job = node.job(await node.until_joined())
            await job.run()
            seen = await node.until_printed("watches")
            place = Path(seen.split()[1])
            place.mkdir()
            mount = ["mount", "-t", "tmpfs", "none", str(place)]
            await asyncio.to_thread(subprocess.check_call, mount)
            (place / "sign").touch()
            await node.until_printed("there")
        finally:
            await node.close()


@contextmanager
def shared_directory() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="agent-"))
    root.chmod(0o755)
    subprocess.run(["mount", "--bind", root, root], check=True)
    try:
        subprocess.run(["mount", "--make-shared", root], check=True)
        yield root
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", root], check=True)
        shutil.rmtree(root)


async def test_a_paused_container_is_not_confirmed_dead(node: DockerNode) -> None:
    node.start()
    me = await node.until_joined()
    job = node.job(me)
    running = await job.run()
    container = await node.container()
    await node.cli("pause", container)

    async def unconfirmed() -> AttemptReport | None:
        return await job.report("exited")

    ended = await node.until(unconfirmed, 30)
    assert ended.exit is not None
    assert not ended.exit.confirmed_dead
    assert is_alive(running)
    await node.cli("unpause", container)
    assert (await job.exited()).exit is not None
    await node.until_stopped(container)


async def test_containers_that_nobody_wants_go_and_others_stay(node: DockerNode) -> None:
    options = ("-d", "--network=host", "--entrypoint", "python3")
    sleep = ("tfsup-test:py311", "-c", "import time; time.sleep(600)")
    ours = {"tfsup.cluster": "test", "tfsup.node": node.name, "tfsup.launcher": "old-1"}
    here = str(node.root / node.name / "launchers")
    made = []
    for directory in (here, "/another/agent"):
        labels = [f"--label={key}={value}" for key, value in {**ours, "tfsup.directory": directory}.items()]
        made.append(await node.cli("run", *options, *labels, *sleep))
    node.start()
    await node.until_joined()
    await node.until_stopped(made[0])
    assert await node.cli("inspect", "--format={{.State.Running}}", made[1]) == "true"


@pytest.mark.parametrize(
    ("container", "said"),
    [
        (ContainerSpec(image="tfsup-test:absent", pull=Pull.NEVER), "image tfsup-test:absent is not on node"),
        (ContainerSpec(python="python2.7"), "cannot run python2.7"),
        (ContainerSpec(mounts=(Mount("/srv", "/data"),)), "/srv is not in a directory"),
        (ContainerSpec(network="elsewhere"), "network elsewhere is not in `docker.networks`"),
        (ContainerSpec(mounts=(Mount("/proc/1", "/etc"),)), "container.mounts"),
    ],
)
async def test_what_cannot_be_had_is_said_at_once(
    node: DockerNode, container: ContainerSpec, said: str
) -> None:
    node.start()
    me = await node.until_joined()
    prepared = await node.job(me, container).prepare()
    assert said in prepared.failure

    async def nothing() -> bool | None:
        return not await node.containers() or None

    await node.until(nothing, 30)
