"""On a real embedded cluster: nobody copies files by hand, and the client's disk is not needed any more."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from supervisor.adapters.files.code_archive import pack
from supervisor.adapters.files.jobfile import load_job_file
from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.main import cli
from supervisor.contract.code import CHUNK_BYTES
from supervisor.contract.errors import Conflict, Unreachable
from supervisor.contract.views.jobs import JobView, TaskView
from tests.support.code_store import give_code_store

T = TypeVar("T")
DEADLINE_S = 90.0
PROGRAM = """
import os, sys, time
from helper import who
with open(os.environ["STORY"], "a") as story:
    print(who.NAME, os.getcwd(), os.environ["TFSUP_GENERATION"], sys.path[0], file=story)
step = 0
while True:
    step += 1
    print("step", step, flush=True)
    time.sleep(0.1)
"""


@dataclass(frozen=True)
class Line:
    """The line that one start of the program has written."""

    who: str
    cwd: Path
    generation: int
    path: str


@dataclass
class Operator:
    """An operator of the cluster."""

    cluster: LocalCluster
    root: Path

    def ctl(self, *words: str) -> str:
        out = io.StringIO()
        with redirect_stdout(out):
            code = cli.main([*words, "--state", str(self.cluster.layout.state)], standalone_mode=False)
        assert not code, out.getvalue()
        return out.getvalue()

    def program(self, name: str, who: str) -> Path:
        """A program's directory, and its job file in it."""
        directory = self.root / name
        (directory / "helper").mkdir(parents=True)
        (directory / "train.py").write_text(PROGRAM)
        (directory / "helper" / "who.py").write_text(f"NAME = {who!r}\n")
        # Three chunks of it.
        (directory / "helper" / "table.bin").write_bytes(os.urandom(2 * CHUNK_BYTES))
        (directory / "data").mkdir()
        (directory / "data" / "large").write_bytes(os.urandom(1 << 20))
        job = directory / "job.yaml"
        job.write_text(
            json.dumps(
                {
                    "name": name,
                    "strategy": "plain",
                    "command": [sys.executable, "train.py"],
                    "preload": [],
                    "roles": {"worker": {"count": 1}},
                    "restart": {"scope": {"worker": "task"}},
                    "env": {"STORY": str(self.root / f"{name}.story")},
                    "code": {"exclude": ["data/"]},
                }
            )
        )
        return job

    def story(self, name: str) -> list[Line]:
        path = self.root / f"{name}.story"
        lines = path.read_text().splitlines() if path.exists() else []
        words = [line.split() for line in lines]
        return [Line(who, Path(cwd), int(number), where) for who, cwd, number, where in words]

    def job(self, name: str) -> JobView:
        async def ask() -> JobView:
            async with self.cluster.client() as client:
                return (await client.status(name)).jobs[0]

        return asyncio.run(ask())

    def is_led(self) -> bool | None:
        """Whether a supervisor leads and answers."""

        async def ask() -> bool:
            async with self.cluster.client() as client:
                return bool((await client.status()).supervisors)

        try:
            return asyncio.run(ask()) or None
        except Unreachable:
            return None

    def running(self, name: str, starts: int, after: TaskView | None = None) -> TaskView:
        """The task once the program has been started so many times, and steps, in another process."""

        def look() -> TaskView | None:
            task = self.job(name).tasks[0]
            stepping = task.state == "running" and task.pid > 0 and task.step > 0
            another = after is None or (task.node, task.pid) != (after.node, after.pid)
            return task if stepping and another and len(self.story(name)) >= starts else None

        return until(look)


def until(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + DEADLINE_S
    while (found := look()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    root = tmp_path_factory.mktemp("code")
    with LocalCluster(root / "state", nodes=2) as cluster:
        yield Operator(cluster, root)


def digest_of(job: Path) -> str:
    code = load_job_file(job, checkpoint_base="file:///unused").code
    assert code is not None
    return pack(code).ref.digest


def test_a_program_runs_on_when_its_directory_is_gone_from_the_client(operator: Operator) -> None:
    job = operator.program("gone", "first")
    digest = digest_of(job)
    operator.ctl("submit", str(job))
    shutil.rmtree(job.parent)
    first = operator.running("gone", 1)
    os.kill(first.pid, signal.SIGKILL)
    second = operator.running("gone", 2, first)
    assert (second.attempt, second.node) == (2, first.node)
    # To the other node, which has to fetch the code now that the client has it no more.
    operator.cluster.stop_member(f"agent-{first.node.rpartition('-')[2]}", signal.SIGKILL)
    moved = operator.running("gone", 3, second)
    operator.cluster.start_member(f"agent-{first.node.rpartition('-')[2]}")
    assert moved.node != first.node
    story = operator.story("gone")
    assert [line.who for line in story] == ["first"] * 3
    assert {line.cwd.name for line in story} == {digest}
    assert story[0].cwd == story[1].cwd != story[2].cwd
    assert all(line.path == str(line.cwd) for line in story)
    assert not (story[2].cwd / "data").exists()
    assert (story[2].cwd / "helper" / "table.bin").stat().st_size == 2 * CHUNK_BYTES
    assert operator.job("gone").code == digest
    operator.ctl("stop", "gone")


def test_two_digests_run_side_by_side_and_a_new_one_is_taken_at_the_next_submit(operator: Operator) -> None:
    one, other = operator.program("one", "red"), operator.program("other", "blue")
    operator.ctl("submit", str(one))
    operator.ctl("submit", str(other))
    operator.running("one", 1)
    operator.running("other", 1)
    assert operator.job("one").code == digest_of(one) != digest_of(other) == operator.job("other").code
    assert (operator.story("one")[0].who, operator.story("other")[0].who) == ("red", "blue")
    operator.ctl("stop", "one")
    operator.ctl("wait", "one", "--for", "stopped")
    (one.parent / "helper" / "who.py").write_text("NAME = 'green'\n")
    until(lambda: _submitted(operator, one))
    operator.running("one", 2)
    assert [line.who for line in operator.story("one")] == ["red", "green"]
    assert operator.story("one")[1].cwd.name == digest_of(one) == operator.job("one").code
    operator.ctl("stop", "one")
    operator.ctl("stop", "other")


def test_a_damaged_copy_is_replaced_before_the_next_generation_runs_in_it(operator: Operator) -> None:
    job = operator.program("damaged", "whole")
    operator.ctl("submit", str(job))
    operator.running("damaged", 1)
    copy = operator.story("damaged")[0].cwd / "helper" / "who.py"
    copy.chmod(0o644)
    copy.write_text("NAME = 'HARM'\n")
    operator.ctl("restart", "damaged")
    operator.running("damaged", 2)
    assert [line.who for line in operator.story("damaged")] == ["whole"] * 2
    operator.ctl("stop", "damaged")


def test_code_from_a_store_that_the_nodes_share(operator: Operator) -> None:
    store = operator.root / "code"
    store.mkdir(mode=0o700)
    give_code_store(operator.cluster, store.as_uri())
    until(operator.is_led)
    job = operator.program("stored", "filed")
    digest = digest_of(job)
    operator.ctl("submit", str(job), "--hold")
    (upload,) = store.glob(f"*/{digest}.*")
    files = sorted(upload.iterdir())
    assert len(files) == 3
    assert hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() == digest
    away = store.rename(operator.root / "away")
    late = operator.program("late", "late")
    told = until(lambda: _objection(operator, late))
    assert "code_store: file:" in told
    operator.ctl("start", "stored")
    until(lambda: "is its file system mounted" in operator.job("stored").waiting_for or None)
    away.rename(store)
    operator.running("stored", 1)
    (line,) = operator.story("stored")
    assert (line.who, line.cwd.name) == ("filed", digest)
    operator.ctl("stop", "stored")


def _objection(operator: Operator, job: Path) -> str | None:
    """Why no store takes its code; None where the supervisors were too busy to say."""
    with pytest.raises(Unreachable) as caught:
        operator.ctl("submit", str(job))
    told = str(caught.value)
    return told if "is its file system mounted" in told else None


def _submitted(operator: Operator, job: Path) -> bool | None:
    """Whether a job was taken again; it is refused while its last life may still run."""
    try:
        operator.ctl("submit", str(job), "--resume")
    except Conflict as error:
        if "may still be running" not in str(error):
            raise
        return None
    return True
