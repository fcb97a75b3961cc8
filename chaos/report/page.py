"""The page: what was broken first, then what held, how long it took, and what could not be tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from chaos.failpoints.points import names
from chaos.faults import FAULTS
from chaos.programs import DIGITS
from chaos.promises import PROMISES
from chaos.report.markup import Markup, el, join
from chaos.report.pictures import quantile, scale, seconds, strip, timeline
from chaos.report.read import (
    BROKEN,
    ERROR,
    PASSED,
    PHASES,
    FaultRun,
    Findings,
    Incident,
    MildFile,
    Run,
    Trouble,
)
from chaos.report.style import CSS

MOST_EVIDENCE = 8
FAILPOINT, AT_A_FAILPOINT = "failpoint", "a daemon killed at a failpoint"
CAUSE, ON_THE_WAY = "cause", "what leads to failpoints"
TOTAL = "all phases"
CLOSE_MS = 500.0
"""When an incident began is known to the phases' rounding, and to when a change of etcd was seen."""
KEY = (("detected", "#e8a33d"), ("decided", "#d07fae"), ("ready", "#5b9bd8"), ("switched", "#7c6fd0"))
KEY_END = (("restored", "#3fae9a"), ("first_step", "#7db54a"), ("all_running", "#8a94a3"))


def page(found: Findings, title: str) -> str:
    """The whole document."""
    sections = [
        section
        for section in (
            _failures(found.runs),
            _matrix(found.runs),
            _durations(found.runs),
            _examples(found.runs),
            _failpoints(found),
            _sims(found),
            _mild(found),
            _missing(found),
            _mutants(found),
            _unread(found),
        )
        if section is not None
    ]
    links = [el("a", name, href=f"#{anchor}") for anchor, name, _ in sections]
    body = [
        el("h1", title),
        _summary(found),
        el("nav", *links),
        *(el("section", el("h2", name), content, id=anchor) for anchor, name, content in sections),
    ]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", title),
        el("style", Markup(CSS)),
    )
    return f"<!doctype html>\n{el('html', head, el('body', *body), lang='en')}\n"


Section = tuple[str, str, Markup]


def _summary(found: Findings) -> Markup:
    outcomes = Counter(run.file.outcome for run in found.runs)
    kinds = {_kind(fault) for run in found.runs for fault in run.file.faults}
    injected = sum(len(run.file.faults) for run in found.runs)
    lasted_ms = sum(max(0.0, run.file.ended_ms - run.file.began_ms) for run in found.runs)
    cards: list[tuple[str | int, str, str]] = [
        (len(found.runs), "runs", ""),
        (outcomes[PASSED], "kept every promise", "good"),
        (outcomes[BROKEN], "broke one", "bad" if outcomes[BROKEN] else "good"),
        (outcomes[ERROR], "proved nothing", "odd" if outcomes[ERROR] else ""),
        (injected, f"faults of {len(kinds)} kinds", ""),
        (len(PROMISES), "promises checked in each", ""),
        (sum(run.file.program == DIGITS.name for run in found.runs), "runs of real TensorFlow", ""),
        (seconds(lasted_ms), "of runs", ""),
    ]
    shown = el(
        "div",
        *(el("div", el("b", number, class_=kind), what, class_="card") for number, what, kind in cards),
        class_="cards",
    )
    begun = [run.file.wall_s for run in found.runs if run.file.wall_s]
    when = f"Runs from {_utc(min(begun))} to {_utc(max(begun))} UTC." if begun else ""
    parts = [
        f"{part.name} {'well' if part.code == 0 else f'FAILED ({part.code})'}, {seconds(part.took_s * 1000)}"
        for each in found.everything
        for part in each.parts
    ]
    told = f" All parts of chaos: {'; '.join(parts)}." if parts else ""
    return join(shown, el("p", when + told, class_="dim"))


def _utc(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M")


def _failures(runs: Sequence[Run]) -> Section | None:
    bad = [run for run in runs if run.file.outcome != PASSED]
    if not bad:
        return None
    broken = sorted(bad, key=lambda run: run.file.outcome == ERROR)
    return "failures", "What broke, and what proved nothing", join(*(_told(run) for run in broken))


def _told(run: Run) -> Markup:
    file = run.file
    faults = ", ".join(f"{fault.name} of {fault.target}" for fault in file.faults) or "no fault"
    violations = [
        el(
            "li",
            el("b", each.promise, class_="bad"),
            f": {each.text}",
            el("ul", *(el("li", line, class_="dim") for line in each.evidence[:MOST_EVIDENCE])),
        )
        for each in file.violations
    ]
    return el(
        "div",
        el("h3", f"{file.scenario}, seed {file.seed}: {file.outcome}"),
        el("p", file.why, class_="dim") if not violations else el("ul", *violations),
        el("p", f"{faults}; {file.program}; {run.directory.name}", class_="dim"),
        el("pre", el("code", file.replay)) if file.replay else "",
        el("div", timeline(run), class_="wide"),
        class_=f"run {file.outcome}",
        id=_anchor(run),
    )


def _anchor(run: Run) -> str:
    """The anchor on the page of a run that did not pass."""
    return f"run-{run.directory.parent.name}-{run.directory.name}"


def _matrix(runs: Sequence[Run]) -> Section | None:
    by_fault = _by_fault(runs)
    if not by_fault:
        return None
    head = el("tr", el("th", "fault"), el("th", el("span", "runs")), *map(_promise_head, PROMISES))
    rows = [
        el(
            "tr",
            el("td", name),
            el("td", len(of_it)),
            *(_cell(promise, [run for run in of_it if run.file.outcome != ERROR]) for promise in PROMISES),
        )
        for name, of_it in by_fault.items()
    ]
    told = (
        "For each kind of fault: in how many runs with it each promise held. A run with several faults "
        "counts for each of them. A run that proved nothing counts for none."
    )
    matrix = el("table", el("thead", head), el("tbody", *rows), class_="matrix")
    sentences = [el("li", el("b", name), f": {sentence}") for name, sentence in PROMISES.items()]
    said = el("details", el("summary", "what each promise says"), el("ul", *sentences))
    never = sorted(set(FAULTS) - by_fault.keys())
    untried = el("p", f"Never injected in these runs: {', '.join(never)}." if never else "", class_="dim")
    content = join(el("p", told, class_="dim"), el("div", matrix, class_="wide"), untried, said)
    return "matrix", "Faults and promises", content


def _promise_head(name: str) -> Markup:
    return el("th", el("span", name), title=PROMISES[name])


def _cell(promise: str, runs: Sequence[Run]) -> Markup:
    if not runs:
        return el("td", "?", class_="unproven", title="every run proved nothing")
    broken = [run for run in runs if promise in run.violated]
    if broken:
        link = el("a", f"✗ {len(broken)} of {len(runs)}", href=f"#{_anchor(broken[0])}")
        return el("td", link, class_="failed", title=PROMISES[promise])
    return el("td", f"✓ {len(runs)}", class_="held", title=PROMISES[promise])


def _kind(fault: FaultRun) -> str:
    """The row that a fault belongs to: all failpoints are one, and all that leads to them."""
    return {FAILPOINT: AT_A_FAILPOINT, CAUSE: ON_THE_WAY}.get(fault.family, fault.name)


def _by_fault(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        for name in dict.fromkeys(_kind(fault) for fault in run.file.faults):
            found.setdefault(name, []).append(run)
    return dict(sorted(found.items()))


def _durations(runs: Sequence[Run]) -> Section | None:
    by_fault = {name: times for name, times in _times(runs).items() if times[TOTAL]}
    if not by_fault:
        return None
    rows = [row for name, times in by_fault.items() for row in _duration_rows(name, times)]
    head = ("fault", "phase", "n", scale(), "median", "90 %", "longest")
    table = el("table", el("thead", el("tr", *(el("th", text) for text in head))), el("tbody", *rows))
    told = (
        "The incidents that a fault led to, by their phases as the product has recorded them: "
        "each dot is one, the scale is logarithmic, the line is the median."
    )
    return (
        "durations",
        "How long recovery took",
        join(el("p", told, class_="dim"), el("div", table, class_="wide")),
    )


def _duration_rows(name: str, times: Mapping[str, Sequence[float]]) -> Iterator[Markup]:
    for number, (phase, values) in enumerate(times.items()):
        if values:
            shares = [seconds(quantile(values, share)) for share in (0.5, 0.9, 1.0)]
            yield el(
                "tr",
                el("td", name if number == 0 else ""),
                el("td", el("b", phase) if phase == TOTAL else phase),
                el("td", len(values), class_="number"),
                el("td", strip(values)),
                *(el("td", text, class_="number") for text in shares),
            )


def _times(runs: Sequence[Run]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for name, incident in _caused(run):
            times = found.setdefault(name, {TOTAL: [], **{phase: [] for phase in PHASES}})
            times[TOTAL].append(float(incident.total_ms))
            for phase, lasted_ms in incident.phases_ms.items():
                times.setdefault(phase, []).append(float(lasted_ms))
    return dict(sorted(found.items()))


def _caused(run: Run) -> Iterator[tuple[str, Incident]]:
    """Each incident that has recovered, with the last fault that had begun before it, or just after."""
    for incident in run.story.incidents:
        before = [fault for fault in run.file.faults if 0 <= fault.begin_ms <= incident.began_ms + CLOSE_MS]
        if before and incident.outcome == "recovered":
            yield _kind(max(before, key=lambda fault: fault.begin_ms)), incident


def _examples(runs: Sequence[Run]) -> Section | None:
    """The slowest run that passed, for each fault that was injected alone."""
    slowest: dict[str, Run] = {}
    for run in runs:
        alone = [fault.family not in (FAILPOINT, CAUSE) for fault in run.file.faults] == [True]
        if run.file.outcome == PASSED and alone:
            name = run.file.faults[0].name
            if name not in slowest or _took_ms(run) > _took_ms(slowest[name]):
                slowest[name] = run
    if not slowest:
        return None
    shown = [
        el(
            "details",
            el("summary", f"{name}: healthy {seconds(_took_ms(run))} after the heal"),
            el("p", run.file.faults[0].evidence, class_="dim"),
            el("div", timeline(run), class_="wide"),
        )
        for name, run in sorted(slowest.items())
    ]
    return "timelines", "What happened: the slowest run of each fault", join(_key(), *shown)


def _took_ms(run: Run) -> float:
    return max(0.0, run.file.converged_ms - run.file.healed_ms)


def _key() -> Markup:
    colours = [el("span", el("i", style=f"background:{colour}"), name) for name, colour in (*KEY, *KEY_END)]
    lines = "dashed: all faults are healed; green: healthy again; red: a promise is broken; short: a commit"
    return el("p", *colours, el("span", lines, class_="dim"), class_="key")


def _failpoints(found: Findings) -> Section | None:
    tried = [fault for run in found.runs for fault in run.file.faults if fault.family == FAILPOINT]
    known = names()
    struck = known & {fault.name for fault in tried if fault.in_force_ms >= 0}
    simulated = (known & {point for each in found.sims for point in each.struck}) - struck
    if not struck and not simulated:
        return None
    told = (
        f"A daemon was killed at {len(struck)} of {len(known)} points on clusters, and at {len(simulated)} "
        "others in the simulator."
    )
    missed = {point: why for each in found.strikes for point, why in each.missed.items()}
    reasons = {"struck on clusters": sorted(struck), "struck in the simulator alone": sorted(simulated)}
    for point in sorted(known - struck - simulated):
        reasons.setdefault(missed.get(point, "not tried"), []).append(point)
    listed = [
        el("details", el("summary", f"{len(points)}: {why}"), el("p", ", ".join(points), class_="dim"))
        for why, points in reasons.items()
    ]
    return "failpoints", "Killed between two effects", join(el("p", told), *listed)


def _sims(found: Findings) -> Section | None:
    if not found.sims:
        return None
    told = [
        el(
            "li",
            f"{each.seeds} seeds from {each.first} on, {seconds(each.virtual_s * 1000)} of virtual time in "
            f"{seconds(each.took_s * 1000)}"
            + (f", and daemons killed at {len(each.struck)} failpoints: " if each.struck else ": "),
            el("b", f"{len(each.failed)} failed" if each.failed else "every promise held"),
            *(el("pre", text) for text in each.failed.values()),
        )
        for each in found.sims
    ]
    return "simulator", "The simulator", el("ul", *told)


def _mild(found: Findings) -> Section | None:
    if not found.mild:
        return None
    rows = [
        el(
            "tr",
            el("td", each.profile),
            el("td", seconds(each.took_s * 1000), class_="number"),
            el("td", ", ".join(f"{count} {name}" for name, count in sorted(_named(each.troubles).items()))),
            el("td", each.steps, class_="number"),
            el("td", _needless(each), class_="failed" if each.needless else "held"),
        )
        for each in found.mild
    ]
    head = el("tr", *(el("th", text) for text in ("profile", "lasted", "troubles", "steps", "restarts")))
    table = el("table", el("thead", head), el("tbody", *rows))
    return "mild", "Mild trouble, of which nothing may restart", el("div", table, class_="wide")


def _named(troubles: Sequence[Trouble]) -> Counter[str]:
    return Counter(each.name for each in troubles)


def _needless(mild: MildFile) -> Markup:
    if not mild.needless:
        return join("✓ none")
    found = (f"✗ {each.cause} during {each.trouble or 'nothing'}: {each.detail}" for each in mild.needless)
    return join(*(el("div", text) for text in found))


def _missing(found: Findings) -> Section | None:
    missing = {name: why for sweep in found.sweeps for name, why in sorted(sweep.missing.items())}
    skipped = sorted({name for sweep in found.sweeps for name in sweep.skipped})
    if not missing and not skipped:
        return None
    rows = [
        *(el("tr", el("td", name), el("td", why)) for name, why in missing.items()),
        *(el("tr", el("td", name), el("td", "there was no time for it")) for name in skipped),
    ]
    return "missing", "What could not be injected", el("div", el("table", *rows), class_="wide")


def _mutants(found: Findings) -> Section | None:
    hunts = [each for each in found.mutants if each.mutants]
    if not hunts:
        return None
    rows = [
        el(
            "tr",
            el("td", each.name),
            el("td", each.fate, class_="held" if each.fate == "caught" else "failed"),
            el("td", each.checker),
            el("td", each.at),
            el("td", each.tries, class_="number"),
            el("td", seconds(each.took_s * 1000), class_="number"),
        )
        for hunt in hunts
        for each in hunt.mutants
    ]
    head = el("tr", *(el("th", text) for text in ("bug", "", "caught by the promise", "at", "tries", "took")))
    table = el("table", el("thead", head), el("tbody", *rows))
    caught = sum(each.fate == "caught" for hunt in hunts for each in hunt.mutants)
    told = el("p", f"{caught} of {len(rows)} plausible bugs were caught.")
    return "mutants", "Mutants", join(told, el("div", table, class_="wide"))


def _unread(found: Findings) -> Section | None:
    if not found.unread:
        return None
    return "unread", "What could not be read", el("ul", *(el("li", each) for each in found.unread))
