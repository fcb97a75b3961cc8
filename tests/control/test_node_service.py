"""Requests of operators about nodes and GPUs, and what `nodes` shows of them."""

from __future__ import annotations

import pytest

from supervisor.api.nodes import node_list
from supervisor.contract import keys
from supervisor.contract.desired import Cordon, GpuQuarantine
from supervisor.contract.errors import NotFound, UserError
from supervisor.contract.observed import GpuAction
from supervisor.contract.views.nodes import CordonRequest, NodeView, UncordonRequest
from supervisor.control.decide.plan import put
from tests.control.leader import Leader
from tests.support.builders import gpu

BAD = GpuQuarantine("n1", "GPU-n1-1", 1, "XID 48", GpuAction.RESET_GPU, fault=3, boot_id="boot")


def shown(leader: Leader, node: str) -> NodeView:
    (view,) = [each for each in node_list(leader.world.snapshot()).nodes if each.node == node]
    return view


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
    with pytest.raises(NotFound, match="known nodes: n0, n1, n2"):
        await service.cordon(CordonRequest("n7"))
    with pytest.raises(UserError, match="is not a valid name"):
        await service.uncordon(UncordonRequest("n/7"))
    with pytest.raises(UserError, match="at most 1000 are allowed"):
        await service.cordon(CordonRequest("n1", "x" * 1001))
