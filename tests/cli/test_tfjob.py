"""A TFJob where a job file is expected: what each field becomes, and what the commands print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from supervisor.adapters.files.jobfile import load_job_file
from supervisor.contract.errors import UserError
from supervisor.contract.job.spec import Mount, Pull, Rule, Strategy, SuccessPolicy
from tests.cli.shell import ctl
from tests.cli.tfjobs import BASE, FULL, WORKER, load, manifest, replica


def test_every_field_that_is_honoured(tmp_path: Path) -> None:
    text = FULL
    job = load(tmp_path, text)
    spec = job.spec
    assert (spec.name, spec.strategy, spec.workdir) == ("full", Strategy.COORDINATOR, "/app")
    assert [(role.name, role.count) for role in spec.roles] == [
        *(("chief", 1), ("ps", 1), ("worker", 1), ("evaluator", 1)),
    ]
    chief = spec.role("chief")
    assert chief.command == (
        *("python", "train.py", "--rate=0.1", '--json={{"a": {{b}}}}', "$(RATE)", "$(NONE)"),
    )
    assert chief.env == {"RATE": "0.1", "TEXT": "{{task_index}} 0.1"}
    assert chief.secrets == {"TOKEN": "hf.token"}
    assert (chief.resources.cpus, chief.resources.memory_bytes, chief.resources.gpus) == (0.5, 2 << 30, 1)
    assert chief.resources.labels == {"gpu": "h100"}
    assert spec.role("evaluator").follow
    assert spec.env == {"MODEL_DIR": "{checkpoint_dir}", "NUMBER": "010"}
    assert (spec.checkpoint.uri, spec.checkpoint.keep) == ("file:///shared/full", 7)
    assert spec.preload == ("tensorflow", "numpy")
    assert (spec.limits.wall_time_ms, spec.limits.save_grace_ms) == (3_600_000, 40_000)
    assert (spec.limits.delete_after_ms, spec.priority) == (60_000, 1000)
    assert (spec.restart.max_restarts, spec.restart.max_in_window) == (4, 4)
    assert spec.restart.window_ms == 365 * 86_400_000
    assert spec.container is not None
    assert (spec.container.image, spec.container.pull) == ("registry:5000/team/train:2.21", Pull.MISSING)
    assert spec.container.shm_bytes == 1536 << 20
    assert spec.container.mounts == (
        Mount("/srv/data", "/data", read_only=True),
        Mount("/data/claim/runs", "/train", read_only=False),
    )
    assert not job.hold


def test_what_has_no_effect_is_told_once(tmp_path: Path) -> None:
    notes = load(tmp_path, FULL).document.notes
    told = [note.partition(".yaml:")[2].partition(":")[2].partition(": ")[0].strip() for note in notes]
    main = "spec.tfReplicaSpecs.Chief.template.spec"
    assert sorted(told) == sorted(
        [
            f"{main}.tolerations",
            f"{main}.containers[0].ports",
            f"{main}.containers[0].resources.requests.memory",
        ]
    )


def test_a_job_of_defaults(tmp_path: Path) -> None:
    job = load(tmp_path, manifest())
    assert job.spec.strategy is Strategy.PLAIN
    assert job.spec.role("worker").count == 1
    assert job.spec.checkpoint.uri == f"{BASE}/a"
    assert job.spec.workdir == str(tmp_path)
    assert job.spec.container is None
    assert (job.spec.restart.max_restarts, job.spec.restart.max_in_window) == (0, 0)
    assert job.document.notes == []


@pytest.mark.parametrize(
    ("policy", "most", "exits"),
    [
        ("Never", 0, None),
        ("Always", 3, None),
        ("OnFailure", 3, None),
        ("ExitCode", 3, Rule.FAIL),
    ],
)
def test_restart_policies(tmp_path: Path, policy: str, most: int, exits: Rule | None) -> None:
    restart = load(tmp_path, replica(f"restartPolicy: {policy}")).spec.restart
    assert restart.max_restarts == most
    assert restart.rules.get("program_exit") is exits
    assert restart.retry_from == (128 if policy == "ExitCode" else 0)
    assert "program_signal" not in restart.rules


def test_always_and_on_failure_are_one_policy(tmp_path: Path) -> None:
    other = WORKER.replace("Worker: {", "Worker: {restartPolicy: Always, ")
    chief = WORKER.replace("Worker: {", "Chief: {restartPolicy: OnFailure, ")
    assert load(tmp_path, manifest(f"{other}\n    {chief}")).spec.restart.max_restarts == 3


def test_dynamic_workers_are_an_elastic_role(tmp_path: Path) -> None:
    text = manifest(
        WORKER.replace("Worker: {", "Worker: {replicas: 4, ") + "\n    " + WORKER.replace("Worker", "PS"),
        spec="  enableDynamicWorker: true\n  runPolicy: {schedulingPolicy: {minAvailable: 3}}\n",
    )
    job = load(tmp_path, text)
    worker = job.spec.role("worker")
    assert (worker.least, worker.most, job.spec.strategy) == (2, 4, Strategy.ASYNC)
    assert any("not `sparseCluster`" in note for note in job.document.notes)
    fixed = load(tmp_path, text.replace("  runPolicy: {schedulingPolicy: {minAvailable: 3}}\n", ""))
    assert fixed.spec.role("worker").least == 1


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ("", SuccessPolicy.WORKER_0),
        ('successPolicy: ""', SuccessPolicy.WORKER_0),
        ("successPolicy: AllWorkers", SuccessPolicy.ALL_WORKERS),
    ],
)
def test_without_a_chief_the_success_policy_counts(tmp_path: Path, given: str, policy: SuccessPolicy) -> None:
    two = WORKER.replace("Worker: {", "Worker: {replicas: 2, ")
    spec = f"  {given}\n" if given else ""
    assert load(tmp_path, manifest(two, spec=spec)).spec.success_policy is policy
    led = manifest(f"{two}\n    {WORKER.replace('Worker', 'Chief')}", spec=spec)
    assert load(tmp_path, led).spec.success_policy is SuccessPolicy.ALL_WORKERS


def test_the_highest_priority_of_the_pods_is_the_jobs(tmp_path: Path) -> None:
    text = manifest(
        WORKER.replace("spec: {", "spec: {priority: 7, ")
        + "\n    "
        + WORKER.replace("Worker", "Chief").replace("spec: {", "spec: {priority: -1, ")
    )
    assert load(tmp_path, text).spec.priority == 7


def test_a_suspended_job_is_held(tmp_path: Path) -> None:
    assert load(tmp_path, manifest(spec="  runPolicy: {suspend: true}\n")).hold


def test_a_name_from_the_command_line(tmp_path: Path) -> None:
    text = manifest().replace("{name: a}", "{generateName: a-}")
    assert load(tmp_path, text, "b").spec.name == "b"


@pytest.mark.parametrize(
    ("image", "pull"),
    [
        ("a", Pull.ALWAYS),
        ("a:latest", Pull.ALWAYS),
        ("r:5000/a", Pull.ALWAYS),
        ("a:1", Pull.MISSING),
        (f"a@sha256:{'0' * 64}", Pull.MISSING),
    ],
)
def test_an_image_is_pulled_as_kubernetes_does(tmp_path: Path, image: str, pull: Pull) -> None:
    spec = load(tmp_path, manifest(more=f', image: "{image}"')).spec
    assert spec.container is not None
    assert spec.container.pull is pull
    assert spec.workdir == "/"
    other = load(tmp_path, manifest(more=f', image: "{image}", imagePullPolicy: Never')).spec
    assert other.container is not None
    assert other.container.pull is Pull.NEVER


def test_shipped_code_is_where_tasks_run_in_an_image_too(tmp_path: Path) -> None:
    text = manifest(more=", image: a").replace("{name: a}", "{name: a, annotations: {tfsup/code.dir: .}}")
    job = load(tmp_path, text)
    assert job.code is not None
    assert job.code.directory == job.spec.workdir == str(tmp_path)


def test_a_command_may_be_an_annotation(tmp_path: Path) -> None:
    bare = manifest(WORKER.replace(", command: [python, t.py]MORE", ", image: a:1"))
    text = bare.replace("{name: a}", """{name: a, annotations: {tfsup/command: '["python", "/opt/t.py"]'}}""")
    assert load(tmp_path, text).spec.role("worker").command == ("python", "/opt/t.py")
    own = text.replace("tfsup/command", "tfsup/roles.worker.command")
    assert load(tmp_path, own).spec.role("worker").command == ("python", "/opt/t.py")
    with pytest.raises(UserError, match=r"containers\[0\]\.args: needs a command before it"):
        load(tmp_path, text.replace("a:1", "a:1, args: [x]"))


JUNK = st.sampled_from(
    [None, True, 0, -1, 1 << 70, 0.5, "", "x", "{", "$(", "/", [], [None], ["x"], {}, {"x": 1}]
)


def places(value: object, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Each place in a document."""
    yield where
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*where, key))


def changed(value: object, where: tuple[str | int, ...], junk: object) -> object:
    """The document with something else in one place."""
    if not where:
        return junk
    assert isinstance(value, dict | list)
    return (
        {key: changed(item, where[1:], junk) if key == where[0] else item for key, item in value.items()}
        if isinstance(value, dict)
        else [changed(item, where[1:], junk) if key == where[0] else item for key, item in enumerate(value)]
    )


WHOLE = YAML(typ="safe").load(FULL)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(list(places(WHOLE))), JUNK), min_size=1, max_size=3))
def test_whatever_a_manifest_holds_is_read_or_told_of(
    tmp_path: Path, changes: list[tuple[tuple[str | int, ...], object]]
) -> None:
    text: object = WHOLE
    for where, junk in changes:
        with suppress(AssertionError, KeyError):
            text = changed(text, where, junk)
    with suppress(UserError):
        load(tmp_path, json.dumps(text))


def test_the_job_file_that_is_printed_is_the_same_job(tmp_path: Path) -> None:
    text = FULL
    (tmp_path / "tfjob.yaml").write_text(text)
    done = ctl(tmp_path, "submit", "--convert", "tfjob.yaml")
    assert (done.returncode, done.stderr.count("note: tfjob.yaml:")) == (0, 3)
    (tmp_path / "job.yaml").write_text(done.stdout)
    made = load_job_file(tmp_path / "job.yaml", checkpoint_base=BASE)
    assert made.spec == load(tmp_path, text).spec
    assert made.document.notes == []


def test_a_suspended_job_is_printed_with_a_word_about_that(tmp_path: Path) -> None:
    (tmp_path / "tfjob.yaml").write_text(manifest(spec="  runPolicy: {suspend: true}\n").replace("MORE", ""))
    assert ctl(tmp_path, "submit", "--convert", "tfjob.yaml").stdout.startswith(
        "# Made of tfjob.yaml, and meant for the same directory. Its job is suspended: submit --hold\n"
    )


def test_a_job_file_is_not_converted(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: a\n")
    done = ctl(tmp_path, "submit", "--convert", "job.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: job.yaml is no TFJob" in done.stderr


def test_a_manifest_is_validated_like_a_job_file(tmp_path: Path) -> None:
    (tmp_path / "tfjob.yaml").write_text(FULL)
    done = ctl(tmp_path, "validate", "--offline", "tfjob.yaml", "--output", "json")
    assert json.loads(done.stdout)["detail"] == "the file is valid: 4 tasks"
    assert "note: tfjob.yaml:" in done.stderr


def test_the_form_of_kubectl_is_one_of_json(tmp_path: Path) -> None:
    done = ctl(tmp_path, "status", "--as", "tfjob")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: --as tfjob is a form of JSON; add --output json" in done.stderr
