"""Parts that a cluster of nodes may have besides: HDFS, docker, GPUs, another etcd."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from chaos import nvidia_docker
from chaos.cluster import Shape
from chaos.cluster.cluster import temporary
from chaos.container_image import IMAGE
from tests.support.etcd_server import etcd_binaries

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]
CGROUPS = Path("/sys/fs/cgroup")


def test_the_other_namenode_takes_over_when_the_active_ones_machine_is_lost() -> None:
    with temporary(Shape(etcd=1, supervisors=0, agents=0, hdfs_ha=True)) as cluster:
        hadoop = cluster.hadoop
        assert hadoop is not None
        assert hadoop.active() == "hdfs-0"
        hadoop.tool("dfs", "-mkdir", "/kept")
        cluster.nodes["hdfs-0"].power_off()
        hadoop.activate("hdfs-1")
        assert "/kept" in hadoop.tool("dfs", "-ls", "/")
        cluster.nodes["hdfs-0"].power_on()
        hadoop.wait_ready()
        assert hadoop.active() == "hdfs-1"


def test_without_ha_there_is_one_namenode_that_takes_writes() -> None:
    with temporary(Shape(etcd=1, supervisors=0, agents=0, hdfs=True)) as cluster:
        hadoop = cluster.hadoop
        assert hadoop is not None
        assert hadoop.namenodes() == ["hdfs-0"]
        hadoop.tool("dfsadmin", "-safemode", "enter")
        assert not hadoop.takes_writes(3)
        hadoop.tool("dfsadmin", "-safemode", "leave")
        hadoop.wait_ready()


def test_containers_are_lost_with_their_node() -> None:
    with temporary(Shape(etcd=1, supervisors=1, agents=0, docker_agents=1)) as cluster:
        node = cluster.nodes["node-0"]
        before = set(node.pids())
        cluster.docker("node-0", "run", "--detach", "--network=host", IMAGE, "sleep", "600")
        assert "sleep" in {Path(f"/proc/{pid}/comm").read_text().strip() for pid in set(node.pids()) - before}
        node.power_off()
        assert node.pids() == []
        node.power_on()
        assert node.cgroup is not None
        name = node.cgroup.parent.name
    assert not [*CGROUPS.glob(f"{name}*"), *CGROUPS.glob(f"*/{name}*")]


def test_scripted_gpus_are_what_agents_see() -> None:
    with temporary(Shape(etcd=1, supervisors=1, agents=2, gpus=2)) as cluster:
        found = cluster.ctl("gpus")
        assert isinstance(found, dict)
        assert {each["uuid"] for each in found["gpus"]} == {
            uuid for nvml in cluster.gpus.values() for uuid in nvml.uuids
        }


@pytest.mark.parametrize("release", sorted(etcd_binaries()))
def test_each_release_of_etcd_carries_a_cluster(release: str) -> None:
    binary = etcd_binaries()[release]
    with temporary(Shape(supervisors=1, agents=1, etcd_binary=binary)) as cluster:
        assert cluster.leader() == "sup-0"
        pid = cluster.nodes["etcd-0"].daemons["etcd"].pid
        assert Path(f"/proc/{pid}/exe").resolve() == binary.resolve()
        shown = subprocess.run([str(binary), "--version"], check=True, capture_output=True, text=True)
        assert "etcd Version" in shown.stdout


def test_a_container_sees_the_gpus_that_it_was_given_until_it_does_not() -> None:
    with temporary(Shape(etcd=1, supervisors=1, agents=0, docker_agents=1, gpus=2)) as cluster:
        nvml = cluster.gpus["node-0"]
        given = f"NVIDIA_VISIBLE_DEVICES={nvml.uuids[1]}"
        options = ("--detach", "--network=none", f"--runtime={nvidia_docker.RUNTIME}", "--env", given)
        ident = cluster.docker("node-0", "run", *options, IMAGE, "sleep", "600")
        inside = int(cluster.docker("node-0", "inspect", "--format", "{{.State.Pid}}", ident))
        pid = cluster.nodes["node-0"].host_pid(inside)
        assert pid is not None
        assert nvidia_docker.sees(pid) == [nvml.uuids[1]]
        nvidia_docker.see(nvml, ident)
        assert nvidia_docker.sees(pid) == []
        assert not nvidia_docker.denied(pid)
        nvidia_docker.deny(pid)
        assert nvidia_docker.denied(pid)
