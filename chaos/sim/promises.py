"""What the product promises, checked against what really happened, by rules written down a second time here.

The checkers see every write that took effect in etcd, in order, and every start, step and end of a program.
They use none of the product's decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c

from chaos.sim.etcd import Effect
from chaos.sim.loop import SimProcess
from chaos.sim.programs import LOST_PEER, TRAINING, Program
from chaos.sim.truth import Picture
from chaos.sim.world import World
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Absent, CreatedAt
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.desired import ClusterSpec, JobPhase, JobSwitch, Plan
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Incident, Outcome
from supervisor.contract.job import Rule, Wanted
from supervisor.contract.keys import Writer
from supervisor.contract.observed import Incarnation

STEPPING_S = 1.5
POLL_S = 0.25
THAW_KILL_S = 0.2
SLACK_S = 0.6
CLOCKS_S = 0.02


@dataclass(slots=True)
class Zombie:
    """A program of a generation that is over: for how long it has really been executed since."""

    since_s: float
    executed_s: float = 0.0


class Promises:
    """All checkers of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._picture = Picture()
        self._creators: dict[str, SimProcess] = {}
        self._flips: dict[tuple[str, int], float] = {}
        self._incidents: set[str] = set()
        self._zombies: dict[int, Zombie] = {}
        self._program_faults = 0
        self._counts: dict[str, int] = {}
        world.etcd.watcher = self._on_effect
        world.observers.append(self._on_program)
        world.disk_changed.append(self._check_disk)
        world.loop.begin(None, self._poll())

    def facts(self) -> dict[str, int]:
        """How much happened."""
        return dict(sorted(self._counts.items()))

    def _count(self, what: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1

    def _break(self, promise: str, text: str) -> None:
        self._world.violate(promise, text)

    # Writes.

    def _on_effect(self, effect: Effect) -> None:
        self._trace(effect)
        if effect.process is not None:
            for key in (*effect.puts, *effect.deleted):
                self._check_writer(effect, effect.process, key)
        for key, raw in effect.puts.items():
            self._check_put(effect, key, raw)
        self._picture.apply(effect)
        if effect.process is not None:
            for key in effect.puts:
                if key not in effect.before or key.startswith("nodes/"):
                    self._creators[key] = effect.process

    def _trace(self, effect: Effect) -> None:
        who = effect.process.name if effect.process is not None else "lease"
        shown = [key for key in (*effect.puts, *effect.deleted) if not key.startswith("events/")]
        self._world.say(f"etcd {effect.revision} {who}: {' '.join(shown)}")

    def _check_writer(self, effect: Effect, process: SimProcess, key: str) -> None:
        """Rule 2: every write is fenced, and by its own writer's fence."""
        family = keys.family(key)
        leads = self._has_token(effect, process)
        deleted = key in effect.deleted
        ok = False
        match family.writer:
            case Writer.LEADER:
                ok = leads
            case Writer.AGENT if key.startswith("nodes/"):
                ok = deleted or self._may_register(effect, key)
            case Writer.AGENT:
                ok = (deleted and leads) or self._has_incarnation(effect, process)
            case Writer.BOTH:
                ok = leads or self._has_incarnation(effect, process)
            case Writer.CANDIDATE:
                ok = leads if deleted else Absent(key) in effect.compares
            case Writer.APPELLANT:
                ok = (
                    leads
                    if deleted
                    else any(
                        compare.key.startswith("lost/") and not isinstance(compare, Absent)
                        for compare in effect.compares
                    )
                )
        if not ok:
            self._break("every write is fenced", f"{process.name} wrote {key} with {effect.compares}")

    def _has_token(self, effect: Effect, process: SimProcess) -> bool:
        mine = self._creators.get(keys.LEADER) is process
        tokens = [each for each in effect.compares if each.key == keys.LEADER]
        return mine and any(isinstance(each, CreatedAt) and self._picture.holds(each) for each in tokens)

    def _has_incarnation(self, effect: Effect, process: SimProcess) -> bool:
        for compare in effect.compares:
            if compare.key.startswith("nodes/") and not isinstance(compare, Absent):
                return self._creators.get(compare.key) is process and self._picture.holds(compare)
        return False

    def _may_register(self, effect: Effect, key: str) -> bool:
        """Rules 3 and 12: over nothing, or over the very key that was read; and never past a lost mark."""
        me = codec.decode(Incarnation, effect.puts[key])
        over = any(each.key == key for each in effect.compares)
        lives = (me.incarnation, *me.succeeds)
        marked = [life for life in lives if self._picture.has(keys.lost(me.node, life))]
        if marked:
            self._break("no life goes on past its lost mark", f"{key}: {marked[0]} is marked")
        return over

    def _check_put(self, effect: Effect, key: str, raw: bytes) -> None:
        if key.startswith("plans/") and key in effect.before:
            self._check_move(codec.decode(Plan, effect.before[key].value), codec.decode(Plan, raw))
        if key.startswith("switches/"):
            self._check_switch(effect, codec.decode(JobSwitch, raw))
        elif key.startswith("commits/"):
            self._check_commit(effect, key, codec.decode(CommitRecord, raw))
        elif key.startswith("incidents/"):
            self._check_incident(effect, key, codec.decode(Incident, raw))

    def _check_commit(self, effect: Effect, key: str, record: CommitRecord) -> None:
        """Rule 7: only the generation in force commits, and not while the switch is closing."""
        job = keys.parse(key)[0]
        switch = self._picture.switch(job)
        assert switch is not None
        if key not in effect.before:
            self._count("commits")
            late = switch.closing is not None or switch.generation != record.ref.generation
            if late or switch.job_uuid != record.job_uuid:
                self._break("no late commit", f"{record.ref} at generation {switch.generation}, {switch}")
            return
        before = codec.decode(CommitRecord, effect.before[key].value)
        if before.state is CommitState.COLLECTING and record.state is not CommitState.COLLECTING:
            self._break("collecting is for good", str(record.ref))
        if record.state is CommitState.COLLECTING and before.state is CommitState.COMMITTED:
            self._count("collected")
            lineage = self._picture.committed(job)
            closing = switch.closing.base if switch.closing is not None else None
            if record.ref in lineage[:2] or record.ref in (switch.base, closing):
                self._break("the newest two and the base stay", f"{record.ref} is collected: {lineage}")

    def _check_switch(self, effect: Effect, switch: JobSwitch) -> None:
        before = self._picture.switch(switch.job)
        if before is None or before.job_uuid != switch.job_uuid:
            return
        ledger, old = switch.ledger, before.ledger
        again = before.phase.ended and switch.phase is JobPhase.WAITING
        spent = ledger.program + ledger.infrastructure - old.program - old.infrastructure
        if not again and (spent not in (0, 1) or min(ledger.program - old.program, spent) < 0):
            self._break("one failure is charged once", f"{old} -> {ledger}")
        if ledger.program > self._program_faults:
            self._break(
                "only its own faults burn the budget",
                f"{ledger.program} charged, {self._program_faults} happened",
            )
        if switch.generation < before.generation:
            self._break("generations only grow", f"{before.generation} -> {switch.generation}")
        if switch.generation > before.generation:
            self._check_flip(effect, before, switch)

    def _check_flip(self, effect: Effect, before: JobSwitch, switch: JobSwitch) -> None:
        world = self._world
        self._count("flips")
        self._flips[(switch.job, switch.generation)] = world.loop.time()
        old = world.training.alive(switch.job)
        marks = {each.key for each in effect.compares if each.key.startswith("lost/")}
        marks |= {key for key in effect.puts if key.startswith("lost/")}
        nodes = {
            keys.parse(key)[0]
            for key in marks
            if not any(isinstance(each, Absent) and each.key == key for each in effect.compares)
        }
        for program in old:
            if program.machine.name in nodes and _executes(program):
                self._break(
                    "a lost node's tasks are dead before the flip",
                    f"{program.attempt} runs on {program.machine.name} at the flip to {switch.generation}",
                )
            self._zombies[id(program)] = Zombie(world.loop.time())
        self._check_base(before, switch)
        self._check_addresses(switch, old)

    def _check_move(self, before: Plan, after: Plan) -> None:
        """Inside a generation only a follower moves, and what it leaves behind is dead (rule 3)."""
        gone = set(before.placements) - set(after.placements)
        self._count("moves")
        switch = self._picture.must_switch(after.job)
        for placement in gone:
            if placement.role != "evaluator" or switch.plan_id != after.plan_id:
                self._break("only followers move", f"{placement} of {after.plan_id} at {switch}")
            for program in self._world.training.alive(after.job):
                if (program.attempt.task.member, program.machine.name) != (placement.member, placement.node):
                    continue
                self._zombies[id(program)] = Zombie(self._world.loop.time())
                if _executes(program):
                    self._break("a lost node's tasks are dead before they move", f"{program.attempt}")

    def _check_base(self, before: JobSwitch, switch: JobSwitch) -> None:
        """Rules 7 and 8: the newest committed one on the lineage, and it is whole in the store."""
        lineage = self._picture.committed(switch.job, before)
        newest = lineage[0] if lineage else None
        intent = self._picture.intent(switch.job)
        if (
            intent is not None
            and intent.restart_from is not None
            and switch.restart_serial > before.restart_serial
        ):
            newest = intent.restart_from
        if switch.base != newest:
            self._break("the base is the newest commit", f"{switch.base}, but {newest} is committed")
        if newest is not None:
            record = self._picture.commit(switch.job, newest)
            if record is None or not self._whole(record):
                self._break("the base can be restored", f"{newest} is not whole in the store")

    def _check_addresses(self, switch: JobSwitch, old: list[Program]) -> None:
        raw = self._picture.raw(keys.cluster_spec(switch.job, switch.plan_id))
        if raw is None:
            self._break("a flip has a ClusterSpec", switch.plan_id)
            return
        spec = codec.decode(ClusterSpec, raw)
        fresh = {address for role in (*spec.roles, *spec.outside) for address in role.addresses}
        for program in old:
            shared = fresh & program.addresses
            if shared:
                self._break("no address is used again while it is known", f"{program.attempt} knows {shared}")

    def _check_incident(self, effect: Effect, key: str, incident: Incident) -> None:
        if key not in effect.before:
            if key in self._incidents and incident.cause.value not in ("operator", "submitted"):
                self._break("one failure, one incident", f"{key} is opened again")
            self._incidents.add(key)
            self._count("incidents")
            return
        before = codec.decode(Incident, effect.before[key].value)
        if before.outcome is not Outcome.OPEN and before != incident:
            self._break("a closed incident stays closed", f"{key}: {before.outcome} -> {incident.outcome}")

    # The store of checkpoints.

    def _check_disk(self) -> None:
        """Rule 9: what is committed can be restored, until it is collected."""
        for record in self._picture.commits():
            if record.state is CommitState.COMMITTED and not self._whole(record):
                self._break("what is committed stays restorable", f"{record.ref} at {record.path}")

    def _whole(self, record: CommitRecord) -> bool:
        files = self._world.disk.files
        manifest = files.get(f"{record.path}/manifest.json")
        if manifest is None or f"{google_crc32c.value(manifest):08x}" != record.manifest_crc32c:
            return False
        ours = {f"{record.path}/manifest.json", f"{record.path}/checkpoint"}
        saved = {name for name in files if name.startswith(f"{record.path}/")} - ours
        return sum(len(files[name]) for name in saved) == record.size

    # Programs.

    def _on_program(self, what: str, program: Program) -> None:
        match what:
            case "started":
                self._on_started(program)
            case "connected":
                self._on_connected(program)
            case "restored":
                self._on_restored(program)
            case "stepped":
                self._on_stepped(program)
            case "hung":
                self._program_faults += 1
            case "ended":
                self._zombies.pop(id(program), None)
                if program.row.code is not None and program.last_words != LOST_PEER:
                    self._program_faults += 1
            case _:
                pass

    def _on_started(self, program: Program) -> None:
        self._count("attempts")
        attempt, world = program.attempt, self._world
        for other in world.training.alive():
            if other is program:
                continue
            same = (other.attempt.task, other.attempt.generation) == (attempt.task, attempt.generation)
            # What is frozen on a lost node has SIGKILL pending when it thaws (rule 5).
            left = attempt.task.role == "evaluator" and other.machine is not program.machine
            if same and not (left and not _executes(other)):
                self._break("one attempt of a task at a time", f"{attempt} beside {other.attempt}")
            if program.address and other.address == program.address:
                self._break("no port is shared", f"{attempt} and {other.attempt}: {program.address}")
        switch = self._picture.switch(attempt.task.job)
        if switch is None or attempt.generation > switch.generation:
            self._break("nothing starts before its flip", f"{attempt}")
        elif attempt.generation < switch.generation:
            flipped_s = self._flips[(attempt.task.job, attempt.generation + 1)]
            if world.loop.time() > flipped_s + world.timing.d_ms / 1000 + SLACK_S:
                self._break("nothing starts long after a later flip", f"{attempt}")
            self._zombies[id(program)] = Zombie(world.loop.time())

    def _on_connected(self, program: Program) -> None:
        server = self._world.training.serving(program.servers[0])
        if server is not None and server.attempt.generation != program.attempt.generation:
            self._break("no RPC crosses generations", f"{program.attempt} reached {server.attempt}")

    def _on_restored(self, program: Program) -> None:
        self._count("restores")
        switch = self._picture.switch(program.attempt.task.job)
        assert switch is not None
        assert program.restored is not None
        if switch.generation != program.attempt.generation:
            return
        step, chain = program.restored
        wanted = (switch.base.step, switch.base.generation) if switch.base is not None else (0, None)
        found = (step, chain[-2] if len(chain) > 1 else None)
        if found != wanted:
            self._break("training goes on from the base", f"{program.attempt}: {found}, base {switch.base}")

    def _on_stepped(self, program: Program) -> None:
        self._count("steps")
        if len(program.steps) > 1 or program.attempt.task.role not in TRAINING:
            return
        switch = self._picture.switch(program.attempt.task.job)
        base = switch.base if switch is not None else None
        if switch is None or base is None or switch.generation != program.attempt.generation:
            return
        if program.last_step < base.step:
            self._break("no step before the base", f"{program.attempt} at {program.last_step}")

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            self._check_zombies()
            self._check_deadlines()

    def _check_zombies(self) -> None:
        """Rules 4 and 5: what outlives its generation is killed, by its agent or by its launcher."""
        timing = self._world.timing
        limit_s = (timing.d_ms + timing.kill_time_ms) / 1000 + THAW_KILL_S + SLACK_S
        for program in self._world.training.alive():
            zombie = self._zombies.get(id(program))
            if zombie is None or not _executes(program):
                continue
            zombie.executed_s += POLL_S
            if zombie.executed_s > limit_s:
                self._break("what is over ends", f"{program.attempt} still runs on {program.machine.name}")

    def _check_deadlines(self) -> None:
        """Rule 3: no task runs D after the last read that vouched for its agent was sent."""
        etcd, now_s = self._world.etcd, self._world.loop.time()
        for program in self._world.training.alive():
            silent_s = now_s - etcd.vouched_s.get(keys.node(program.machine.name), 0.0)
            if silent_s > self._world.timing.d_ms / 1000 + CLOCKS_S and _executes(program):
                self._break(
                    "no task outlives D", f"{program.attempt}: {silent_s:.2f} s on {program.machine.name}"
                )

    # The end.

    def healthy(self, job: str) -> bool:
        """The job runs as it should: every task lives, the training ones step, nothing else is there."""
        return not self._unhealthy(job, self._world.loop.time() - STEPPING_S)

    def unsettled(self, job: str, healed_s: float) -> str:
        """Why the job is not yet where it has to be after all faults are healed; empty when it is."""
        switch = self._picture.switch(job)
        if switch is None:
            return "it has no switch"
        if not switch.phase.ended:
            since_s = max(healed_s, self._world.loop.time() - STEPPING_S)
            return self._unhealthy(job, since_s)
        intent = self._picture.intent(job)
        asked = intent is not None and intent.wanted is Wanted.RUN
        if intent is not None and asked and intent.restart_serial > switch.restart_serial:
            return "it has not begun again, as an operator asked while it was being stopped"
        why = self._illegitimate(job, switch)
        if why:
            self._break("a job ends for a reason", why)
        return self.left_behind(job)

    def _illegitimate(self, job: str, switch: JobSwitch) -> str:
        intent = self._picture.intent(job)
        if switch.phase is JobPhase.STOPPED:
            return "" if intent is not None and intent.wanted is Wanted.STOP else "nobody stopped it"
        if switch.phase is JobPhase.SUCCEEDED:
            temper = self._world.tempers[job]
            done = [
                each
                for each in self._world.training.programs
                if each.leads and each.row.code == 0
            ]
            if not done:
                return "its chief has not finished"
            # One that is restored at the last step ends without another.
            reached = max(done[-1].last_step, done[-1].restored[0] if done[-1].restored else -1)
            return "" if reached >= temper.last_step - 8 else f"its chief stopped at step {reached}"
        policy = self._picture.spec(job).restart
        allowed = 0 if Rule.FAIL in policy.rules.values() else policy.max_restarts
        if self._program_faults > allowed:
            return ""
        return f"FAILED after {self._program_faults} faults of its own: {switch.reason}"

    def _unhealthy(self, job: str, since_s: float) -> str:
        switch = self._picture.switch(job)
        if switch is None or switch.phase is not JobPhase.RUNNING or switch.closing is not None:
            return f"its switch is {switch.phase.value if switch is not None else 'absent'}"
        plan = self._picture.plan(job, switch.plan_id)
        if plan is None:
            return "its plan is gone"
        alive = {str(each.attempt): each for each in self._world.training.alive(job)}
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
            if place.role in TRAINING and not (program.steps and program.steps[-1][0] >= since_s):
                return f"{wanted.attempt_id} does not step (its last is {program.last_step})"
        return f"{', '.join(alive)} should not be there" if alive else ""

    def restorable(self, job: str) -> list[CheckpointRef]:
        """What an operator may ask a job to start from: committed, on whatever lineage."""
        switch = self._picture.must_switch(job)
        return sorted(
            record.ref
            for record in self._picture.commits()
            if record.job_uuid == switch.job_uuid and record.state is CommitState.COMMITTED
        )

    def stopping(self, job: str) -> bool:
        """Whether etcd has the operator's wish that it stop."""
        intent = self._picture.intent(job)
        return intent is not None and intent.wanted is Wanted.STOP

    def left_behind(self, job: str) -> str:
        """What an ended job has left, first things first; empty when nothing."""
        switch = self._picture.switch(job)
        if switch is None or not switch.phase.ended:
            return "it has not ended"
        for leftover in self._leftovers(job, switch.plan_id):
            return leftover
        return ""

    def _leftovers(self, job: str, last_plan: str) -> Iterator[str]:
        """The records of the plan that was last in force stay: they say where its tasks ran."""
        for program in self._world.training.alive(job):
            yield f"{program.attempt} is alive on {program.machine.name}"
        for name, seat in self._world.nodes.items():
            for launcher in seat.table.by_id.values():
                if not launcher.row.gone and launcher.job == job:
                    yield f"launcher {launcher.launcher_id} is alive on {name}"
            if seat.machine is not None and seat.machine.ports.held():
                yield f"ports are held on {name}: {sorted(seat.machine.ports.held())}"
        for key in self._picture.under("spares/"):
            if key.endswith(f"/{job}"):
                yield f"{key} has outlived its job"
        families = [f"{prefix}/{job}/" for prefix in ("plans", "specs", "prepared", "staged")]
        for prefix in (*families, "assignments/"):
            for key in self._picture.under(prefix):
                if last_plan not in key.split("/"):
                    yield f"{key} is still there"

    def at_the_end(self, job: str) -> None:
        """What must hold whenever a run is over."""
        for key in self._picture.under(f"incidents/{job}/"):
            incident = codec.decode(Incident, self._picture.must(key))
            if incident.outcome is Outcome.OPEN and self._picture.must_switch(job).phase.ended:
                self._break("every incident is closed", f"{key} is open though the job has ended")


def _executes(program: Program) -> bool:
    """Whether its code is being executed and nothing frozen excuses that."""
    return program.running and not program.launcher.row.frozen
