"""`python -m tests.examples.table > docs/strategies.md`: every example, each of its roles killed, measured.

Progress goes to standard error, the figures also to a JSON file, which is written after each case: a run that
was interrupted, or `--only` for some cases, keeps what the file holds of the others. Exit code 1: a case did
not go as promised; the table says so too.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.support.figures import machine
from supervisor.adapters.files.jobfile import load_job_file
from supervisor.contract import codec
from supervisor.contract.errors import TfSupervisorError
from tests.examples.cases import CASES, Case
from tests.examples.harness import ROOT, Cluster
from tests.examples.run import Run, run_case, total_steps

JSON_FILE = ROOT / "docs" / "strategies.json"
TEXT_FILE = Path(__file__).with_name("strategies.md")
MARK = "<!-- table -->"


@dataclass(frozen=True, slots=True)
class Row:
    """One kill. Steps are -1 where they are not known. `back_ms`: until the first new step, or until the task
    runs again where it reports no steps (`stepped` is false).
    """

    role: str
    index: int
    scope: str
    rule: str
    cause: str
    from_step: int
    to_step: int
    back_ms: int
    stepped: bool
    phases_ms: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """The results of a case. `undisturbed` is empty where they may differ; `failure` says what went wrong."""

    name: str
    program: str
    strategy: str
    rows: tuple[Row, ...] = ()
    result: str = ""
    undisturbed: str = ""
    equal: str = ""
    note: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """The JSON file. `machine` is that of the last run: its cores, system, date and load at the start."""

    machine: dict[str, str] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the document, and say how it went."""
    flags = _flags(arguments)
    # However it is ended, the cluster goes down with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    document = read(flags.json)
    if not flags.render:
        chosen = [case for case in CASES if not flags.only or case.name in flags.only]
        with tempfile.TemporaryDirectory(prefix="strategies-") as scratch:
            document = _run(chosen, document, Path(scratch), flags.json)
    sys.stdout.write(page(document))
    return 1 if any(entry.failure for entry in document.entries) else 0


def _flags(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.examples.table")
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, help="run these cases alone")
    parser.add_argument("--json", type=Path, default=JSON_FILE, help="where the figures go and come from")
    parser.add_argument("--render", action="store_true", help="run nothing, print what the JSON file holds")
    return parser.parse_args(arguments)


def _run(cases: Sequence[Case], document: Document, scratch: Path, file: Path) -> Document:
    _say(f"{len(cases)} cases; a cluster comes up in {scratch}")
    found = {entry.name: entry for entry in document.entries}
    info = {name: str(value) for name, value in machine().items()}
    with Cluster(scratch / "state") as cluster:
        for number, case in enumerate(cases, start=1):
            started = time.monotonic()
            found[case.name] = entry = _measure(cluster, case, scratch)
            document = Document(info, tuple(found[case.name] for case in CASES if case.name in found))
            _write(file, document)
            how = f"FAILED: {entry.failure.splitlines()[0]}" if entry.failure else entry.result
            _say(f"[{number}/{len(cases)}] {case.name}: {how} ({time.monotonic() - started:.0f} s)")
    return document


def _measure(cluster: Cluster, case: Case, scratch: Path) -> Entry:
    strategy = load_job_file(case.file, checkpoint_base="file:///unused").spec.strategy.value
    steps = total_steps(case, len(case.victims))
    entry = Entry(case.name, case.program, strategy, equal=case.equal, note=case.note)
    try:
        undisturbed = ""
        if case.equal:
            _say(f"  {case.name}: undisturbed")
            undisturbed = run_case(cluster, case, (), _fresh(scratch, case), steps).result
        _say(f"  {case.name}: kill {', '.join(f'{each.role}:{each.index}' for each in case.victims)}")
        run = run_case(cluster, case, case.victims, _fresh(scratch, case), steps)
        if case.equal and run.result != undisturbed:
            raise AssertionError(f"{run.result!r} is not the undisturbed run's {undisturbed!r}")
    except (TfSupervisorError, AssertionError, OSError) as error:
        _say(str(error))
        cluster.stop_all()
        return replace(entry, failure=f"{type(error).__name__}: {str(error)[:2000]}")
    return replace(entry, rows=_rows(run), result=run.result, undisturbed=undisturbed)


def _rows(run: Run) -> tuple[Row, ...]:
    return tuple(
        Row(
            role=victim.role,
            index=victim.index,
            scope=incident.scope,
            rule=incident.rule,
            cause=incident.cause,
            from_step=incident.from_step,
            to_step=incident.to_step,
            back_ms=incident.total_ms,
            stepped="first_step" in incident.phases_ms,
            phases_ms=incident.phases_ms,
        )
        for victim, incident in zip(run.victims, run.incidents, strict=True)
    )


def page(document: Document) -> str:
    """The whole of docs/strategies.md."""
    lines = [
        "| strategy | program | killed | scope | rule | steps lost | first new step | result at the end |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for entry in sorted(document.entries, key=lambda entry: entry.strategy):
        if entry.failure:
            lines.append(f"| {entry.strategy} | `{entry.name}` | | | | | | **FAILED**, see the JSON file |")
        lines += [_line(entry, row) for row in entry.rows]
    notes = [f"- `{entry.name}`: {entry.note}." for entry in document.entries if entry.note]
    said = document.machine
    where = (
        f"Measured on {said['date']}, {said['cores']} cores, {said['system']}, "
        f"load average {said['load_1min_at_start']} at the start."
        if said
        else "Not measured yet."
    )
    table = "\n".join([where, "", *lines, "", *notes])
    return TEXT_FILE.read_text().replace(MARK, table)


def _line(entry: Entry, row: Row) -> str:
    known = row.from_step >= 0 and row.to_step >= 0
    lost = str(max(0, row.from_step - row.to_step)) if known else "-"
    equal = f"{entry.result}; equal: {entry.equal}" if entry.equal else entry.result
    cells = (
        entry.strategy,
        f"`{entry.name}`",
        f"{row.role}:{row.index}",
        row.scope,
        f"`{row.rule}`",
        lost,
        f"{row.back_ms / 1000:.2f} s" + ("" if row.stepped else " (runs)"),
        equal,
    )
    return f"| {' | '.join(cells)} |"


def _fresh(scratch: Path, case: Case) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{case.name}-", dir=scratch))


def read(file: Path) -> Document:
    """The figures of earlier runs; none when there is no such file. Raises IncompatibleRecord."""
    if not file.exists():
        return Document()
    return codec.from_plain(Document, json.loads(file.read_text()))


def _write(file: Path, document: Document) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(codec.to_plain(document), indent=2) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
