"""Starting launchers as processes: what cannot be started is an error of ours, and must not end the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.instructions import Recipe
from agent.runtimes.process import ProcessRuntime
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
