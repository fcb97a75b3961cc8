"""Requests of operators about nodes and GPUs, and what `nodes` shows of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.api.nodes import node_list
from supervisor.contract import keys
from supervisor.contract.desired import Cordon, GpuQuarantine
from supervisor.contract.errors import Conflict, NotFound, UserError
from supervisor.contract.observed import GpuAction, Incarnation, NodeResources
from supervisor.contract.views.nodes import CordonRequest, DismissRequest, NodeView, UncordonRequest
from supervisor.control.decide.facts.hold import losses
from supervisor.control.decide.plan import put
from supervisor.control.services.nodes import NodeService
from tests.control.leader import Leader
from tests.support.builders import gpu

POOLS = NodeResources(4, 1 << 33, labels={"pool": "p"}, secrets=True)
LOST = DismissRequest("p.n1", "life of p.n1")
BAD = GpuQuarantine("n1", "GPU-n1-1", 1, "XID 48", GpuAction.RESET_GPU, fault=3, boot_id="boot")


def shown(leader: Leader, node: str) -> NodeView:
    (view,) = [each for each in node_list(leader.world.snapshot()).nodes if each.node == node]
    return view


def life_of(leader: Leader, node: str) -> Incarnation:
    held = leader.world.snapshot().nodes[node].incarnation
    assert held is not None
    return held.value


def cordon_of(leader: Leader, node: str) -> Cordon | None:
    held = leader.world.snapshot().nodes[node].cordon
    return held.value if held is not None else None


async def test_a_node_is_cordoned_and_let_go_with_its_reason() -> None:
    leader = Leader()
    leader.world.start()
    answer = await leader.job_service.nodes.cordon(CordonRequest("n1", "new fans"))
    assert answer.detail == "it gets no new task; its tasks stay"
    view = shown(leader, "n1")
    assert (view.state, view.reason) == ("cordoned", "new fans")
    assert view.tasks
    assert "already: new fans" in (await leader.job_service.nodes.cordon(CordonRequest("n1"))).detail
    assert "takes tasks again" in (await leader.job_service.nodes.uncordon(UncordonRequest("n1"))).detail
    assert shown(leader, "n1").state == "ready"
    assert "not cordoned" in (await leader.job_service.nodes.uncordon(UncordonRequest("n1"))).detail


async def test_the_agent_of_a_pools_node_is_dismissed_once_and_its_tasks_go_elsewhere() -> None:
    leader = Leader()
    world, nodes = leader.world.start(), leader.job_service.nodes
    for each in ("p.n1", "q.n1"):
        world.register(each, f"life of {each}")
        world.write(put(keys.node(each), replace(life_of(leader, each), resources=POOLS)))
    with pytest.raises(UserError, match="node n1 is of no pool: stop its agent where it was started"):
        await nodes.dismiss(DismissRequest("n1", life_of(leader, "n1").incarnation))
    with pytest.raises(UserError, match=r"node q\.n1 is of no pool"):
        await nodes.dismiss(DismissRequest("q.n1", "life of q.n1"))
    for _ in range(2):
        assert (await nodes.dismiss(LOST)).detail == "its agent is told to end"
    (mark,) = world.snapshot().nodes["p.n1"].marks.values()
    assert (mark.value.final, mark.value.dismissed) == (True, True)
    assert mark.mod_revision == mark.create_revision
    assert shown(leader, "p.n1").state == "lost"
    # Its keeper has ended all that it ran.
    world.write(put(keys.node("p.n1"), replace(life_of(leader, "p.n1"), fenced=True)))
    assert shown(leader, "p.n1").pid == 0
    assert (await nodes.dismiss(LOST)).detail == "no agent runs there"


async def test_an_agent_that_has_the_name_of_a_dismissed_one_by_now_is_left_alone() -> None:
    leader = Leader()
    world, nodes = leader.world.start(), leader.job_service.nodes
    world.register("p.n1", "life of p.n1")
    world.write(put(keys.node("p.n1"), replace(life_of(leader, "p.n1"), resources=POOLS)))
    old = life_of(leader, "p.n1")
    before = world.snapshot()

    # It comes before the supervisor that leads has seen it, and after that.
    world.write(put(keys.node("p.n1"), replace(old, incarnation="another life")))
    late = NodeService(lambda: before, leader.job_service.tell)
    with pytest.raises(Conflict, match=r"node p\.n1 changed at the same moment"):
        await late.dismiss(LOST)
    assert (await nodes.dismiss(LOST)).detail == "another agent has this name by now"
    assert world.snapshot().nodes["p.n1"].marks == {}


async def test_the_agent_that_was_dismissed_is_not_what_the_brake_counts() -> None:
    leader = Leader()
    world, pool = leader.world.start(), [f"p.n{each}" for each in range(8)]
    for each in pool:
        world.register(each, f"life of {each}")
        world.write(put(keys.node(each), replace(life_of(leader, each), resources=POOLS)))
        await leader.job_service.nodes.dismiss(DismissRequest(each, f"life of {each}"))
    assert losses(world.snapshot()).nodes == ()


async def test_a_drained_node_is_empty_when_nothing_of_it_may_be_alive() -> None:
    leader = Leader()
    world = leader.world.start()
    await leader.job_service.nodes.cordon(CordonRequest("n1", drain=True))
    assert shown(leader, "n1").state == "draining"
    world.agents["n1"].obedient = False
    world.until(lambda: world.switch().generation == 2)
    assert shown(leader, "n1").tasks, "its old attempts are not confirmed dead"
    world.agents["n1"].obedient = True
    world.until(lambda: shown(leader, "n1").state == "drained")
    assert not shown(leader, "n1").tasks


async def test_an_operators_cordon_stays_where_the_leaders_would_end() -> None:
    leader = Leader()
    leader.world.write(put(keys.cordon("n1"), Cordon("n1", "OOM three times", cooldown_ms=5_000)))
    await leader.job_service.nodes.cordon(CordonRequest("n1"))
    assert cordon_of(leader, "n1") == Cordon("n1", "OOM three times")


async def test_a_cordon_does_not_end_a_drain() -> None:
    leader = Leader()
    await leader.job_service.nodes.cordon(CordonRequest("n1", "fans", drain=True))
    await leader.job_service.nodes.cordon(CordonRequest("n1", "fans and dust"))
    assert cordon_of(leader, "n1") == Cordon("n1", "fans and dust", drain=True)


async def test_a_quarantined_gpu_is_let_go_by_its_index_or_its_uuid() -> None:
    for name in ("1", "GPU-n1-1"):
        leader = Leader()
        leader.world.write(put(keys.quarantine("n1", BAD.uuid), BAD))
        leader.world.see_gpus("n1", gpu("n1", 0), gpu("n1", 1))
        assert shown(leader, "n1").quarantined == ("GPU 1: XID 48",)
        assert (
            "its GPU 1 stays quarantined"
            in (await leader.job_service.nodes.uncordon(UncordonRequest("n1"))).detail
        )
        await leader.job_service.nodes.uncordon(UncordonRequest("n1", name))
        assert shown(leader, "n1").quarantined == ()
        with pytest.raises(NotFound, match="quarantined there: none"):
            await leader.job_service.nodes.uncordon(UncordonRequest("n1", name))


async def test_what_is_not_there_is_named_with_what_is() -> None:
    service = Leader().job_service.nodes
    with pytest.raises(NotFound, match="no node 'n7'; nodes here: n0, n1, n2"):
        await service.cordon(CordonRequest("n7"))
    with pytest.raises(UserError, match="is not a valid name"):
        await service.uncordon(UncordonRequest("n/7"))
    with pytest.raises(UserError, match="at most 1000 are allowed"):
        await service.cordon(CordonRequest("n1", "x" * 1001))
