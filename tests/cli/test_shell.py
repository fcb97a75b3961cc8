"""Completion and the manual of `supervisorctl`."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli.main import VERBS
from tests.cli.shell import completed, ctl


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_for_the_command_that_it_is_to_complete(tmp_path: Path, shell: str) -> None:
    done = ctl(tmp_path, "completion", shell, "--name", "tfsup")
    assert done.returncode == 0
    assert f"_TFSUP_COMPLETE={shell}_complete" in done.stdout


def test_verbs_complete_and_a_cluster_that_is_not_there_completes_nothing(tmp_path: Path) -> None:
    assert completed(tmp_path, "supervisorctl unc") == ["uncordon"]
    assert completed(tmp_path, "supervisorctl status d") == []
    assert completed(tmp_path, "supervisorctl wait a --for s") == ["succeeded", "stopped", "step="]


def test_the_manual_has_each_verb_and_no_line_that_roff_takes_for_a_request(tmp_path: Path) -> None:
    done = ctl(tmp_path, "man")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    sections = {line.split()[1] for line in lines if line.startswith(".SS ")}
    assert {name.replace("-", "\\-") for name in VERBS} <= sections
    known = (".TH ", ".SH ", ".SS ", ".PP", ".TP")
    assert [line for line in lines if line.startswith((".", "'")) and not line.startswith(known)] == []
