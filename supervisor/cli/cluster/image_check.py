"""The check whether an image can run a job: from outside, then in throw-away containers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import agent.inside
from agent.runtimes.docker_node import HOME
from supervisor.cli.cluster.engine import SHARED_MEMORY, Box, CannotStart, Engine, Image, Outcome
from supervisor.cli.cluster.findings import Finding, State, failed
from supervisor.contract.errors import NotFound, Refused
from supervisor.contract.job.spec import Pull

INSIDE = Path(agent.inside.__file__).resolve().parent
MOUNTED = "/tfsup/inside"
PYTHONS = ("python3", "python")
OLDEST = (3, 8)
START_S = 30
TENSORFLOW_S = 180
_BUILD = "build it on one that has Python 3.8 or newer; deploy/docker has Dockerfiles to begin with"
_TENSORFLOW = "import os, tensorflow; os.write(1, ('tfsup:' + tensorflow.__version__).encode())"


@dataclass(frozen=True, slots=True)
class Wish:
    """The requirements for the image.

    Attributes:
        pythons: interpreters to look for; the first existing one is used.
        needs_tensorflow: False for jobs whose command is not Python.
    """

    image: str
    box: Box
    pythons: tuple[str, ...] = PYTHONS
    needs_tensorflow: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """The findings. `python` is the interpreter that is used, `tensorflow` its version of TensorFlow, or
    empty.
    """

    image: str
    id: str
    fits: bool
    python: str
    tensorflow: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """The output of agent/inside/image_probe.py."""

    version: tuple[int, ...]
    machine: str
    uid: int
    gid: int
    launcher: str
    unwritable: tuple[str, ...]


def get(engine: Engine, name: str, pull: Pull, moved: Callable[[int, int], None]) -> Image:
    """The image, fetched if the policy says so; raises NotFound, Refused, Unreachable."""
    image = None if pull is Pull.ALWAYS else engine.image(name)
    if image is None and pull is Pull.NEVER:
        raise NotFound(
            f"no image {name!r} at {engine.address}, and --pull never; build it there, load it with "
            "`docker load`, or use --pull missing"
        )
    if image is None:
        try:
            engine.pull(name, moved)
        except (NotFound, Refused) as error:
            raise NotFound(f"cannot pull {name!r}: {error}") from error
        image = engine.image(name)
        if image is None:
            raise NotFound(f"{name!r} was pulled and is gone again")
    return image


def check(engine: Engine, image: Image, wish: Wish) -> Report:
    """Check an existing image. Raises Unreachable, Refused if dockerd fails."""
    wish = replace(wish, box=replace(wish.box, volumes=image.volumes))
    found = [_architecture(engine, image), *_volumes(image)]
    python, tensorflow = "", ""
    if not failed(found):
        python, facts, told = _interpreter(engine, wish)
        found += told if failed(told) else [_user(image, wish.box), *told]
        if facts is not None and not failed(told):
            found.append(_writable(facts))
            tensorflow, finding = _tensorflow(engine, wish, python)
            found.append(finding)
    return Report(wish.image, image.id, not failed(found), python, tensorflow, tuple(found))


def _architecture(engine: Engine, image: Image) -> Finding:
    wanted = ("linux", engine.info().architecture)
    if (image.system, image.architecture) == wanted:
        return Finding("architecture", State.OK, "/".join(wanted))
    detail = f"{image.system}/{image.architecture}, this machine is {'/'.join(wanted)}"
    return Finding("architecture", State.FAIL, detail, f"build or pull it for {'/'.join(wanted)}")


def _volumes(image: Image) -> list[Finding]:
    if not image.volumes:
        return []
    detail = f"{', '.join(image.volumes)}: tasks have empty directories in memory there"
    return [Finding("volumes", State.WARN, detail, "build it without VOLUME, or mount data there")]


def _user(image: Image, box: Box) -> Finding:
    detail = f"tasks run as {box.user}; the image's own, {image.user or 'root'}, is not used"
    if box.user.partition(":")[0] in ("0", "root"):
        return Finding("user", State.WARN, detail, "let tasks run as another user than root: --user UID:GID")
    return Finding("user", State.OK, detail)


def _interpreter(engine: Engine, wish: Wish) -> tuple[str, Facts | None, list[Finding]]:
    box = replace(wish.box, mounts={**wish.box.mounts, MOUNTED: INSIDE})
    reason = ""
    for python in wish.pythons:
        argv = (python, f"{MOUNTED}/image_probe.py", HOME, SHARED_MEMORY)
        try:
            outcome = engine.run(wish.image, argv, box, START_S)
        except CannotStart as error:
            if _is_about_user(str(error)):
                advice = "use numbers, UID:GID, or a user that the image has"
                return "", None, [Finding("user", State.FAIL, str(error), advice)]
            reason = str(error)
            continue
        return python, *_judged(python, outcome)
    names = " or ".join(wish.pythons)
    detail = f"no {names} in it: {reason.rpartition('exec: ')[2]}"
    return "", None, [Finding("python", State.FAIL, detail, _BUILD)]


def _is_about_user(reason: str) -> bool:
    return "unable to find user" in reason or "unable to find group" in reason


def _judged(python: str, outcome: Outcome) -> tuple[Facts | None, list[Finding]]:
    facts = _facts(outcome)
    if facts is None:
        detail = f"{python} does not run our probe: {_ended(outcome, START_S)}"
        return None, [Finding("python", State.FAIL, detail, _BUILD)]
    version = ".".join(str(part) for part in facts.version)
    if facts.version < OLDEST:
        return facts, [Finding("python", State.FAIL, f"{python} is {version}", _BUILD)]
    found = [Finding("python", State.OK, f"{python} is {version}")]
    if facts.launcher:
        advice = "install Python's whole standard library in it (Debian: libpython3-stdlib)"
        found.append(Finding("launcher", State.FAIL, f"does not load: {facts.launcher}", advice))
    else:
        found.append(Finding("launcher", State.OK, "loads"))
    return facts, found


def _writable(facts: Facts) -> Finding:
    if not facts.unwritable:
        return Finding("writable", State.OK, f"{HOME} and {SHARED_MEMORY}")
    detail = f"uid {facts.uid} cannot write {' and '.join(facts.unwritable)}"
    return Finding(
        "writable", State.FAIL, detail, "remove what the image has put there: links, volumes, modes"
    )


def _tensorflow(engine: Engine, wish: Wish, python: str) -> tuple[str, Finding]:
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", **wish.box.env}
    box = replace(wish.box, env=env)
    outcome = engine.run(wish.image, (python, "-c", _TENSORFLOW), box, TENSORFLOW_S)
    version = outcome.output.rpartition("tfsup:")[2].strip()
    if outcome.code == 0 and version:
        return version, Finding("tensorflow", State.OK, version)
    detail = f"cannot be imported: {_ended(outcome, TENSORFLOW_S)}"
    if wish.needs_tensorflow:
        advice = "install it in the image; for commands that are not Python, check with --exec"
        return "", Finding("tensorflow", State.FAIL, detail, advice)
    return "", Finding("tensorflow", State.WARN, detail, "nothing: commands are executed, restarts are cold")


def _facts(outcome: Outcome) -> Facts | None:
    """The facts that the probe has printed; None if its output is none."""
    try:
        said = json.loads(outcome.output.strip().rpartition("\n")[2])
        return Facts(
            tuple(said["version"]),
            said["machine"],
            said["uid"],
            said["gid"],
            said["launcher"],
            tuple(said["unwritable"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _ended(outcome: Outcome, deadline_s: int) -> str:
    if outcome.code is None:
        return f"not done after {deadline_s} s"
    if outcome.oom:
        return "it needs more than 4 GiB of memory"
    return _last(outcome.errors or outcome.output) or f"exit code {outcome.code}"


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2][:300]
