"""docs/mutants.md, as a run writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chaos.mutants.mutant import CrashPoints, Hunter, Launchers, Mutant, Real, Simulated
from chaos.mutants.verdict import Fate, Verdict

INTRODUCTION = """\
# Mutants

Small, plausible bugs. Each is put into a copy of the tree, and the checkers of promises have to notice it:
not the unit test of the line, but the simulator, the stores' crash points, real launchers or a cluster that
is broken for real, by a promise that does not hold. What was caught is tried again at the same place without
the bug, where all must be well.

This page is written by runs: `python -m chaos mutants --json var/mutants.json --page docs/mutants.md`. They
go through seeds and points in order, so that they come out the same on any machine; the seconds are of a
machine with two cores that had much else to do.
"""


def render(mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict]) -> str:
    """The whole page, for the mutants of which there is a verdict."""
    mutants = [mutant for mutant in mutants if mutant.name in verdicts]
    caught = [verdicts[mutant.name] for mutant in mutants if verdicts[mutant.name].fate is Fate.CAUGHT]
    first = sum(verdict.tries == 1 for verdict in caught)
    lines = [
        INTRODUCTION,
        f"{len(caught)} of {len(mutants)} are caught, {first} of them by the first run.",
        "",
        "| rule | bug | in | looked for by | caught by the promise | at | after |",
        "|---|---|---|---|---|---|---|",
    ]
    for mutant in mutants:
        verdict = verdicts[mutant.name]
        files = ", ".join(dict.fromkeys(f"`{edit.file}`" for edit in mutant.edits))
        found = verdict.checker or f"**{verdict.fate.value}**"
        after = f"{verdict.tries} {'run' if verdict.tries == 1 else 'runs'}, {verdict.took_s:.0f} s"
        where = verdict.at or "-"
        lines.append(
            f"| {rule_of(mutant)} | {mutant.name} | {files} | {hunter_of(mutant.hunter)} | {found} | {where} "
            f"| {after} |"
        )
    return "\n".join(lines) + "\n"


def rule_of(mutant: Mutant) -> str:
    """The rule's number, or the part of docs/design.md that stands for it."""
    return {14: "scope", 15: "warm start"}.get(mutant.rule, str(mutant.rule))


def hunter_of(hunter: Hunter) -> str:
    """The hunter, in a few words."""
    match hunter:
        case Simulated():
            how = "scripted faults" if hunter.script else "random faults"
            where = {
                "gpus": ", GPUs",
                "booked": ", full nodes",
                "outage": ", etcd gone",
                "flawed": ", a bug",
                "deleted": ", deletions",
                "powered": ", fence devices",
                "stopped": ", nodes that fence their tasks",
                "served": ", two parameter servers",
                "other saver": ", another task saves",
            }.get(hunter.story, "")
            return f"simulator, {how}{where}"
        case CrashPoints():
            return f"crash points of {', '.join(hunter.scenarios)}"
        case Launchers():
            return f"a real launcher: {hunter.story}"
        case Real():
            return f"a real chaos run: {hunter.scenario}"
