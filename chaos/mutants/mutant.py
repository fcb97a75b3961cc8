"""The type of mutants: a mistake, the promise that it breaks, and the hunter that has to notice."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.mutants.edit import Edit
from chaos.sim.trouble.fault import Fault


@dataclass(frozen=True, slots=True)
class Simulated:
    """The simulator looks, seed by seed, with the faults of the seed or with these.

    Attributes:
        story: "jobs" (one job that loses everything in turn), "gpus" (two jobs that share GPUs), "booked"
            (two jobs that fill the nodes), "outage" (etcd gone for long, while supervisors promise),
            "flawed" (a rule raises for one of two jobs), "deleted" (two jobs that operators delete),
            "powered" (supervisors have fence devices that are late, or do not work), "stopped" (nodes
            whose agents are stopped fence their tasks), "served" (a job with two parameter servers, whose
            sessions survive their loss), or "other saver" (the last worker saves).
        most: seeds after which the mutant has survived.
    """

    script: tuple[Fault, ...] = ()
    story: str = "jobs"
    most: int = 40


@dataclass(frozen=True, slots=True)
class CrashPoints:
    """A crash, a cancellation or an error at effects of commit, restore and collection, then another life."""

    scenarios: tuple[str, ...]
    stride: int = 3


@dataclass(frozen=True, slots=True)
class Launchers:
    """A real launcher with a real program, killed, frozen or forgotten by its agent (`launchers.STORIES`)."""

    story: str


@dataclass(frozen=True, slots=True)
class Real:
    """A cluster of real processes that is broken by one scenario (`python -m chaos run`), seed by seed.

    Attributes:
        scenario: one of `python -m chaos list`.
        most: seeds after which the mutant has survived.
    """

    scenario: str
    most: int = 3


Hunter = Simulated | CrashPoints | Launchers | Real


@dataclass(frozen=True, slots=True)
class Mutant:
    """A plausible bug.

    Attributes:
        name: in the words of the people who could make it.
        rule: number in docs/design.md; 14 stands for "How much restarts", 15 for "The warm start".
        promises: the checkers that may notice; it is caught when one of them does.
        edits: the mistake.
        hunter: where it is looked for.
    """

    name: str
    rule: int
    promises: tuple[str, ...]
    edits: tuple[Edit, ...]
    hunter: Hunter = Simulated()

    def catches(self, violation: str) -> str:
        """The promise of its own that a violation, with `[PROMISE]` in it, names; empty when none."""
        return next((each for each in self.promises if f"[{each}]" in violation), "")
