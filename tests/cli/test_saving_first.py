"""Jobs that save before an operator moves or stops them, through the real command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.cli.local.cluster import LocalCluster
from tests.cli.saving import SavingShell
from tests.support.waiting import wait_until


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[SavingShell]:
    with LocalCluster(tmp_path / "state", nodes=2, supervisors=1) as cluster:
        found = SavingShell(cluster, tmp_path)
        found.save_when_asked()
        yield found


def test_a_job_saves_before_it_is_moved_and_before_it_is_stopped(shell: SavingShell) -> None:
    shell("submit", str(shell.job))
    shell("wait", "count", "--for", "running", "--timeout", "60")
    wait_until(lambda: shell.step() > 20, "it makes steps")
    assert shell.list() == ()

    (node,) = shell.nodes()
    before = shell.step()
    shell("drain", node, "--timeout", "60")
    wait_until(lambda: shell.base() != "", "it went on from a checkpoint")
    assert int(shell.base().rpartition("s")[2]) >= before
    wait_until(lambda: shell.step() > int(shell.base().rpartition("s")[2]) + 20, "it makes new steps")

    before = shell.step()
    assert "; count/worker:0 has saved" in shell("stop", "count", "--save").stdout
    shell("wait", "count", "--for", "ended", "--timeout", "60")
    assert max(each.ref.step for each in shell.list()) >= before
