"""Mistakes that only real processes show: rules 4 to 7 as far as the launcher and its children keep them."""

from __future__ import annotations

from chaos.mutants.edit import Edit
from chaos.mutants.mistakes.known import known
from chaos.mutants.mutant import Launchers, Mutant

GRANT = "no attempt outlives its grant"
THAW = "killed as it thaws"
DEAD = "confirmed dead is dead"
OUTLIVES = "nothing outlives its launcher"
PORT = "a port belongs to one attempt"

MUTANTS = (
    Mutant(
        "the dead-man's switch pushed instead of pulled",
        4,
        (GRANT, THAW),
        (
            Edit(
                "agent/inside/launcher/loop.py",
                "        self._deadman = self._deadman.granted(message.stamp_ms, message.remaining_ms)\n",
                "        late = now_ms() - message.stamp_ms\n"
                "        self._deadman = self._deadman.granted(message.stamp_ms, late + "
                "message.remaining_ms)\n",
            ),
        ),
        Launchers("an answer comes late"),
    ),
    Mutant(
        "the deadline is not enforced",
        4,
        (GRANT,),
        (known("With no answer a launcher kills its attempt at its deadline."),),
        Launchers("the agent dies"),
    ),
    Mutant(
        "something runs without a grant",
        4,
        ("nothing starts without a grant",),
        (known("Without a grant nothing may run."),),
        Launchers("nothing is granted"),
    ),
    Mutant(
        "an exit is forgotten before it is acknowledged",
        4,
        ("an exit is told until it is acknowledged",),
        (known("The reason of an exit stays on disk until an agent has acknowledged it."),),
        Launchers("an exit that nobody heard"),
    ),
    Mutant(
        "a launcher that nobody wants stays",
        4,
        ("nothing is left behind",),
        (known("A launcher that nobody wants leaves after its linger."),),
        Launchers("nobody wants the launcher"),
    ),
    Mutant(
        "no PDEATHSIG",
        4,
        (OUTLIVES,),
        (known("An attempt dies with its launcher (PDEATHSIG)."),),
        Launchers("the launcher is killed"),
    ),
    Mutant(
        "what escaped is not looked for by its marker",
        4,
        (OUTLIVES,),
        (known("What escaped from a dead launcher is found by the marker in its environment."),),
        Launchers("the launcher is killed"),
    ),
    Mutant(
        "dead as soon as its first process is",
        4,
        (DEAD,),
        (
            Edit(
                "agent/inside/launcher/attempt.py",
                "        if self.reap(now):\n            self._survivors = 0\n",
                "        if self.reap(now) or self._wait_status is not None:\n            "
                "self._survivors = 0\n",
            ),
        ),
        Launchers("a program that has escaped is killed"),
    ),
    Mutant(
        "orphans are nobody's (no subreaper)",
        4,
        (DEAD,),
        (known("A grandchild that forked twice dies with its attempt (subreaper)."),),
        Launchers("a program that has escaped is killed"),
    ),
    Mutant(
        "a grant that came while it was frozen counts first",
        5,
        (THAW,),
        (
            known(
                "A launcher that was frozen past its deadline kills as it thaws, whatever answer is "
                "on its way."
            ),
        ),
        Launchers("the launcher is frozen past its deadline"),
    ),
    Mutant(
        "port reused too early",
        5,
        (PORT,),
        (known("A port stays locked while anything of the attempt that had it lives."),),
        Launchers("a port whose task is half dead"),
    ),
    Mutant(
        "a port that a zombie may know is given again",
        6,
        (PORT,),
        (known("A port that an unconfirmed attempt may still know is not given to a new generation."),),
        Launchers("a port to be avoided"),
    ),
    Mutant(
        "two attempts in one launcher",
        6,
        ("one attempt at a time",),
        (known("A launcher runs one attempt at a time."),),
        Launchers("a second start"),
    ),
    Mutant(
        "saves take as much time as the failures ask for",
        7,
        ("saves take no more time than they may",),
        (
            Edit(
                "agent/inside/child/interval.py",
                "max(LEAST_MS, young_ms, save_ms / max_overhead, COMMITS_APART * commit_ms)",
                "max(LEAST_MS, young_ms, COMMITS_APART * commit_ms)",
            ),
        ),
        Launchers("a loop asks when to save"),
    ),
    Mutant(
        "a loop whose question meets an error saves no more",
        7,
        ("a loop that asks goes on saving",),
        (
            Edit(
                "agent/inside/child/cadence.py",
                "        if getattr(sys, ASKED, None) is not None:\n            setattr(sys, ASKED, None)\n",
                "",
            ),
        ),
        Launchers("a loop asks what is broken"),
    ),
)
