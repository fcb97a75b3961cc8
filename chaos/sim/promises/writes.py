"""Promises about what is written: by whom, under which fence, and in which order."""

from __future__ import annotations

from chaos.sim.cluster.etcd import Effect
from chaos.sim.cluster.loop import SimProcess
from chaos.sim.cluster.programs import Program
from chaos.sim.promises.evidence import Evidence, Zombie, executes
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Absent, CreatedAt
from supervisor.contract.desired import ClusterSpec, JobPhase, JobSwitch, Placement, Plan
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.job.spec import JobRecord, Strategy
from supervisor.contract.keys import Writer
from supervisor.contract.observed import Incarnation

ASKED = ("op-", "start-")
"""The beginnings of the names of incidents that operators have asked for."""


class Writes:
    """Looks at every write that takes effect in etcd."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen
        self._world = seen.world
        self._picture = seen.picture
        self._creators: dict[str, SimProcess] = {}
        self._incidents: set[str] = set()
        self._forgiven: dict[str, int] = {}

    def forget(self) -> None:
        """Etcd has lost all that was written."""
        self._incidents.clear()
        self._forgiven.clear()

    def on_effect(self, effect: Effect) -> None:
        """A write has taken effect."""
        self._trace(effect)
        for key, raw in effect.puts.items():
            # Nobody can tell a program that makes no step from one that cannot: it is charged.
            if key.startswith("incidents/") and key not in effect.before:
                cause = codec.decode(Incident, raw).cause
                self._seen.program_faults += cause in (Cause.HANG, Cause.NEVER_READY)
        if effect.process is not None:
            for key in (*effect.puts, *effect.deleted):
                self._check_writer(effect, effect.process, key)
        for key, raw in effect.puts.items():
            self._check_put(effect, key, raw)
        for key in effect.deleted:
            if key.startswith("switches/"):
                self._check_deletion(self._picture.must_switch(keys.parse(key)[0]))
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
            self._seen.broken("every write is fenced", f"{process.name} wrote {key} with {effect.compares}")

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
        """Rules 3 and 12: over nothing, or over the very key that was read; and never past a lost mark.

        That a node has fenced its tasks is written under a mark, too: no life goes on.
        """
        me = codec.decode(Incarnation, effect.puts[key])
        over = any(each.key == key for each in effect.compares)
        if me.fenced:
            self._check_fenced(effect, me)
            return over
        lives = (me.incarnation, *me.succeeds)
        marked = [life for life in lives if self._picture.has(keys.lost(me.node, life))]
        self._check_taken_over(effect, key)
        if marked:
            self._seen.broken("no life goes on past its lost mark", f"{key}: {marked[0]} is marked")
        return over

    def _check_fenced(self, effect: Effect, me: Incarnation) -> None:
        """Rule 3: nothing of a node runs that says so, by the machine's own truth."""
        seat = self._world.seat_of(effect.process) if effect.process is not None else None
        self._seen.count("nodes that have fenced their tasks")
        for program in self._world.training.alive():
            if seat is not None and program.machine is seat.machine:
                self._seen.broken("a node that is fenced runs nothing", f"{me.node}: {program.attempt}")

    def _check_taken_over(self, effect: Effect, key: str) -> None:
        """Rule 12: where an agent joins an etcd that was begun anew, nothing runs from before that."""
        seat = self._world.seat_of(effect.process) if effect.process is not None else None
        for program in self._world.training.alive():
            before = program.started_s < self._seen.lost_s and not self._world.rolled_back
            if before and seat is not None and program.machine is seat.machine:
                self._seen.broken(
                    "nothing is taken over from a lost cluster", f"{key} beside {program.attempt}"
                )

    def _check_put(self, effect: Effect, key: str, raw: bytes) -> None:
        if key.startswith("plans/") and key in effect.before:
            plans = codec.decode(Plan, effect.before[key].value), codec.decode(Plan, raw)
            self._check_move(*plans)
            self._check_size(effect, *plans)
        if key.startswith("specs/") and key in effect.before:
            before = codec.decode(ClusterSpec, effect.before[key].value)
            self._check_new_address(before, codec.decode(ClusterSpec, raw))
        if key.startswith("quarantines/") and key not in effect.before:
            self._seen.count("quarantines")
        if key.startswith("switches/"):
            self._check_switch(effect, codec.decode(JobSwitch, raw))
        elif key.startswith("incidents/"):
            self._check_incident(effect, key, codec.decode(Incident, raw))

    def _check_switch(self, effect: Effect, switch: JobSwitch) -> None:
        before = self._picture.switch(switch.job)
        if before is None or before.job_uuid != switch.job_uuid:
            return
        ledger, old = switch.ledger, before.ledger
        again = before.phase.ended and switch.phase is JobPhase.WAITING
        spent = ledger.restarts - old.restarts
        if not again and (spent not in (0, 1) or min(ledger.program - old.program, spent) < 0):
            self._seen.broken("one failure is charged once", f"{old} -> {ledger}")
        if ledger.program > self._seen.charges:
            self._seen.broken(
                "only its own faults burn the budget",
                f"{ledger.program} charged, {self._seen.charges} happened",
            )
        if ledger != old and not switch.phase.ended:
            policy = self._picture.spec(switch.job).restart
            if switch.incident.startswith(ASKED):
                # Every count begins anew.
                self._forgiven[switch.job] = ledger.program
            # What could not be prepared counts in a row alone: no incident tells of it.
            ended = ledger.program - self._forgiven.get(switch.job, 0) - self._seen.unprepared
            if ledger.streak > policy.max_restarts or ended > policy.max_in_window:
                self._seen.broken("a budget is not overdrawn", f"{ledger}: {policy}")
        if switch.generation < before.generation:
            self._seen.broken("generations only grow", f"{before.generation} -> {switch.generation}")
        if switch.generation > before.generation:
            if switch.phase is JobPhase.RUNNING:
                self._check_flip(effect, before, switch)
            elif not self._brings_generation(effect, switch.job):
                self._seen.broken("generations only grow", f"{switch.generation} of nothing: {switch}")

    def _brings_generation(self, effect: Effect, job: str) -> bool:
        """Whether something takes a number without a flip: an import, or the job that is submitted anew."""
        commits = keys.commits_of(job)
        return keys.job_record(job) in effect.puts or any(key.startswith(commits) for key in effect.puts)

    def _check_flip(self, effect: Effect, before: JobSwitch, switch: JobSwitch) -> None:
        world = self._world
        self._seen.count("flips")
        self._seen.flips[(switch.job, switch.generation)] = world.loop.time()
        old = world.training.alive(switch.job)
        marks = {each.key for each in effect.compares if each.key.startswith("lost/")}
        marks |= {key for key in effect.puts if key.startswith("lost/")}
        marks -= {each.key for each in effect.compares if isinstance(each, Absent)}
        nodes = {keys.parse(key)[0] for key in marks}
        for program in old:
            lost = program.machine.name in nodes and not self._is_of_a_later_life(program, before, marks)
            if lost and executes(program):
                self._seen.broken(
                    "a lost node's tasks are dead before the flip",
                    f"{program.attempt} runs on {program.machine.name} at the flip to {switch.generation}",
                )
            self._seen.zombies[id(program)] = Zombie(world.loop.time())
        self._check_addresses(switch, old)

    def _check_deletion(self, switch: JobSwitch) -> None:
        """Check that no program of a deleted job runs; a program that is frozen then must never run again."""
        self._seen.count("deletions")
        for program in self._world.training.alive(switch.job):
            if executes(program):
                self._seen.broken("nothing of a deleted job runs", f"{program.attempt}")
            self._seen.zombies[id(program)] = Zombie(self._world.loop.time())

    def _is_of_a_later_life(self, program: Program, switch: JobSwitch, marks: set[str]) -> bool:
        """Whether it was placed on its node's present life, which no mark speaks of."""
        node = program.machine.name
        placed = self._picture.assigned(node, program.attempt.task, switch.plan_id)
        raw = self._picture.raw(keys.node(node))
        if placed is None or raw is None:
            return False
        me = codec.decode(Incarnation, raw)
        lives = {me.incarnation, placed.incarnation}
        return me.acts_for(placed.incarnation) and not marks & {keys.lost(node, life) for life in lives}

    def _check_move(self, before: Plan, after: Plan) -> None:
        """Inside a generation only followers and workers move, and what they leave is dead (rule 3)."""
        gone = set(before.placements) - set(after.placements)
        self._seen.count("moves")
        switch = self._picture.must_switch(after.job)
        for placement in gone:
            worker = self._is_mobile(after.job, placement)
            if worker:
                self._seen.count("workers moved")
            if not (worker or placement.role == "evaluator") or switch.plan_id != after.plan_id:
                text = f"{placement} of {after.plan_id} at {switch}"
                self._seen.broken("only followers and workers move", text)
            for program in self._world.training.alive(after.job):
                if (program.attempt.task.member, program.machine.name) != (placement.member, placement.node):
                    continue
                self._seen.zombies[id(program)] = Zombie(self._world.loop.time())
                if executes(program):
                    self._seen.broken("a lost node's tasks are dead before they move", f"{program.attempt}")

    def _check_size(self, effect: Effect, before: Plan, after: Plan) -> None:
        """Workers alone join and leave; plan, record and ClusterSpec count the same in each transaction."""
        had, has = ({each.member for each in plan.placements} for plan in (before, after))
        if had == has:
            return
        self._seen.count("workers joined" if has - had else "workers left")
        found = [sum(member.startswith("worker.") for member in has)]
        record, spec = keys.job_record(after.job), keys.cluster_spec(after.job, after.plan_id)
        if record in effect.puts:
            found.append(codec.decode(JobRecord, effect.puts[record]).spec.role("worker").count)
        if spec in effect.puts:
            roles = codec.decode(ClusterSpec, effect.puts[spec]).roles
            found += [len(each.addresses) for each in roles if each.role == "worker"]
        text = f"{after.plan_id}: {sorted(had)} become {sorted(has)}: {found}"
        if len(found) != 3 or len(set(found)) != 1:
            self._seen.broken("a resize counts the same everywhere", text)
        if not all(member.startswith("worker.") for member in had ^ has):
            self._seen.broken("only followers and workers move", text)

    def _is_mobile(self, job: str, placement: Placement) -> bool:
        """A worker whose loss the others can bear; not one that saves, or that TensorFlow takes for chief."""
        spec, saver = self._picture.spec(job), self._picture.must_switch(job).saver
        strategy = spec.strategy in (Strategy.ASYNC, Strategy.COORDINATOR)
        return strategy and placement.role == "worker" and placement.member != saver

    def _check_new_address(self, before: ClusterSpec, after: ClusterSpec) -> None:
        """A task moves to an address that no attempt has known (rule 6)."""
        known = {address for role in (*before.roles, *before.outside) for address in role.addresses}
        fresh = {address for role in (*after.roles, *after.outside) for address in role.addresses} - known
        # Port 0 is nobody's: a task that has joined does not listen yet.
        fresh = {address for address in fresh if not address.endswith(":0")}
        for program in self._world.training.alive():
            shared = (fresh & program.addresses) - {program.address}
            if shared and program.attempt.generation <= after.generation:
                self._seen.broken(
                    "no address is used again while it is known", f"{program.attempt} knows {shared}"
                )

    def _check_addresses(self, switch: JobSwitch, old: list[Program]) -> None:
        raw = self._picture.raw(keys.cluster_spec(switch.job, switch.plan_id))
        if raw is None:
            self._seen.broken("a flip has a ClusterSpec", switch.plan_id)
            return
        spec = codec.decode(ClusterSpec, raw)
        fresh = {address for role in (*spec.roles, *spec.outside) for address in role.addresses}
        for program in old:
            shared = fresh & program.addresses
            if shared:
                self._seen.broken(
                    "no address is used again while it is known", f"{program.attempt} knows {shared}"
                )

    def _check_incident(self, effect: Effect, key: str, incident: Incident) -> None:
        if key not in effect.before:
            if key in self._incidents and incident.cause.value not in ("operator", "submitted"):
                self._seen.broken("one failure, one incident", f"{key} is opened again")
            self._incidents.add(key)
            self._seen.count("incidents")
            return
        before = codec.decode(Incident, effect.before[key].value)
        if before.outcome is not Outcome.OPEN and before != incident:
            self._seen.broken(
                "a closed incident stays closed", f"{key}: {before.outcome} -> {incident.outcome}"
            )
