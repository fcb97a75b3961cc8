"""Guarantees where launchers are containers: rules 4, 6, 10 and 12."""

from __future__ import annotations

from tests.guarantees.guarantee import Guarantee

CONTRACT = "tests/runtimes/test_contract.py::"
CORE = "tests/agent/test_contained.py::"
NODE = "tests/runtimes/test_docker_node.py::"

ROWS = (
    Guarantee(
        4,
        "What ran in a container is killed by this machine's pids, without dockerd, and counted until gone.",
        "agent/runtimes/docker.py",
        "        survivors = await self._kill_all(launcher_id, tuple(roots))\n",
        "        survivors = 0\n",
        CONTRACT + "test_fencing_leaves_nothing_of_what_escaped",
    ),
    Guarantee(
        4,
        "A task in a container cannot speak for another launcher.",
        "agent/launchers.py",
        "            if who is None or not await self._vouch(hello.launcher_id, who):\n",
        "            if who is None:\n",
        NODE + "test_what_a_task_sees_is_what_it_needs",
    ),
    Guarantee(
        10,
        "A dockerd that does not answer fails no task: it is asked again, with a pause.",
        "agent/core/launcher_events.py",
        "            code.not_now(work, hold.plan_id, event.reason)\n",
        "            pass\n",
        CORE + "test_a_dockerd_that_does_not_answer_is_asked_again_with_a_pause_and_is_no_failure",
    ),
    Guarantee(
        6,
        "No attempt starts at another address than the tasks of its generation were told.",
        "agent/core/tasks.py",
        "    if not assignment.moves and _told_elsewhere(",
        "    if False and _told_elsewhere(",
        CORE + "test_an_address_that_is_gone_with_its_container_is_never_another_attempts",
    ),
    Guarantee(
        6,
        "A task whose address is gone with its container means a new generation.",
        "supervisor/control/decide/assess/escalation.py",
        "    Escalation(_address_is_gone, follower=None, worker=Scope.TASK),\n",
        "",
        "tests/control/test_addresses.py::test_a_worker_whose_address_is_gone_restarts_all",
    ),
    Guarantee(
        12,
        "A successor uses no container whose address no life of its agent had learned.",
        "agent/core/saved/adopt.py",
        "        lacks = launcher.recipe.networked and launcher.reach is None\n",
        "        lacks = False\n",
        CORE + "test_a_successor_keeps_addresses_that_it_knows_and_no_other_containers",
    ),
    Guarantee(
        12,
        "A launcher is used again only for a task that would get the same container.",
        "agent/core/desired.py",
        "    limits = Resources(record.resources.cpus, record.resources.memory_bytes)\n",
        "    limits = Resources()\n",
        CORE + "test_a_launcher_is_for_those_alone_who_would_get_the_same_container",
    ),
)
