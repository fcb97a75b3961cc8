"""Another job beside the one that is watched: what operators do with it, and what becomes of it.

Nothing is promised of its steps to whoever checks a run, so that all may be done to it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import MappingProxyType

from agent.code_store import KEPT_UNUSED
from chaos.cluster import CommandFailed
from chaos.failpoints.directory import Directory
from chaos.faults import points
from chaos.faults.node import off
from chaos.faults.scene import DidNotBite, Scene
from chaos.faults.store import STRUCK_S, flip
from chaos.programs import FILES, REPOSITORY, STEPS
from chaos.runner.submit import job_document, job_of
from supervisor.contract.desired import JobPhase
from supervisor.contract.views import TaskView

DONE_S = 40.0
ENOUGH_TO_ROTATE = 80 << 20
HELD_S = 2
ONE_WORKER: Mapping[str, int] = MappingProxyType({"worker": 1})


@contextmanager
def _submitted(
    scene: Scene, document: Mapping[str, object], code: Mapping[str, str] | None = None
) -> Iterator[Scene]:
    """The job of this file, with files of its own as its code; when the block is left it has been stopped."""
    serial = time.monotonic_ns() // 1_000_000
    name = f"{scene.job.name}-beside-{serial}"
    home = scene.job.control.parent / name
    home.mkdir(parents=True)
    body = {**document, "name": name}
    if code is not None:
        (home / "code").mkdir()
        # No two jobs have the same, or nodes would have it already.
        for file, text in {**code, "serial.txt": str(serial)}.items():
            (home / "code" / file).write_text(text)
        body["code"] = {"dir": str(home / "code")}
    path = home / "job.yaml"
    path.write_text(json.dumps(body))
    operator = scene.job.operator
    operator.ctl("submit", str(path))
    try:
        yield replace(scene, job=job_of(operator, name, home), known=())
    finally:
        with suppress(CommandFailed):
            operator.insist("stop", name)
            _ended(scene, name)


def _ended(scene: Scene, name: str) -> None:
    scene.job.operator.ctl("wait", name, "--for", "ended", "--timeout", str(DONE_S))


def _steps(scene: Scene, *words: str) -> dict[str, object]:
    """The light program's job file, with these words for the program."""
    document = job_document(STEPS, "", {}, scene.cluster.shape)
    command = document["command"]
    assert isinstance(command, list)
    return {**document, "command": [*command, *words]}


def _files(*words: str, roles: Mapping[str, int] = ONE_WORKER, **also: object) -> dict[str, object]:
    """The job file of the program with files of its own; so many tasks of each role."""
    return {
        "command": [sys.executable, FILES, *words],
        "strategy": "plain",
        "roles": {role: {"count": count} for role, count in roles.items()},
        "env": {"PYTHONPATH": str(REPOSITORY)},
        **also,
    }


def _to_its_end(scene: Scene, document: Mapping[str, object], code: Mapping[str, str] | None = None) -> None:
    with _submitted(scene, document, code) as other:
        _ended(scene, other.job.name)


def fails(scene: Scene) -> None:
    """It ends by itself at once, until it is given up."""
    _to_its_end(scene, _steps(scene, "--no-such-flag"))


def trains(scene: Scene) -> None:
    """With code of its own; to its end."""
    _to_its_end(scene, _steps(scene, "--steps", "40"), {"helper.py": "NAME = 'helper'\n"})


def many_codes(scene: Scene) -> None:
    """It comes again and again, each time with other code, more than nodes keep."""
    everywhere = len(scene.nodes("node-"))
    document = _files("--steps", "1", roles={"worker": everywhere})
    with _submitted(scene, document, {}) as other:
        home = other.job.control.parent
        for serial in range(KEPT_UNUSED + 2):
            _ended(scene, other.job.name)
            (home / "code" / "serial.txt").write_text(f"{serial}")
            scene.job.operator.ctl("submit", str(home / "job.yaml"), "--resume")
        _ended(scene, other.job.name)


def half_unpacked(scene: Scene) -> None:
    """An agent dies while it unpacks the code."""
    with (
        points.armed(scene.nodes("node-"), "code.unpack.after", "kill") as trap,
        _submitted(scene, _files(), {}) as other,
    ):
        scene.wait("an agent that dies", lambda: _struck(trap) or None, STRUCK_S)
        trap.disarm()
        _ended(scene, other.job.name)


def _struck(trap: points.Armed) -> bool:
    found = (each for node in trap.nodes for each in Directory(node.failpoints).struck())
    return any(each.point == trap.point for each in found)


def prints_much(scene: Scene) -> None:
    """Its log is rotated, and is more than the node keeps."""
    _to_its_end(scene, _files("--steps", "1", "--print-bytes", str(ENOUGH_TO_ROTATE)))


def saves_files(scene: Scene) -> None:
    """Its checkpoints are files of another kind than TensorFlow's."""
    _to_its_end(scene, _files(checkpoint={"pattern": "state-{step}.json"}))


def scribbles(scene: Scene) -> None:
    """In its mounted directory it makes others, writes on in files and removes open ones."""
    _to_its_end(scene, _files("--scribble", checkpoint={"mode": "mounted"}))


def runs_out_of_time(scene: Scene) -> None:
    """It fails by `limits.wall_time`, and its processes are kept for a while."""
    limits = {"wall_time": "3s", "hold_on_failure": f"{HELD_S}s"}
    with _submitted(scene, _files("--steps", "1000", limits=limits)) as other:
        _ended(scene, other.job.name)
        time.sleep(2 * HELD_S)


def loses_its_evaluator(scene: Scene) -> None:
    """Its evaluator's node loses power, where no other task of its own is."""
    with _submitted(scene, _files("--steps", "1000", roles={"chief": 1, "evaluator": 1})) as other:
        scene.job.operator.ctl("wait", other.job.name, "--for", "running", "--timeout", str(DONE_S))
        evaluator, chief = other.task("evaluator.0"), other.task("chief.0")
        if evaluator.node == chief.node:
            raise DidNotBite(f"{evaluator.node} has all of its tasks")
        with off(scene, evaluator.node):
            scene.wait("an evaluator elsewhere", lambda: _elsewhere(other, evaluator), DONE_S)


def _elsewhere(other: Scene, before: TaskView) -> TaskView | None:
    return next((each for each in other.tasks(before.role) if each.node != before.node), None)


def judged(scene: Scene) -> None:
    """An operator verifies its checkpoints, of which one is bad and then whole again, and imports one."""
    ctl = scene.job.operator.ctl
    with _submitted(scene, _steps(scene, "--steps", "40")) as other:
        name = other.job.name
        _ended(scene, name)
        view = other.job.view()
        if view is None or view.phase is not JobPhase.SUCCEEDED:
            raise DidNotBite("it did not come to its end")
        newest = str(view.newest_commit)
        found = (scene.cluster.store / name).rglob("*.data-*")
        directory = max(found, key=lambda path: path.stat().st_mtime).parent
        copy = other.job.control.parent / f"copy-{time.monotonic_ns()}"
        ctl("checkpoints", name, "restore", newest, "--to", str(copy))
        flip(directory)
        with suppress(CommandFailed):
            ctl("checkpoints", name, "verify")
        flip(directory)
        ctl("checkpoints", name, "verify")
        ctl("checkpoints", name, "import", str(copy))
