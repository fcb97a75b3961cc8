"""The shape of a cluster: its nodes, and the address of each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

OPERATOR = "operator"
"""The machine of an operator: where `ctl` runs and where recorders watch. It has no node, only an address."""
IDENTITIES = {"sup": "supervisor", "node": "agent"}
"""Kind of node -> the kind of caller that its certificate names."""
PEER_PORT, CLIENT_PORT, SUPERVISOR_PORT, AGENT_PORT = 2380, 2379, 7600, 7700
DISK_BYTES = 512 << 20
HDFS_DISK_BYTES = 4 << 30
"""HDFS wants room for whole blocks, however little is in them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A cluster to be started.

    Attributes:
        agents: nodes whose tasks are processes; docker_agents: those, after them, whose tasks are containers.
        docker_mounts: directories of this machine that every container may write to.
        gpus: of each agent, as `chaos.nvml` pretends them; 0: agents look for real ones.
        clocks: wall clocks can be set (`Node.set_clock`), but for etcd's, which is linked statically.
        own_uptime: clocks that only go forward start anew when a node is switched on, as those of machines;
            what a node says of them cannot be compared with what others, or we, measure then.
        etcd_binary: another etcd than the one in PATH.
        profile: `fast` or `default`, of the daemons and of etcd.
        hdfs: a NameNode and three DataNodes; hdfs_ha: two NameNodes, and three JournalNodes and DataNodes.
            Jobs without a checkpoint URI of their own then keep their checkpoints there.
        promise_s: so long supervisors promise tasks to live on without etcd; 0: they promise nothing.
        fence: supervisors can switch the power of nodes with agents off (`chaos.machine.power_switch`).
        log_budget: of each agent.
        task_user: of tasks, in containers too, as agents have it; empty: our own. Containers then
            see no store. A range of uids comes with the firewall.
        tenants: users beside the operator. Each submits jobs, and `Programs.client_of` is its configuration.
            With them a job has its checkpoints in STORE/USER and nowhere else.
        disk_bytes, hdfs_disk_bytes: the size of a node's own disk; only what is used takes memory.
    """

    etcd: int = 3
    supervisors: int = 3
    agents: int = 4
    docker_agents: int = 0
    docker_mounts: tuple[Path, ...] = ()
    gpus: int = 0
    clocks: bool = False
    own_uptime: bool = False
    hdfs: bool = False
    hdfs_ha: bool = False
    promise_s: int = 0
    etcd_binary: Path | None = None
    profile: str = "fast"
    fence: bool = False
    log_budget: str = "256MiB"
    task_user: str = ""
    tenants: tuple[str, ...] = ()
    disk_bytes: int = DISK_BYTES
    hdfs_disk_bytes: int = HDFS_DISK_BYTES


@dataclass(frozen=True, slots=True)
class Place:
    """A node's name, kind (etcd, sup, node, hdfs) and IPv4 address; `docker`: its tasks are containers."""

    name: str
    kind: str
    address: str
    docker: bool = False


def operator_address(*, isolated: bool) -> str:
    """The address of the operator's machine."""
    return f"{_net(isolated=isolated)}.0.1"


def places(shape: Shape, *, isolated: bool) -> tuple[Place, ...]:
    """Every node of a cluster, etcd first."""
    net = _net(isolated=isolated)
    hadoop = 3 if shape.hdfs_ha else 4 if shape.hdfs else 0
    counts = (
        ("etcd", shape.etcd),
        ("sup", shape.supervisors),
        ("node", shape.agents + shape.docker_agents),
        ("hdfs", hadoop),
    )
    return tuple(
        Place(f"{kind}-{index}", kind, f"{net}.{third}.{index + 1}", kind == "node" and index >= shape.agents)
        for third, (kind, count) in enumerate(counts, start=1)
        for index in range(count)
    )


def _net(*, isolated: bool) -> str:
    """Without namespaces each node has an address of the loopback."""
    return "10.77" if isolated else f"127.{16 + os.getpid() % 200}"
