"""Mistakes of a user: refused with the field's name, or ended at once with the program's last words."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Outcome
from supervisor.contract.views.jobs import JobView
from tests.examples.harness import Cluster, CtlError, Job

READS_TF_CONFIG = """\
import argparse, json, os
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.parse_args()
print(json.loads(os.environ["TF_CONFIG"])["task"])
"""
TASKS = {"ps": {"count": 1}, "worker": {"count": 2}}


def submit(cluster: Cluster, directory: Path, program: str, command: list[str], **fields: object) -> Job:
    (directory / "train.py").write_text(program)
    document = {
        "name": "wrong",
        "strategy": "async",
        "command": command,
        "preload": [],
        "roles": TASKS,
    }
    with (directory / "job.yaml").open("w") as file:
        YAML(typ="safe").dump(document | fields, file)
    return cluster.submit(directory / "job.yaml")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("program", "command", "cause", "last_words"),
    [
        pytest.param(
            READS_TF_CONFIG,
            ["python", "train.py", "--ps_hosts={ps_hosts}"],
            "user_error",
            "unrecognized arguments: --ps_hosts=127.0.0.1:",
            id="flags for a program of TF_CONFIG alone",
        ),
        pytest.param(
            "import tensorflow_that_is_not_there\n",
            ["python", "train.py"],
            "user_error",
            "No module named 'tensorflow_that_is_not_there'",
            id="a module that is missing",
        ),
        pytest.param("print(\n", ["python", "train.py"], "user_error", "SyntaxError", id="a syntax error"),
        pytest.param("", ["./no-such-program"], "missing_program", "", id="a program that is missing"),
    ],
)
def test_a_users_error_fails_the_job_at_once(
    cluster: Cluster, tmp_path: Path, program: str, command: list[str], cause: str, last_words: str
) -> None:
    job = submit(cluster, tmp_path, program, command)
    ended = job.ended()
    assert (ended.phase, ended.generation, ended.restarts_program) == (JobPhase.FAILED, 1, 0), job.story()
    (incident,) = job.incidents()
    assert (incident.cause, incident.outcome) == (cause, Outcome.FAILED), job.story()
    assert last_words in incident.tail
    assert_failed_as_a_tfjob(job, ended)
    with pytest.raises(CtlError) as waited:
        cluster.ctl("wait", job.name, "--for", "succeeded")
    assert waited.value.code == 10, "docs/cli.md: the job has failed"


def assert_failed_as_a_tfjob(job: Job, ended: JobView) -> None:
    """`status` exits with 0, and shows what `kubectl get tfjob` shows of a TFJob that has failed."""
    document = job.cluster.document("status", job.name, "--as", "tfjob")
    assert isinstance(document, dict)
    status = document["status"]
    assert {each["type"]: each["status"] for each in status["conditions"]} == {
        "Created": "True",
        "Running": "False",
        "Failed": "True",
    }
    assert ended.reason
    assert status["conditions"][-1]["message"] == ended.reason
    (incident,) = job.incidents()
    failed = {kind for kind, counts in status["replicaStatuses"].items() if counts.get("failed") == 1}
    assert failed == {"PS" if "/ps:" in incident.task else "Worker"}
    assert document["metadata"]["creationTimestamp"] <= status["startTime"] <= status["completionTime"]


def test_a_build_without_the_jobs_protocol_is_told(cluster: Cluster, tmp_path: Path) -> None:
    program = """\
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
print("protocol", resolver.rpc_layer, flush=True)
tf.distribute.Server(resolver.cluster_spec(), "worker", resolver.task_id, protocol=resolver.rpc_layer)
"""
    command = ["python", "train.py"]
    one = {"worker": {"count": 1}}
    job = submit(cluster, tmp_path, program, command, strategy="plain", roles=one, protocol="grpc+verbs")
    assert job.ended().phase is JobPhase.FAILED, job.story()
    assert "protocol grpc+verbs" in job.output("worker").splitlines()
    (incident,) = job.incidents()
    assert (incident.cause, incident.outcome) == ("user_error", Outcome.FAILED), job.story()
    assert "built without the job's protocol grpc+verbs" in cluster.ctl("explain", job.name)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"roles": {"worker": {"count": 2}}}, "roles"),
        ({"roles": TASKS | {"chief": {"count": 2}}}, "roles.chief.count"),
        (
            {"roles": {"ps": {"count": 1, "after": ["worker"]}, "worker": {"count": 1, "after": ["ps"]}}},
            "these roles wait for each other",
        ),
        ({"restart": {"rules": {"user_eror": "restart"}}}, "restart.rules.user_eror"),
    ],
    ids=["no ps for async", "two chiefs", "a cycle", "no such cause"],
)
def test_a_wrong_job_file_is_refused_with_the_field(
    cluster: Cluster, tmp_path: Path, fields: dict[str, object], named: str
) -> None:
    with pytest.raises(CtlError, match=named) as refused:
        submit(cluster, tmp_path, READS_TF_CONFIG, ["python", "train.py"], **fields)
    assert refused.value.code == 2
