"""An error parks the job that it is about, and nothing else: checked against the flaw that a run has.

Where the flaw is all that happens, no other job so much as loses a step's worth of its life: its switch and
its attempts stay as they are.
"""

from __future__ import annotations

from chaos.sim.cluster.etcd import Effect
from chaos.sim.cluster.programs import Program
from chaos.sim.promises.evidence import Evidence
from supervisor.contract import codec, keys
from supervisor.contract.desired import Assignment, Cordon, JobSwitch

ALONE = "an error parks that job alone"
NEVER = 10**9
"""The last step of a job that does not end by itself."""


class Alone:
    """One run's. `calm`: nothing but the flaw happens."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen

    def on_effect(self, effect: Effect) -> None:
        """A write that takes effect."""
        for key, raw in effect.puts.items():
            match key.split("/", maxsplit=1)[0]:
                case "switches":
                    self._check_switch(codec.decode(JobSwitch, raw))
                case "cordons" if codec.decode(Cordon, raw).place:
                    self._seen.broken(ALONE, f"a node is parked: {raw.decode()}")
                case "assignments" if self._is_calm(codec.decode(Assignment, raw).job):
                    self._check_attempt(codec.decode(Assignment, raw))
                case _:
                    pass

    def on_program(self, what: str, program: Program) -> None:
        """Something happened to a program."""
        if what == "ended" and self._is_calm(program.attempt.task.job):
            self._seen.broken(ALONE, f"{program.attempt} has ended")

    def _check_switch(self, switch: JobSwitch) -> None:
        before, flaw = self._seen.picture.switch(switch.job), self._seen.world.flaw
        if switch.parked is not None and (before is None or before.parked is None):
            self._seen.count("jobs parked")
            if flaw is None or not flaw.may_park(switch.job):
                self._seen.broken(ALONE, f"{switch.job} is parked: {switch.parked}")
        if not self._is_calm(switch.job) or before is None:
            return
        if (before.phase, before.generation, before.plan_id) != (
            switch.phase,
            switch.generation,
            switch.plan_id,
        ):
            self._seen.broken(ALONE, f"{switch.job} is {switch.phase.value} in {switch.generation}")

    def _check_attempt(self, now: Assignment) -> None:
        raw = self._seen.picture.raw(keys.assignment(now.node, now.task, now.plan_id))
        if raw is None or codec.decode(Assignment, raw).attempt != now.attempt:
            self._seen.broken(ALONE, f"{now.attempt_id} is wanted on {now.node}")

    def _is_calm(self, job: str) -> bool:
        """Whether nothing but a flaw that is about another job can have happened to this one."""
        world = self._seen.world
        flaw = world.flaw
        if flaw is None or not flaw.calm or not flaw.armed or flaw.job in (job, ""):
            return False
        timeless = self._seen.picture.spec(job).limits.wall_time_ms is None
        return timeless and world.tempers[job].last_step == NEVER
