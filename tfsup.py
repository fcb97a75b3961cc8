"""Entry points of the scripts, outside the package `supervisor`: PyPI has another distribution of that name.

When it is installed in our place, this module still starts and says so.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

EXIT_CODE = 2


def check_identity() -> str:
    """What is wrong with the package `supervisor` that Python finds; empty when it is ours."""
    spec = importlib.util.find_spec("supervisor")
    if spec is None or spec.origin is None:
        return "the package `supervisor` of tf-supervisor is missing; install tf-supervisor again"
    if (Path(spec.origin).parent / "contract" / "errors.py").is_file():
        return ""
    return (
        f"{spec.origin} is another package called `supervisor` (PyPI's process manager), which cannot share "
        "an environment with tf-supervisor; run `pip uninstall supervisor`, or install tf-supervisor into a "
        "venv of its own"
    )


def _run(module: str) -> None:
    problem = check_identity()
    if problem:
        sys.stderr.write(f"error: {problem}\n")
        sys.exit(EXIT_CODE)
    importlib.import_module(module).main()


def supervisorctl() -> None:
    """`supervisorctl`, `tfsup`."""
    _run("supervisor.cli.main")


def supervisord() -> None:
    """`tfsup-supervisord`."""
    _run("supervisor.main")


def agent() -> None:
    """`tfsup-agent`."""
    _run("agent.main")
