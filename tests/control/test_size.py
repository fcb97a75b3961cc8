"""Limits of etcd on one request and on one record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.contract.boundaries import Put
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import UserError
from supervisor.contract.job.spec import Resources, RestartPolicy, RoleSpec
from supervisor.contract.observed import Exit, ExitReason
from supervisor.contract.views.jobs import SubmitRequest
from supervisor.control.decide.plan import BYTES_PER_TRANSACTION, OPS_PER_TRANSACTION, Action, fitting
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.loop.apply import Applied, Applier
from tests.control.leader import Leader, other_job
from tests.control.world import World
from tests.support.builders import job_spec
from tests.support.sinks import ListSink

BIG = "x" * 40_000


def size(action: Action) -> int:
    return sum(len(op.key) + len(op.value) for op in action.ops if isinstance(op, Put))


def test_a_transaction_is_cut_by_count_and_by_bytes() -> None:
    small = [Put(f"k{index}", b"x") for index in range(300)]
    large = [Put(f"k{index}", b"x" * 60_000) for index in range(300)]
    assert len(fitting(small)) == OPS_PER_TRANSACTION
    assert len(fitting(small, small[:30])) == OPS_PER_TRANSACTION - 30
    assert sum(len(op.value) for op in fitting(large) if isinstance(op, Put)) <= BYTES_PER_TRANSACTION
    assert len(fitting(large)) == BYTES_PER_TRANSACTION // 60_100


def test_a_generation_of_large_assignments_takes_several_transactions_and_comes_into_force() -> None:
    roles = tuple(
        RoleSpec(name, count, ("python", "t.py", BIG)) for name, count in (("chief", 1), ("worker", 40))
    )
    world = World(replace(job_spec(), roles=roles))
    sizes = []
    while world.switch().generation == 0:
        world.tick(leader=False)
        actions = [each for each in reconcile(world.snapshot()) if isinstance(each, Action)]
        sizes += [size(each) for each in actions]
        world.decide()
    assert len([each for each in sizes if each > 500_000]) > 1
    assert max(sizes) <= BYTES_PER_TRANSACTION


@pytest.mark.parametrize(
    ("roles", "why"),
    [
        ((RoleSpec("worker", 1, ("python", "t.py", "x" * 70_000)),), "too large: role worker takes"),
        (tuple(RoleSpec(f"w{n}", 1, ("python", "x" * 50_000)) for n in range(4)), "more than 120 KiB"),
        (
            (RoleSpec("worker", 1_000, ("python", "t.py"), resources=Resources(gpus=8)),),
            "too large: its plan takes",
        ),
    ],
)
async def test_a_job_that_etcd_could_not_hold_is_refused_at_submit(
    roles: tuple[RoleSpec, ...], why: str
) -> None:
    service = Leader().job_service.submissions
    request = SubmitRequest(replace(other_job(), roles=roles))
    for ask in (service.validate, service.submit):
        with pytest.raises(UserError, match=why):
            await ask(request)


async def test_an_ordinary_job_is_not_too_large() -> None:
    await Leader().job_service.submissions.validate(
        SubmitRequest(job_spec({"chief": 1, "ps": 10, "worker": 200}, name="other"))
    )


CYRILLIC = "\N{CYRILLIC SMALL LETTER ZHE}"


@pytest.mark.parametrize("most", [0, 5])
def test_whatever_alphabet_a_program_writes_in_its_failure_is_recorded(most: int) -> None:
    """A letter of two bytes takes six in a record. A leader that could not write would be none."""
    world = World(replace(job_spec(), restart=RestartPolicy(max_restarts=most))).start()
    said = Exit(
        ExitReason.EXIT,
        1,
        None,
        0,
        confirmed_dead=True,
        detail=CYRILLIC * 2000,
        tail=CYRILLIC * 2048,
        stack=CYRILLIC * 3072,
    )
    world._exited(world.running()["ps.0"], said)
    world.until(lambda: world.switch().generation == 2 or world.switch().phase is JobPhase.FAILED)
    assert said.tail in {incident.tail for incident in world.incidents().values()}


async def test_an_event_is_cut_to_what_its_record_takes() -> None:
    world = World()
    applier = Applier(
        world.token,
        MemoryCoordination(world.store),
        lambda _uri: MemoryCheckpointStore(),
        BootClock(),
        ListSink(),
        first_event=1,
    )
    fields = {f"field{number}": CYRILLIC * 9000 for number in range(8)}
    assert await applier.run(Action("told", "digits", CYRILLIC * 9000, (), (), fields)) is Applied.DONE
    (event,) = world.snapshot().events
    assert event.value.text.endswith("...")
