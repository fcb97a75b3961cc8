"""A model is loaded in a child, whose ends are told apart. In most tests a script is in Python's place."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from agent.boundaries import NoEnvironments
from agent.models.loading import ModelLoader
from agent.models.publisher import NotTried
from supervisor.contract.errors import BadCheckpoint
from supervisor.contract.job.serving import Exports
from supervisor.contract.job.spec import EnvironmentRef, ServingSpec
from tests.agent.other_users import own_uid
from tests.support.waiting import until

SERVING = ServingSpec("m", "export/*", "chief")


def exports(root: Path, script: str) -> Exports:
    """Exports of a job whose Python is this script."""
    (root / "bin").mkdir()
    path = root / "bin/python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Exports(SERVING, "python", "/", {"PATH": f"{root}/bin:{os.environ['PATH']}", "PYTHONPATH": "/lib"})


async def load(root: Path, script: str, load_s: float = 60.0) -> str:
    (root / "model").mkdir()
    loader = ModelLoader(lambda _uuid: None, load_s)
    return await loader.load("uuid-1", exports(root, script), root / "model")


async def test_a_model_that_loads_is_loaded_where_it_lies_and_quietly(tmp_path: Path) -> None:
    said = tmp_path / "said"
    script = f'echo "$PWD $* $CUDA_VISIBLE_DEVICES $TF_NUM_INTRAOP_THREADS $PYTHONPATH" >{said}'
    assert await load(tmp_path, script) == ""
    place, program, what, devices, threads, modules = said.read_text().split()
    assert (place, what, modules) == (f"{tmp_path}/model", "load", "/lib")
    assert program.endswith("agent/inside/model_check.py")
    assert (devices, threads) == ("-1", "1")


async def test_a_model_that_does_not_load_says_why(tmp_path: Path) -> None:
    why = await load(tmp_path, "echo noise; printf 'ValueError: no \\033[31mgraph\\n'; exit 3")
    assert why == "ValueError: no  [31mgraph"


async def test_a_child_that_crashes_is_the_models_fault(tmp_path: Path) -> None:
    assert await load(tmp_path, "echo deep; kill -SEGV $$") == "signal 11; deep"


async def test_a_child_that_is_killed_says_nothing_of_the_model(tmp_path: Path) -> None:
    with pytest.raises(NotTried):
        await load(tmp_path, "kill -KILL $$")


async def test_a_child_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    why = await load(tmp_path, f"sleep 600 & echo $! $$ >{pids}; wait", load_s=1.0)
    assert why == "that takes longer than 1 s"
    await until(lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in pids.read_text().split()))


async def test_what_a_child_leaves_behind_is_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $! >{pid}; sleep 0.1"
    assert await load(tmp_path, script) == ""
    assert not Path(f"/proc/{pid.read_text().strip()}/cwd").exists()


async def test_a_child_that_prints_without_end_holds_nothing_up(tmp_path: Path) -> None:
    async with asyncio.timeout(30):
        assert await load(tmp_path, "exec yes", load_s=1.0) == "that takes longer than 1 s"


async def test_a_wrapper_that_hides_a_process_holds_nothing_up_and_leaves_nothing(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    # In a session of its own, without a parent, without the environment, and with the pipe of the output.
    hidden = f"(env -i setsid -f sh -c 'echo $$ >{pid}; exec sleep 600')"
    async with asyncio.timeout(30):
        assert await load(tmp_path, f"{hidden}; until [ -s {pid} ]; do :; done; echo no; exit 3") == "no"
    assert not Path(f"/proc/{pid.read_text().strip()}/cwd").exists()


async def test_a_child_ends_with_its_caller(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    work = asyncio.create_task(load(tmp_path, f"echo $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 600"))
    await until(pid.exists)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not Path(f"/proc/{pid.read_text().strip()}/cwd").exists()


async def test_a_job_without_a_python_has_no_model_that_loads(tmp_path: Path) -> None:
    loader = ModelLoader(lambda _uuid: None)
    with pytest.raises(BadCheckpoint, match="no 'python9' in the PATH"):
        await loader.load("uuid-1", Exports(SERVING, "python9", "/", {"PATH": "/nowhere"}), tmp_path)


class Made(NoEnvironments):
    """A node with an environment whose Python is a script."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def ensure(self, ref: EnvironmentRef, workdir: str) -> str:
        return str(self._directory)


async def test_a_model_is_loaded_by_the_python_of_its_jobs_environment(tmp_path: Path) -> None:
    given = replace(
        exports(tmp_path, "echo ours; exit 3"), env={}, environment=EnvironmentRef("e" * 64, "r.lock")
    )
    loader = ModelLoader(lambda _uuid: None, environments=Made(tmp_path))
    assert await loader.load("uuid-1", given, tmp_path) == "ours"
    with pytest.raises(NotTried, match="the environment of its job is not here"):
        await ModelLoader(lambda _uuid: None).load("uuid-1", given, tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a child to another user")
async def test_another_user_loads_a_model_below_directories_that_it_cannot_enter(tmp_path: Path) -> None:
    model = tmp_path / "private/model"
    model.mkdir(parents=True)
    (model / "saved_model.pb").write_text("graph")
    model.parent.chmod(0o700)
    uid = own_uid(54_000)
    with tempfile.TemporaryDirectory(dir="/tmp") as public:
        Path(public).chmod(0o755)
        asked = exports(Path(public), "echo $(id -u) $(id -G) $(cat saved_model.pb); exit 1")
        why = await ModelLoader(lambda _uuid: (uid, uid)).load("uuid-1", asked, model)
    assert why == f"{uid} {uid} graph"


@pytest.mark.parametrize("what", ["load", "call"])
async def test_what_is_no_model_is_told_by_the_child_itself(tmp_path: Path, what: str) -> None:
    """The real child. It must not import what lies in the directory of the model."""
    (tmp_path / "tensorflow.py").write_text("raise SystemExit(77)")
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-I",
            "-S",
            str(Path("agent/inside/model_check.py").resolve()),
            what,
        ),
        stdout=asyncio.subprocess.PIPE,
        cwd=tmp_path,
    )
    output, _ = await process.communicate()
    assert (process.returncode, output.decode()) == (1, "ModuleNotFoundError: No module named 'tensorflow'\n")
