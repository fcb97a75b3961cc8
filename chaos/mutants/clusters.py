"""A cluster of real processes in this tree, broken once: what its recordings show of a mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

LIMIT_S = 300.0
PATIENCE = "3"


def runs(scenario: str, most: int, only: str = "") -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Each run as `SCENARIO/SEED`, the promises that it has broken, and else why it proves nothing."""
    for seed in range(1, most + 1):
        at = f"{scenario}/{seed}"
        if only in {"", at}:
            yield at, *_run(scenario, seed)


def _run(scenario: str, seed: int) -> tuple[tuple[str, ...], str]:
    with tempfile.TemporaryDirectory(prefix="tfsup-run-") as kept:
        command = ["run", scenario, "--seed", str(seed), "--patience", PATIENCE, "--runs", kept]
        subprocess.run(
            [sys.executable, "-m", "chaos", *command], check=False, capture_output=True, timeout=LIMIT_S
        )
        found = [json.loads(path.read_text()) for path in Path(kept).glob("*/run.json")]
    broken = [f"[{each['promise']}] {each['text']}" for body in found for each in body["violations"]]
    errors = [str(body["why"]) for body in found if body["outcome"] == "error"]
    if not found:
        errors = ["there was no run"]
    return tuple(broken), "" if broken else "; ".join(errors)
