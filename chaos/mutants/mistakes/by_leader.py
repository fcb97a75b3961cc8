"""Mistakes that a leader could make: rules 1, 2, 3, 6, 7, 8, 9, 10, 12 and 13."""

from __future__ import annotations

from chaos.mutants.edit import Edit
from chaos.mutants.mistakes.known import known
from chaos.mutants.mutant import Mutant, Simulated
from chaos.sim.trouble.fault import Fault

DEAD = "a lost node's tasks are dead before the flip"
MOVED = "a lost node's tasks are dead before they move"
FENCED = "every write is fenced"
COMPARED = "a decision compares what it relies on"
BASE = "the base is the newest commit"
CHARGED = "a restart has a record and is charged"
ONE_CHARGE = "one failure is charged once"
SPARED = "no healthy program is failed for a hang"
OWN_FAULTS = "only its own faults burn the budget"
ONE_INCIDENT = "one failure, one incident"
STAYS = "what is committed stays restorable"
NEWEST_TWO = "the newest two and the base stay"
NEXT = "the next attempt waits for the death of the one before"
ECHO = "an echo is no cause"
CLOSED = "a closed incident stays closed"
GIVEN_UP = "a base that nobody can restore is given up"
ADDRESSES = ("no address is used again while it is known", "no port is shared", "no RPC crosses generations")

MIXED = "no task trains with variables of two restores"

CUT_OFF = Fault(0.5, "cut_node_off", 0, 9.0)
RESTARTS = tuple(Fault(0.5 + 2 * n, "operator_restart", 0, 0.1) for n in range(5))
KILLS = tuple(Fault(1.0 + 2.5 * n, "task_kill", pick, 0.1) for n, pick in enumerate((0, 59, 59, 59)))
"""A worker, and then whatever was started last: 59 is one before a multiple of three, four and five."""

RESIZES = (
    Fault(1.0, "operator_reshape", 2, 0.1),
    *(Fault(4.9, "cut_node_off", pick, 6.0) for pick in range(1, 4)),
    Fault(5.0, "operator_reshape", 0, 0.1),
)
"""An operator asks for three workers, and later for one. The nodes of those that are to leave do not hear."""

FEWER = (Fault(3.0, "operator_reshape", 0, 0.1), Fault(5.0, "operator_restart", 0, 0.1))
"""An operator asks for one worker."""

SERVER_KILLS = tuple(Fault(3.0 + 3.0 * n, "task_kill", n, 0.1) for n in range(5))

STUCK = tuple(Fault(0.5, "task_stuck", 0, 8.0) for _ in range(6))
"""Hits every running task, one after the other: a stuck task is not hit again."""

STUCK_LAUNCHERS = (*STUCK, *(Fault(0.8, "launcher_kill", pick, 0.1) for pick in range(6)))
NEW_LEADER = Fault(3.2, "supervisor_kill", 0, 1.0)
NUMBERS = (
    *(Fault(2.2 + 0.5 * n, "operator_restart", 0, 0.1) for n in range(4)),
    Fault(4.4, "etcd_lost", 0, 0.2),
)
"""The last generations have saved nothing yet when etcd is lost."""
ROLLED_BACK = (
    Fault(3.0, "etcd_restored", 2, 2.5),
    Fault(3.2, "operator_restart", 0, 0.1),
    Fault(13.0, "etcd_leader", 0, 0.1),
)
"""The last one only keeps all from being healed before."""

RESTS = (Fault(0.5, "task_rest", 0, 480.0), Fault(482.0, "etcd_leader", 0, 0.1))
"""Every attempt pauses after a few steps, for longer than is borne. The last one only keeps all from being
healed before."""

PAUSED = (
    Fault(0.5, "operator_pause", 0, 0.1),
    *(Fault(1.0 + 0.5 * n, "task_kill", n, 0.1) for n in range(3)),
    Fault(9.0, "etcd_leader", 0, 0.1),
)
"""The last one only keeps all from being healed before."""

SWITCH_DIED = (
    *(Fault(0.5, "cut_node_off", pick, 14.0) for pick in range(3)),
    Fault(15.0, "etcd_leader", 0, 0.1),
)
"""Most of the nodes hear nothing for a while, at once."""

REFUSED = Fault(2.0, "checkpoints_bad", 0, 0.1)

MUTANTS = (
    Mutant(
        "token not compared",
        2,
        (FENCED,),
        (known("A deposed leader's writes have no effect."),),
    ),
    Mutant(
        "token not compared where files were collected",
        2,
        (FENCED,),
        (known("A deposed leader removes no checkpoint's record."),),
    ),
    Mutant(
        "token not compared by an operator's request",
        2,
        (FENCED,),
        (known("A deposed leader records no job."),),
    ),
    Mutant(
        "incidents are not read back",
        1,
        ("every incident is closed", ONE_INCIDENT, CLOSED),
        (known("A new leader reads everything back: it shows the same failures and decisions."),),
        Simulated((*KILLS, NEW_LEADER)),
    ),
    Mutant(
        "D not waited for",
        3,
        (DEAD,),
        (known("A silent node's tasks are replaced only when D has passed since its lost mark."),),
        Simulated((CUT_OFF,)),
    ),
    Mutant(
        "D not waited for, of a follower",
        3,
        (MOVED,),
        (known("A silent node's tasks are replaced only when D has passed since its lost mark."),),
        Simulated((Fault(0.5, "cut_node_off", 3, 9.0),)),
    ),
    Mutant(
        "a parameter server comes back while another one lives on",
        6,
        (MIXED,),
        (
            Edit(
                "supervisor/control/decide/jobs/restart.py",
                "    if servers.are_together(job, job.task(need.member)) "
                "and need.cause is not Cause.OPERATOR:\n",
                "    if False:\n",
            ),
        ),
        Simulated(SERVER_KILLS, "served"),
    ),
    Mutant(
        "a worker moves from a node that is only suspected",
        6,
        (MOVED, "one attempt of a task at a time"),
        (
            Edit(
                "supervisor/control/decide/assess/failures.py",
                "        if member.state is MemberState.LOST and moves_alone(",
                "        if member.state in (MemberState.LOST, MemberState.SUSPECTED) and moves_alone(",
            ),
            Edit(
                "supervisor/control/decide/jobs/moves.py",
                "    if switch.closing is not None or where is Standing.SUSPECTED:\n",
                "    if switch.closing is not None:\n",
            ),
        ),
        Simulated((Fault(0.5, "cut_node_off", 2, 9.0),)),
    ),
    Mutant(
        "a worker moves before it is dead on its drained node",
        6,
        (MOVED, "one attempt of a task at a time"),
        (known("A worker leaves a drained node only when its attempt there is dead."),),
        Simulated(
            (
                *(Fault(0.5, "task_stuck", pick, 8.0) for pick in range(3)),
                Fault(1.0, "operator_drain", 2, 20.0),
            )
        ),
    ),
    Mutant(
        "a worker leaves a running job before it is dead",
        6,
        (MOVED, "one attempt of a task at a time"),
        (known("A worker leaves a running job only when its attempt is dead, or its node is lost."),),
        Simulated(RESIZES),
    ),
    Mutant(
        "a resize in a job that has another size by now",
        6,
        (COMPARED,),
        (
            Edit(
                "supervisor/control/decide/jobs/joining.py",
                "(job.switch, job.intent, job.record, plan, spec)",
                "(job.switch, job.intent, plan, spec)",
            ),
        ),
        Simulated(RESIZES),
    ),
    Mutant(
        "D counted from before the leader saw the mark",
        3,
        (DEAD, MOVED),
        (known("A new leader waits D again, on its own clock."),),
        Simulated((CUT_OFF,)),
    ),
    Mutant(
        "another failure ends the wait for a silent node",
        3,
        (DEAD,),
        (known("Another failure does not shorten the wait for a silent node."),),
        Simulated((CUT_OFF, Fault(1.6, "task_kill", 0, 0.1), Fault(1.8, "task_kill", 1, 0.1))),
    ),
    Mutant(
        "a fence device that fails counts as one that confirms",
        3,
        (DEAD,),
        (known("A fence device that does not confirm changes nothing: D is waited for."),),
        Simulated((CUT_OFF,), "powered"),
    ),
    Mutant(
        "a fence device is not waited for",
        3,
        (DEAD,),
        (
            Edit(
                "supervisor/control/loop/power_off.py",
                "                await self._devices.switch_off(node, labels)\n",
                "                asyncio.ensure_future(self._devices.switch_off(node, labels))\n",
            ),
        ),
        Simulated((CUT_OFF,), "powered"),
    ),
    Mutant(
        "flip without the mark's revision",
        3,
        (COMPARED,),
        (known("The flip that replaces a lost node's tasks compares the revision of its mark."),),
        Simulated((CUT_OFF,)),
    ),
    Mutant(
        "a follower moves without the mark's revision",
        3,
        (COMPARED,),
        (known("A lost mark that is withdrawn in between makes the move stale."),),
        Simulated((Fault(0.5, "cut_node_off", 3, 9.0),)),
    ),
    Mutant(
        "a mark over whoever holds the key now",
        3,
        (COMPARED, "no life goes on past its lost mark"),
        (known("A lost mark compares that the node's key is still the incarnation that it names."),),
        Simulated((CUT_OFF,)),
    ),
    Mutant(
        "appeals not heard",
        3,
        ("an appeal is heard",),
        (
            Edit(
                "supervisor/control/decide/facts/standing.py",
                "    if appeal is None or mark.value.final or appeal.mod_revision < mark.create_revision:\n",
                "    if appeal is None or mark.value.final or appeal.mod_revision > mark.create_revision:\n",
            ),
        ),
        Simulated((Fault(0.5, "cut_node_supervisors", 0, 6.5),)),
    ),
    Mutant(
        "stale plan applied",
        6,
        (COMPARED,),
        (known("A flip compares the switch: a plan comes into force as it was closed, or not at all."),),
        Simulated(RESTARTS),
    ),
    Mutant(
        "flip to agents that may be gone",
        6,
        (COMPARED,),
        (known("A flip compares that the agents which will start its tasks are registered."),),
        Simulated(RESTARTS),
    ),
    Mutant(
        "flip without the commit list's revision",
        7,
        (COMPARED, BASE),
        (
            known(
                "A flip compares the list of commits: one that comes after the base was chosen makes "
                "it stale."
            ),
        ),
        Simulated(RESTARTS),
    ),
    Mutant(
        "base chosen without the commit list's revision",
        7,
        (BASE, COMPARED),
        (known("Closing compares the list of commits that the base was chosen from."),),
        Simulated(RESTARTS),
    ),
    Mutant(
        "a job rebuilt while its tasks of before may run",
        3,
        (*ADDRESSES, "one attempt of a task at a time"),
        (known("After a loss of etcd no job is rebuilt while what the lost one vouched for may still run."),),
        Simulated((Fault(2.45, "cut_node_off", 0, 9.0), Fault(2.5, "etcd_lost", 1, 0.2)), most=150),
    ),
    Mutant(
        "an old snapshot of etcd is gone on from",
        1,
        (
            "an attempt is started once",
            "what is committed stays restorable",
            BASE,
            "no late commit",
            "liveness",
        ),
        (
            known("Nothing is decided on an etcd of which an old snapshot was restored."),
            Edit(
                "supervisor/control/loop/etcd_identity.py",
                "earlier.cluster == record.uuid:",
                "earlier.cluster != record.uuid:",
            ),
        ),
        Simulated(ROLLED_BACK),
    ),
    Mutant(
        "generation numbers that come again",
        12,
        ("an attempt is started once",),
        (known("A generation whose number etcd has forgotten does not come again."),),
        Simulated(NUMBERS),
    ),
    Mutant(
        "ports of a task that may live given again",
        6,
        ADDRESSES,
        (
            Edit(
                "supervisor/control/decide/jobs/prepare.py",
                "        if held.value.plan_id in unconfirmed or held.value.exit is None\n",
                "        if held.value.plan_id in unconfirmed and held.value.exit is None\n",
            ),
            Edit(
                "supervisor/control/decide/jobs/prepare.py",
                "        if plan_id in unconfirmed\n",
                "        if plan_id == job.switch.value.plan_id\n",
            ),
        ),
        Simulated((Fault(0.5, "node_freeze", 0, 7.5), Fault(6.0, "operator_restart", 0, 0.1))),
    ),
    Mutant(
        "restarted in place though not confirmed dead",
        6,
        (NEXT,),
        (known("A task is restarted at its address only when its old attempt is confirmed dead."),),
        Simulated((*STUCK, Fault(0.8, "launcher_kill", 2, 0.1))),
    ),
    Mutant(
        "what a lost plan has left stays",
        6,
        ("nothing is left behind", "liveness"),
        (
            Edit(
                "supervisor/control/decide/jobs/generation.py",
                "for plan_id in sorted(over | orphaned)",
                "for plan_id in sorted(over & orphaned)",
            ),
        ),
        Simulated((*RESTARTS[:2], Fault(5.0, "operator_stop", 0, 0.1))),
    ),
    Mutant(
        "a saver that is in no plan",
        7,
        ("a member of the plan in force saves",),
        (known("The saver is a member of the plan in force, whatever size the job gets."),),
        Simulated(FEWER, "other saver"),
    ),
    Mutant(
        "success before the last commit",
        7,
        ("success comes after the last commit",),
        (
            Edit(
                "supervisor/control/decide/jobs/lifecycle.py",
                "        if not overdue and not _has_looked(job, wanted):\n",
                "        if False:\n",
            ),
            Edit(
                "supervisor/control/decide/jobs/lifecycle.py",
                "    left = _left(snap, job, alive)\n",
                '    left = ""\n',
            ),
        ),
        Simulated((Fault(1.8, "store_slow", 0, 60.0), Fault(2.0, "job_ends", 0, 0.1))),
    ),
    Mutant(
        "a success that does not name the save that it leaves behind",
        7,
        ("success comes after the last commit",),
        (
            Edit(
                "supervisor/control/decide/jobs/lifecycle.py",
                "    left = _left(snap, job, alive)\n",
                '    left = "its last save is not committed" if _left(snap, job, alive) else ""\n',
            ),
        ),
        Simulated(
            (
                Fault(1.8, "store_down", 0, 60.0),
                Fault(2.0, "job_ends", 0, 0.1),
                # It only keeps the store from being healed before.
                Fault(40.0, "etcd_leader", 0, 0.1),
            )
        ),
    ),
    Mutant(
        "saves beside the saver's that nobody looks for",
        7,
        ("success comes after the last commit",),
        (
            known(
                "A finished save that only the node of another task than the saver sees is named when the "
                "job ends."
            ),
        ),
        Simulated((Fault(2.0, "job_ends", 0, 0.1),), "other saver"),
    ),
    Mutant(
        "an evaluator's word taken for a step",
        8,
        (GIVEN_UP,),
        (
            known(
                "That an evaluator reads a checkpoint is no step: what no trainer can restore is set aside."
            ),
        ),
        Simulated((REFUSED,)),
    ),
    Mutant(
        "generations counted in the store alone",
        12,
        ("generations only grow", "an attempt is started once"),
        (
            Edit(
                "supervisor/control/decide/jobs/admission.py",
                "    floor = max(seen, switch.generation)\n",
                "    floor = seen\n",
            ),
        ),
        Simulated(
            (
                Fault(1.0, "operator_restart", 0, 0.1),
                Fault(2.2, "operator_stop", 0, 0.1),
                Fault(3.2, "operator_resume", 0, 0.1),
            )
        ),
    ),
    Mutant(
        "older base",
        8,
        (BASE,),
        (
            Edit(
                "recovery/formats/selection.py",
                "        return Chosen(usable[0])\n",
                "        return Chosen(usable[-1])\n",
            ),
        ),
        Simulated(RESTARTS),
    ),
    Mutant(
        "restored from off the lineage",
        8,
        (BASE, "what fell off the lineage stays for days"),
        (known("Only what lies on the lineage of the generation in force is restored."),),
        Simulated((Fault(4.0, "operator_from", 0, 0.1), Fault(7.0, "operator_restart", 0, 0.1))),
    ),
    Mutant(
        "unreadable taken for bad",
        8,
        ("only what is bad is quarantined",),
        (known("A base that cannot be read is waited for, never taken for bad."),),
        Simulated((Fault(0.1, "bad_store", 0, 9.0), *RESTARTS)),
    ),
    Mutant(
        "collected before it is marked",
        9,
        (STAYS,),
        (
            Edit(
                "supervisor/control/decide/checkpoints/collecting.py",
                "    return [*decisions, *(_mark(job, record) for record in going[:1])]\n",
                "    uri = job.record.value.store_uri\n"
                "    for held in (job.commits[record.ref] for record in going[:1]):\n"
                "        doomed = replace(held.value, state=CommitState.COLLECTING)\n"
                "        decisions.append(DeleteFiles(job.name, held.key, held.mod_revision, doomed, uri))\n"
                "    return decisions\n",
            ),
        ),
    ),
    Mutant(
        "marked for collection without the list's revision",
        9,
        (COMPARED,),
        (known("A checkpoint is turned into collecting by a transaction that compares the list."),),
    ),
    Mutant(
        "greedy collection",
        9,
        (NEWEST_TWO,),
        (
            Edit(
                "recovery/formats/retention.py",
                "    newest = healthy[: max(policy.keep, ALWAYS_KEPT)]\n"
                "    verified = [record for record in healthy if record.verified is "
                "Verify.READBACK][:ALWAYS_KEPT]\n",
                "    newest = healthy[:1]\n"
                "    verified = [record for record in healthy if record.verified is Verify.READBACK][:1]\n",
            ),
        ),
    ),
    Mutant(
        "the base is collected",
        9,
        (NEWEST_TWO,),
        (known("The base of a switch or of a plan is never collected."),),
        Simulated((Fault(2.0, "operator_restart", 0, 0.1),)),
    ),
    Mutant(
        "no grace for what fell off the lineage",
        9,
        ("what fell off the lineage stays for days",),
        (known("Checkpoints that fell off the lineage stay for a grace of days."),),
        Simulated((Fault(5.0, "operator_from", 0, 0.1),)),
    ),
    Mutant(
        "an outage of etcd taken for disobedience",
        10,
        ("who obeys is not given up",),
        (known("Nobody is judged by reports that etcd could not take."),),
        Simulated(
            (
                Fault(0.4, "operator_stop", 0, 0.1),
                Fault(0.6, "etcd_down", 0, 5.0),
                *(Fault(0.7, "cut_node_etcd", pick, 12.0) for pick in range(3)),
            )
        ),
    ),
    Mutant(
        "budget reset by a new leader",
        13,
        (CHARGED,),
        (known("Budget and streak survive a change of leader."),),
        Simulated((*KILLS, NEW_LEADER)),
    ),
    Mutant(
        "a flip is not charged",
        13,
        (CHARGED,),
        (known("A flip is charged to the budget, in the transaction that makes it."),),
        Simulated((Fault(1.0, "task_kill", 0, 0.1),)),
    ),
    Mutant(
        "machines burn the program's budget",
        13,
        (OWN_FAULTS,),
        (
            Edit(
                "recovery/policy/budget.py",
                "    if not cause.program_fault:\n",
                "    if cause.program_fault:\n",
            ),
        ),
        Simulated((Fault(0.5, "node_kill", 0, 3.0),)),
    ),
    Mutant(
        "the echo of a failure taken for its cause",
        13,
        (ECHO,),
        (
            Edit(
                "supervisor/control/decide/assess/failures.py",
                "if member.cause is not None and member.cause is not Cause.PEER_LOST]",
                "if member.cause is not None]",
            ),
        ),
        Simulated((Fault(0.5, "node_kill", 1, 3.0), Fault(6.0, "node_kill", 0, 3.0))),
    ),
    Mutant(
        "two failures of a task are one incident",
        13,
        (ONE_INCIDENT, CLOSED, CHARGED),
        (
            Edit(
                "supervisor/control/decide/assess/failures.py",
                'incident_id(job, f"g{report.generation}-{member.task.member}-a{report.number}")',
                'f"g{report.generation}-{member.task.member}"',
            ),
        ),
        Simulated(KILLS),
    ),
    Mutant(
        "steps told as lost that a checkpoint holds",
        13,
        ("an incident tells what was seen",),
        (
            Edit(
                "supervisor/control/decide/jobs/incidents.py",
                "    return reached - base\n",
                "    return reached\n",
            ),
        ),
        Simulated(RESTARTS),
    ),
    Mutant(
        "a restart without a record",
        13,
        (CHARGED,),
        (known("Each restart has a record of its cause, rule, scope and outcome."),),
        Simulated(KILLS),
    ),
    Mutant(
        "detector not reset",
        13,
        ("who steps does not hang", ONE_CHARGE, "a job ends for a reason"),
        (
            Edit(
                "supervisor/control/decide/snapshot.py",
                "        return picture.beat.tasks.get(str(attempt))\n",
                "        old = [name for name in sorted(picture.beat.tasks) if "
                "name.startswith(str(attempt.task))]\n"
                "        return picture.beat.tasks[old[0]] if old else None\n",
            ),
        ),
        Simulated(tuple(Fault(0.5 + 4 * n, "task_hang", n, 0.0) for n in range(3))),
    ),
    Mutant(
        "a healthy program failed for a hang",
        13,
        (SPARED,),
        (
            known(
                "No healthy program is failed for a hang: where the budget is used up, it is left running."
            ),
            Edit(
                "supervisor/control/decide/assess/hanging.py",
                "    return need if _is_users_wish(job) else None\n",
                "    return need\n",
            ),
        ),
        Simulated(RESTS),
    ),
    Mutant(
        "what works is restarted for a hang",
        13,
        ("who steps does not hang",),
        (known("A task that works without a sign of training is suspected, not restarted."),),
        Simulated((Fault(0.5, "task_spin", 0, 40.0), Fault(42.0, "etcd_leader", 0, 0.1))),
    ),
    Mutant(
        "what steps is restarted with what hangs",
        13,
        ("who steps does not hang",),
        (
            Edit(
                "recovery/policy/hangs.py",
                "    lates_ms = [(found, found.late_since(look.fresh_ms)) for found in look.idlers]\n",
                "    lates_ms = [(found, 0) for found in look.judged]\n",
            ),
        ),
        Simulated(tuple(Fault(0.5 + 4 * n, "task_hang", n, 0.0) for n in range(3))),
    ),
    Mutant(
        "the saver restarted in place",
        14,
        ("training goes on from the base",),
        (
            Edit(
                "recovery/policy/scope.py",
                "    saves = of_role is Scope.TASK and not outside and task == (saver or spec.saver)\n",
                "    saves = of_role is Scope.TASK and outside and task == (saver or spec.saver)\n",
            ),
        ),
        Simulated(tuple(Fault(5.0 + 3 * pick, "task_kill", pick, 0.1) for pick in range(3))),
    ),
    Mutant(
        "spares for ever",
        15,
        ("nothing is left behind",),
        (
            Edit(
                "supervisor/control/decide/jobs/spares.py",
                "if _over(job, held.value, snap.nodes.get(node))",
                "if job.name not in snap.jobs and _over(job, held.value, snap.nodes.get(node))",
            ),
        ),
        Simulated((Fault(5.0, "task_kill", 0, 0.1),)),
    ),
    Mutant(
        "a GPU given twice",
        5,
        ("a GPU is in one exclusive task",),
        (
            known(
                "A GPU is given to nobody while an attempt that has it is not confirmed dead, of "
                "whatever job."
            ),
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
        "CPUs and memory given twice in one look",
        5,
        ("no node is overcommitted",),
        (
            known(
                "Plans that take more than a node offers cannot both be made, also when an answer was lost."
            ),
            known("Jobs that are placed in one look do not get the same room."),
        ),
        Simulated((Fault(0.5, "node_kill", 0, 9.0), Fault(0.52, "node_kill", 1, 9.0)), story="booked"),
    ),
    Mutant(
        "a pause is not looked at",
        6,
        ("nothing starts during a pause",),
        (known("While a pause is in force, of the cluster or of a job, nothing is restarted or moved."),),
        Simulated(PAUSED),
    ),
    Mutant(
        "the brake never begins",
        6,
        ("nothing starts while too many nodes are lost",),
        (known("When more than half of the nodes are lost at once, nothing is restarted or moved."),),
        Simulated(SWITCH_DIED),
    ),
    Mutant(
        "another job than the one with the error is parked",
        13,
        ("an error parks that job alone",),
        (
            Edit(
                "supervisor/control/decide/parking.py",
                "            job = snap.jobs[subject.name]\n",
                "            job = next(iter(snap.jobs.values()))\n",
            ),
        ),
        Simulated(story="flawed"),
    ),
)
