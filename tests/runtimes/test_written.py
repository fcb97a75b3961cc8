"""Files of a job in containers and over a move: outputs, an adopted path, the words of its command.

The program needs no TensorFlow, so it starts at once. It saves a bundle of the tests' own again and again.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.bundles import FLOAT, bundle, plain
from chaos.container_image import IMAGE, USER_ID
from chaos.dockerd import Dockerd
from tests.examples.harness import Cluster, Job

pytestmark = pytest.mark.timeout(300)
BOUND_S = 60.0

PROGRAM = """
import json, os, pathlib, re, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
own, path, copies, end = map(pathlib.Path, sys.argv[1:5])
here = pathlib.Path(__file__).parent

def write(place, data):
    part = place.with_name(place.name + ".part")
    part.write_bytes(data)
    part.rename(place)

def words():
    return {"argv": sys.argv[5:], "env": {name: os.environ.get(name) for name in ("WHERE", "BRACES")}}

write(own / "words.json", json.dumps(words()).encode())
if task == "evaluator":
    while True:
        seen = sorted(each.relative_to(copies).as_posix() for each in copies.rglob("*") if each.is_file())
        print("sees", *seen, flush=True)
        time.sleep(0.1)

state = path / "checkpoint"
step = int(re.search(r"model-([0-9]+)", state.read_text()).group(1)) if state.exists() else 0
log = own / "run" / "steps.log"
lines = log.read_text().splitlines() if log.exists() else []
print("began at", step, "with", len(lines), "lines of log", flush=True)
log.parent.mkdir(exist_ok=True)
(path / "notes.txt").write_text("beside the checkpoints")
while not end.exists():
    step += 1
    with log.open("a") as file:
        file.write(f"{step}\\n")
    if step % 10 == 0:
        for ending in ("data-00000-of-00001", "index"):
            write(path / f"model-{step}.{ending}", (here / f"model.{ending}").read_bytes())
        write(state, f'model_checkpoint_path: "model-{step}"\\n'.encode())
    print("step", step, flush=True)
    time.sleep(0.05)
"""
JOB = """
name: written
command: [python3, keeps.py, "{output_dir}", PATH, "{all_outputs}", END, "{job_name}", "{{braces}}"]
strategy: plain
roles:
  chief: {count: 1}
ROLES
preload: []
checkpoint: {adopt: PATH}
env: {WHERE: "{output_dir}", BRACES: "{{x}} {\\"a\\": 1}"}
code: {dir: .}
"""


def _submit(cluster: Cluster, directory: Path, path: Path, roles: str = "") -> tuple[Job, Path]:
    """A job that adopts `path`, and the file at which it ends."""
    code, end = directory / "code", directory / "end" / "now"
    code.mkdir()
    end.parent.mkdir(exist_ok=True)
    for name, data in bundle("model", [{b"v": plain(FLOAT, (1,), b"\0\0\0\0")}]).items():
        (code / name).write_bytes(data)
    (code / "keeps.py").write_text(PROGRAM)
    text = JOB.replace("PATH", str(path)).replace("END", str(end)).replace("ROLES", roles)
    (code / "job.yaml").write_text(text)
    return cluster.submit(code / "job.yaml"), end


def _until(condition: Callable[[], bool], what: str, job: Job) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, f"not seen: {what}\n{job.story()}"
        time.sleep(0.1)


def _committed(job: Job, step: int) -> Callable[[], bool]:
    def committed() -> bool:
        newest = job.view().newest_commit
        return newest is not None and newest.step >= step

    return committed


def _fetched(cluster: Cluster, job: Job, directory: Path) -> Path:
    cluster.ctl("outputs", job.name, "get", "--to", str(directory))
    return directory


def _began(job: Job) -> tuple[int, int]:
    """The step at which the chief's newest attempt began, and the number of log lines that it found."""
    job.wait("running")

    def again() -> bool:
        """Whether an attempt has begun that found something: the first one found nothing."""
        return re.search("began at (?!0 with 0 )", job.output("chief")) is not None

    _until(again, "another beginning of the chief", job)
    line = job.printed(r"began at (\d+ with \d+)", "chief")
    step, lines = line.split(" with ")
    return int(step), int(lines)


def test_what_a_job_in_containers_writes_stays_and_nothing_else(dockerd: Dockerd, tmp_path: Path) -> None:
    """One job for all of it; its adopted path is in a directory of the machine."""
    scratch, state = tmp_path / "scratch", tmp_path / "local" / "state"
    for directory in (tmp_path, tmp_path / "end", scratch):
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
    os.chown(scratch, USER_ID, USER_ID)
    state.parent.mkdir()
    mounts = ("--mount", f"{scratch}:rw", "--mount", str(tmp_path / "end"))
    options = ("--supervisors", "1", "--profile", "default", "--runtime", "docker")
    docker = ("--socket", str(dockerd.socket), "--image", IMAGE)
    path = scratch / "run" / "model"
    with Cluster(state, 1, (*options, *docker, *mounts)) as cluster:
        job, end = _submit(cluster, tmp_path, path, "  evaluator: {count: 1}\n  tensorboard: {count: 1}")
        _until(_committed(job, 10), "a commit of what was saved at the adopted path", job)
        assert path.is_symlink()

        # Who follows can read the copies, though the agent's umask keeps everybody else out.
        _until(lambda: "chief.0/run/steps.log" in job.output("evaluator"), "copies of outputs", job)

        # A new generation finds the checkpoint at the path of the program, and its outputs where they were.
        before = job.kill("chief")
        job.recovered(before)
        step, lines = _began(job)
        assert step >= 10
        assert lines >= step
        end.touch()
        job.result()
        _until(lambda: not path.is_symlink(), "the machine without the link of a job that is over", job)

        got = _fetched(cluster, job, tmp_path / "got")
        words = json.loads((got / "chief.0" / "words.json").read_text())
        output_dir = words["env"].pop("WHERE")
        assert output_dir.endswith("/outputs-chief.0")
        assert words == {"argv": ["chief", "{braces}"], "env": {"BRACES": '{x} {"a": 1}'}}
        log = (got / "chief.0" / "run" / "steps.log").read_text().split()
        assert len(log) > lines
        assert (got / "chief.0" / "run" / "steps.log").stat().st_uid == os.geteuid()

        def named() -> bool:
            return "notes.txt" in cluster.ctl("status", job.name)

        _until(named, "what no store has, named", job)
        _until(lambda: not Path(output_dir).exists(), "the node without outputs that are in the store", job)
        kept = sorted(each.name for each in Path(output_dir).parent.rglob("*") if each.is_file())
        assert set(kept) == {".kept-node-0.json", "notes.txt"}
    assert dockerd.cli("ps", "--all", "--quiet", "--filter", "label=tfsup.node") == ""


@pytest.mark.slow
def test_a_job_that_moves_finds_its_checkpoint_at_its_own_path_and_its_outputs(tmp_path: Path) -> None:
    """Two nodes, each with directories of its own; the one where it trains is lost with all that it has."""
    path = tmp_path / "program" / "model"
    state = tmp_path / "local" / "state"
    state.parent.mkdir()
    with Cluster(state, 2, ("--supervisors", "1", "--separate")) as cluster:
        job, end = _submit(cluster, tmp_path, path)
        _until(_committed(job, 20), "a commit of what was saved at the adopted path", job)

        def stored() -> bool:
            found = cluster.document("outputs", job.name)
            return "run/steps.log" in json.dumps(found)

        _until(stored, "outputs in the store", job)
        (task,) = job.view().tasks
        cluster.ctl("local", "stop-member", "--kill", f"agent-{task.node.removeprefix('node-')}")
        _until(lambda: job.view().generation == 2, "a generation on the other node", job)
        step, lines = _began(job)
        assert job.view().tasks[0].node != task.node
        assert step >= 20
        # What it wrote last is on the node that is lost.
        assert lines >= 1
        _until(_committed(job, step + 20), "commits from the other node", job)
        end.touch()
        job.result()
        log = _fetched(cluster, job, tmp_path / "got") / "chief.0" / "run" / "steps.log"
        found = [int(line) for line in log.read_text().split()]
        assert found[lines:] == list(range(step + 1, step + 1 + len(found) - lines))
        assert found[:lines] == list(range(1, lines + 1))
