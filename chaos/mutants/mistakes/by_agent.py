"""Mistakes that an agent could make, or its dead-man's switch: rules 2, 3, 4, 5, 6, 10 and 12."""

from __future__ import annotations

from chaos.mutants.edit import Edit
from chaos.mutants.mistakes.by_leader import NEXT, STUCK_LAUNCHERS
from chaos.mutants.mistakes.known import known
from chaos.mutants.mutant import Mutant, Simulated
from chaos.sim.trouble.fault import Fault

FENCED = "every write is fenced"
OUTLIVES = "no task outlives D"
ENDS = "what is over ends"
PAST_MARK = "no life goes on past its lost mark"
ONE = "one attempt of a task at a time"
LEFT = "nothing is left behind"
ONCE = "an attempt is started once"

CUT_OFF = Fault(0.5, "cut_node_off", 0, 9.0)
AGENT_DOWN = Fault(0.5, "agent_down", 0, 9.0)
RESTARTS = tuple(Fault(0.5 + 2 * n, "operator_restart", 0, 0.1) for n in range(5))

LATER = Fault(8.0, "etcd_leader", 0, 0.1)
"""Only keeps all from being healed before."""

OLD_DISKS = tuple(
    fault
    for n in range(6)
    for fault in (
        Fault(0.5 + 1.7 * n, "task_kill" if n % 2 else "launcher_kill", 7 * n, 0.1),
        Fault(1.5 + 1.7 * n, "disk_old", n % 3 + 3 * (n % 5), 0.1),
    )
)
"""Something is started anew, and the agent's disk forgets it."""

MUTANTS = (
    Mutant(
        "a node says that it is fenced while its tasks run",
        3,
        ("a node that is fenced runs nothing", "a lost node's tasks are dead before the flip"),
        (
            Edit(
                "agent/fencing.py",
                "    await end_all(record, given.runtime, given.sink)\n",
                "    _ = end_all\n",
            ),
        ),
        Simulated((AGENT_DOWN,), "stopped"),
    ),
    Mutant(
        "the word that a node is fenced goes over whatever is there",
        3,
        ("a decision compares what it relies on",),
        (Edit("agent/fencing.py", "[ModifiedAt(key, held.mod_revision)],\n", "[],\n"),),
        Simulated((AGENT_DOWN,), "stopped"),
    ),
    Mutant(
        "incarnation not compared",
        2,
        (FENCED,),
        (
            Edit(
                "agent/attempt_reports.py",
                "compares = [self._membership.fence, as_read(order, wanted), as_read(key, found)]\n",
                "compares = [as_read(order, wanted), as_read(key, found)]\n",
            ),
        ),
    ),
    Mutant(
        "deadline from receive time",
        3,
        ("what must end by D is killed in time",),
        (known("An agent's deadline counts from when its read was sent, not from when the answer came."),),
        Simulated((Fault(0.2, "etcd_slow", 0, 9.0), Fault(1.8, "cut_node_off", 0, 9.0))),
    ),
    Mutant(
        "no time kept back for killing",
        3,
        ("what must end by D is killed in time",),
        (
            Edit(
                "agent/core/state.py",
                "now_ms < until_ms - self.reserve_ms",
                "now_ms < until_ms",
            ),
            Edit(
                "agent/core/launcher_events.py",
                "min(until_ms - work.now_ms, state.d_ms) - state.reserve_ms",
                "min(until_ms - work.now_ms, state.d_ms)",
            ),
        ),
        Simulated((CUT_OFF,)),
    ),
    Mutant(
        "marks of earlier lives ignored",
        3,
        (PAST_MARK,),
        (known("A mark of a life that the agent succeeded counts too."),),
        Simulated((Fault(0.3, "agent_kill", 0, 0.1), Fault(2.5, "lease_expires", 0, 0.1))),
    ),
    Mutant(
        "a key written again over a lost mark",
        3,
        (PAST_MARK, "a decision compares what it relies on"),
        (known("A key that vanished is written again only where there is no lost mark."),),
        Simulated((Fault(0.5, "lease_expires", 2, 0.1),)),
    ),
    Mutant(
        "a successor that ignores its predecessor's mark",
        12,
        (PAST_MARK, "a decision compares what it relies on"),
        (
            known("A successor of a marked life appeals, and extends nothing until the mark is withdrawn."),
            known("A successor joins in a transaction that compares the absence of a lost mark."),
        ),
        Simulated((Fault(0.5, "agent_down", 0, 2.5), Fault(0.5, "agent_down", 1, 2.0))),
    ),
    Mutant(
        "what ran in a lost cluster is taken over into the next",
        12,
        ("nothing is taken over from a lost cluster",),
        (
            known("What ran in a cluster whose etcd has lost its data is not adopted into the next one."),
            Edit(
                "supervisor/adapters/etcd/identity.py",
                "        elif self._lacks or revision < self.revision:\n            return Loss.WENT_BACK\n",
                "",
            ),
        ),
        Simulated((Fault(2.5, "etcd_lost", 0, 0.2),)),
    ),
    Mutant(
        "what an old snapshot of etcd wants is done",
        12,
        ("an attempt is started once", "nothing starts before its flip"),
        (
            known(
                "What was started when etcd had come further than now, as before a snapshot, is not adopted."
            ),
            known("What an old snapshot of etcd wants of a node is not done."),
        ),
        Simulated((Fault(3.0, "etcd_restored", 0, 2.5), Fault(3.2, "operator_restart", 0, 0.1), LATER)),
    ),
    Mutant(
        "grants for ever",
        4,
        (OUTLIVES,),
        (
            Edit(
                "agent/core/launcher_events.py",
                "min(until_ms - work.now_ms, state.d_ms) - state.reserve_ms",
                "state.d_ms",
            ),
            Edit(
                "agent/core/step.py",
                '        tasks.stop_all(work, "etcd has not vouched for this node in time")\n',
                "        pass\n",
            ),
        ),
        Simulated((CUT_OFF,)),
    ),
    Mutant(
        "a launcher without a deadline",
        4,
        (OUTLIVES,),
        (
            Edit(
                "agent/inside/launcher/deadman.py",
                "return self.deadline_ms is None or now_ms >= self.deadline_ms",
                "return self.deadline_ms is None and now_ms >= self.last_pull_ms",
            ),
        ),
        Simulated((AGENT_DOWN,)),
    ),
    Mutant(
        "a survivor of the kill counts as dead",
        5,
        ("confirmed dead is dead",),
        (known("An attempt of which a process survives the kill is not confirmed dead."),),
        Simulated(STUCK_LAUNCHERS),
    ),
    Mutant(
        "a task starts on a GPU that may be in use",
        5,
        ("a GPU is in one exclusive task",),
        (
            Edit(
                "agent/core/tasks.py",
                "    if not _gpus_free(work, assignment):\n        return\n",
                "    if not _gpus_free(work, assignment):\n        pass\n",
            ),
        ),
        Simulated(
            tuple(
                fault
                for pick in range(4)
                for fault in (
                    Fault(0.5 + 2.5 * pick, "task_stuck", pick, 6.0),
                    Fault(1.2 + 2.5 * pick, "operator_restart", pick, 0.1),
                )
            ),
            story="gpus",
        ),
    ),
    Mutant(
        "a plan acted on before its flip",
        6,
        ("nothing starts before its flip",),
        (
            Edit(
                "agent/core/desired.py",
                "            result.prepare[name_of(assignment)] = assignment\n",
                "            result.prepare[name_of(assignment)] = assignment\n"
                "            result.run.setdefault(assignment.task, assignment)\n",
            ),
        ),
        Simulated(RESTARTS),
    ),
    Mutant(
        "what the switch has left behind lives on",
        6,
        (ENDS, ONE),
        (known("What the switch has left behind is killed."),),
        Simulated((Fault(3.0, "operator_stop", 0, 0.1),)),
    ),
    Mutant(
        "an order to another incarnation is obeyed",
        6,
        (ONCE, ONE, ENDS),
        (known("An agent acts only on what is assigned to its own incarnation or one that it succeeded."),),
        # Two: the brake would hold the moves of more.
        Simulated(tuple(Fault(0.5, "cut_node_off", pick, 6.5) for pick in range(2)), story="gpus"),
    ),
    Mutant(
        "the next attempt does not wait for the death of the one before",
        6,
        (NEXT, ONE),
        (known("In a generation an attempt waits until etcd knows that the one before is confirmed dead."),),
        Simulated(tuple(Fault(0.5 + 1.5 * n, "operator_restart_task", 0, 0.1) for n in range(6))),
    ),
    Mutant(
        "a state file that went back in time is believed",
        12,
        (ONCE, "confirmed dead is dead", LEFT),
        (known("A state file that is older than one which was saved is not believed, whatever it knows."),),
        Simulated(OLD_DISKS),
    ),
    Mutant(
        "adopted without a look at the boot id",
        12,
        ("only its own processes are killed",),
        (
            Edit(
                "agent/core/saved/adopt.py",
                "    rebooted = record.boot_id != boot_id\n",
                "    rebooted = not record.boot_id\n",
            ),
        ),
        Simulated(tuple(Fault(0.5 + 2.5 * n, "node_kill", n, 0.5) for n in range(3))),
    ),
    Mutant(
        "unknown treated as gone",
        10,
        ("what cannot be seen is left alone",),
        (
            Edit(
                "agent/core/gpus/health.py",
                "{uuid: replace(each, unknown=sight.problem) for uuid, each in known.items()}",
                "{uuid: _missed(each, 0, now_ms) for uuid, each in known.items()}",
            ),
        ),
        Simulated(tuple(Fault(0.5 + n, "gpu_unknown", n, 3.0) for n in range(4)), story="gpus"),
    ),
    Mutant(
        "watch not resumed after compaction",
        10,
        ("liveness",),
        (
            Edit(
                "supervisor/adapters/etcd/mirror.py",
                "                if isinstance(error, Compacted):\n                    self._listed = "
                "False\n",
                "                if isinstance(error, Compacted):\n                    self._listed = True\n",
            ),
        ),
        Simulated((Fault(0.5, "cut_node_etcd", 0, 3.0), Fault(2.0, "compaction", 0, 0.1), *RESTARTS)),
    ),
    Mutant(
        "a watch resumed one revision too late",
        10,
        ("liveness", ENDS, LEFT),
        (
            Edit(
                "supervisor/adapters/etcd/mirror.py",
                "self._coordination.watch(self._prefix, self._revision + 1)",
                "self._coordination.watch(self._prefix, self._revision + 2)",
            ),
        ),
        Simulated((*RESTARTS, *(Fault(0.55 + n / 3, "watches_break", 0, 0.1) for n in range(24)))),
    ),
)
