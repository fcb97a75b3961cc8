"""Everything that the page is made of, as the runs have left it: `run.json`, `etcd.jsonl`, `sweep.json`.

All times are milliseconds of CLOCK_BOOTTIME; negative: it never came to that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from chaos.history.formats import DELETE, ETCD, PUT, EtcdLine
from chaos.history.lines import NotReadable, parse, read

T = TypeVar("T")
RUN, SWEEP, MUTANTS, MILD = "run.json", "sweep.json", "mutants.json", "mild.json"
STRIKES, EVERYTHING, SIM = "strikes.json", "everything.json", "sim.json"
PASSED, BROKEN, ERROR = "passed", "broken", "error"
PHASES = ("detected", "decided", "ready", "switched", "restored", "first_step", "all_running")
"""In the order in which a restart goes through them; a name that is not here comes after these."""


@dataclass(frozen=True, slots=True)
class FaultRun:
    """One fault of a run."""

    name: str
    family: str = ""
    target: str = ""
    begin_ms: float = -1.0
    in_force_ms: float = -1.0
    heal_ms: float = -1.0
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that did not hold."""

    promise: str
    text: str
    at_ms: float = -1.0
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFile:
    """The fields of `run.json` that the page uses."""

    id: str
    scenario: str
    seed: str = ""
    program: str = ""
    job: str = ""
    faults: tuple[FaultRun, ...] = ()
    began_ms: float = -1.0
    healthy_ms: float = -1.0
    healed_ms: float = -1.0
    converged_ms: float = -1.0
    ended_ms: float = -1.0
    outcome: str = ERROR
    why: str = ""
    violations: tuple[Violation, ...] = ()
    replay: str = ""
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident of the job, as its last record has it.

    `began_ms`: when it had begun by its first record, which may come late, with the phases until then.
    """

    id: str
    cause: str
    task: str
    scope: str
    outcome: str
    began_ms: float
    phases_ms: dict[str, int]

    @property
    def total_ms(self) -> int:
        """All phases together."""
        return sum(self.phases_ms.values())


@dataclass(frozen=True, slots=True)
class Stretch:
    """Something that lasted; `end_ms` is None for what went on to the end of the recording."""

    row: str
    text: str
    begin_ms: float
    end_ms: float | None


@dataclass(frozen=True, slots=True)
class Story:
    """The story of a run by etcd: incidents, leaders, generations, attempts, commits."""

    incidents: tuple[Incident, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    commits_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """A run and its directory."""

    directory: Path
    file: RunFile
    story: Story

    @property
    def violated(self) -> frozenset[str]:
        """Promises that did not hold."""
        return frozenset(each.promise for each in self.file.violations)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a mutant."""

    name: str
    fate: str
    checker: str = ""
    at: str = ""
    tries: int = 0
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MutantFile:
    """`mutants.json`."""

    mutants: tuple[Verdict, ...] = ()
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SweepFile:
    """The fields of `sweep.json` that the page uses."""

    seed: int = 0
    took_s: float = 0.0
    missing: dict[str, str] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trouble:
    """One mild trouble."""

    name: str


@dataclass(frozen=True, slots=True)
class Needless:
    """An incident that mild trouble led to, and should not have."""

    id: str
    cause: str
    detail: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class MildFile:
    """`mild.json`."""

    profile: str
    troubles: tuple[Trouble, ...] = ()
    needless: tuple[Needless, ...] = ()
    took_s: float = 0.0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class StrikesFile:
    """`strikes.json`: points at which daemons were killed, and why others were missed."""

    struck: tuple[str, ...] = ()
    missed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartFile:
    """One part of `everything.json`: its exit code, negative when it had to be ended."""

    name: str
    code: int
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EverythingFile:
    """`everything.json`."""

    seed: int = 0
    parts: tuple[PartFile, ...] = ()


@dataclass(frozen=True, slots=True)
class SimFile:
    """`sim.json`: so many seeds from `first` on; of those that failed, what there is to say.

    `struck`: failpoints at which a daemon was killed.
    """

    seeds: int
    first: int = 0
    virtual_s: float = 0.0
    took_s: float = 0.0
    failed: dict[str, str] = field(default_factory=dict)
    struck: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings below a directory.

    `unread`: directories that look like a run and cannot be read, with the reasons.
    """

    runs: tuple[Run, ...]
    sweeps: tuple[SweepFile, ...]
    mutants: tuple[MutantFile, ...]
    mild: tuple[MildFile, ...]
    strikes: tuple[StrikesFile, ...]
    everything: tuple[EverythingFile, ...]
    sims: tuple[SimFile, ...]
    unread: tuple[str, ...]


def find(directory: Path) -> Findings:
    """Read every run, sweep and hunt for mutants below a directory, the oldest run first."""
    unread: list[str] = []
    runs = [run for path in sorted(directory.rglob(RUN)) if (run := _run(path, unread)) is not None]
    return Findings(
        tuple(sorted(runs, key=lambda run: run.file.began_ms)),
        tuple(_files(SweepFile, directory.rglob(SWEEP), unread)),
        tuple(_files(MutantFile, directory.rglob(MUTANTS), unread)),
        tuple(_files(MildFile, directory.rglob(MILD), unread)),
        tuple(_files(StrikesFile, directory.rglob(STRIKES), unread)),
        tuple(_files(EverythingFile, directory.rglob(EVERYTHING), unread)),
        tuple(_files(SimFile, directory.rglob(SIM), unread)),
        tuple(unread),
    )


def _run(path: Path, unread: list[str]) -> Run | None:
    found = next(_files(RunFile, [path], unread), None)
    if found is None:
        return None
    try:
        return Run(path.parent, found, tell(read(EtcdLine, path.parent / ETCD), found))
    except (NotReadable, ValueError, KeyError) as error:
        unread.append(f"{path.parent / ETCD}: {error}")
        return Run(path.parent, found, Story())


def _files(kind: type[T], paths: Iterable[Path], unread: list[str]) -> Iterator[T]:
    for path in sorted(paths):
        try:
            yield parse(kind, path.read_bytes())
        except (OSError, NotReadable) as error:
            unread.append(f"{path}: {error}")


def tell(lines: Iterable[EtcdLine], run: RunFile) -> Story:
    """The story that changes of etcd tell. Raises ValueError, KeyError for a record that is not ours."""
    first: dict[str, float] = {}
    last: dict[str, dict[str, object]] = {}
    open_: dict[str, tuple[str, str, float]] = {}
    done: list[Stretch] = []
    commits: list[float] = []
    for line in lines:
        if line.at_ms < run.began_ms or line.kind not in (PUT, DELETE):
            continue
        family, _, rest = line.key.partition("/")
        ours = rest == run.job or rest.startswith(f"{run.job}/")
        body = json.loads(line.value) if line.kind == PUT and line.value.startswith("{") else {}
        if family == "incidents" and ours and body:
            first.setdefault(line.key, line.at_ms - _incident(body, 0.0).total_ms)
            last[line.key] = body
        elif family == "commits" and ours and body.get("state") == "committed" and line.version == 1:
            commits.append(line.at_ms)
        now = _lasting(family, body, ours=ours)
        if now is None:
            continue
        before = open_.get(line.key)
        if before is not None and before[1] != now[1]:
            done.append(Stretch(before[0], before[1], before[2], line.at_ms))
            del open_[line.key]
        if now[1] and line.key not in open_:
            open_[line.key] = (*now, line.at_ms)
    done += [Stretch(row, text, begin_ms, None) for row, text, begin_ms in open_.values()]
    incidents = tuple(_incident(body, first[key]) for key, body in last.items())
    return Story(
        tuple(sorted(incidents, key=lambda each: each.began_ms)),
        tuple(sorted(done, key=lambda each: (each.row, each.begin_ms))),
        tuple(commits),
    )


def _lasting(family: str, body: dict[str, object], *, ours: bool) -> tuple[str, str] | None:
    """The row of a change in the picture and what goes on from then, empty for nothing; None: not shown."""
    if family == "leader":
        return "leader", str(body.get("supervisor", ""))
    if family == "switches" and ours:
        return "job", f"g{body['generation']} {body['phase']}" if body else ""
    if family == "attempts" and ours and body:
        runs = body["state"] == "running"
        member = f"{body['role']}:{body['index']}"
        return member, f"g{body['generation']}.{body['number']} {body['node']}" if runs else ""
    return None


def _incident(body: dict[str, object], began_ms: float) -> Incident:
    phases = body.get("phases_ms")
    assert isinstance(phases, dict)
    id_, cause, task, scope, outcome = (
        str(body[name]) for name in ("id", "cause", "task", "scope", "outcome")
    )
    known = [name for name in PHASES if name in phases]
    order = [*known, *(name for name in phases if name not in PHASES)]
    return Incident(id_, cause, task, scope, outcome, began_ms, {name: int(phases[name]) for name in order})
