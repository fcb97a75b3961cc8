"""The stored job file of a job, and the source of each value."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_origin

import pytest
from pydantic import BaseModel

from supervisor.adapters.files.jobfile import JobFile, load_job_file
from supervisor.adapters.files.jobfile_model import JobModel, RoleModel
from supervisor.api.description import REDACTED, description
from supervisor.cli.jobs.describe import lines
from supervisor.contract import codec
from supervisor.contract.errors import UserError
from supervisor.contract.job.spec import CodeRef, EnvironmentRef, JobRecord
from supervisor.contract.views.description import Description
from tests.support.builders import job_spec

BASE = "file:///state/checkpoints"
SMALL = """\
name: digits
command: [python, train.py, --steps, 3000, "{ps_hosts}"]
strategy: async
roles:
  ps: {count: 1}
  worker: {count: 2, resources: {gpus: 1}}
"""
FULL = r"""
name: digits
command: [python, train.py, --steps, 3000, "{ps_hosts}", "{{x}}"]
strategy: async
roles:
  chief: {count: 1, command: [sh, -c, 'echo "#"; ./chief'], serves: false}
  ps: {count: 1, resources: {cpus: 1.5, memory: 2GiB, labels: {"a b": "1"}}, after: [chief]}
  worker:
    min: 1
    max: 4
    env: {A: "x: y", B: {secret: hf}}
    resources: {gpus: 2, gpu_memory: 80GB, gpu_model: H200, gpu_share: 2, gpu_indices: [0, 3]}
  evaluator: {count: 1, follow: true, cluster: true}
env: {STEP_LOG: /tmp/steps, N: 0x10, HF: {secret: hf}}
preload: [tensorflow, numpy.linalg]
checkpoint:
  uri: file:///data/digits
  verify: crc
  keep: 7
  keep_every: 1000
  keep_for: 2d
  lag_bound: 0
  fallback_after: 90s
  adopt: out/model
  cadence: off
  max_overhead: 2.5
  pattern: ["model-{step}.keras"]
restart:
  max: 7
  backoff: 1500ms
  backoff_max: 2m
  degraded_limit: 1h
  scope: {worker: all}
  max_in_window: 9
  window: 2h
  rules: {hang: fail}
progress: {patterns: ['it=(\d+)'], nan: true, hangs: false, suspect_after: 20s, act_after: 1m}
limits: {wall_time: 1d, startup: 20m, save_grace: 1s, hold_on_failure: 5m,
  output_budget: 1GiB, keep_work: 2d, delete_after: 1h}
protocol: grpc+verbs
container:
  image: registry.example:5000/train:2.21
  pull: never
  python: python3
  network: train
  cpuset: "0-3"
  swap: 1GiB
  shm: 2GiB
  pids: 4096
  ulimits: {nofile: 4096, core: {soft: 0, hard: 1}}
  mounts: [{source: /data/digits, target: /data}]
notify: [pager]
serving: {model: net, export: "export/*", role: chief, check: checksums, keep: 2, servers: ["a:8500"]}
packing: pack
priority: -5
success_policy: all_workers
"""
LOCK = "numpy==2.1.0 --hash=sha256:" + "0" * 64
PACKED = SMALL + f"environment: {{archive: 'file:///data/venv.tar.gz', sha256: '{'1' * 64}'}}\n"
LOCKED = SMALL + "environment: {requirements: lock.txt, wheelhouse: /data/wheels, python: python3.12}\n"
READING = SMALL + "data: {train: 'hdfs://ns1/data/digits', other: /data/x}\n"


def loaded(directory: Path, text: str, name: str | None = None) -> JobFile:
    (directory / "lock.txt").write_text(LOCK)
    path = directory / "job.yaml"
    path.write_text(text)
    return load_job_file(path, checkpoint_base=BASE, name=name)


def described(job: JobFile, sizes: dict[str, int] | None = None) -> Description:
    return description(JobRecord(job.spec, "u", 0, given=job.given), sizes or {})


def sources(found: Description) -> dict[str, str]:
    return {".".join(each.path): each.source for each in found.fields}


def values(found: Description) -> dict[str, str]:
    return {".".join(each.path): each.value for each in found.fields}


def text_of(found: Description) -> str:
    return "\n".join(lines(found)) + "\n"


@pytest.mark.parametrize("text", [SMALL, FULL, PACKED, LOCKED, READING, SMALL + "workdir: /opt/program\n"])
def test_what_is_shown_is_a_job_file_of_the_same_job(tmp_path: Path, text: str) -> None:
    first = loaded(tmp_path, text)
    shown = text_of(described(first))
    assert loaded(tmp_path, shown).spec == first.spec
    # Also where a record does not know what the file gave, and from another directory.
    (elsewhere := tmp_path / "elsewhere").mkdir()
    unrecorded = text_of(description(JobRecord(first.spec, "u", 0), {}))
    assert loaded(elsewhere, unrecorded).spec == first.spec


def test_each_value_has_its_source(tmp_path: Path) -> None:
    found = sources(described(loaded(tmp_path, SMALL)))
    assert found["name"] == found["command"] == found["roles.worker.count"] == "job file"
    assert found["roles.worker.resources.gpus"] == "job file"
    assert found["roles.ps.resources.gpus"] == found["roles.worker.resources.cpus"] == "default"
    assert found["restart.max"] == found["env"] == found["preload"] == "default"
    assert found["checkpoint.uri"] == "checkpoint_base"
    assert found["workdir"] == "submit"
    assert "roles.worker.command" not in found
    assert sources(described(loaded(tmp_path, SMALL, name="other")))["name"] == "--name"


def test_a_directory_of_the_file_is_in_what_is_shown(tmp_path: Path) -> None:
    first = loaded(tmp_path, SMALL + "workdir: /opt/program/\n")
    found = described(first)
    assert (values(found)["workdir"], sources(found)["workdir"]) == ("/opt/program", "job file")
    assert loaded(tmp_path, text_of(found)).spec == first.spec


def test_what_a_file_gives_is_from_it_also_where_it_is_the_default(tmp_path: Path) -> None:
    text = SMALL + "restart: {max: 3}\nprogress: {act_after: null}\nenv: {A: b}\n"
    found = sources(described(loaded(tmp_path, text)))
    assert found["restart.max"] == found["progress.act_after"] == found["env.A"] == "job file"
    assert found["restart.backoff"] == found["progress.suspect_after"] == "default"


def test_every_field_of_a_job_file_is_shown(tmp_path: Path) -> None:
    def fields(model: type[BaseModel], *at: str) -> Iterator[tuple[str, ...]]:
        for name, field in model.model_fields.items():
            inner = field.annotation
            parts = () if get_origin(inner) in (list, dict) else (inner, *get_args(inner))
            models = [each for each in parts if isinstance(each, type) and issubclass(each, BaseModel)]
            yield from fields(models[0], *at, name) if models else [(*at, name)]

    job = loaded(tmp_path, FULL + "code: {exclude: [data/]}\n")
    environment = EnvironmentRef("0" * 64, requirements="lock.txt")
    shipped = replace(job, spec=replace(job.spec, code=CodeRef("0" * 64, 1), environment=environment))
    shown = {each.path for each in described(shipped).fields}
    for wanted in set(fields(JobModel)) - {("workdir",)}:  # a file has it, or code
        assert any(path[: len(wanted)] == wanted for path in shown), wanted
    roles = {path[2:] for path in shown if path[0] == "roles"}
    for wanted in fields(RoleModel):
        assert any(path[: len(wanted)] == wanted for path in roles), wanted
    assert set(sources(described(shipped)).values()) == {"job file", "default", "room", "submit"}


def test_a_record_of_an_earlier_release_does_not_know_its_file(tmp_path: Path) -> None:
    job = loaded(tmp_path, SMALL)
    record = JobRecord(job.spec, "u", 0, owner="user:alice", group="vision")
    raw = codec.encode(record)
    assert b'"given":[],' in raw
    older = codec.decode(JobRecord, raw.replace(b'"given":[],', b""))
    found = description(older, {"worker": 3})
    assert not found.recorded
    assert set(sources(found).values()) == {"not recorded", "scale"}
    assert values(found)["roles.ps.command"].startswith("[python, train.py")
    head = text_of(found).splitlines()[:2]
    assert head[0].endswith("by user:alice, group vision")
    assert "not recorded" in head[1]


def test_counts_that_scale_has_changed_and_those_that_follow_the_room(tmp_path: Path) -> None:
    found = described(loaded(tmp_path, SMALL), {"worker": 4})
    assert (values(found)["roles.worker.count"], sources(found)["roles.worker.count"]) == ("4", "scale")
    assert loaded(tmp_path, text_of(found)).spec.role("worker").count == 4
    elastic = described(loaded(tmp_path, SMALL.replace("{count: 2,", "{min: 1, max: 3,")))
    assert sources(elastic)["roles.worker.count"] == "room"
    assert sources(elastic)["roles.worker.max"] == "job file"
    assert "# count: 3" in text_of(elastic)


def test_values_that_may_be_secrets_are_hidden_and_no_cluster_takes_the_text_without_them(
    tmp_path: Path,
) -> None:
    text = SMALL.replace(
        "--steps, 3000",
        "--api-key, hunter-a, --hf-token=hunter-b, --steps, '3000', "
        "\"DB_PASSWORD='hunter c' run\", 'postgres://me:hunter-d@host/x', 'run --password  hunter-g'",
    )
    text += "env: {HF_TOKEN: hunter-e, TOKENS: '7', URL: 'https://me:hunter-f@host', KEY: {secret: hf}}\n"
    found = described(loaded(tmp_path, text))
    shown = text_of(found)
    assert "hunter" not in shown
    assert "hunter" not in str(codec.to_plain(found))
    assert shown.count(REDACTED) == 7
    assert found.redacted
    assert values(found)["env.TOKENS"] == '"7"'
    assert values(found)["env.KEY"] == "{secret: hf}"
    assert "may be secrets are hidden" in shown.splitlines()[1]
    with pytest.raises(UserError, match=r"unknown placeholder \{redacted\}"):
        loaded(tmp_path, shown)


@pytest.mark.parametrize(
    "text",
    [
        "curl -H 'Authorization: Bearer hunter2' -o x",
        "--header=authorization:hunter2",
        '{"password": "hunter2", "user": "me"}',
        'run --token=a"b c"hunter2',
        "DB_PASS=hunter2 GITHUB_PAT=hunter2 ACCESS_KEY=hunter2",
        "https://me:hun@ter2@host/x",
    ],
)
def test_secrets_of_other_forms_are_hidden_too(text: str) -> None:
    spec = replace(job_spec(), env={"ARGS": text})
    shown = values(description(JobRecord(spec, "u", 0), {}))["env.ARGS"]
    assert "hunter2" not in shown
    assert "ter2" not in shown
    assert REDACTED in shown


@pytest.mark.parametrize(
    "text", ["tokenizer: bert", "--key-column=id", "host:8500", "hdfs://ns1/a", "a=b c: d"]
)
def test_other_texts_are_shown(text: str) -> None:
    spec = replace(job_spec(), env={"ARGS": text})
    assert REDACTED not in values(description(JobRecord(spec, "u", 0), {}))["env.ARGS"]


@pytest.mark.parametrize(
    "word",
    [
        "a: " * 30_000,
        "a:" + " " * 90_000,
        "a:Bearer " * 10_000,
        "a:'" * 30_000,
        "a" * 100_000,
        "a-" * 50_000,
        "x='" * 30_000,
        "://a:" * 20_000,
        "a=" * 50_000,
        "-a " * 30_000,
        "-a" + " " * 90_000,
    ],
)
def test_a_long_word_holds_up_no_leader(word: str) -> None:
    spec = replace(job_spec(), env={"A": word})
    began = time.process_time()
    assert description(JobRecord(spec, "u", 0), {}).fields
    assert time.process_time() - began < 0.1


def test_code_that_was_shipped_is_named_by_its_digest(tmp_path: Path) -> None:
    job = loaded(tmp_path, SMALL + "code: {dir: ., exclude: [data/]}\n")
    found = described(replace(job, spec=replace(job.spec, code=CodeRef("a" * 64, 1))))
    assert values(found)["code.dir"] == str(tmp_path)
    assert values(found)["code.sha256"] == "a" * 64
    again = loaded(tmp_path, text_of(found))
    assert again.code is not None
    assert (again.code.directory, again.code.exclude) == (str(tmp_path), ())
    assert "# exclude: not kept" in text_of(found)


def test_the_digest_of_a_lock_file_is_found_by_submit_and_that_of_an_archive_is_the_files(
    tmp_path: Path,
) -> None:
    locked, packed = (described(loaded(tmp_path, text)) for text in (LOCKED, PACKED))
    assert sources(locked)["environment.sha256"] == "submit"
    assert f"# sha256: {values(locked)['environment.sha256']}" in text_of(locked)
    assert sources(packed)["environment.sha256"] == "job file"
    assert sources(locked)["environment.python"] == "job file"
    assert sources(packed)["environment.python"] == "default"


def test_a_user_of_hdfs_is_of_the_clusters_configuration(tmp_path: Path) -> None:
    record = JobRecord(loaded(tmp_path, SMALL).spec, "u", 0, hdfs_user="ann")
    (last,) = description(record, {}).fields[-1:]
    assert (last.path, last.value, last.source, last.in_file) == (("hdfs_user",), "ann", "cluster", False)
