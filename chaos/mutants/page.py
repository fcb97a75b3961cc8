"""docs/mutants.md, as a run writes it."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.mutants.hunt import Fate, Verdict
from chaos.mutants.mutant import CrashPoints, Hunter, Launchers, Mutant, Simulated

INTRODUCTION = """\
# Mutants

Small, plausible bugs. Each is put into a copy of the tree, and the checkers of promises have to notice it:
not the unit test of the line, but the simulator, the stores' crash points or real launchers, by a promise
that is broken. What was caught is tried again at the same place without the bug: nothing may be broken there.

This page is written by a run: `python -m chaos mutants --page docs/mutants.md`. Runs are bound to seeds, so
that they come out the same on any machine; the seconds are of a machine with two cores.
"""


def render(mutants: Sequence[Mutant], verdicts: Sequence[Verdict], took_s: float) -> str:
    """The whole page, for these mutants."""
    by_name = {verdict.name: verdict for verdict in verdicts}
    caught = sum(verdict.fate is Fate.CAUGHT for verdict in verdicts)
    lines = [
        INTRODUCTION,
        f"{caught} of {len(mutants)} caught, in {took_s / 60:.0f} minutes.",
        "",
        "| rule | bug | in | looked for by | caught by the promise | at | after |",
        "|---|---|---|---|---|---|---|",
    ]
    for mutant in mutants:
        verdict = by_name[mutant.name]
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
    """The rule's number, or the section that stands for it."""
    return {14: "section 6", 15: "section 7"}.get(mutant.rule, str(mutant.rule))


def hunter_of(hunter: Hunter) -> str:
    """Who looks for it, in a few words."""
    match hunter:
        case Simulated():
            how = "scripted faults" if hunter.script else "random faults"
            where = {"gpus": ", GPUs", "outage": ", etcd gone"}.get(hunter.story, "")
            return f"simulator, {how}{where}"
        case CrashPoints():
            return f"crash points of {', '.join(hunter.scenarios)}"
        case Launchers():
            return f"a real launcher: {hunter.story}"
