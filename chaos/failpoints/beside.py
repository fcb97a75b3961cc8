"""Another job beside the one that is watched: what operators do with it, and what becomes of it.

Nothing is promised of its steps to whoever checks a run, so that all may be done to it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from agent.code.store import KEPT_UNUSED
from agent.environments.store import KEPT_UNUSED as ENVIRONMENTS_KEPT
from chaos import little_images
from chaos.cluster import CommandFailed
from chaos.cluster.cluster import PREFIX
from chaos.cluster.etcd_reader import span
from chaos.container_image import rootfs
from chaos.failpoints.directory import Directory
from chaos.faults import points
from chaos.faults.families.node import cut_off, kinds, off
from chaos.faults.families.store import STRUCK_S, flip
from chaos.faults.operator import Operator
from chaos.faults.scene import DidNotBite, Scene
from chaos.programs import FILES, REPOSITORY, STEPS
from chaos.runner.submit import job_document, job_of
from supervisor.contract import keys
from supervisor.contract.desired import JobPhase
from supervisor.contract.views.jobs import TaskView

DONE_S = 40.0
ENOUGH_TO_ROTATE = 80 << 20
HELD_S = 2
UNANSWERED_S = 50.0
"""Longer than one call to a mounted directory waits."""
LARGE_FILE = 257 << 20
"""Large enough to go to HDFS in parts."""
LARGE_ENV = 55_000
MANY_WORKERS = 20
"""Their assignments are more than one transaction takes."""
REGISTRY_PORT = 5000
ROUNDS = 5
_LOCK = "requirements.lock"
ENV: Mapping[str, str] = MappingProxyType({"PYTHONPATH": str(REPOSITORY)})
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
        "env": dict(ENV),
        "preload": [],
        **also,
    }


@contextmanager
def trains_on(scene: Scene) -> Iterator[Scene]:
    """One worker of it makes steps for as long as the block lasts."""
    with _submitted(scene, _files("--steps", "1000000")) as other:
        yield other


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


def many_environments(scene: Scene) -> None:
    """It comes again and again, each time with other packages, more than nodes keep."""
    wheels = scene.job.control.parent / f"wheels-{time.monotonic_ns()}"
    wheels.mkdir(parents=True)
    document = {
        **_files("--steps", "1"),
        "command": ["python", FILES, "--steps", "1"],
        "environment": {"requirements": _LOCK, "wheelhouse": wheels.as_uri()},
    }
    with _submitted(scene, document, {_LOCK: _wheel(wheels, 0)}) as other:
        home = other.job.control.parent
        for serial in range(1, ENVIRONMENTS_KEPT + 2):
            _ended(scene, other.job.name)
            (home / "code" / _LOCK).write_text(_wheel(wheels, serial))
            scene.job.operator.ctl("submit", str(home / "job.yaml"), "--resume")
        _ended(scene, other.job.name)


def _wheel(directory: Path, serial: int) -> str:
    """Write a wheel that no other job has; returns its line in a lock file."""
    name, version = "tfsup_chaos", f"{time.monotonic_ns()}.{serial}"
    info = f"{name}-{version}.dist-info"
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


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


def comes_twice(scene: Scene) -> None:
    """Two operators submit it at once, with a checkpoint directory of each one's own: one is refused."""
    home = scene.job.control.parent / f"twice-{time.monotonic_ns()}"
    home.mkdir()
    with Operator(scene.cluster) as one, Operator(scene.cluster) as two, ThreadPoolExecutor(2) as both:
        for number in range(ROUNDS):
            name = f"{scene.job.name}-twice-{time.monotonic_ns() // 1_000_000}"
            tried: list[Future[object]] = []
            for operator in (one, two):
                path = home / f"{number}-{len(tried)}.yaml"
                uri = (scene.cluster.store / f"{name}-{len(tried)}").as_uri()
                path.write_text(json.dumps({**_files(checkpoint={"uri": uri}), "name": name}))
                tried.append(both.submit(operator.ctl, "submit", str(path)))
            refused = [str(error) for each in tried if (error := each.exception()) is not None]
            scene.job.operator.insist("stop", name)
            _ended(scene, name)
            if any("at the same moment" in said for said in refused):
                return
    raise DidNotBite("nobody came between")


def is_forgotten(scene: Scene) -> None:
    """Etcd has lost all that it knew of the job, which is submitted again.

    And the cluster's own record is as an earlier release has left it.
    """
    ctl = scene.job.operator.ctl
    with _submitted(scene, _steps(scene, "--steps", "40")) as other:
        name = other.job.name
        _ended(scene, name)
        families = [each.prefix for each in keys.FAMILIES if each.prefix.endswith("/")]
        _change(
            scene,
            *({"request_delete_range": span(f"{PREFIX}{prefix}{name}")} for prefix in families),
            _earlier_record(scene),
        )
        ctl("submit", "--resume", str(other.job.control.parent / "job.yaml"))
        ctl("checkpoints", name, "rebuild")


def _earlier_record(scene: Scene) -> dict[str, object]:
    """The cluster's record without what releases before this one did not have in it."""
    held = _read(scene, keys.CLUSTER)
    record = json.loads(base64.b64decode(held["value"]))
    del record["uuid"]
    value = base64.b64encode(json.dumps(record).encode()).decode()
    return {"request_put": {"key": held["key"], "value": value}}


def _change(scene: Scene, *requests: Mapping[str, object]) -> None:
    """Change keys in etcd, while the same supervisor leads.

    Leaders may write them: to a checker this is a write of that leader.
    """
    held = _read(scene, keys.LEADER)
    leads = {"target": "CREATE", **{name: held[name] for name in ("key", "create_revision")}}
    scene.cluster.etcd().post("/v3/kv/txn", {"compare": [leads], "success": list(requests)})


def _read(scene: Scene, key: str) -> dict[str, str]:
    """A key that is there, as the gateway has it."""
    found = scene.cluster.etcd().post("/v3/kv/range", span(f"{PREFIX}{key}"))["kvs"]
    assert isinstance(found, list)
    held = found[0]
    assert isinstance(held, dict)
    return held


def is_large(scene: Scene) -> None:
    """Its plan is too large for one transaction of etcd."""
    env = {**ENV, "PADDING": "x" * LARGE_ENV}
    _to_its_end(scene, _files("--steps", "1", roles={"worker": MANY_WORKERS}, env=env))


def saves_large_files(scene: Scene) -> None:
    """Each of its saves is so large that it goes to HDFS in parts."""
    _to_its_end(
        scene,
        _files("--steps", "1", "--state-bytes", str(LARGE_FILE), checkpoint={"pattern": "state-{step}.json"}),
    )


def waits_for_its_directory(scene: Scene) -> None:
    """A call to its mounted directory waits for HDFS until it fails."""
    document = _files("--scribble", "--steps", "100000", checkpoint={"mode": "mounted"})
    with _submitted(scene, document) as other:
        node = other.task("worker.0").node
        with cut_off(scene, node, others=kinds("hdfs-")):
            time.sleep(UNANSWERED_S)


def has_its_own_image(scene: Scene) -> None:
    """Its image comes from a registry, slowly until that is told. Each node has a way of its own to that."""
    content, hurry = rootfs().read_bytes(), threading.Event()
    name = little_images.name_at(REGISTRY_PORT)
    with ExitStack() as registries:
        for node in scene.nodes("node-"):
            with suppress(AssertionError):
                # Of an earlier time.
                scene.cluster.docker(node.name, "rmi", "--force", name)
            registries.enter_context(
                little_images.registry(
                    content, packed=False, hurry=hurry, network=node.pid, port=REGISTRY_PORT
                )
            )
        registries.callback(hurry.set)
        image = {"image": name, "pull": "always"}
        with _submitted(scene, {**_steps(scene, "--steps", "40"), "container": image}) as other:
            scene.wait("a delay that is told", lambda: _delayed(other) or None, DONE_S)
            hurry.set()
            _ended(scene, other.job.name)


def _delayed(other: Scene) -> bool:
    view = other.job.view()
    return view is not None and "for now" in view.waiting_for
