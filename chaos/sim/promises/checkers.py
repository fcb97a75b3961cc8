"""Checks the product's promises against the events of a run, by rules of its own.

The checkers see every write that took effect in etcd, in order (`writes`), and every start, step and end of a
program (`conduct`). They use none of the product's decisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from chaos.sim.cluster.etcd import Effect
from chaos.sim.cluster.programs import ENDINGS, HOPELESS, Program
from chaos.sim.cluster.world import World
from chaos.sim.promises.alone import Alone
from chaos.sim.promises.bases import Bases
from chaos.sim.promises.compares import Compares
from chaos.sim.promises.conduct import Conduct
from chaos.sim.promises.evidence import Evidence
from chaos.sim.promises.pauses import Pauses
from chaos.sim.promises.records import Records
from chaos.sim.promises.rooms import Rooms
from chaos.sim.promises.turns import Turns
from chaos.sim.promises.writes import Writes
from supervisor.contract import codec
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Incident, Outcome
from supervisor.contract.job.spec import Rule, Strategy, Wanted

STEPPING_S = 1.5
COMMITTED_S = 3.0
"""In a healthy job a save this old is committed, or a newer one."""
CLOCKS_S = 0.1
"""The tolerance of ages, in seconds."""


class Promises:
    """All checkers of one run, and what must hold when it is over."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen = Evidence(world)
        self._picture = self._seen.picture
        writes, conduct = Writes(self._seen), Conduct(self._seen)
        compares, records, bases = Compares(self._seen), Records(self._seen), Bases(self._seen)
        rooms, alone, turns = Rooms(self._seen), Alone(self._seen), Turns(self._seen)
        pauses = Pauses(self._seen)

        def on_effect(effect: Effect) -> None:
            compares.on_effect(effect)
            records.on_effect(effect)
            bases.on_effect(effect)
            alone.on_effect(effect)
            turns.on_effect(effect)
            pauses.on_effect(effect)
            # It takes the effect into the picture, which those before it see as it was.
            writes.on_effect(effect)
            rooms.on_effect(effect)

        world.etcd.watcher = on_effect
        world.etcd_restored.append(self._seen.go_back)
        world.etcd_lost += [self._seen.forget, *(each.forget for each in (compares, records, writes, pauses))]
        world.observers += [conduct.on_program, records.on_program, rooms.on_program, alone.on_program]
        world.disk_changed += [bases.check_disk, records.check_disk]
        world.loop.begin(None, conduct.poll())

    def facts(self) -> dict[str, int]:
        """The counts of events."""
        return dict(sorted(self._seen.counts.items()))

    def healthy(self, job: str) -> bool:
        """The job runs as it should: every task lives, the training ones step, nothing else is there."""
        return not self._unhealthy(job, self._world.loop.time() - STEPPING_S)

    def unsettled(self, job: str, healed_s: float) -> str:
        """Why the job is not yet where it has to be after all faults are healed; empty when it is."""
        switch = self._picture.switch(job)
        if switch is None:
            return "it has no switch"
        if self.is_forgotten(job):
            return "etcd has lost it, and nobody has taken it up again"
        if switch.parked is not None:
            return f"it is parked: {switch.parked.error}"
        if not switch.phase.ended:
            since_s = max(healed_s, self._world.loop.time() - STEPPING_S)
            return self._unhealthy(job, since_s) or self._open_incident(job)
        intent = self._picture.intent(job)
        asked = intent is not None and intent.wanted is Wanted.RUN
        if intent is not None and asked and intent.restart_serial > switch.restart_serial:
            return "it has not begun again, as an operator asked while it was being stopped"
        why = self._illegitimate(job, switch)
        if why:
            self._seen.broken("a job ends for a reason", why)
        return self.left_behind(job)

    def _illegitimate(self, job: str, switch: JobSwitch) -> str:
        intent = self._picture.intent(job)
        if switch.phase is JobPhase.STOPPED:
            return "" if intent is not None and intent.wanted is Wanted.STOP else "nobody stopped it"
        if switch.phase is JobPhase.SUCCEEDED:
            temper = self._world.tempers[job]
            done = self._world.training.finished(job)
            if not done:
                return "its chief has not finished"
            # One that is restored at the last step ends without another.
            reached = max(done[-1].last_step, done[-1].restored[0] if done[-1].restored else -1)
            if reached < temper.last_step - 8:
                return f"its chief stopped at step {reached}"
            # Its own: what an operator has imported since descends from nothing.
            generation = done[-1].attempt.generation
            own = [
                each.ref.step for each in self._picture.commits_of(job) if each.ref.generation == generation
            ]
            committed = max(own, default=-1)
            saved = self._world.training.last_save(job)
            if committed < saved and "warning" not in switch.reason:
                return f"it says nothing of its last save, {saved}; only {committed} is committed"
            return ""
        spec = self._picture.spec(job)
        policy, limit_ms = spec.restart, spec.limits.wall_time_ms
        lived_ms = 1000 * (self._world.loop.time() - self._first_flip_s(job) + CLOCKS_S)
        if "limits.wall_time" in switch.reason and limit_ms is not None and lived_ms >= limit_ms:
            return ""
        if self._hopeless(job, switch.reason) or self._is_left_with_nothing(job, switch):
            return ""
        most = min(policy.max_restarts, policy.max_in_window)
        allowed = 0 if Rule.FAIL in policy.rules.values() else most
        # What returns before the first step from several checkpoints is the program's: no use to try more.
        if self._seen.charges > allowed or len(self._seen.stillborn.get(job, ())) > 1:
            return ""
        if self._seen.stillborn.get(job) and not self._restorable_really(job):
            return ""
        return f"FAILED after {self._seen.charges} faults of its own: {switch.reason}"

    def _hopeless(self, job: str, reason: str) -> bool:
        """Whether a program has said what no restart mends, before its first step where that matters."""
        cause = next((each for each in HOPELESS if each in reason), "")
        ours = [each for each in self._world.training.programs if each.attempt.task.job == job]
        said = [each for each in ours if cause and each.row.gone and each.last_words == ENDINGS[cause]]
        trained = {each.attempt.generation for each in ours if each.trains and each.told_steps}
        return any(cause == "nan_loss" or each.attempt.generation not in trained for each in said)

    def _is_left_with_nothing(self, job: str, switch: JobSwitch) -> bool:
        """Whether of what the store held, when etcd was lost, nothing could be restored (rule 8)."""
        nothing = "no checkpoint is left" in switch.reason and not self._picture.committed(job)
        return nothing and job in self._seen.lost_jobs

    def _first_flip_s(self, job: str) -> float:
        """Infinity for a job that never began."""
        return min((at_s for (name, _), at_s in self._seen.flips.items() if name == job), default=math.inf)

    def _restorable_really(self, job: str) -> bool:
        """Whether one of its checkpoints is left that a program could go on from."""
        bad = self._world.training.unrestorable
        return any((job, ref.generation, ref.step) not in bad for ref in self._picture.committed(job))

    def _unhealthy(self, job: str, since_s: float) -> str:
        switch = self._picture.switch(job)
        if switch is None or switch.phase is not JobPhase.RUNNING or switch.closing is not None:
            return f"its switch is {switch.phase.value if switch is not None else 'absent'}"
        plan = self._picture.plan(job, switch.plan_id)
        if plan is None:
            return "its plan is gone"
        alive = {str(each.attempt): each for each in self._world.training.alive(job)}
        if unknown := self._unknown_worker(job, list(alive.values())):
            return unknown
        trainers = self._world.tempers[job].trainers
        for place in plan.placements:
            task = TaskId(job, place.role, place.index)
            wanted = self._picture.assigned(place.node, task, plan.plan_id)
            if wanted is None:
                return f"{task} has no assignment"
            program = alive.pop(str(wanted.attempt_id), None)
            if program is None or not program.running:
                return f"{wanted.attempt_id} does not run on {place.node}"
            if program.machine.name != place.node:
                return f"{wanted.attempt_id} runs on {program.machine.name} instead of {place.node}"
            if place.role in trainers and not (program.steps and program.steps[-1][0] >= since_s):
                return f"{wanted.attempt_id} does not step (its last is {program.last_step})"
            if hidden := self._hidden_save(program):
                return hidden
        return f"{', '.join(alive)} should not be there" if alive else ""

    def _unknown_worker(self, job: str, alive: list[Program]) -> str:
        """A worker that its coordinator sends no work to; empty when there is none."""
        if self._picture.spec(job).strategy is not Strategy.COORDINATOR:
            return ""
        chief = next((each for each in alive if each.leads), None)
        workers = [each for each in alive if each.attempt.task.role == "worker"] if chief is not None else []
        lost = next((each for each in workers if chief and each.address not in chief.workers), None)
        return f"{chief and chief.attempt} does not know {lost.attempt} at {lost.address}" if lost else ""

    def _hidden_save(self, program: Program) -> str:
        """A finished save of a healthy program that stays without a commit; empty when there is none."""
        job, generation = program.attempt.task.job, program.attempt.generation
        old_s = self._world.loop.time() - COMMITTED_S
        saved = max((step for at_s, step in program.saved if at_s < old_s), default=-1)
        ours = [ref.step for ref in self._picture.committed(job) if ref.generation == generation]
        committed = max(ours, default=-1)
        return f"{program.attempt} has saved {saved}; {committed} is committed" if committed < saved else ""

    def _open_incident(self, job: str) -> str:
        for key in self._picture.under(f"incidents/{job}/"):
            if codec.decode(Incident, self._picture.must(key)).outcome is Outcome.OPEN:
                return f"{key} is still open"
        return ""

    def restorable(self, job: str) -> list[CheckpointRef]:
        """The checkpoints that an operator may ask a job to start from: committed, on any lineage."""
        return sorted(record.ref for record in self._picture.commits_of(job))

    def is_known(self, job: str) -> bool:
        """Whether it was submitted, and that took effect."""
        return self._picture.switch(job) is not None

    def is_parked(self, job: str) -> bool:
        """Whether no rule looks at it."""
        switch = self._picture.switch(job)
        return switch is not None and switch.parked is not None

    def is_forgotten(self, job: str) -> bool:
        """Whether etcd has lost it and it is not back: it is unknown, without its records, or not started."""
        if job not in self._seen.lost_jobs:
            return False
        switch, intent = self._picture.switch(job), self._picture.intent(job)
        waits = switch is not None and switch.phase is JobPhase.STOPPED
        return switch is None or (waits and intent is not None and intent.wanted is Wanted.RUN)

    @property
    def lost_any(self) -> bool:
        """Whether etcd has ever lost a job."""
        return bool(self._seen.lost_jobs)

    def has_ended(self, job: str) -> bool:
        """Whether it is over, for now."""
        switch = self._picture.switch(job)
        return switch is not None and switch.phase.ended

    def stopping(self, job: str) -> bool:
        """Whether etcd has the operator's wish that it stop."""
        intent = self._picture.intent(job)
        return intent is not None and intent.wanted is Wanted.STOP

    def left_behind(self, job: str) -> str:
        """The first thing that an ended job has left behind; empty without any."""
        switch = self._picture.switch(job)
        if switch is None or not switch.phase.ended:
            return "it has not ended"
        for leftover in self._leftovers(job, switch.plan_id):
            return leftover
        return ""

    def _leftovers(self, job: str, last_plan: str) -> Iterator[str]:
        """The records of the plan that was last in force stay: they say where its tasks ran."""
        alone = all(each.phase.ended for each in self._picture.switches())
        for program in self._world.training.alive(job):
            yield f"{program.attempt} is alive on {program.machine.name}"
        for name, seat in self._world.nodes.items():
            for launcher in seat.table.by_id.values():
                if not launcher.row.gone and launcher.job == job:
                    yield f"launcher {launcher.launcher_id} is alive on {name}"
            if alone and seat.machine is not None and seat.machine.ports.held():
                yield f"ports are held on {name}: {sorted(seat.machine.ports.held())}"
        for key in self._picture.under("spares/"):
            if key.endswith(f"/{job}"):
                yield f"{key} has outlived its job"
        families = [f"{prefix}/{job}/" for prefix in ("plans", "specs", "prepared", "staged")]
        for prefix in (*families, "assignments/"):
            for key in self._picture.under(prefix):
                # assignments/NODE/JOB/PLAN/MEMBER: those of another job are none of this one's.
                if job in key.split("/") and last_plan not in key.split("/"):
                    yield f"{key} is still there"

    def at_the_end(self, job: str) -> None:
        """Check the promises that hold at the end of every run."""
        if self._picture.must_switch(job).phase.ended and (left := self._open_incident(job)):
            self._seen.broken("every incident is closed", f"{left}, though the job has ended")
