"""Every mutant, by rule."""

from __future__ import annotations

from chaos.mutants.mistakes import by_agent, by_cluster, by_launcher, by_leader, by_promise, by_store
from chaos.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = tuple(
    sorted(
        (
            *by_leader.MUTANTS,
            *by_agent.MUTANTS,
            *by_launcher.MUTANTS,
            *by_promise.MUTANTS,
            *by_store.MUTANTS,
            *by_cluster.MUTANTS,
        ),
        key=lambda mutant: mutant.rule,
    )
)


def by_name(name: str) -> Mutant:
    """The mutant of this name. Raises KeyError."""
    return {mutant.name: mutant for mutant in MUTANTS}[name]
