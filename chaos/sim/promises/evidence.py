"""The shared evidence of one run's checkers: the world, etcd as they read it, and the events so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from chaos.sim.cluster.etcd import Effect
from chaos.sim.cluster.programs import Program
from chaos.sim.cluster.world import World
from chaos.sim.promises.truth import Picture
from supervisor.adapters.etcd.memory_store import Backup
from supervisor.contract import keys
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.desired import JobSwitch
from supervisor.control.decide.checkpoints.collecting import ADOPTED


@dataclass(slots=True)
class Zombie:
    """A program of a generation that is over: for how long it has really been executed since.

    `unheard`: its agent could not hear that it is. `spare_s`: for so long it may be executed besides.
    """

    since_s: float
    executed_s: float = 0.0
    unheard: bool = False
    spare_s: float = 0.0


@dataclass(slots=True)
class Evidence:
    """Shared by all checkers of a run.

    Attributes:
        flips: when a generation of a job came into force, in virtual seconds.
        zombies: programs of generations that are over, by identity.
        program_faults: how many failures were a program's own, by what it did.
        stillborn: by job, the checkpoints from which a generation ended by such a failure before any step.
        whole: by job and generation, what was committed before its chief restored less than that.
        lost_s: when etcd last lost all that it had; minus infinity for never.
        lost_jobs: those that it had then.
        forgotten: by UUID of a job, what was committed and not collected then, by path.
    """

    world: World
    picture: Picture = field(default_factory=Picture)
    flips: dict[tuple[str, int], float] = field(default_factory=dict)
    zombies: dict[int, Zombie] = field(default_factory=dict)
    program_faults: int = 0
    stillborn: dict[str, set[CheckpointRef | None]] = field(default_factory=dict)
    whole: dict[tuple[str, int], set[CheckpointRef]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    lost_s: float = -math.inf
    lost_jobs: set[str] = field(default_factory=set)
    forgotten: dict[str, dict[str, CommitRecord]] = field(default_factory=dict)

    def forget(self) -> None:
        """Etcd is about to lose all that it has: what runs is over."""
        self.count("losses of etcd")
        self.lost_s = self.world.loop.time()
        self.lost_jobs |= {switch.job for switch in self.picture.switches()}
        for record in self.picture.commits():
            if record.state is CommitState.COMMITTED:
                self.forgotten.setdefault(record.job_uuid, {})[record.path] = record
        for program in self.world.training.alive():
            self.zombies[id(program)] = Zombie(self.lost_s, spare_s=self.world.vows.promise_s)
        self.flips.clear()
        self.picture.forget()

    def go_back(self, backup: Backup) -> None:
        """Etcd has a snapshot's data instead: who sees no difference to what was wanted goes on."""
        self.picture.load(backup.entries)
        for program, zombie in list(self.zombies.items()):
            if zombie.since_s == self.lost_s:
                del self.zombies[program]

    def over_s(self, job: str, generation: int) -> float:
        """The time at which a generation of a job was over: by a later one, or with all of etcd."""
        later = [at_s for (name, number), at_s in self.flips.items() if name == job and number > generation]
        return min(later, default=self.lost_s)

    def switch_of(self, program: Program) -> JobSwitch | None:
        """The switch of its job, unless that has begun another life since, or etcd has lost it."""
        switch = self.picture.switch(program.attempt.task.job)
        return switch if switch is not None and switch.job_uuid == program.job_uuid else None

    @property
    def refused(self) -> int:
        """The number of starts that failed."""
        machines = (seat.machine for seat in self.world.nodes.values())
        return sum(each.refused for each in machines if each is not None)

    @property
    def charges(self) -> int:
        """The number of failures that count against programs: their own, failed starts, and agents' bugs."""
        return self.program_faults + self.unprepared

    @property
    def unprepared(self) -> int:
        """The number of those that no incident need tell of, as a task could not be prepared."""
        flaw = self.world.flaw
        return self.refused + (flaw.charged if flaw is not None else 0)

    def count(self, what: str) -> None:
        """Something happened once more."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def broken(self, promise: str, text: str) -> None:
        """A promise is broken."""
        self.world.violate(promise, text)


def is_recorded_again(effect: Effect, key: str, record: CommitRecord) -> bool:
    """Whether a leader writes a commit record that etcd has lost: agents make all others, but imports."""
    leads = any(compare.key == keys.LEADER for compare in effect.compares)
    return leads and key not in effect.before and record.incarnation != ADOPTED


def executes(program: Program) -> bool:
    """Whether its code is being executed and nothing frozen excuses that."""
    return program.running and not program.launcher.row.frozen
