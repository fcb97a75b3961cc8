"""A command that is typed starts at once: it loads what it needs, and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.cli.checkpoints.list import VERBS as CHECKPOINT_VERBS
from supervisor.cli.local.layout import Layout, LocalSettings
from supervisor.cli.main import VERBS
from supervisor.cli.options import Globals
from supervisor.cli.target import find_target

RUN = """
import json, sys, tfsup
report, *commands = map(json.loads, sys.argv[1:])
after = []
for words in commands:
    sys.argv = ["supervisorctl", *words]
    try:
        tfsup.supervisorctl()
    except SystemExit:
        after.append(sorted(sys.modules))
with open(report, "w") as out:
    json.dump(after, out)
"""
FILES = {"pydantic", "ruamel", "pathspec", "cryptography"}
CONNECTIONS = {"grpc", "google"}
NEVER = {"rich", "aetcd", "psutil", "structlog", "hdfs_native", "tensorflow", "numpy", "agent", "recovery"}
HEAVY = FILES | CONNECTIONS | NEVER


def loaded(tmp_path: Path, *commands: tuple[str, ...]) -> list[set[str]]:
    """The top-level packages that one process has imported after each of these commands."""
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(json.dumps, (str(report), *commands))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.is_file(), done.stderr
    return [{name.partition(".")[0] for name in names} for names in json.loads(report.read_text())]


def test_help_loads_nothing_that_reads_files_or_connects(tmp_path: Path) -> None:
    helps = [
        *(("--help",), ("nonsense",)),
        *((verb, "--help") for verb in VERBS),
        *(("checkpoints", "digits", verb, "--help") for verb in CHECKPOINT_VERBS),
    ]
    after = loaded(tmp_path, *helps)
    first = next((each for each in zip(helps, after, strict=True) if each[1] & HEAVY), None)
    assert first is None, f"{' '.join(first[0])} loads {sorted(first[1] & HEAVY)}"


def test_a_missing_cluster_is_told_without_them(tmp_path: Path) -> None:
    (after,) = loaded(tmp_path, ("--state", str(tmp_path / "none"), "status"))
    assert not after & HEAVY


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout.of(tmp_path / "state")
    found.make()
    found.write(LocalSettings(cluster="local", nodes=2, supervisors=2, profile="fast"))
    return found


def test_an_embedded_cluster_is_found_without_what_checks_configuration_files(layout: Layout) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom supervisor.cli.options import Globals\n"
        "from supervisor.cli.target import find_target\n"
        f"find_target(Globals(Path({str(layout.state)!r}))).client()\n"
        "print(*{name.partition('.')[0] for name in sys.modules})\n"
        "assert not {'supervisor.wire.gate', 'supervisor.wire.audit'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "grpc" in done.stdout.split()
    assert not set(done.stdout.split()) & (FILES | NEVER)


def test_the_short_way_finds_what_the_long_one_does(layout: Layout) -> None:
    assert layout.read_client() is not None
    found = find_target(Globals(layout.state))
    assert f"--state {layout.state} local up`" in found.remedy
    assert replace(found, remedy="") == find_target(Globals(config=layout.client_config))


@pytest.mark.parametrize(
    "change",
    [
        {"supervisors": ["unix:/elsewhere.sock"]},
        {"supervisors": []},
        {"supervisors": [["unix:/elsewhere.sock"]]},
        {"token_file": "token"},
        {"cluster": None},
    ],
)
def test_a_client_configuration_that_somebody_changed_is_checked(
    layout: Layout, change: dict[str, object]
) -> None:
    head, _, body = layout.client_config.read_text().partition("\n")
    layout.client_config.write_text(f"{head}\n{json.dumps(json.loads(body) | change)}")
    assert layout.read_client() is None
