"""Agents on a real YARN: their processes, places, containers and files."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from urllib.request import Request, urlopen

import psutil
from hdfs_native import Client

from chaos.yarn import YarnCluster
from supervisor.engines import pools
from supervisor.engines.engine import Engine, State
from tests.engines.pool_shell import wait_long


def processes(application: str, program: str) -> list[psutil.Process]:
    """The processes of an application that run this program: not their shells."""
    found = []
    for each in psutil.process_iter(["cmdline", "name"]):
        words = each.info["cmdline"] or []
        if each.info["name"].startswith(("java", "python")) and any(word.endswith(program) for word in words):
            environment = read_environment(each)
            if application in environment and "container.py" not in words:
                found.append(each)
    return found


def read_environment(process: psutil.Process) -> str:
    try:
        return str(process.environ())
    except psutil.Error:
        return ""


def place_other_than(engine: Engine, place: str) -> str:
    """The place of the one agent, once it is another."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [each.place for each in pools.live(engine) if each.state is State.RUNNING]
        return bool(found) and found != [place]

    wait_long(look, "it has another place")
    return found[0]


def containers(cluster: YarnCluster) -> int:
    """The containers that YARN counts, with those that wait for a machine."""
    page = cluster.web.removesuffix("/cluster") + "/ws/v1/cluster/metrics"
    with urlopen(Request(page, headers={"Accept": "application/json"}), timeout=30) as answer:
        found = json.load(answer)["clusterMetrics"]
    return sum(int(found[f"containers{each}"]) for each in ("Allocated", "Reserved", "Pending"))


def staged(hdfs: Client) -> set[str]:
    """The names of the directories with the files of pools."""
    return {each.name for each in directories(hdfs)}


def directories(hdfs: Client) -> list[PurePosixPath]:
    """The paths of those directories: one for each pool below one for each YARN."""
    return [PurePosixPath(each.path) for each in hdfs.glob_status("/user/*/.tfsup/yarn/*/*")]
