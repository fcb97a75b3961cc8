"""A command that is typed starts at once: it loads what it needs, and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli.checkpoints import VERBS as CHECKPOINT_VERBS
from supervisor.cli.main import VERBS

RUN = """
import json, sys, tfsup
sys.argv = ["supervisorctl", *sys.argv[2:]]
try:
    tfsup.supervisorctl()
except SystemExit as end:
    with open(REPORT, "w") as report:
        json.dump({"code": end.code, "modules": sorted(sys.modules)}, report)
"""
FILES = {"pydantic", "ruamel", "pathspec", "cryptography"}
CONNECTIONS = {"grpc", "google"}
NEVER = {"rich", "aetcd", "psutil", "structlog", "hdfs_native", "tensorflow", "numpy", "agent", "recovery"}


def loaded(tmp_path: Path, *argv: str) -> set[str]:
    """The top-level packages that a command has imported."""
    report = tmp_path / "report.json"
    code = RUN.replace("REPORT", repr(str(report)))
    done = subprocess.run(
        [sys.executable, "-c", code, "-", *argv], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert report.is_file(), done.stderr
    return {name.partition(".")[0] for name in json.loads(report.read_text())["modules"]}


HELPS = [
    *((verb, "--help") for verb in VERBS),
    *(("checkpoints", "digits", verb, "--help") for verb in CHECKPOINT_VERBS),
]


@pytest.mark.parametrize("argv", [("--help",), ("nonsense",), *HELPS])
def test_help_loads_nothing_that_reads_files_or_connects(tmp_path: Path, argv: tuple[str, ...]) -> None:
    assert not loaded(tmp_path, *argv) & (FILES | CONNECTIONS | NEVER)


def test_a_missing_cluster_is_told_without_them(tmp_path: Path) -> None:
    assert not loaded(tmp_path, "--state", str(tmp_path / "none"), "status") & (FILES | CONNECTIONS | NEVER)
