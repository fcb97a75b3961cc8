"""The walls of the units: their exposure has a bound, and each thing that is left open has its reason."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.box import ROOT
from tests.deploy.services import AGENT, SUPERVISOR

UNITS = ROOT / "deploy/systemd"
REASONS = "## What the units leave open"


def installed(unit: str, drop_in: str, directory: Path) -> Path:
    """The unit, and a drop-in of it where one is named."""
    file = directory / f"{unit}.service"
    shutil.copy(UNITS / file.name, file)
    if drop_in:
        (directory / f"{file.name}.d").mkdir()
        shutil.copy(UNITS / drop_in, directory / f"{file.name}.d/{drop_in}")
    return file


def analyzed(file: Path, *more: str) -> str:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", *more, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("unit", "drop_in", "most"),
    [(SUPERVISOR, "", 3.0), (AGENT, "", 6.0), (AGENT, "agent-docker.conf", 6.0)],
)
def test_what_a_unit_leaves_open_is_bounded_and_has_a_reason(
    unit: str, drop_in: str, most: float, tmp_path: Path
) -> None:
    file = installed(unit, drop_in, tmp_path)
    score = re.search(r"exposure level for .*: ([\d.]+)", analyzed(file))
    assert score is not None
    assert float(score[1]) <= most
    text = (ROOT / "docs/security.md").read_text()
    reasons = text[text.index(REASONS) :].split("\n## ")[0]
    for each in json.loads(analyzed(file, "--json=short")):
        # A name is that of a setting, or of two: `RootDirectory=/RootImage=`, `RestrictNamespaces=~user`.
        setting, _, value = each["name"].partition("=")
        named = [setting, *re.findall(r"@\w+", value)]
        missing = [name for name in named if f"`{name}" not in reasons]
        assert each["set"] or not missing, f"{unit}: no reason for {each['name']}"


def test_a_process_that_may_gain_no_privileges_says_why_it_cannot_mount() -> None:
    program = (
        "from pathlib import Path\nfrom recovery.mount import control\n"
        "from supervisor.contract.errors import Refused\n"
        "try:\n    control.start(Path('/nowhere'), 1)\nexcept Refused as error:\n    print(error)\n"
    )
    said = subprocess.run(
        ["setpriv", "--no-new-privs", "--reuid=65534", "--clear-groups", sys.executable, "-c", program],
        cwd=ROOT,
        env={"FUSE_LIBRARY_PATH": "libfuse3.so.3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "run it as root (deploy/systemd/agent-docker.conf)" in said.stdout, said.stderr
