"""Nodes that operators keep tasks away from, in a real embedded cluster, through the real command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.printing import TASK, PrintingShell, printing
from tests.support.waiting import wait_until


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PrintingShell]:
    with printing(tmp_path, nodes=2) as found:
        yield found


def node_of(shell: PrintingShell) -> str:
    return str(shell.task()["node"])


def states(shell: PrintingShell) -> dict[str, str]:
    nodes = shell.json("nodes")["nodes"]
    assert isinstance(nodes, list)
    return {str(node["node"]): str(node["state"]) for node in nodes}


def test_a_node_is_drained_and_given_back(shell: PrintingShell) -> None:
    first = node_of(shell)
    assert "it gets no new task; its tasks stay" in shell("cordon", first, "--reason", "new fans").stdout
    assert states(shell)[first] == "cordoned"
    assert "new fans" in shell("nodes").stdout
    done = shell("drain", first, "--timeout", "60")
    assert f"{first}: nothing runs there any more" in done.stdout
    wait_until(lambda: shell.attempt_pid() > 0, "it runs again")
    second = node_of(shell)
    assert second != first
    assert states(shell) == {first: "drained", second: "ready"}
    assert "drained" in shell("explain", "count").stdout

    held = shell("drain", second, "--timeout", "1", code=12)
    assert f"{TASK}" in held.stderr
    assert "count waits: count/worker:0 waits for a node: none is available" in held.stderr
    assert shell.attempt_pid() > 0, "it runs on until there is room"
    assert f"{first}: it takes tasks again" in shell("uncordon", first).stdout
    shell("drain", second, "--timeout", "60")
    wait_until(lambda: shell.attempt_pid() > 0 and node_of(shell) == first, "it moved back")

    shell("uncordon", second)
    assert states(shell) == {first: "ready", second: "ready"}
    told = shell("events").stdout
    for text in (f"{first} is cordoned: new fans", f"{first} is drained: new fans", "takes tasks again"):
        assert text in told
    assert "no node 'nowhere'; nodes here: " in shell("cordon", "nowhere", code=3).stderr
    assert "no GPU '0' of" in shell("uncordon", first, "--gpu", "0", code=3).stderr
