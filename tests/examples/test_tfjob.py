"""A TFJob trains, loses a worker, and ends well, and shows it in the words of Kubernetes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.examples.harness import EXAMPLES, Cluster, Job


def conditions(job: Job) -> dict[str, str]:
    """The conditions of a job by their types, as `kubectl` would show them."""
    document = job.cluster.document("status", job.name, "--as", "tfjob")
    assert isinstance(document, dict)
    assert (document["apiVersion"], document["kind"]) == ("kubeflow.org/v1", "TFJob")
    return {each["type"]: each["status"] for each in document["status"]["conditions"]}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_manifest_trains_through_the_loss_of_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "digits_async", tmp_path / "program")
    file = tmp_path / "program/tfjob.yaml"
    file.write_text(file.read_text().replace('"3000"', '"1500"'))
    cluster.ctl("submit", str(file))
    job = Job(cluster, "digits-tfjob")
    job.wait_step(100)
    assert conditions(job) == {"Created": "True", "Running": "True"}
    incident = job.recovered(job.kill("worker", 1))
    assert (incident.cause, incident.rule) == ("killed", "async.worker.in_place")
    job.result()
    assert conditions(job) == {"Created": "True", "Running": "False", "Succeeded": "True"}
    document = cluster.document("status", "--as", "tfjob")
    assert isinstance(document, dict)
    ours = next(each for each in document["items"] if each["metadata"]["name"] == job.name)
    assert ours["status"]["replicaStatuses"]["Chief"] == {"succeeded": 1}
    assert ours["status"]["startTime"] <= ours["status"]["completionTime"]
