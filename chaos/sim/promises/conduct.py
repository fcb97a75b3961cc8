"""Promises about programs: what starts, from where it goes on, whom it reaches, and when it ends."""

from __future__ import annotations

import asyncio

from agent.inside.child.waiting import NEVER_READY
from chaos.sim.cluster.programs import Program
from chaos.sim.promises.evidence import Evidence, Zombie, executes
from recovery.policy.scope import SERVERS, come_back_together
from supervisor.contract import keys
from supervisor.contract.job.spec import Scope

POLL_S = 0.25
THAW_KILL_S = 0.2
SLACK_S = 0.6
CLOCKS_S = 0.02
KILL_S = 0.25


class Conduct:
    """Looks at every start, step and end of a program, and now and then at all that live."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen
        self._world = seen.world
        self._picture = seen.picture

    def on_program(self, what: str, program: Program) -> None:
        """Something happened to a program."""
        match what:
            case "started":
                self._on_started(program)
            case "connected":
                self._on_connected(program)
            case "restored":
                self._on_restored(program)
            case "stepped":
                self._on_stepped(program)
            case "mixed":
                self._on_mixed(program)
            case "hung" | "starved":
                self._seen.program_faults += 1
            case "ended":
                self._seen.zombies.pop(id(program), None)
                if program.ended_itself:
                    self._seen.program_faults += 1
                    if program.row.code != NEVER_READY:
                        self._note_stillborn(program)
            case _:
                pass

    def _note_stillborn(self, program: Program) -> None:
        job, generation = program.attempt.task.job, program.attempt.generation
        switch = self._seen.switch_of(program)
        ours = (each for each in self._world.training.programs if each.attempt.task.job == job)
        trainers = (each for each in ours if each.trains)
        stepped = any(each.steps for each in trainers if each.attempt.generation == generation)
        if switch is not None and switch.generation == generation and not stepped:
            self._seen.stillborn.setdefault(job, set()).add(switch.base)

    def _on_started(self, program: Program) -> None:
        self._seen.count("attempts")
        attempt, world = program.attempt, self._world
        foreign = set(program.gpus) - set(program.machine.gpus.uuids)
        if program.gpus:
            self._seen.count("attempts with GPUs")
        if foreign:
            self._seen.broken(
                "a task gets its node's GPUs", f"{attempt} on {program.machine.name}: {foreign}"
            )
        for other in world.training.alive():
            if other is program:
                continue
            same = (other.attempt.task, other.attempt.generation) == (attempt.task, attempt.generation)
            # What is frozen on a lost node has SIGKILL pending when it thaws (rule 5).
            moves = attempt.task.role == "evaluator" or program.joins
            left = moves and other.machine is not program.machine
            left |= other.started_s < self._seen.lost_s
            if same and not (left and not executes(other)):
                self._seen.broken("one attempt of a task at a time", f"{attempt} beside {other.attempt}")
            both = set(program.gpus) & set(other.gpus)
            if both and not (program.shares and other.shares):
                # Also when it is frozen: its memory is still there (rule 5).
                self._seen.broken("a GPU is in one exclusive task", f"{attempt} and {other.attempt}: {both}")
            if program.address and other.address == program.address:
                self._seen.broken("no port is shared", f"{attempt} and {other.attempt}: {program.address}")
        self._check_in_force(program)

    def _check_in_force(self, program: Program) -> None:
        attempt, world, switch = program.attempt, self._world, self._seen.switch_of(program)
        over_s = self._seen.over_s(attempt.task.job, attempt.generation)
        forgotten = (switch is None or world.rolled_back) and attempt.task.job in self._seen.lost_jobs
        if not forgotten and (switch is None or attempt.generation > switch.generation):
            self._seen.broken("nothing starts before its flip", f"{attempt}")
        elif switch is None or attempt.generation != switch.generation:
            spare_s = world.vows.promise_s if forgotten else 0.0
            if world.loop.time() > over_s + world.timing.d_ms / 1000 + spare_s + SLACK_S:
                self._seen.broken("nothing starts long after a later flip", f"{attempt}")
            self._seen.zombies[id(program)] = Zombie(world.loop.time(), spare_s=spare_s)

    def _on_connected(self, program: Program) -> None:
        server = self._world.training.serving(program.servers[0])
        if server is not None and server.attempt.generation != program.attempt.generation:
            self._seen.broken("no RPC crosses generations", f"{program.attempt} reached {server.attempt}")

    def _on_restored(self, program: Program) -> None:
        self._seen.count("restores")
        switch = self._seen.switch_of(program)
        assert program.restored is not None
        if switch is None or switch.generation != program.attempt.generation:
            return
        step, chain = program.restored
        made = {each.ref for each in self._picture.commits_of(switch.job)}
        if any(each.generation == switch.generation and each.step > step for each in made):
            self._seen.whole.setdefault((switch.job, switch.generation), made)
        wanted = (switch.base.step, switch.base.generation) if switch.base is not None else (0, None)
        found = (step, chain[-2] if len(chain) > 1 else None)
        # Where a job has its server or who saves restarted alone, it goes on from what that saved itself. So
        # does a chief whose parameter servers come back, and worker 0 where another one saves.
        spec = self._picture.spec(switch.job)
        alone = Scope.TASK in spec.restart.scope.values() or switch.saver != spec.saver.member
        alone |= program.attempt.number == 1 and any(
            each.role == SERVERS and come_back_together(spec, each, program.attempt.task)
            for each in spec.tasks()
        )
        own = alone and found[1] == program.attempt.generation
        if found != wanted and not own and self._world.tempers[switch.job].restores:
            self._seen.broken(
                "training goes on from the base", f"{program.attempt}: {found}, base {switch.base}"
            )

    def _on_mixed(self, program: Program) -> None:
        """Rule 6.12. A job may choose that its chief restarts alone, and restores while others train.

        So may worker 0 of a job without a chief, where another worker was seen to save.
        """
        spec, switch = self._picture.spec(program.attempt.task.job), self._seen.switch_of(program)
        scope = spec.restart.scope
        elsewhere = switch is not None and switch.saver != spec.saver.member
        if Scope.TASK not in (scope.get("chief"), scope.get("worker")) and not elsewhere:
            self._seen.broken("no task trains with variables of two restores", str(program.attempt))

    def _on_stepped(self, program: Program) -> None:
        self._seen.count("steps")
        if len(program.steps) > 1 or not program.trains:
            return
        switch = self._seen.switch_of(program)
        base = switch.base if switch is not None else None
        if switch is None or base is None or switch.generation != program.attempt.generation:
            return
        if program.last_step < base.step and self._world.tempers[switch.job].restores:
            self._seen.broken("no step before the base", f"{program.attempt} at {program.last_step}")

    async def poll(self) -> None:
        """Check the promises about time, for ever."""
        while True:
            await asyncio.sleep(POLL_S)
            self._check_zombies()
            self._check_deadlines()
            self._check_strangers()

    def _check_zombies(self) -> None:
        """Rules 4 and 5: what outlives its generation is killed, by its agent or by its launcher.

        Rule 10: an agent that cannot hear of it is given up after twice D, and then ends it.
        """
        timing = self._world.timing
        limit_s = (timing.d_ms + timing.kill_time_ms) / 1000 + THAW_KILL_S + SLACK_S
        unheard_s = 3 * timing.d_ms / 1000 + SLACK_S
        for program in self._world.training.alive():
            zombie = self._seen.zombies.get(id(program))
            if zombie is None or not executes(program):
                continue
            zombie.executed_s += POLL_S
            client = self._world.nodes[program.machine.name].etcd
            zombie.unheard |= client is not None and (client.deaf or client.stale)
            if zombie.executed_s > (unheard_s if zombie.unheard else limit_s) + zombie.spare_s:
                self._seen.broken(
                    "what is over ends", f"{program.attempt} still runs on {program.machine.name}"
                )

    def _check_strangers(self) -> None:
        """Rule 12: a boot gives pids and start times again, and what has them then is somebody else's."""
        for name, seat in self._world.nodes.items():
            if seat.machine is not None and seat.machine.struck:
                self._seen.broken("only its own processes are killed", f"{name}: {seat.machine.struck}")

    def _check_deadlines(self) -> None:
        """Rule 3: no task runs D after the last read that vouched for its agent was sent.

        Rule 4: what killing takes, and drift, is kept back from it. Killing takes no time here.
        """
        etcd, now_s = self._world.etcd, self._world.loop.time()
        timing = self._world.timing
        due_s = (timing.d_ms - timing.reserve_ms) / 1000 + KILL_S
        for program in self._world.training.alive():
            name = program.machine.name
            # Or after all supervisors were last asked for what they promised, V (rule 11).
            vouched_s = etcd.vouched_s.get(keys.node(name), 0.0)
            silent_s = now_s - max(vouched_s, self._world.vows.until_s(name) - timing.d_ms / 1000)
            if silent_s > timing.d_ms / 1000 + CLOCKS_S and executes(program):
                self._seen.broken(
                    "no task outlives D", f"{program.attempt}: {silent_s:.2f} s on {program.machine.name}"
                )
            elif silent_s > due_s and executes(program):
                self._seen.broken(
                    "what must end by D is killed in time", f"{program.attempt}: {silent_s:.2f} s"
                )
