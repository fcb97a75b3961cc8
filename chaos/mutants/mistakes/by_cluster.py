"""Mistakes that are looked for in a cluster of real processes: its recordings must show them, too."""

from __future__ import annotations

from chaos.mutants.edit import Edit
from chaos.mutants.mistakes.known import known
from chaos.mutants.mutant import Mutant, Real

DEPOSED = "no write of a deposed"

MUTANTS = (
    Mutant(
        "incarnation not compared, seen in a cluster",
        2,
        (DEPOSED,),
        (
            Edit(
                "agent/attempt_reports.py",
                "compares = [self._membership.fence, as_read(order, wanted), as_read(key, found)]\n",
                "compares = [as_read(order, wanted), as_read(key, found)]\n",
            ),
        ),
        Real("kill-ps"),
    ),
    Mutant(
        "token not compared, seen in a cluster",
        2,
        (DEPOSED,),
        (known("A deposed leader's writes have no effect."),),
        Real("kill-worker"),
    ),
)
