"""Limits and mounts as a task meets them: by the kernel's own word, inside its container."""

from __future__ import annotations

import json
from dataclasses import replace

from supervisor.contract.job.spec import ContainerSpec, Mount, Resources, Ulimit
from tests.runtimes.docker_node import DockerNode

MIB = 1 << 20

LOOK = """
import json, os, resource, shutil, threading, time

def read(*paths):
    for path in paths:
        try:
            return open(path).read().split()[0]
        except OSError:
            continue

def first_refused():
    hold, made = threading.Event(), 0
    try:
        while made < 1000:
            threading.Thread(target=hold.wait, daemon=True).start()
            made += 1
    except RuntimeError:
        pass
    hold.set()
    return made

def writes(path):
    try:
        open(path, "w").close()
    except OSError:
        return False
    return True

print("seen " + json.dumps({
    "memory": read("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"),
    "with_swap": read("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "/sys/fs/cgroup/memory.swap.max"),
    "quota": read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu.max"),
    "cpus": sorted(os.sched_getaffinity(0)),
    "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "shm": shutil.disk_usage("/dev/shm").total,
    "threads": first_refused(),
    "data": sorted(os.listdir("/data")),
    "writes_data": writes("/data/new"),
    "writes_out": writes("/out/new"),
}), flush=True)
time.sleep(60)
"""


async def test_a_task_has_the_limits_and_mounts_that_its_job_says(node: DockerNode) -> None:
    data, out = node.root / "data", node.root / "out"
    for directory in (data, out):
        directory.mkdir()
        directory.chmod(0o777)
    (data / "digits").touch()
    (data / "link").symlink_to("digits")
    mounts = node.docker["mounts"]
    assert isinstance(mounts, list)
    mounts += [{"source": str(data)}, {"source": str(out), "read_only": False}]
    node.program(LOOK)
    node.start()
    asked = ContainerSpec(
        cpuset="0",
        swap_bytes=64 * MIB,
        shm_bytes=8 * MIB,
        pids=64,
        ulimits=(Ulimit("nofile", 256, 512), Ulimit("core", 0, 0)),
        mounts=(Mount(str(data), "/data"), Mount(str(out), "/out", read_only=False)),
    )
    job = node.job(await node.until_joined(), asked)
    job.assignment = replace(job.assignment, resources=Resources(0.5, 192 * MIB))
    await job.run()
    said = await node.until_printed("seen ")
    seen = json.loads(said.partition("seen ")[2])
    assert seen["memory"] == str(192 * MIB)
    # Version 1 counts both together, version 2 the swap alone; a kernel that does not count swap has neither.
    assert seen["with_swap"] in (str(256 * MIB), str(64 * MIB), None)
    assert seen["quota"] == "50000"
    assert seen["cpus"] == [0]
    assert (seen["nofile"], seen["core"]) == ([256, 512], [0, 0])
    assert seen["shm"] == 8 * MIB
    assert 0 < seen["threads"] < 64
    assert seen["data"] == ["digits", "link"]
    assert (seen["writes_data"], seen["writes_out"]) == (False, True)
    assert (out / "new").stat().st_uid == 1000


async def test_a_container_without_limits_still_has_the_nodes_own_of_processes(node: DockerNode) -> None:
    node.docker["pids"] = 100
    node.program(LOOK.replace('os.listdir("/data")', "[]"))
    node.start()
    job = node.job(await node.until_joined())
    await job.run()
    seen = json.loads((await node.until_printed("seen ")).partition("seen ")[2])
    assert 0 < seen["threads"] < 100
    assert len(seen["cpus"]) >= 1


FILLS = """
import os, time
left = os.listdir("/dev/shm") + [each for each in os.listdir("/tmp") if each == "mine"]
print("left", left, flush=True)
with open("/tmp/mine", "w") as file:
    file.write("x")
fd = os.open("/dev/shm/psm_dead", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(fd, 0, 6 << 20)
try:
    os.posix_fallocate(fd, 0, 9 << 20)
except OSError as error:
    os.write(fd, bytes(8 << 20))
    raise
"""


async def test_a_dead_attempt_leaves_its_container_no_memory_and_says_what_was_full(node: DockerNode) -> None:
    node.program(FILLS)
    node.start()
    job = node.job(await node.until_joined(), ContainerSpec(shm_bytes=8 * MIB))
    for number in (1, 2):
        if number == 1:
            await job.run()
        else:
            job.assignment = replace(job.assignment, attempt=2)
            await job.write()
        ended = await job.exited()
        assert ended.number == number
        assert ended.exit is not None
        assert "its /dev/shm of 8 MiB is full" in ended.exit.detail
        assert "left []" in ended.exit.tail
