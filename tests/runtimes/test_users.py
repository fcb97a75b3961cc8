"""Containers of each job have a user of their own."""

from __future__ import annotations

import os

from agent.inside.processes import fence
from tests.agent.cluster import is_alive
from tests.runtimes.docker_node import DockerNode

LOW = 61_500
WRITES = """
import os, time
open(os.environ["CHECKPOINT_DIR"] + "/mine", "w").close()
print("wrote as", os.getuid(), os.getgid(), os.getgroups(), flush=True)
while True:
    print("step 1", flush=True)
    time.sleep(0.05)
"""


async def test_containers_of_two_jobs_have_two_users_and_a_successor_knows_both(node: DockerNode) -> None:
    node.docker["user"] = f"{LOW}-{LOW + 9}"
    node.config()
    (node.root / "locks").chmod(0o1777)
    node.program(WRITES)
    node.start()
    me = await node.until_joined()
    reports = []
    for _ in range(2):
        job = node.job(me)
        reports.append(await job.run())
        uid = fence.user_of(reports[-1].pid)
        assert LOW < uid <= LOW + 9
        await node.until_printed(f"wrote as {uid} {uid} [")
        checkpoints = (node.root / "ckpt" / job.uuid).stat()
        assert (checkpoints.st_uid, checkpoints.st_gid, checkpoints.st_mode & 0o777) == (
            os.geteuid(),
            uid,
            0o710,
        )
    assert len({fence.user_of(each.pid) for each in reports}) == 2
    node.kill()
    node.start()
    await node.until_joined(other_than=me.incarnation)
    assert all(map(is_alive, reports))
    containers = await node.containers()
    assert len(containers) == 2
