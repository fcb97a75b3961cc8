"""Guarantees of the leader and the agents about GPUs, CPUs and memory: rules 5, 6 and 10."""

from __future__ import annotations

from tests.guarantees.guarantee import Guarantee

GPUS = "tests/control/test_gpus.py::"
CLAIMS = "tests/control/test_claims.py::"
OFFERS = "tests/control/test_offers.py::"
OWN = "tests/agent/test_own_gpus.py::"
HEALTH = "tests/nvml/test_health.py::"

ROWS = (
    Guarantee(
        5,
        "An attempt starts when nobody on its node who has one of its GPUs may be alive.",
        "agent/core/tasks.py",
        "    if not _gpus_free(work, assignment):\n",
        "    if not work.state.attempts:\n",
        OWN + "test_who_has_its_gpu_is_confirmed_dead_first",
    ),
    Guarantee(
        5,
        "A GPU is given to nobody while an attempt that has it is not confirmed dead, of whatever job.",
        "supervisor/control/decide/facts/claims.py",
        "*_of_attempts(snap, job), ",
        "",
        GPUS + "test_what_a_job_had_before_it_ended_is_free_unless_somebody_may_be_alive",
    ),
    Guarantee(
        5,
        "Two plans that name the same GPU cannot both be made, also when an answer of etcd was lost.",
        "supervisor/control/decide/facts/claims.py",
        "return (compare,), (put(keys.CLAIMS",
        "return (compare,)[1:], (put(keys.CLAIMS",
        GPUS + "test_two_plans_that_give_the_same_gpu_cannot_both_be_made",
    ),
    Guarantee(
        5,
        "Plans that take more than a node offers cannot both be made, also when an answer was lost.",
        "supervisor/control/decide/facts/claims.py",
        "    return (compare,), (put(keys.CLAIMS, Claims(plan.plan_id)),)\n",
        "    return (), (put(keys.CLAIMS, Claims(plan.plan_id)),)\n",
        CLAIMS + "test_a_plan_that_takes_effect_late_is_not_made_beside_another",
    ),
    Guarantee(
        5,
        "Jobs that are placed in one look do not get the same room.",
        "supervisor/control/decide/reconcile.py",
        "            snap = claims.with_plan(snap, plan)\n",
        "            _ = plan\n",
        CLAIMS + "test_two_jobs_that_wait_for_the_same_room_are_not_both_given_it",
    ),
    Guarantee(
        5,
        "What a plan of this look takes is offered to no job that is placed after it.",
        "supervisor/control/decide/nodes/offers.py",
        "    return found.changed(_offers(snap, Asking(), about & found.by_node.keys()))\n",
        "    return found\n",
        OFFERS + "test_what_a_look_has_planned_is_offered_to_no_job_that_follows",
    ),
    Guarantee(
        5,
        "A task on a GPU that agents of two nodes report takes room on both, and on no third node.",
        "supervisor/control/decide/nodes/offers.py",
        "        return offer.node\n",
        "        pass\n",
        OFFERS + "test_a_gpu_that_two_nodes_report_takes_room_on_both_and_on_no_third",
    ),
    Guarantee(
        5,
        "What an attempt asked for is given to nobody until it is confirmed dead, though its job has ended.",
        "supervisor/control/decide/facts/claims.py",
        "    if report.confirmed_dead:\n",
        "    if report.exit is not None:\n",
        CLAIMS + "test_an_attempt_that_may_be_alive_holds_what_it_asked_for_though_its_job_has_ended",
    ),
    Guarantee(
        6,
        "A follower moves to where its job's other tasks leave room, and takes nobody's place.",
        "supervisor/control/decide/facts/claims.py",
        '        return claim.job == self.job and self.member in ("", claim.member)\n',
        "        return claim.job == self.job\n",
        CLAIMS + "test_a_follower_moves_to_where_those_of_its_job_leave_room",
    ),
    Guarantee(
        10,
        "A GPU that NVML does not tell of gets no new task, and keeps those that it has.",
        "supervisor/control/decide/facts/gpus.py",
        "    if gpu.health is GpuHealth.UNKNOWN:\n",
        "    if not gpu.uuid:\n",
        GPUS + "test_what_is_unknown_gets_no_new_task_and_keeps_those_that_it_has",
    ),
    Guarantee(
        10,
        "NVML that does not answer makes GPUs unknown, not gone, and what is known to be faulty stays so.",
        "agent/core/gpus/health.py",
        "        known = {uuid: replace(each, unknown=sight.problem) for uuid, each in known.items()}\n",
        "        known = {}\n",
        HEALTH + "test_unknown_is_not_gone",
    ),
    Guarantee(
        13,
        "A fault of a GPU has a number of its own, also for the agent's successor.",
        "agent/core/gpus/health.py",
        "    gpu = replace(gpu, fault=record.fault, action=record.action, reason=record.reason)\n",
        "    gpu = replace(gpu, action=record.action, reason=record.reason)\n",
        HEALTH + "test_serials_outlive_the_agent_and_xids_do_not_stand_any_more",
    ),
    Guarantee(
        4,
        "A look at its GPUs that the driver kills tells nothing, and ends no attempt.",
        "agent/inside/launcher/devices.py",
        "        if missing:\n            self._lost(missing, now)\n",
        "        self._lost(missing, now)\n",
        "tests/nvml/test_inside.py::test_a_look_that_crashes_ends_nothing",
    ),
)
