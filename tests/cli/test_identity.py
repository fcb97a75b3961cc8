"""Another package called `supervisor` in our place gets a sentence, not a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def start(*search: Path) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.path[:0] = {[str(path) for path in search]!r}; import tfsup; tfsup.supervisorctl()"
    )
    command = [sys.executable, "-P", "-c", code, "--help"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_ours_starts() -> None:
    assert start(ROOT).returncode == 0


def test_another_package_of_that_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "supervisor").mkdir()
    (tmp_path / "supervisor" / "__init__.py").write_text("")
    done = start(tmp_path, ROOT)
    assert done.returncode == 2
    assert "is another package called `supervisor`" in done.stderr
    assert "Traceback" not in done.stderr
