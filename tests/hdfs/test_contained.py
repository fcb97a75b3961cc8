"""Training in containers with its checkpoints in a real HDFS: each role is lost in turn, and saves go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.dockerd import Dockerd
from chaos.hdfs import HdfsCluster
from supervisor.contract.incident import Outcome
from supervisor.contract.job.spec import Scope
from tests.examples.harness import in_containers
from tests.hdfs.training import control, digits


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_role_is_killed_and_goes_on_from_hdfs(
    hdfs: HdfsCluster, dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    steps = tmp_path / "steps"
    steps.mkdir()
    with (
        in_containers(tmp_path / "state", dockerd, steps) as cluster,
        control(tmp_path / "control") as beside,
    ):
        training = digits(cluster, hdfs, beside, tmp_path)
        for role, scope in (("worker", Scope.TASK), ("ps", Scope.ALL), ("chief", Scope.ALL)):
            committed = training.committed()
            incident = training.job.recovered(training.job.kill(role))
            assert (incident.scope, incident.outcome) == (scope.value, Outcome.RECOVERED)
            if scope is Scope.ALL:
                assert incident.to_step >= committed, "from the newest commit, or a later one"
            training.wait_commit(max(committed, incident.to_step), 240)
        assert training.job.view().generation == 3
