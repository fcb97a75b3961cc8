"""TFJobs train, lose a worker, and end well, and show it in the words of Kubernetes.

The example manifests of training-operator run in containers, in images that have their names. The programs in
the images are ours, with the same calls of TensorFlow (docs/tfjob.md).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.container_image import IMAGE, site_packages
from chaos.dockerd import Dockerd
from tests.contract.tfjob.page import EXAMPLES as MANIFESTS
from tests.contract.tfjob.page import annotated, annotations_of
from tests.examples.harness import EXAMPLES, Cluster, Job

PROGRAMS = Path(__file__).resolve().parents[1] / "programs/kubeflow"
PLACES = ("/var/tf_mnist", "/var/tf_dist_mnist", "/")
"""The directories of the programs in the images."""
FILES = sorted(MANIFESTS.glob("*.yaml"))


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


@pytest.fixture(scope="module")
def images(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An image with all programs, by each name that an example has."""
    directory = tmp_path_factory.mktemp("image")
    quiet = "TF_CPP_MIN_LOG_LEVEL=2 TF_ENABLE_ONEDNN_OPTS=0"
    shutil.copytree(PROGRAMS, directory / "programs")
    (directory / "Dockerfile").write_text(
        f"FROM {IMAGE}\nENV PYTHONPATH={site_packages()} {quiet}\n"
        + "".join(f"COPY programs {place}\n" for place in PLACES)
    )
    names = sorted({name for file in FILES for name in re.findall(r'image: "?([^\s"},]+)', file.read_text())})
    dockerd.cli("build", *(f"--tag={name}" for name in names), str(directory))
    yield
    # A launcher in reserve may have one of them for a while.
    dockerd.attempt("rmi", "--force", *names)


def manifest(file: Path, volume: Path) -> str:
    """An example with its annotations, for a machine that has neither a registry nor a GPU."""
    text = file.read_text()
    lines = [each.replace("/data/training", str(volume)) for each in annotations_of(text)]
    document = json.loads(annotated(text, ["tfsup/container.pull: never", *lines]))
    for replica in document["spec"]["tfReplicaSpecs"].values():
        (container,) = replica["template"]["spec"]["containers"]
        limits = container.pop("resources", {"limits": {}})["limits"]
        assert limits.keys() <= {"nvidia.com/gpu"}
    return json.dumps(document)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_runs(contained: Cluster, scratches: Path, tmp_path: Path, file: Path) -> None:
    path = tmp_path / file.name
    path.write_text(manifest(file, scratches))
    # Two examples have one name.
    job = Job(contained, f"example-{file.stem}")
    contained.ctl("submit", str(path), "--name", job.name)
    if file.stem in ("dist-mnist", "multi-worker"):
        incident = job.recovered(job.kill("worker", 1))
        assert incident.cause == "killed"
    job.result()
    assert conditions(job)["Succeeded"] == "True"
    said = contained.ctl("logs", job.name)
    accuracies = [float(each) for each in re.findall(r"accuracy:? ([01]\.\d+)$", said, re.MULTILINE)]
    assert accuracies
    assert accuracies[-1] > 0.9
    if file.stem == "multi-worker":
        assert (scratches / "saved_model/saved_model.pb").exists()
        assert job.view().newest_commit is not None
    if file.stem in ("notebook", "summaries"):
        assert list(scratches.glob("logs/train/events.out.tfevents.*"))
