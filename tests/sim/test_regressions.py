"""Histories that once broke a promise, cut down to the faults that did it."""

import pytest

from chaos.sim.gpus import run_gpus
from chaos.sim.outage import run_outage
from chaos.sim.run import run_seed
from chaos.sim.trouble.schedule import Fault

SCRIPTS = {
    "key revoked under a living agent": (Fault(0.5, "lease_expires", 2, 0.1),),
    "base that cannot be read at first": (
        Fault(0.1, "bad_store", 0, 9.0),
        *(Fault(0.5 + second, "operator_restart", 0, 0.1) for second in range(5)),
    ),
    "agent frozen while it starts launchers": (
        Fault(0.02, "agent_freeze", 0, 6.0),
        Fault(0.03, "agent_freeze", 1, 6.0),
        Fault(0.04, "agent_freeze", 2, 6.0),
    ),
    "node that boots while its mark stands": (Fault(0.5, "node_kill", 0, 3.0),),
    "state files that go back in time while tasks are restarted in place": tuple(
        fault
        for n in range(6)
        for fault in (
            Fault(0.5 + 1.7 * n, "task_kill" if n % 2 else "launcher_kill", 7 * n, 0.1),
            Fault(1.5 + 1.7 * n, "disk_old", n % 3 + 3 * (n % 5), 0.1),
        )
    ),
    "training ends while the store is slow": (
        Fault(1.8, "store_slow", 0, 60.0),
        Fault(2.0, "job_ends", 0, 0.1),
        Fault(3.0, "supervisor_kill", 1, 1.0),
    ),
    "another machine with a node's id takes its place while it is cut off": (
        Fault(0.3, "agent_twin", 60, 12.0),
        Fault(0.5, "cut_node_off", 60, 6.0),
        Fault(0.6, "lease_expires", 60, 0.1),
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("seed", [1, 3, 4])
def test_it_stays_mended(name: str, seed: int) -> None:
    result = run_seed(seed, SCRIPTS[name])
    assert result.ok, (*result.violations, result.error)


@pytest.mark.parametrize("seed", [1, 3, 4, 8, 12])
def test_a_wish_for_one_task_does_not_hold_up_the_recovery_of_its_lost_node(seed: int) -> None:
    script = (Fault(0.5, "node_kill", 2, 30.0), Fault(2.0, "operator_restart_task", 0, 0.1))
    result = run_seed(seed, script)
    assert result.ok, (*result.violations, result.error)
    during = result.trace[: result.trace.index(next(x for x in result.trace if "everything is healed" in x))]
    # A worker of it may move alone.
    assert any("generation 2 is in force" in line or "moves alone from" in line for line in during)


@pytest.mark.parametrize("kind", ["node_kill", "node_freeze", "cut_node_off"])
@pytest.mark.parametrize("seed", [3, 9, 27])
def test_an_evaluator_moves_alone_whatever_took_its_node(seed: int, kind: str) -> None:
    script = (Fault(0.5, kind, 3, 14.0), Fault(5.0, "supervisor_kill", 0, 1.0))
    result = run_seed(seed, script if seed == 27 else script[:1])
    assert result.ok, (*result.violations, result.error)
    assert any("moves alone from n4" in line for line in result.trace)
    assert result.facts["flips"] == 1, "nobody else was restarted"


@pytest.mark.parametrize("seed", [1, 4, 9])
def test_a_task_that_hangs_is_ended_and_training_goes_on(seed: int) -> None:
    script = (Fault(0.5, "task_hang", 1, 0.0), Fault(4.5, "supervisor_kill", 1, 1.0))
    result = run_seed(seed, script)
    assert result.ok, (*result.violations, result.error)
    assert any("cause=hang" in line for line in result.trace)


@pytest.mark.parametrize("seed", [1, 4, 10])
@pytest.mark.parametrize(
    "after",
    [
        (),
        (Fault(4.2, "operator_start", 0, 0.1),),
        (
            Fault(4.2, "agent_kill", 0, 0.1),
            Fault(4.3, "agent_kill", 1, 0.1),
            Fault(4.4, "agent_kill", 2, 0.1),
        ),
        (Fault(4.2, "cut_node_off", 0, 9.0), Fault(4.2, "cut_node_off", 1, 9.0)),
        (Fault(4.2, "operator_resume", 0, 0.1), Fault(4.4, "operator_stop", 0, 0.1)),
        (Fault(4.2, "supervisor_kill", 1, 1.0), Fault(5.0, "operator_start", 0, 0.1)),
    ],
)
def test_what_is_kept_of_a_failed_job_does_no_harm_and_ends(seed: int, after: tuple[Fault, ...]) -> None:
    result = run_seed(seed, (Fault(0.5, "task_hang_for_good", 1, 0.0), *after))
    assert result.ok, (*result.violations, result.error)
    assert any("kept, stopped, for 12 s" in line for line in result.trace)


def test_the_port_of_a_lost_node_of_this_machine_is_not_given_while_somebody_may_connect_to_it() -> None:
    script = (
        Fault(0.5, "node_kill", 3, 1.0),
        Fault(9.5, "outage_down", 0, 6.0),
        Fault(14.5, "cut_node_off", 0, 30.0),
        Fault(33.0, "etcd_leader", 0, 0.1),
    )
    result = run_outage(4, script)
    assert result.ok, (*result.violations, result.error)


def test_the_port_of_a_task_that_never_came_to_start_is_known_too() -> None:
    script = tuple(
        fault
        for pick in range(4)
        for fault in (
            Fault(0.5 + 2.5 * pick, "task_stuck", pick, 6.0),
            Fault(1.2 + 2.5 * pick, "operator_restart", pick, 0.1),
        )
    )
    result = run_gpus(2, script)
    assert result.ok, (*result.violations, result.error)


@pytest.mark.parametrize("fault", ["supervisor_kill", "cut_node_off"])
def test_workers_join_and_leave_whatever_happens_meanwhile(fault: str) -> None:
    script = (
        Fault(1.0, "operator_reshape", 2, 0.1),
        Fault(1.05, "supervisor_kill", 0, 1.0),
        Fault(5.0, "operator_reshape", 0, 0.1),
        Fault(5.05, fault, 2, 6.0),
    )
    result = run_seed(1, script)
    assert result.ok, (*result.violations, result.error)
    assert {result.facts[each] for each in ("workers joined", "workers left")} == {2}
    assert result.facts["flips"] == 1, "nobody else was restarted"
