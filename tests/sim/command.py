"""The simulator's command, as users run it."""

from __future__ import annotations

import os
import subprocess
import sys


def simulate(*arguments: str, timeout_s: float = 280) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chaos.sim", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
