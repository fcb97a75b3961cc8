"""Digits on a pool of a real YARN: whatever ends, training goes on, and all is given back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from chaos.yarn import AGENT_MIB, PLACES, YarnCluster
from supervisor.cli.local.cluster import LocalCluster
from tests.engines.pool_shell import JOB, PoolShell, ours, wait_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
UP = ("pool", "up", "p", "--agents", "3", "--notice", "40", "--memory", f"{AGENT_MIB}MiB")


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


def keepers(place: str) -> list[psutil.Process]:
    """The keepers of pool p on a machine."""
    words = {"supervisor.engines.keeper", place}
    found = (each for each in psutil.process_iter(["cmdline"]) if words <= set(each.info["cmdline"] or ()))
    return [each for each in found if each.parent() is not None]


def place_of_ps(shell: PoolShell) -> str:
    """The machine of the parameter server."""
    return str(shell.tasks()["ps:0"]["node"]).removeprefix("p.")
