"""The report: what runs have left is on the page, readable, escaped, and needs nothing from elsewhere."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.failpoints.points import names
from chaos.history.formats import ETCD, PUT, EtcdLine
from chaos.history.lines import append
from chaos.promises import PROMISES
from chaos.report.__main__ import main
from chaos.report.markup import Markup, el, join
from chaos.report.page import page
from chaos.report.pictures import quantile, seconds, strip
from chaos.report.read import BROKEN, ERROR, PASSED, PHASES, FaultRun, RunFile, Violation, find, tell

JOB = "steps-1"
NASTY = "<script>alert('x')</script> & \"more\""
PROMISE = next(iter(PROMISES))
VOID = {"meta", "br", "line", "rect", "circle", "path"}


class Page(HTMLParser):
    """Checks that elements are closed in their order; keeps tags, texts and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"href", "src", "xlink:href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def run_file(name: str, outcome: str = PASSED, *faults: str, why: str = "", text: str = "") -> RunFile:
    broken = (Violation(PROMISE, text or "two at once", 12_500.0, (NASTY,)),) if outcome == BROKEN else ()
    injected = tuple(
        FaultRun(
            each,
            "task",
            "worker.0",
            10_000.0 + 100 * number,
            10_050.0,
            12_000.0,
            f"process 7 is gone {NASTY}",
        )
        for number, each in enumerate(faults)
    )
    return RunFile(
        *(name, "+".join(faults) or name, "7", "steps", JOB, injected),
        *(1_000.0, 9_000.0, 12_000.0, 14_000.0, 20_000.0),
        outcome,
        why,
        broken,
        f"python -m chaos replay var/chaos/{name}",
        1_795_296_000.0,
    )


def incident(phases: dict[str, int], outcome: str) -> str:
    return json.dumps(
        {
            "id": "i1",
            "cause": "killed",
            "task": f"{JOB}/worker:0",
            "scope": "task",
            "outcome": outcome,
            "phases_ms": phases,
        }
    )


def attempt(number: int, state: str) -> str:
    body = {"role": "worker", "index": 0, "generation": 1, "number": number, "node": "node-0", "state": state}
    return json.dumps(body)


FIRST = {"detected": 20, "decided": 30}
WHOLE = {"detected": 20, "decided": 30, "restored": 400, "first_step": 50}
LINES = (
    EtcdLine(PUT, 2, "leader", json.dumps({"supervisor": "sup-0"}), at_ms=2_000.0),
    EtcdLine(PUT, 3, f"switches/{JOB}", json.dumps({"generation": 1, "phase": "running"}), at_ms=8_000.0),
    EtcdLine(PUT, 4, f"attempts/{JOB}/worker.0/1", attempt(1, "running"), at_ms=8_500.0),
    EtcdLine(PUT, 5, f"attempts/{JOB}/worker.0/1", attempt(1, "exited"), at_ms=10_100.0),
    EtcdLine(PUT, 6, f"incidents/{JOB}/i1", incident(FIRST, "open"), at_ms=10_200.0),
    EtcdLine(PUT, 7, f"attempts/{JOB}/worker.0/2", attempt(2, "running"), at_ms=10_300.0),
    EtcdLine(PUT, 8, f"incidents/{JOB}/i1", incident(WHOLE, "recovered"), at_ms=10_700.0),
    EtcdLine(PUT, 9, f"commits/{JOB}/g1-s40", json.dumps({"state": "committed"}), version=1, at_ms=11_000.0),
    EtcdLine(PUT, 10, "switches/another", json.dumps({"generation": 5, "phase": "running"}), at_ms=11_500.0),
    EtcdLine("delete", 11, "leader", at_ms=12_500.0),
)


def write(root: Path, file: RunFile, lines: tuple[EtcdLine, ...] = LINES) -> None:
    directory = root / file.id
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(asdict(file)))
    append(directory / ETCD, lines)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write(tmp_path, run_file("r1", PASSED, "kill-worker"))
    write(tmp_path, run_file("r2", PASSED, "kill-worker", "kill-leader"))
    write(tmp_path, run_file("r3", BROKEN, "kill-leader", text=f"two at once {NASTY}"))
    write(tmp_path, run_file("r4", ERROR, "freeze-node", why="it did not bite"))
    sweep = {"seed": 5, "took_s": 9.0, "missing": {"gpu-lost": "no docker here"}, "skipped": ["cut-all"]}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    mutants = [
        {"name": "token not compared", "fate": "caught", "checker": PROMISE, "at": "seed 3", "tries": 2}
    ]
    (tmp_path / "mutants.json").write_text(json.dumps({"took_s": 3.0, "mutants": mutants}))
    needless = [
        {"id": "i9", "cause": "node_lost", "detail": "a beat was late", "at_ms": 5.0, "trouble": "slow-disk"}
    ]
    mild = {"seed": 1, "profile": "default", "troubles": [{"name": "loss"}, {"name": "loss"}], "steps": 77}
    (tmp_path / "mild.json").write_text(json.dumps(mild | {"needless": needless, "took_s": 60.0}))
    parts = [{"name": "simulator", "code": 0, "took_s": 90.0}, {"name": "sweep", "code": 1, "took_s": 8.0}]
    (tmp_path / "everything.json").write_text(json.dumps({"seed": 7, "parts": parts}))
    sim = {"seeds": 900, "first": 7, "virtual_s": 9000.0, "took_s": 60.0, "failed": {"12": "seed 12: two"}}
    (tmp_path / "sim.json").write_text(json.dumps(sim))
    return tmp_path


def test_the_page_tells_all_of_it(runs: Path) -> None:
    found = Page(page(find(runs), "A sweep"))
    for text in (
        *PROMISES,
        "two at once",
        "it did not bite",
        "python -m chaos replay var/chaos/r3",
        *("no docker here", "there was no time for it", "token not compared", "1 of 1 plausible bugs"),
        *("kill-worker", "kill-leader", "freeze-node", "restored", "first_step"),
        *("✗ 1 of 2", "✓ 2", "?"),
        "simulator well, 90.0 s; sweep FAILED (1), 8.0 s",
        *("Runs from 2026-11-21 21:20 to 2026-11-21 21:20 UTC", "Never injected in these runs: agent-"),
        *("900 seeds from 7 on, 150.0 min of virtual time in 60.0 s", "1 failed", "seed 12: two"),
        *("2 loss", "✗ node_lost during slow-disk: a beat was late"),
    ):
        assert text in found.text, text
    assert found.tags.count("h1") == 1


def test_a_phase_has_its_own_colour_whichever_others_there_are(tmp_path: Path) -> None:
    phases = dict.fromkeys(PHASES, 100)
    del phases["decided"]
    whole = replace(LINES[6], value=incident(phases, "recovered"))
    write(tmp_path, run_file("r1", PASSED, "kill-worker"), (*LINES[:6], whole))
    text = page(find(tmp_path), "t")
    for number, name in enumerate(PHASES):
        assert (f'class="phase p{number}"' in text) == (name in phases), name


def test_failpoints_are_one_row(tmp_path: Path) -> None:
    points = ("commit.rename.before", "leader.flip.after")
    file = run_file("bout-001", PASSED, *points)
    struck = tuple(replace(fault, family="failpoint", in_force_ms=1.0) for fault in file.faults)
    nobody = FaultRun("leader.close.after", "failpoint")
    cause = FaultRun("calm", "cause", in_force_ms=1.0)
    write(tmp_path, replace(file, faults=(*struck, nobody, cause)))
    missed = {"leader.close.before": "nothing leads there", "leader.flip.after": "there was no time"}
    (tmp_path / "strikes.json").write_text(json.dumps({"struck": points, "missed": missed}))
    simulated = {"seeds": 1, "struck": ["leader.close.after", "leader.flip.after", "no.such.point"]}
    (tmp_path / "sim.json").write_text(json.dumps(simulated))
    found = Page(page(find(tmp_path), "t"))
    assert f"A daemon was killed at 2 of {len(names())} points on clusters, and at 1 others" in found.text
    assert "commit.rename.before, leader.flip.after" in found.text
    assert "1: struck in the simulator alone" in found.text
    assert f"{len(names()) - 4}: not tried" in found.text
    assert found.text.count("a daemon killed at a failpoint") == 2
    assert found.text.count("what leads to failpoints") == 1
    assert "1: nothing leads there" in found.text
    assert "there was no time" not in found.text, "another strike had it"


def test_what_is_broken_comes_first(runs: Path) -> None:
    said = Page(page(find(runs), "A sweep")).text
    assert said.index("two at once") < said.index("it did not bite") < said.rindex("Faults and promises")


def test_what_is_broken_is_a_link_to_its_story(runs: Path) -> None:
    text = page(find(runs), "A sweep")
    links = [address for address in Page(text).addresses if address.startswith("#run-")]
    assert links
    assert all(f'id="{link[1:]}"' in text for link in links)


def test_the_page_needs_nothing_from_elsewhere(runs: Path) -> None:
    text = page(find(runs), "A sweep")
    assert all(address.startswith("#") for address in Page(text).addresses)
    assert not any(word in text for word in ("http:", "https:", "url(", "@import", "<link", "src="))
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_whatever_a_run_says_is_escaped(runs: Path) -> None:
    text = page(find(runs), NASTY)
    found = Page(text)
    assert "<script" not in text
    assert "script" not in found.tags
    assert found.text.count(NASTY) >= 2


def test_a_run_without_recordings_and_one_that_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, run_file("r1", PASSED, "kill-worker"), ())
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text('{"id": "x"')
    write(tmp_path, run_file("r3"), (EtcdLine(PUT, 2, f"switches/{JOB}", "{}x", at_ms=5_000.0),))
    found = find(tmp_path)
    assert [run.file.id for run in found.runs] == ["r1", "r3"]
    assert [line.split(":")[0].rpartition("/")[2] for line in found.unread] == [ETCD, "run.json"]
    assert "What could not be read" in Page(page(found, "t")).text


def test_what_etcd_tells_of_a_run() -> None:
    story = tell(LINES, run_file("r1", PASSED, "kill-worker"))
    (only,) = story.incidents
    assert (only.began_ms, only.total_ms, only.outcome) == (10_150.0, 500, "recovered")
    assert list(only.phases_ms) == ["detected", "decided", "restored", "first_step"]
    rows = [(each.row, each.text, each.begin_ms, each.end_ms) for each in story.stretches]
    assert rows == [
        ("job", "g1 running", 8_000.0, None),
        ("leader", "sup-0", 2_000.0, 12_500.0),
        ("worker:0", "g1.1 node-0", 8_500.0, 10_100.0),
        ("worker:0", "g1.2 node-0", 10_300.0, None),
    ]
    assert story.commits_ms == (11_000.0,)


def test_quantiles_are_values_that_were_there() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [quantile(values, share) for share in (0.0, 0.2, 0.5, 0.9, 1.0)] == [1.0, 1.0, 3.0, 5.0, 5.0]


def test_each_duration_is_a_dot() -> None:
    drawn = Page(strip([0.0, 10.0, 10.0, 10_000_000.0]))
    assert drawn.tags.count("circle") == 4
    assert "10000.0 s" not in drawn.text


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (99_900, "99.9 s"), (150_000, "2.5 min")]
)
def test_durations_for_people(ms: float, text: str) -> None:
    assert seconds(ms) == text


def test_elements() -> None:
    assert el("p", "a<b", el("b", "&"), class_="x'y") == '<p class="x&#x27;y">a&lt;b<b>&amp;</b></p>'
    assert el("rect", x=1.25, rx=2.0) == '<rect x="1.2" rx="2"/>'
    assert join("<", Markup("<br/>")) == "&lt;<br/>"


def test_the_command(runs: Path) -> None:
    done = CliRunner().invoke(main, [str(runs)])
    assert (done.exit_code, done.output) == (0, f"{runs}/report.html: 4 runs\n")
    assert (runs / "report.html").read_text().startswith("<!doctype html>")


def test_a_directory_without_runs_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [str(tmp_path)])
    assert done.exit_code == 2
    assert "no run is below" in done.output
