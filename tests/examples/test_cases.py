"""The list of cases is complete, and the page that is made of a run says what the run showed."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.adapters.files.jobfile import load_job_file
from supervisor.contract.job.spec import JobSpec
from tests.examples.cases import CASES, Case
from tests.examples.harness import EXAMPLES
from tests.examples.table import Document, Entry, Row, page, read

ELSEWHERE = {"digits_shards/job.yaml", "digits_records/job.yaml", "digits_async/tfjob.yaml"}
"""Killed in tests/mount, as it is mounted, in test_spark_training.py, and in test_tfjob.py."""

ROW = Row("ps", 0, "all", "async.ps.all", "killed", from_step=250, to_step=200, back_ms=1234, stepped=True)
ENTRY = Entry("digits", "digits", "async", (ROW,), "accuracy 0.95")
MACHINE = {"date": "2026-01-01", "cores": "2", "system": "Linux", "load_1min_at_start": "0.1"}


def spec_of(case: Case) -> JobSpec:
    return load_job_file(case.file, checkpoint_base="file:///unused").spec


def test_every_job_file_has_a_case_and_a_line_for_readers() -> None:
    command = ["git", "-C", str(EXAMPLES), "ls-files", "*/*.yaml"]
    files = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert {case.job for case in CASES} == set(files) - ELSEWHERE
    readme = (EXAMPLES / "README.md").read_text()
    assert [case.program for case in CASES if f"`{case.program}`" not in readme] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_role_of_a_job_is_killed(case: Case) -> None:
    spec = spec_of(case)
    assert {victim.role for victim in case.victims} == {role.name for role in spec.roles}
    assert all(victim.index < spec.role(victim.role).count for victim in case.victims)


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_page_shows_each_kill() -> None:
    text = page(Document(MACHINE, (ENTRY,)))
    assert "Measured on 2026-01-01, 2 cores" in text
    assert "| async | `digits` | ps:0 | all | `async.ps.all` | 50 | 1.23 s | accuracy 0.95 |" in text


def test_the_page_says_how_equality_was_checked_and_what_failed() -> None:
    equal = replace(ENTRY, equal="the sum is the same", note="a note")
    failed = replace(ENTRY, name="bad", rows=(), failure="NotAsPromised: no recovery")
    text = page(Document(MACHINE, (equal, failed)))
    assert "accuracy 0.95; equal: the sum is the same |" in text
    assert "- `digits`: a note." in text
    assert "| async | `bad` | | | | | | **FAILED**, see the JSON file |" in text


def test_unknown_steps_are_not_counted() -> None:
    unknown = replace(ENTRY, rows=(replace(ROW, to_step=-1, stepped=False),))
    assert "| `async.ps.all` | - | 1.23 s (runs) |" in page(Document(MACHINE, (unknown,)))


def test_without_a_run_there_are_no_figures(tmp_path: Path) -> None:
    assert "Not measured yet." in page(read(tmp_path / "none.json"))
