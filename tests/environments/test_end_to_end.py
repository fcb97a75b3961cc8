"""On a real embedded cluster: a job runs under an environment of its own, made without any network."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import signal
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.main import cli
from supervisor.contract.desired import JobPhase
from supervisor.contract.views.jobs import JobView
from tests.environments.site import LOCK, make_wheel

T = TypeVar("T")
DEADLINE_S = 120.0

PROGRAM = """
import os, sys, time
warm = "tiny" in sys.modules
import tiny
with open(os.environ["STORY"], "a") as story:
    print(tiny.VERSION, warm, sys.prefix, os.environ["VIRTUAL_ENV"], file=story)
step = 0
while True:
    step += 1
    print("step", step, flush=True)
    time.sleep(0.1)
"""


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

    def job(self, name: str) -> JobView:
        async def ask() -> JobView:
            async with self.cluster.client() as client:
                return (await client.status(name)).jobs[0]

        return asyncio.run(ask())


def until(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + DEADLINE_S
    while (found := look()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    root = tmp_path_factory.mktemp("environments")
    with LocalCluster(root / "state", nodes=1) as cluster:
        (root / "wheels").mkdir()
        yield Operator(cluster, root)


def job_file(operator: Operator, name: str, lock: str, **fields: object) -> Path:
    directory = operator.root / name
    directory.mkdir()
    (directory / "train.py").write_text(PROGRAM)
    (directory / LOCK).write_text(lock)
    document = {
        "name": name,
        "strategy": "plain",
        "command": ["python", "train.py"],
        "preload": ["tiny"],
        "roles": {"worker": {"count": 1}},
        "restart": {"scope": {"worker": "task"}},
        "env": {"STORY": str(operator.root / f"{name}.story")},
        "code": {},
        "environment": {"requirements": LOCK, "wheelhouse": (operator.root / "wheels").as_uri()},
    }
    path = directory / "job.yaml"
    path.write_text(json.dumps(document | fields))
    return path


def story(operator: Operator, name: str) -> list[list[str]]:
    path = operator.root / f"{name}.story"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def steps(operator: Operator, name: str, starts: int) -> JobView:
    def look() -> JobView | None:
        job = operator.job(name)
        task = job.tasks[0]
        there = task.state == "running" and task.step > 0 and len(story(operator, name)) == starts
        return job if there else None

    return until(look)


def test_a_job_runs_and_restarts_warm_under_its_own_packages(operator: Operator) -> None:
    line = make_wheel(operator.root / "wheels", version="3.1")
    operator.ctl("submit", str(job_file(operator, "own", line)))
    job = steps(operator, "own", 1)
    os.kill(job.tasks[0].pid, signal.SIGKILL)
    steps(operator, "own", 2)
    told = story(operator, "own")
    assert {version for version, *_ in told} == {"3.1"}
    assert told[1][1] == "True", "its launcher has imported the environment's packages"
    (prefix,) = {each for _, _, *both in told for each in both}
    assert Path(prefix).parent.name == "environments"
    operator.ctl("stop", "own")


def ended(operator: Operator, name: str) -> str:
    """What `explain` says when the job has failed."""
    until(lambda: operator.job(name).phase is JobPhase.FAILED or None)
    return operator.ctl("explain", name)


def test_a_hostile_archive_ends_the_job_with_the_reason(operator: Operator) -> None:
    path = operator.root / "evil.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("../evil"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    environment = {"archive": path.as_uri(), "sha256": digest}
    operator.ctl("submit", str(job_file(operator, "evil", "", environment=environment)))
    told = ended(operator, "evil")
    assert "its environment cannot be made here: the archive has a member with the name '../evil'" in told


@pytest.mark.slow
def test_a_failed_install_ends_the_job_with_pips_own_words(operator: Operator) -> None:
    make_wheel(operator.root / "wheels", "changed")
    lock = "changed==1.0 --hash=sha256:" + "0" * 64 + "\n"
    operator.ctl("submit", str(job_file(operator, "bad", lock)))
    told = ended(operator, "bad")
    assert "its environment cannot be made here" in told
    assert "DO NOT MATCH THE HASHES" in told
