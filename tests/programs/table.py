"""`python -m tests.programs.table > docs/programs.md`: every program of the zoo, undisturbed and killed.

Progress goes to standard error, the figures also to a JSON file, which is written after each program: a run
that was interrupted, or `--only` for some of them, keeps what the file holds of the others. Exit code 1: a
program did not run as promised; the table says so too. `--record` makes the fixtures of `recordings.py`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.support.figures import machine
from supervisor.contract import codec
from supervisor.contract.errors import TfSupervisorError
from tests.examples.harness import ROOT, Cluster, Job, read_job
from tests.programs.recordings import Recorder, write
from tests.programs.run import Play, Run, play, side_by_side
from tests.programs.shapes import SHAPES, Shape

JSON_FILE = ROOT / "docs" / "programs.json"
PAGE_FILE = ROOT / "docs" / "programs.md"
TEXT_FILE = Path(__file__).with_name("programs.md")
MARK = "<!-- table -->"
AT_ONCE = 3
_USUAL = {"name", "command", "strategy", "roles", "env"}
_QUIET = {"TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS"}


@dataclass(frozen=True, slots=True)
class Kill:
    """The recovery from the kill of one task."""

    task: str
    scope: str
    rule: str
    back_ms: int


@dataclass(frozen=True, slots=True)
class Entry:
    """The results of the two runs of a program. `failure` is empty where both went as promised."""

    name: str
    step: int = -1
    commits: int = 0
    kills: tuple[Kill, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """The JSON file. `machine` is that of the last run: its cores, system, date and load at the start."""

    machine: dict[str, str] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the page, and say how it went."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.table")
    names = [shape.name for shape in SHAPES]
    parser.add_argument("--only", nargs="+", choices=names, help="run these programs alone")
    parser.add_argument("--render", action="store_true", help="run nothing, print what the JSON file holds")
    parser.add_argument("--record", action="store_true", help="only record what they print, undisturbed")
    flags = parser.parse_args(arguments)
    shapes = [shape for shape in SHAPES if not flags.only or shape.name in flags.only]
    if flags.record:
        return _run(shapes, _record)
    if not flags.render:
        _run(shapes, _measure)
    document = read(JSON_FILE)
    sys.stdout.write(page(document))
    return 1 if any(entry.failure for entry in document.entries) else 0


def _run(shapes: Sequence[Shape], how: Callable[[Cluster, Shape], Play]) -> int:
    """Exit code 1 when one of them did not run as promised."""
    with tempfile.TemporaryDirectory(prefix="programs-") as scratch:
        options = ("--profile", "default")
        with Cluster(Path(scratch) / "state", nodes=2, options=options) as cluster:
            runs = side_by_side([(shape.name, partial(how, cluster, shape)) for shape in shapes], AT_ONCE)
    return 1 if any(isinstance(run, TfSupervisorError) for run in runs.values()) else 0


def _record(cluster: Cluster, shape: Shape) -> Play:
    """The undisturbed run alone; what its tasks print replaces the recordings of the program."""
    running = play(cluster, shape, ())
    next(running)
    recorder = Recorder(cluster.state, Job(cluster, shape.name).view().uuid)
    while True:
        recorder.look()
        try:
            next(running)
        except StopIteration as end:
            recorder.look()
            write(shape.name, recorder.tapes())
            sys.stderr.write(f"{shape.name}: recorded\n")
            run: Run = end.value
            return run
        yield


def _measure(cluster: Cluster, shape: Shape) -> Play:
    """Both runs, one after the other; what they showed is in the JSON file then."""
    try:
        yield from play(cluster, shape, ())
        run = yield from play(cluster, shape, shape.victims)
    except TfSupervisorError as error:
        _keep(Entry(shape.name, failure=str(error)[:2000]))
        sys.stderr.write(f"{shape.name}: {error}\n")
        raise
    kills = tuple(
        Kill(f"{each.role}:{each.index}", found.scope, found.rule, found.total_ms)
        for each, found in zip(shape.victims, run.incidents, strict=True)
    )
    _keep(Entry(shape.name, run.step, run.commits, kills))
    sys.stderr.write(f"{shape.name}: as promised\n")
    return run


def _keep(entry: Entry) -> None:
    info = {name: str(value) for name, value in machine().items()}
    found = {each.name: each for each in read(JSON_FILE).entries} | {entry.name: entry}
    document = Document(info, tuple(found[shape.name] for shape in SHAPES if shape.name in found))
    JSON_FILE.write_text(json.dumps(codec.to_plain(document), indent=2) + "\n")


def read(file: Path) -> Document:
    """The figures of earlier runs; none when there is no such file. Raises IncompatibleRecord."""
    if not file.exists():
        return Document()
    return codec.from_plain(Document, json.loads(file.read_text()))


def page(document: Document) -> str:
    """The whole of docs/programs.md."""
    found = {entry.name: entry for entry in document.entries}
    said = document.machine
    lines = [f"Run on {said['date']}, {said['cores']} cores." if said else "Not run yet.", ""]
    for title, tutorial in (("Shapes", False), ("From the prose of public tutorials", True)):
        lines += [
            f"## {title}",
            "",
            "| program | shape | strategy | killed: restarted | step in `status` | the job file says |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_line(shape, found.get(shape.name)) for shape in SHAPES if shape.tutorial is tutorial]
        lines.append("")
    return TEXT_FILE.read_text().replace(MARK, "\n".join(lines).rstrip())


def _line(shape: Shape, entry: Entry | None) -> str:
    job = read_job(shape.file)
    failure = shape.trouble or (entry.failure if entry else "")
    if failure:
        how, step = f"**does not hold**: {failure.splitlines()[0]}", ""
    elif entry is None:
        how, step = "not run yet", ""
    else:
        how = "; ".join(f"{kill.task}: {kill.scope}, {kill.back_ms / 1000:.1f} s" for kill in entry.kills)
        step = "yes" if entry.step >= 0 else "none is known"
    says = "; ".join(must_say(job)) or "nothing more"
    return f"| `{shape.name}` | {shape.shape} | `{job['strategy']}` | {how} | {step} | {says} |"


def must_say(job: dict[str, object]) -> list[str]:
    """The settings of a job file beyond its name, commands, strategy and numbers of tasks."""
    roles = job["roles"]
    assert isinstance(roles, dict)
    commands = json.dumps([job.get("command"), [options.get("command") for options in roles.values()]])
    said = ["`{" + word + "}`" for word in sorted(set(re.findall(r"\{([a-z_]+)\}", commands)))]
    for name, value in job.items():
        if name == "checkpoint" and isinstance(value, dict):
            said += [f"`checkpoint.{key}: {json.dumps(setting)}`" for key, setting in value.items()]
        elif name not in _USUAL:
            said.append(f"`{name}`")
    for role, options in roles.items():
        said += [f"`roles.{role}.{key}`" for key in options if key not in ("count", "command")]
    env = job.get("env")
    if isinstance(env, dict):
        said += [f"`env.{name}`" for name in env if name not in _QUIET]
    return said


if __name__ == "__main__":
    sys.exit(main())
