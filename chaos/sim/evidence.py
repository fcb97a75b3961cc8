"""What the checkers of one run know in common: the world, etcd as they read it, and what has happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos.sim.programs import Program
from chaos.sim.truth import Picture
from chaos.sim.world import World
from supervisor.contract.checkpoint import CheckpointRef


@dataclass(slots=True)
class Zombie:
    """A program of a generation that is over: for how long it has really been executed since.

    `unheard`: its agent could not hear that it is.
    """

    since_s: float
    executed_s: float = 0.0
    unheard: bool = False


@dataclass(slots=True)
class Evidence:
    """Shared by all checkers of a run.

    Attributes:
        flips: when a generation of a job came into force, in virtual seconds.
        zombies: programs of generations that are over, by identity.
        program_faults: how many failures were a program's own, by what it did.
        stillborn: by job, the checkpoints from which a generation ended by such a failure before any step.
    """

    world: World
    picture: Picture = field(default_factory=Picture)
    flips: dict[tuple[str, int], float] = field(default_factory=dict)
    zombies: dict[int, Zombie] = field(default_factory=dict)
    program_faults: int = 0
    stillborn: dict[str, set[CheckpointRef | None]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """How many starts have failed."""
        machines = (seat.machine for seat in self.world.nodes.values())
        return sum(each.refused for each in machines if each is not None)

    @property
    def charges(self) -> int:
        """How many failures count against programs: their own, and starts that failed."""
        return self.program_faults + self.refused

    def count(self, what: str) -> None:
        """Something happened once more."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def broken(self, promise: str, text: str) -> None:
        """A promise is broken."""
        self.world.violate(promise, text)


def executes(program: Program) -> bool:
    """Whether its code is being executed and nothing frozen excuses that."""
    return program.running and not program.launcher.row.frozen
