"""Lock files are read strictly: what pip would take beside pinned and hashed packages is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.adapters.files.jobfile import load_job_file
from supervisor.contract import codec
from supervisor.contract.desired import Assignment
from supervisor.contract.errors import IncompatibleRecord, UserError
from supervisor.contract.job.bounds import objections
from supervisor.contract.job.environment import read_lock
from supervisor.contract.job.spec import ContainerSpec, EnvironmentRef, JobSpec
from tests.support.builders import job_spec, role

HASH = "--hash=sha256:" + "a" * 64
OTHER = "--hash=sha256:" + "b" * 64
LOCK = f"""#
# made by a tool
#
Tiny.Pkg==1.0 \\
    {HASH} \\
    {OTHER}
    # via -r requirements.in
big[fast,extra]==2.0+cpu ; python_version >= "3.8" {HASH}  # why
"""


def test_pinned_and_hashed_packages_are_read_in_a_normal_form() -> None:
    tiny, big = read_lock(LOCK.encode())
    assert (tiny.name, tiny.version, tiny.text) == ("tiny_pkg", "1.0", f"Tiny.Pkg==1.0 {HASH} {OTHER}")
    assert big.text == f'big[fast,extra]==2.0+cpu ; python_version >= "3.8" {HASH}'


def test_the_lock_of_this_project_is_read() -> None:
    data = (Path(__file__).resolve().parents[2] / "requirements.lock").read_bytes()
    assert len(read_lock(data)) > 50


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a==1\n", "line 1: 'a==1' has no hash"),
        (f"b==1 {HASH}\n\na==1\n", "line 3: 'a==1' has no hash"),
        (f"a>=1 {HASH}", "is not pinned"),
        (f"a==1.* {HASH}", "is not pinned"),
        ("-r other.txt", "options are not read"),
        (f"--index-url=http://x\na==1 {HASH}", "options are not read"),
        (f"a @ http://x/a.whl {HASH}", "is not pinned"),
        (f"./a.whl {HASH}", "is not pinned"),
        (f"${{HOME}}==1 {HASH}", "is not pinned"),
        (f"a==1 {HASH} --config-settings=x=y", "is no sha256"),
        (f"a==1 --global-option=x {HASH}", "is not pinned"),
        (f"a==1 ; --index-url=x {HASH}", "is not pinned"),
        ("a==1 --hash=md5:abc", "is no sha256"),
        ("# nothing\n\n", "names no package"),
        ("\\", "names no package"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"#" * (5 << 20), "more than 4 MiB"),
        (f"a==1 {HASH}\n" * 2001, "at most 2000"),
    ],
)
def test_all_else_is_refused_with_its_line(text: str | bytes, why: str) -> None:
    with pytest.raises(UserError) as caught:
        read_lock(text if isinstance(text, bytes) else text.encode())
    assert why in str(caught.value)


def job_file(directory: Path, environment: str, more: str = "") -> Path:
    path = directory / "job.yaml"
    path.write_text(
        "name: j\nstrategy: plain\ncommand: [python, train.py]\nroles: {worker: {count: 1}}\n"
        f"environment: {environment}\n{more}"
    )
    return path


def load(path: Path) -> JobSpec:
    return load_job_file(path, checkpoint_base="file:///unused").spec


def test_a_job_file_pins_its_lock_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "r.lock").write_text(LOCK)
    given = "{requirements: r.lock, wheelhouse: file:///mnt/wheels, python: python3.12}"
    digest = hashlib.sha256(LOCK.encode()).hexdigest()
    spec = load(job_file(tmp_path, given))
    assert spec.environment == EnvironmentRef(digest, "r.lock", "", "file:///mnt/wheels", "python3.12")


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.zst"])
def test_a_job_file_names_an_archive_by_its_sha256(tmp_path: Path, ending: str) -> None:
    spec = load(job_file(tmp_path, f"{{archive: hdfs://prod/envs/v{ending}, sha256: {'c' * 64}}}"))
    assert spec.environment == EnvironmentRef("c" * 64, archive=f"hdfs://prod/envs/v{ending}")


@pytest.mark.parametrize(
    ("environment", "more", "told"),
    [
        ("{}", "", "environment: needs `requirements: FILE` or `archive: URI`"),
        ("{requirements: none.lock}", "", "environment.requirements: cannot read"),
        ("{requirements: bare.lock}", "", "bare.lock: line 1: 'a==1' has no hash"),
        ("{requirements: ../r.lock}", "", "must be a path below the program's directory"),
        ("{requirements: /etc/passwd}", "", "must be a path below the program's directory"),
        ("{requirements: r.lock, sha256: 00}", "", "64 hex digits"),
        ("{requirements: r.lock, python: /usr/bin/python3}", "", "no name of an interpreter"),
        (
            "{archive: 'file:///a/v.zip', sha256: x}",
            "",
            "is no .tar.gz or .tgz or .tar.zst or .tzst file; pack it",
        ),
        ("{archive: 'file:///a/v.tar.gz'}", "", "environment.sha256: missing; add what `sha256sum FILE`"),
        ("{archive: 'ftp://a/v.tar.gz'}", "", "its scheme is not understood"),
        ("{requirements: r.lock}", "container: {image: x}", "has the environment of its image"),
        ("{requirements: r.lock}", "env: {PATH: /x}", "env.PATH: is set by the job's environment"),
        ("{requirements: r.lock, conda: x}", "", "conda"),
    ],
)
def test_a_wrong_environment_is_told_with_its_field(
    tmp_path: Path, environment: str, more: str, told: str
) -> None:
    (tmp_path / "r.lock").write_text(LOCK)
    (tmp_path / "bare.lock").write_text("a==1\n")
    with pytest.raises(UserError) as caught:
        load(job_file(tmp_path, environment, more))
    assert "job.yaml:" in str(caught.value)
    assert told in str(caught.value)


REF = EnvironmentRef("d" * 64, "r.lock")


GOOD = replace(job_spec(), environment=REF)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (replace(GOOD, environment=replace(REF, archive="file:///v.tar.gz")), ("environment",)),
        (replace(GOOD, environment=EnvironmentRef("d" * 64)), ("environment",)),
        (replace(GOOD, environment=replace(REF, digest="../x")), ("environment", "sha256")),
        (replace(GOOD, environment=replace(REF, requirements="../r")), ("environment", "requirements")),
        (replace(GOOD, environment=replace(REF, python="/tmp/evil")), ("environment", "python")),
        (replace(GOOD, environment=replace(REF, wheelhouse="x" * 5000)), ("environment", "wheelhouse")),
        (replace(GOOD, environment=EnvironmentRef("d" * 64, archive="v.zip")), ("environment", "archive")),
        (replace(GOOD, container=ContainerSpec()), ("environment",)),
        (replace(GOOD, env={"VIRTUAL_ENV": "/x"}), ("env", "VIRTUAL_ENV")),
        (
            replace(GOOD, roles=(replace(role("worker"), secrets={"PATH": "s"}),)),
            ("roles", "worker", "env", "PATH"),
        ),
        (
            replace(GOOD, roles=(replace(role("worker"), command=("/usr/bin/python3", "x")),)),
            ("roles", "worker", "command"),
        ),
    ],
)
def test_a_leader_takes_no_more_than_a_job_file(wrong: JobSpec, field: tuple[str, ...]) -> None:
    assert not [each for each in objections(GOOD) if each.where[0] == "environment"]
    assert field in {each.where for each in objections(wrong)}


def test_an_earlier_release_reads_no_job_with_an_environment() -> None:
    order = Assignment("j", "u", "worker", 0, 1, "p", "n", "i", 1, ("python",), "/w", environment=REF)
    assert codec.decode(Assignment, codec.encode(order)) == order
    text = codec.encode(order).decode()
    assert "Assignment+environment" in text
    with pytest.raises(IncompatibleRecord):
        codec.decode(Assignment, text.replace("+environment", "+environment2").encode())
