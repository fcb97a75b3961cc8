"""The requests of operators about nodes and their GPUs: to keep tasks away, and to allow them again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from supervisor.contract.desired import GpuQuarantine
from supervisor.contract.errors import NotFound, Unreachable, UserError, nothing_named
from supervisor.contract.ids import check_name
from supervisor.contract.pool.record import pool_of
from supervisor.contract.views.nodes import CordonRequest, DismissRequest, NodeAnswer, UncordonRequest
from supervisor.control.decide.facts import promises
from supervisor.control.decide.facts.gpus import find_gpu, quarantines_of
from supervisor.control.decide.nodes import cordons, node_loss
from supervisor.control.decide.plan import Action, put, unchanged
from supervisor.control.decide.snapshot import NodeState, Snapshot, Versioned

MAX_REASON = 1000


class NodeService:
    """The requests of operators about nodes and GPUs.

    Args:
        leading: the present snapshot; raises Unreachable while this supervisor follows.
        run: one transaction under the leader token; raises Conflict when a compare fails.
    """

    def __init__(self, leading: Callable[[], Snapshot], run: Callable[[Action], Awaitable[None]]) -> None:
        self._leading = leading
        self._run = run

    async def cordon(self, request: CordonRequest, *, drain_follows: bool = False) -> NodeAnswer:
        """Give a node no new task; with `drain`, move away those that it has.

        `drain_follows`: the same request drains it soon, and has the event. If it does not, `tell_of_cordon`.

        An operator's cordon takes the place of one of the leader's, and stays until an operator lifts it.
        Raises NotFound, and UserError for a reason that is too long.
        """
        picture = self._node(request.node)
        if len(request.reason) > MAX_REASON:
            raise UserError(
                f"the reason has {len(request.reason)} characters; at most {MAX_REASON} are allowed"
            )
        wanted = cordons.for_operator(picture, request.reason, drain=request.drain)
        if cordons.has(picture, wanted):
            word = "drained" if wanted.drain else "cordoned"
            return NodeAnswer(picture.node, f"it is {word} already: {wanted.reason}")
        await self._run(cordons.impose(picture, wanted, drain_follows=drain_follows))
        tasks = "its tasks move away when there is room elsewhere" if wanted.drain else "its tasks stay"
        return NodeAnswer(picture.node, f"it gets no new task; {tasks}")

    async def tell_of_cordon(self, node: str) -> None:
        """Tell of a node's cordon that no drain has followed; nothing if it is drained or has none."""
        picture = self._node(node)
        if picture.cordon is not None and not picture.cordon.value.drain:
            await self._run(cordons.impose(picture, picture.cordon.value))

    async def uncordon(self, request: UncordonRequest) -> NodeAnswer:
        """Let tasks go to a node again, or to one of its GPUs. Raises NotFound."""
        picture = self._node(request.node)
        if request.gpu:
            return await self._release(picture, request.gpu)
        held, node = picture.cordon, picture.node
        snap = self._leading()
        left = quarantines_of(snap, node)
        rest = "".join(f"; its GPU {each.index} stays quarantined: {each.reason}" for each in left)
        if held is None:
            return NodeAnswer(node, f"it is not cordoned{rest}")
        text = f"node {node} takes tasks again: {cordons.BY_AN_OPERATOR}"
        await self._run(cordons.lift(snap, held, text))
        return NodeAnswer(node, f"it takes tasks again{rest}")

    async def dismiss(self, request: DismissRequest) -> NodeAnswer:
        """End a life of a pool's node, which its engine does not reach, and with it all tasks there.

        The transaction that marks it compares the node's key. Raises NotFound, UserError for a node that is
        no pool's, Conflict if the key changes at that moment, and Unreachable while a promise protects it.
        """
        picture = self._node(request.node)
        held = picture.incarnation
        if held is None or held.value.fenced:
            return NodeAnswer(picture.node, "no agent runs there")
        if held.value.incarnation != request.incarnation:
            return NodeAnswer(picture.node, "another agent has this name by now")
        if not (pool := pool_of(picture.node)) or held.value.resources.labels.get("pool") != pool:
            raise UserError(
                f"node {picture.node} is of no pool: stop its agent where it was started, as by systemctl"
            )
        if left_ms := promises.held_ms(self._leading(), picture.node):
            raise Unreachable(
                f"node {picture.node} is left alone for {left_ms} ms more, as promised while etcd was gone"
            )
        mark = picture.marks.get(held.value.incarnation)
        if mark is None or not mark.value.dismissed:
            await self._run(node_loss.dismiss(picture, held, f"the engine of pool {pool} has lost it"))
        return NodeAnswer(picture.node, "its agent is told to end")

    async def _release(self, picture: NodeState, name: str) -> NodeAnswer:
        held = self._quarantine(picture.node, name)
        value, node = held.value, picture.node
        gpu = find_gpu(picture, value.uuid)
        lifted = replace(value, lifted=True, fault=gpu.fault if gpu is not None else value.fault)
        text = f"GPU {value.index} of {node} may be used again: {cordons.BY_AN_OPERATOR}"
        fields = {"node": node, "gpu": value.uuid, "index": str(value.index), "reason": value.reason}
        await self._run(
            Action("gpu_released", "", text, (unchanged(held),), (put(held.key, lifted),), fields)
        )
        return NodeAnswer(
            node, f"its GPU {value.index} ({value.uuid}) may be used again, until its next fault"
        )

    def _node(self, name: str) -> NodeState:
        nodes = self._leading().nodes
        picture = nodes.get(check_name("node", name))
        if picture is None:
            raise nothing_named("node", name, nodes)
        return picture

    def _quarantine(self, node: str, name: str) -> Versioned[GpuQuarantine]:
        snap = self._leading()
        for each in quarantines_of(snap, node):
            if name in (each.uuid, str(each.index)):
                return snap.quarantines[(node, each.uuid)]
        known = ", ".join(f"{each.index} ({each.uuid})" for each in quarantines_of(snap, node)) or "none"
        raise NotFound(f"no GPU {name!r} of {node} is quarantined; quarantined there: {known}")
