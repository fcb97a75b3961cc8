"""The example of a mounted job on a real HDFS, a parameter server killed; and what a job file may not say."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from chaos.dockerd import Dockerd
from chaos.hdfs import HdfsCluster
from recovery.mount.points import mount_points
from supervisor.adapters.files.jobfile import load_job_file
from supervisor.contract.errors import UserError
from supervisor.contract.incident import Outcome
from tests.examples.harness import EXAMPLES, Cluster, in_containers, read_job
from tests.mount.sharing import shared
from tests.mount.world import wait

STEPS = 400


def example(hdfs: HdfsCluster, directory: Path) -> Path:
    """A copy of the example that saves to a fresh directory of this HDFS."""
    shutil.copytree(EXAMPLES / "digits_shards", directory)
    file = directory / "job.yaml"
    document = read_job(file)
    document["checkpoint"] = {"mode": "mounted", "uri": hdfs.fresh_uri("shards")}
    with file.open("w") as out:
        YAML(typ="safe").dump(document, out)
    return file


@pytest.fixture(params=["process", "docker"])
def cluster(
    request: pytest.FixtureRequest, hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    state = tmp_path / "state"
    if request.param == "process":
        with Cluster(state) as found:
            yield found
        return
    dockerd: Dockerd = request.getfixturevalue("dockerd")
    with shared(state), in_containers(state, dockerd) as found:
        yield found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_training_goes_on_when_a_parameter_server_is_killed(
    cluster: Cluster, hdfs: HdfsCluster, tmp_path: Path
) -> None:
    flags = ("--steps", str(STEPS), "--save-steps", "40", "--pause-ms", "100")
    job = cluster.submit(example(hdfs, tmp_path / "example"), flags={"": flags})
    job.wait_step(120)
    incident = job.recovered(job.kill("ps", 1))
    assert incident.outcome is Outcome.RECOVERED
    done = job.result()
    assert done.step >= STEPS
    restored = job.printed(r"restored ckpt-(\d+)", "chief")
    assert 40 <= int(restored) <= incident.to_step
    assert float(job.printed(r"test accuracy ([\d.]+)", "chief")) > 0.5
    assert done.newest_commit is not None
    assert done.newest_commit.step >= STEPS
    cluster.ctl("local", "down")
    below = f"{tmp_path}/state/"
    assert [point for point in mount_points() if point.startswith(below)] == []


EPOCHS = 60
BY_EPOCH = f"""\
import os, time
import tensorflow as tf

below = os.path.join(os.environ["CHECKPOINT_DIR"], "ckpts")
os.makedirs(below, exist_ok=True)
weight = tf.Variable(0.0)
saver = tf.train.Checkpoint(weight=weight)
done = [int(name.split(".")[0]) for name in os.listdir(below) if name.endswith(".weights.index")]
if done:
    saver.read(f"{{below}}/{{max(done)}}.weights").assert_consumed()
    print("resumed after epoch", max(done), "weight", weight.numpy(), flush=True)
for epoch in range(max(done, default=0) + 1, {EPOCHS + 1}):
    time.sleep(0.4)
    weight.assign_add(1.0)
    saver.write(f"{{below}}/{{epoch}}.weights")
    if epoch % 10 == 0:
        saver.write(f"{{below}}/best")
    print("epoch", epoch, "done", flush=True)
print("final weight", weight.numpy(), "beside", sorted(os.listdir(below))[-2:], flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_program_that_saves_each_epoch_into_a_subdirectory_resumes(
    hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes no `checkpoint` file, and its names begin with the number."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    file = tmp_path / "program" / "job.yaml"
    file.parent.mkdir()
    (file.parent / "train.py").write_text(BY_EPOCH)
    file.write_text(
        "name: epochs\ncommand: [python, train.py]\nstrategy: plain\nroles: {worker: {count: 1}}\n"
        f"checkpoint: {{mode: mounted, uri: '{hdfs.fresh_uri('epochs')}'}}\n"
    )
    with Cluster(tmp_path / "state") as cluster:
        job = cluster.submit(file)
        wait(lambda: (newest := job.view().newest_commit) is not None and newest.step >= 12, 300, "no commit")
        before = job.view().newest_commit
        assert before is not None
        assert job.recovered(job.kill("worker")).outcome is Outcome.RECOVERED
        done = job.result()
        resumed = int(job.printed(r"resumed after epoch (\d+)", "worker"))
        assert resumed >= before.step
        assert float(job.printed(r"final weight ([\d.]+)", "worker")) == EPOCHS
        assert done.newest_commit is not None
        # A save of the best model has a step of its own, and later ones have higher ones.
        assert done.newest_commit.step >= EPOCHS
        assert "best.data" in job.output("worker")


JOB = """\
name: j
command: [python, x.py]
strategy: plain
roles: {worker: {count: 1}}
"""


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        (
            "{mode: mounted}",
            "checkpoint.mode: mounted is for hdfs://, and the checkpoints go to file:///base/j",
        ),
        ("{mode: mounted, uri: 'file:///a/b'}", "the checkpoints go to file:///a/b; write staged"),
        ("{mode: mounted, uri: 'hdfs://ns1/j', verify: size}", "checkpoint.verify: a mounted save is always"),
        ("{mode: mounted, uri: 'hdfs://ns1/j', pattern: 'm-{step}.keras'}", "checkpoint.pattern: a mounted"),
        ("{mode: Mounted, uri: 'hdfs://ns1/j'}", "checkpoint.mode: must be staged or mounted"),
    ],
)
def test_what_cannot_be_mounted_is_refused(tmp_path: Path, checkpoint: str, said: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{JOB}checkpoint: {checkpoint}\n")
    with pytest.raises(UserError) as refused:
        load_job_file(path, checkpoint_base="file:///base")
    assert said in str(refused.value)


def test_a_mounted_job(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{JOB}checkpoint: {{mode: mounted}}\n")
    spec = load_job_file(path, checkpoint_base="hdfs://ns1/jobs").spec
    assert (spec.checkpoint.mode, spec.checkpoint.uri) == ("mounted", "hdfs://ns1/jobs/j")
