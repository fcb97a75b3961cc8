"""Digits on a pool of a real YARN: whatever ends, training goes on, and all is given back."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hdfs_native import Client

from chaos.yarn import AGENT_MIB, PLACES, YarnCluster
from supervisor.cli.local.cluster import LocalCluster
from tests.cli.saving import SavingShell
from tests.engines.on_yarn import containers, staged
from tests.engines.pool_shell import JOB, LONG_S, PoolShell, ours, wait_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MEMORY = ("--memory", f"{AGENT_MIB}MiB")
UP = ("pool", "up", "p", "--agents", "3", "--notice", "40", *MEMORY)


@pytest.fixture
def shell(tmp_path: Path, yarn_cluster: YarnCluster) -> Iterator[PoolShell]:
    cluster = LocalCluster(tmp_path / "state", nodes=1, supervisors=2)
    with cluster, PoolShell(cluster, "yarn", yarn_cluster.variables).alone() as found:
        yield found


def test_training_survives_whatever_yarn_does(
    shell: PoolShell, yarn_cluster: YarnCluster, tmp_path: Path
) -> None:
    shell(*UP)
    wait_long(lambda: shell.ready() == set(PLACES), "three agents join")
    (tmp_path / "job.yaml").write_text(JOB)
    shell("submit", str(tmp_path / "job.yaml"))
    shell.trains_on("the beginning")

    for task in ("worker:0", "ps:0"):
        shell.survives(task, psutil.Process(int(str(shell.tasks()[task]["pid"]))).kill)

    # The container is killed without a word: its keeper ends the node all the same, and D is not waited for.
    place = place_of_ps(shell)
    container = yarn_cluster.container_of(shell.ident(place))
    shell.survives(
        "container -signal FORCEFUL_SHUTDOWN",
        lambda: yarn_cluster.yarn("container", "-signal", container, "FORCEFUL_SHUTDOWN"),
    )
    assert shell.tasks()["ps:0"]["node"] != f"p.{place}"
    shell("pool", "scale", "p", "3")
    wait_long(lambda: len(shell.ready()) == 3, "another agent has come")

    # YARN kills the application, and with it the container: 250 ms after SIGTERM.
    application = shell.ident(place := place_of_ps(shell))
    shell.survives("application -kill", lambda: yarn_cluster.yarn("application", "-kill", application))
    assert shell.tasks()["ps:0"]["node"] != f"p.{place}"
    shell("pool", "scale", "p", "3")
    wait_long(lambda: len(shell.ready()) == 3, "another agent has come")

    # A NodeManager dies. Its agent runs on until one is back, and moves then.
    place = place_of_ps(shell)
    daemon = f"nodemanager{PLACES.index(place)}"
    began = shell.recoveries()
    yarn_cluster.script("kill", daemon)
    wait_long(lambda: place not in shell.agents(), "YARN takes its machine for lost")
    assert shell.recoveries() == began
    shell.survives("nodemanager", yarn_cluster.restore)
    wait_long(lambda: len(shell.ready()) == 3, "YARN has given the agent a container again")

    shell("pool", "down", "p", "--within", "20")
    assert "application_" not in yarn_cluster.yarn("application", "-list")
    wait_long(lambda: ours(tmp_path) == [], "no process is left")


def test_an_agent_on_a_machine_that_yarn_has_lost_ends_with_its_pool(
    shell: PoolShell, yarn_cluster: YarnCluster, tmp_path: Path
) -> None:
    shell("pool", "up", "p", "--agents", "1", "--notice", "40", "--memory", f"{AGENT_MIB}MiB")
    wait_long(lambda: len(shell.ready()) == 1, "it joins")
    (place,) = shell.ready()
    (keeper,) = keepers(place)
    kept = [keeper, *keeper.children(recursive=True), *keeper.parents()[:1]]
    yarn_cluster.script("kill", f"nodemanager{PLACES.index(place)}")
    try:
        wait_long(lambda: bool(shell.ready() - {place}), "YARN has given it another container")
        lost = shell.json("pool", "status", "p")["lost"]
        assert isinstance(lost, list)
        assert [each["node"] for each in lost] == [f"p.{place}"]
        assert keeper.is_running()
        done = shell("pool", "down", "p", "--now")
        assert "1 agents have ended that the engine had lost" in done.stdout
        assert "application_" not in yarn_cluster.yarn("application", "-list")
        assert ours(tmp_path) == []
        wait_long(lambda: not any(each.is_running() for each in kept), "nothing of its container is left")
    finally:
        yarn_cluster.restore()


def test_a_job_saves_before_yarn_takes_its_container(
    shell: PoolShell, yarn_cluster: YarnCluster, tmp_path: Path
) -> None:
    saving = SavingShell(shell.cluster, tmp_path)
    saving.save_when_asked()
    # Of the agents of a queue YARN takes the container of the one that came last: the job's.
    shell("pool", "up", "p", "--agents", "2", "--notice", "40", *MEMORY)
    wait_long(lambda: len(shell.ready()) == 2, "two agents join")
    others = shell.ready()
    for place in others:
        shell("cordon", f"p.{place}", "--reason", "the job is for the last one")
    shell("pool", "scale", "p", "3")
    wait_long(lambda: shell.ready() == {*PLACES} - others, "the last one joins")
    shell("submit", str(saving.job))
    wait_long(lambda: saving.step() > 20, "it makes steps")
    for place in others:
        shell("uncordon", f"p.{place}")
    assert saving.list() == ()
    urgent = ("urgent", "--agents", "1", "--queue", "urgent", *MEMORY)
    try:
        goes_on_from_a_save(shell, saving, lambda: shell("pool", "up", *urgent))
        wait_long(lambda: "urgent" in nodes_ready(shell), "the urgent queue has the machine")
    finally:
        shell.works("pool", "down", "urgent", "--now")
    wait_long(lambda: len(shell.ready()) == 3, "the agent has a container again")

    place = saving.nodes().pop().removeprefix("p.")
    try:
        goes_on_from_a_save(shell, saving, lambda: yarn_cluster.decommission(place))
    finally:
        yarn_cluster.restore()


def goes_on_from_a_save(shell: PoolShell, saving: SavingShell, take: Callable[[], object]) -> None:
    """Have YARN take the container of the job's node: the job goes on elsewhere from a save after that."""
    node, before = saving.nodes(), saving.step()
    take()
    wait_long(lambda: bool(saving.nodes() - {*node, ""}), "it has moved")
    base = shell.base_of(shell.moved("count"))
    assert base >= before
    wait_long(lambda: saving.step() > base + 20, "it makes new steps")


def nodes_ready(shell: PoolShell) -> set[str]:
    """The pools whose nodes take tasks."""
    nodes = shell.json("nodes")["nodes"]
    assert isinstance(nodes, list)
    return {str(each["labels"].get("pool")) for each in nodes if each["state"] == "ready"}


def test_a_client_that_is_killed_leaves_nothing_behind_pool_down(
    shell: PoolShell, yarn_cluster: YarnCluster, tmp_path: Path
) -> None:
    hdfs = Client(config_dir=str(yarn_cluster.directory / "client"))

    def copies() -> bool:
        return staged(hdfs) != set()

    def queues() -> bool:
        return shell.json("pool", "list")["pools"] != {}

    moments: tuple[tuple[str, Callable[[], bool], signal.Signals], ...] = (
        ("it asks YARN", lambda: True, signal.SIGKILL),
        ("it copies files", copies, signal.SIGKILL),
        ("it copies files, and Ctrl-C comes", copies, signal.SIGINT),
        ("it queues agents", queues, signal.SIGKILL),
    )
    assert not queues()
    for moment, has_come, number in moments:
        is_killed_when(shell, has_come, number, moment)
        assert not queues(), moment
        assert not copies(), moment
        wait_long(lambda: containers(yarn_cluster) == 0, "no container is left")
        wait_long(lambda: ours(tmp_path) == [], "no process is left")


def is_killed_when(
    shell: PoolShell, has_come: Callable[[], bool], number: signal.Signals, moment: str
) -> None:
    """Kill a `pool up` at a moment, and have `pool down` end what is there.

    Its Java process stands still meanwhile, as on a slow machine, and ends after that.
    """
    argv = [*shell.argv, "pool", "up", "--on", "yarn", "p", "--agents", "8", *MEMORY]
    client = subprocess.Popen(argv, env=shell.env, start_new_session=True)
    wait_long(lambda: java_of(client) != [], f"{moment}: it starts Java")
    (java,) = java_of(client)
    # A moment may be short.
    deadline = time.monotonic() + LONG_S
    while not has_come():
        assert time.monotonic() < deadline, moment
    java.suspend()
    assert client.poll() is None, f"{moment}: it is over already"
    os.killpg(client.pid, number)
    client.wait()
    shell.works("pool", "down", "p", "--now")
    java.resume()
    wait_long(lambda: not java.is_running(), f"{moment}: its Java ends")


def java_of(client: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The Java process by which a command speaks with YARN."""
    try:
        children = psutil.Process(client.pid).children()
        return [each for each in children if "tfsup.yarn.Client" in each.cmdline()]
    except psutil.Error:
        return []


def keepers(place: str) -> list[psutil.Process]:
    """The keepers of pool p on a machine."""
    words = {"supervisor.engines.keeper", place}
    found = (each for each in psutil.process_iter(["cmdline"]) if words <= set(each.info["cmdline"] or ()))
    return [each for each in found if each.parent() is not None]


def place_of_ps(shell: PoolShell) -> str:
    """The machine of the parameter server."""
    return str(shell.tasks()["ps:0"]["node"]).removeprefix("p.")
