"""Starting launchers as processes: what cannot be started is an error of ours, and must not end the agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agent.core.events import Event, LauncherGone
from agent.core.instructions import Recipe
from agent.runtimes.launcher_log import LOG, said_in, words
from agent.runtimes.process import ProcessRuntime, find_interpreters
from supervisor.contract.errors import Refused, UserError
from supervisor.contract.timing import FAST
from tests.agent.other_users import open_python, own_uid
from tests.support.waiting import until

SILENCED = """
import os
try:
    os.write(2, b"no licence")
except OSError:
    os._exit(3)
"""
UNREACHABLE = """
import asyncio, sys
from pathlib import Path
from agent.core.instructions import Recipe
from agent.runtimes.process import ProcessRuntime
from supervisor.contract.timing import FAST
root = Path(sys.argv[1])
recipe = Recipe("job", "u", str(root / "closed" / "work"), sys.executable)
asyncio.run(ProcessRuntime(root / "homes", root / "socket", FAST).spawn("x-1", recipe))
"""


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    made = ProcessRuntime(tmp_path / "launchers", tmp_path / "socket", FAST)
    yield made
    await made.fence("x-1", ())
    await made.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """The directory of launchers, on a disk of 64 KiB that is full but for the last page."""
    path = tmp_path / "launchers"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)], check=True)
    with (path / "filler").open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    os.truncate(path / "filler", (path / "filler").stat().st_size - 4096)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


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


def test_of_what_a_launcher_wrote_the_last_lines_are_told_on_one_and_none_is_cut_short() -> None:
    assert words(b" \n\t\n") == "it wrote nothing"
    assert words(b"a\n\n b\r\n") == "it wrote: a | b"
    assert words(b"x" * 300 + b"\n" + b"y" * 200) == "it wrote: " + "y" * 200
    assert words(b"why: " + b"x" * 500) == "it wrote: why: " + "x" * 395, "of a long line the beginning"


@pytest.mark.parametrize("kind", ["pipe", "link", "second name", "directory"])
def test_what_is_no_log_is_not_read(tmp_path: Path, kind: str) -> None:
    """A job's user owns the directory of its launchers."""
    other = tmp_path / "secret"
    other.write_text("secret")
    home = tmp_path / "home"
    home.mkdir()
    match kind:
        case "pipe":
            os.mkfifo(home / LOG)
        case "link":
            (home / LOG).symlink_to(other)
        case "second name":
            (home / LOG).hardlink_to(other)
        case _:
            (home / LOG).mkdir()
    assert said_in(home).startswith("what it wrote cannot be read: ")


def test_of_a_launcher_without_a_directory_nothing_is_told(tmp_path: Path) -> None:
    assert said_in(tmp_path / "gone") == ""


async def test_an_interpreter_whose_own_interpreter_is_not_there_is_the_jobs_fault(
    tmp_path: Path, runtime: ProcessRuntime
) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/nowhere/python3\n")
    python.chmod(0o755)
    with pytest.raises(UserError, match="python3 cannot be executed on this node: the interpreter that its"):
        await runtime.spawn("x-1", Recipe("job", "u", str(tmp_path), str(python)))


def test_a_directory_that_cannot_be_reached_is_the_jobs_fault(tmp_path: Path) -> None:
    uid = own_uid(61_900)
    for each in (tmp_path, *tmp_path.parents[:-1]):
        each.chmod(each.stat().st_mode | 0o011)
    (tmp_path / "homes").mkdir()
    (tmp_path / "homes").chmod(0o777)
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed" / "work").mkdir()
    done = subprocess.run(
        [open_python(), "-c", UNREACHABLE, str(tmp_path)],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        user=uid,
        group=uid,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "UserError: workdir" in last, done.stderr
    assert last.endswith("closed/work' cannot be reached on this node: Permission denied")


async def test_a_disk_that_is_too_full_for_a_launcher_is_named(small: Path, runtime: ProcessRuntime) -> None:
    recipe = Recipe("job", "u", "/tmp", sys.executable, env={"A": "x" * 5_000})
    with pytest.raises(Refused, match=f"No space left on device: '{small}/x-1/config.json'"):
        await runtime.spawn("x-1", recipe)


async def test_that_a_full_disk_kept_a_launcher_from_writing_is_told(
    small: Path, tmp_path: Path, runtime: ProcessRuntime
) -> None:
    (tmp_path / "silenced.py").write_text(SILENCED)
    path = {"PYTHONPATH": str(tmp_path)}
    recipe = Recipe("job", "u", str(tmp_path), sys.executable, ("silenced",), path)
    told: list[Event] = []
    runtime.watch("x-1", await runtime.spawn("x-1", recipe), told.append)
    await until(lambda: bool(told))
    assert told == [LauncherGone("x-1", "exit code 3", 3)]
    said = (await runtime.last_words("x-1", ())).said
    assert said == f"it could write nothing, as the disk of {small / 'x-1'} is full"


async def test_how_a_launcher_ended_that_another_process_had_started_is_not_known(
    tmp_path: Path, runtime: ProcessRuntime
) -> None:
    process = await runtime.spawn("x-1", Recipe("job", "u", str(tmp_path), sys.executable))
    successor = ProcessRuntime(tmp_path / "launchers", tmp_path / "socket", FAST)
    told: list[Event] = []
    successor.watch("x-1", process, told.append)
    os.kill(process.pid, signal.SIGSEGV)
    await until(lambda: bool(told))
    (gone,) = told
    assert isinstance(gone, LauncherGone)
    assert gone.code is None
    assert gone.reason == "how it ended is not known, as an earlier process of this agent had started it"
    await successor.close()
    await runtime.fence("x-1", (process,))


async def test_an_end_that_a_fence_saw_first_is_told_all_the_same(
    tmp_path: Path, runtime: ProcessRuntime
) -> None:
    process = await runtime.spawn("x-1", Recipe("job", "u", str(tmp_path), sys.executable))
    assert await runtime.fence("x-1", (process,)) == 0
    told: list[Event] = []
    runtime.watch("x-1", process, told.append)
    assert told == [LauncherGone("x-1", "killed by SIGKILL (signal 9)", -signal.SIGKILL)]
