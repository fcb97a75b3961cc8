"""The part of the service `Control` that is about nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from supervisor.api.gpus import gpu_list
from supervisor.api.saves import save_first
from supervisor.contract.desired import LostMark
from supervisor.contract.errors import Conflict, TfSupervisorError
from supervisor.contract.ids import TaskId
from supervisor.contract.views.jobs import JobRequest
from supervisor.contract.views.nodes import (
    CordonRequest,
    DismissRequest,
    GpuList,
    GpusRequest,
    NodeAnswer,
    NodeList,
    NodeView,
    UncordonRequest,
)
from supervisor.control.decide.facts import promises
from supervisor.control.decide.facts.claims import all_claims, may_live
from supervisor.control.decide.facts.gpus import quarantines_of, reported
from supervisor.control.decide.facts.standing import lost_from_ms
from supervisor.control.decide.snapshot import NodeState, Snapshot, Versioned
from supervisor.control.services.nodes import NodeService
from supervisor.wire import rpc
from supervisor.wire.rpc import Guard


class NodeMethods:
    """Serves `supervisorctl nodes` and its changes.

    `leading` raises NotLeading if another supervisor leads. `guard`: for calls of agents.
    """

    def __init__(self, service: NodeService, leading: Callable[[], Snapshot], guard: Guard) -> None:
        self._service = service
        self._leading = leading
        self._guard = guard

    def methods(self) -> dict[str, rpc.Method]:
        """Method name -> handler."""
        return {
            "Nodes": rpc.unary(JobRequest, self.nodes),
            "Gpus": rpc.unary(GpusRequest, self.gpus),
            "Cordon": rpc.unary(CordonRequest, self.cordon),
            "Uncordon": rpc.unary(UncordonRequest, self.uncordon),
            "Dismiss": rpc.unary(DismissRequest, self.dismiss),
        }

    async def nodes(self, request: JobRequest) -> NodeList:
        """All nodes."""
        del request
        return node_list(self._leading())

    async def gpus(self, request: GpusRequest) -> GpuList:
        """All GPUs, or those of a node."""
        return gpu_list(self._leading(), request.node)

    async def cordon(self, request: CordonRequest) -> NodeAnswer:
        """Cordon a node, or drain it. The jobs that move save first.

        The node gets no new task while they do, also if the caller is gone before they have. Raises Conflict
        if its cordon is lifted meanwhile, or was since the caller asked first.
        """
        snap = self._leading()
        since, asked = request.since or snap.revision, replace(request, since=0)
        _check_not_lifted(snap, request.node, since)
        if not request.drain or not tasks_by_node(snap).get(request.node):
            return await self._service.cordon(asked)
        await self._service.cordon(replace(asked, drain=False), drain_follows=True)
        try:
            snap = self._leading()
            tasks = tasks_by_node(snap).get(request.node, ())
            saved = await save_first(self._guard, snap, (TaskId.parse(each).job for each in tasks))
            _check_not_lifted(self._leading(), request.node, since)
            answer = await self._service.cordon(asked)
        except BaseException:
            with suppress(TfSupervisorError):
                await self._service.tell_of_cordon(request.node)
            raise
        return replace(answer, detail=f"{answer.detail}{saved}")

    async def uncordon(self, request: UncordonRequest) -> NodeAnswer:
        """Allow tasks on a node again."""
        self._leading()
        return await self._service.uncordon(request)

    async def dismiss(self, request: DismissRequest) -> NodeAnswer:
        """End the agent of a pool's node."""
        self._leading()
        return await self._service.dismiss(request)


def _check_not_lifted(snap: Snapshot, node: str, since: int) -> None:
    """Raise Conflict if a cordon of the node was lifted after that revision of etcd."""
    picture = snap.nodes.get(node)
    if picture is not None and picture.lifted >= since:
        raise Conflict(f"the cordon of node {node} was lifted meanwhile, so it is not drained; ask again")


def tasks_by_node(snap: Snapshot) -> dict[str, tuple[str, ...]]:
    """The tasks that are placed on each node, or may still live there."""
    tasks: dict[str, dict[str, None]] = {}
    for job in snap.jobs.values():
        plan = job.plan_in_force
        if plan is not None and not job.switch.value.phase.ended:
            for placement in plan.value.placements:
                tasks.setdefault(placement.node, {})[str(job.task(placement.member))] = None
        for held in job.attempts.values():
            if may_live(snap, held.value):
                tasks.setdefault(held.value.node, {})[str(held.value.attempt.task)] = None
    return {node: tuple(found) for node, found in tasks.items()}


def node_list(snap: Snapshot) -> NodeList:
    """All known nodes, sorted by name."""
    tasks = tasks_by_node(snap)
    used: dict[str, set[str]] = {}
    for claim in all_claims(snap):
        used.setdefault(claim.node, set()).update(claim.gpus)
    return NodeList(
        tuple(
            _node_view(snap, snap.nodes[name], tasks.get(name, ()), used.get(name, ()))
            for name in sorted(snap.nodes)
        ),
        snap.revision,
    )


def _node_view(snap: Snapshot, picture: NodeState, tasks: tuple[str, ...], used: Collection[str]) -> NodeView:
    held, report = picture.incarnation, reported(picture)
    state, reason = node_state(snap, picture, busy=bool(tasks))
    if held is None:
        return NodeView(picture.node, state, "", "", -1, 0.0, 0, 0, tasks=tasks, reason=reason)
    life = held.value
    bad = quarantines_of(snap, picture.node)
    return NodeView(
        node=picture.node,
        state=state,
        incarnation=life.incarnation,
        host=life.host,
        beat_age_ms=snap.silence_ms(picture),
        cpus=life.resources.cpus,
        memory_bytes=life.resources.memory_bytes,
        gpus=len(report.value.gpus) if report is not None else 0,
        labels=dict(sorted(life.resources.labels.items())),
        tasks=tasks,
        pid=0 if life.fenced else life.pid,
        reason=reason,
        gpus_used=len(used),
        quarantined=tuple(f"GPU {each.index}: {each.reason}" for each in bad),
        runtime=life.resources.runtime,
    )


def node_state(snap: Snapshot, picture: NodeState, *, busy: bool) -> tuple[str, str]:
    """The state of a node, as `nodes` shows it, with the reason. `busy`: it has tasks."""
    held = picture.incarnation
    if left := snap.nodes_aside.get(picture.node):
        return "aside", f"nothing is decided about it: {left.why}"
    if held is None:
        mark = max(picture.marks.values(), key=lambda mark: mark.mod_revision, default=None)
        if mark is None:
            return "gone", "no agent is registered"
        return _marked(snap, picture, mark)
    mark = picture.marks.get(held.value.incarnation)
    if mark is not None:
        return _marked(snap, picture, mark)
    if snap.is_revoked(picture.node):
        return "suspected", "its certificates are revoked: supervisors do not hear it"
    if picture.cordon is not None:
        drained = "draining" if busy else "drained"
        return drained if picture.cordon.value.drain else "cordoned", picture.cordon.value.reason
    if snap.silence_ms(picture) >= snap.timing.suspect_ms:
        left_ms = promises.held_ms(snap, picture.node)
        alone = (
            f"; it is left alone for {left_ms} ms more, as promised while etcd was gone" if left_ms else ""
        )
        return "suspected", f"silent for {snap.silence_ms(picture)} ms{alone}"
    if snap.unread_ms(picture):
        return "suspected", f"etcd has not answered it for {snap.unread_ms(picture)} ms"
    if why := snap.blocked(picture.node):
        return "blocked", f"what runs goes on, nothing new can start: {why}"
    return "ready", ""


def _marked(snap: Snapshot, picture: NodeState, mark: Versioned[LostMark]) -> tuple[str, str]:
    """State and reason of a marked node. It is lost when the wait that its mark begins is over (rule 3)."""
    lost = mark.value.final or snap.now_ms >= lost_from_ms(snap, picture, mark)
    return "lost" if lost else "suspected", mark.value.reason
