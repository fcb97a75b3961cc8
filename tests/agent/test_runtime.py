"""Starting launchers as processes: what cannot be started is an error of ours, and must not end the agent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent.core.instructions import Recipe
from agent.runtimes.process import ProcessRuntime, find_interpreters
from supervisor.contract.errors import UserError
from supervisor.contract.timing import FAST


@pytest.mark.parametrize("value", ["half a character: \ud800", "NUL: \0"])
@pytest.mark.parametrize("place", ["env", "program"])
async def test_text_that_the_kernel_does_not_take_is_the_jobs_fault(
    tmp_path: Path, place: str, value: str
) -> None:
    runtime = ProcessRuntime(tmp_path / "launchers", tmp_path / "socket", FAST)
    env, program = ({"A": value}, "sh") if place == "env" else ({}, f"/{value}/python")
    recipe = Recipe("job", "u", str(tmp_path), program, env=env)
    try:
        with pytest.raises(UserError):
            await runtime.spawn("x-1", recipe)
    finally:
        await runtime.close()


def interpreters(directory: Path, preload: tuple[str, ...], **links: str) -> tuple[str, ...]:
    """Those of a wrapper in whose PATH these names lead to files of such names."""
    for name, version in links.items():
        file = directory / version
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
        (directory / name).symlink_to(file)
    return find_interpreters(Recipe("job", "u", "/", "sh", preload), {"PATH": str(directory)})


def test_a_wrappers_launcher_runs_under_the_python_that_the_wrapper_finds(tmp_path: Path) -> None:
    found = interpreters(tmp_path, ("tensorflow",), python="python3.11", python3="python3.9")
    assert found == (str(tmp_path / "python"), str(tmp_path / "python3"), sys.executable)


def test_a_launcher_runs_under_no_python_that_is_too_old_or_unknown(tmp_path: Path) -> None:
    assert interpreters(tmp_path, ("tensorflow",), python="python2.7", python3="python3.7") == (
        sys.executable,
    )
    (tmp_path / "python").unlink()
    assert interpreters(tmp_path, ("tensorflow",), python="pyenv") == (sys.executable,)


def test_where_nothing_is_preloaded_a_wrappers_launcher_runs_under_ours(tmp_path: Path) -> None:
    assert interpreters(tmp_path, (), python="python3.11") == (sys.executable,)
