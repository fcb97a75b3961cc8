"""The GPUs of the cluster, from the leader's snapshot to the document of the API. Pure."""

from __future__ import annotations

from supervisor.contract.errors import nothing_named
from supervisor.contract.observed import Gpu
from supervisor.contract.views.nodes import GpuList, GpuNodeView, GpuView
from supervisor.control.decide.facts.claims import all_claims, by_gpu
from supervisor.control.decide.facts.gpus import QUARANTINED, quarantined, reported
from supervisor.control.decide.set_aside import Claim
from supervisor.control.decide.snapshot import NodeState, Snapshot

NOT_TOLD = "its agent has not told of its GPUs"


def gpu_list(snap: Snapshot, node: str = "") -> GpuList:
    """Every GPU by node and index, or those of one node; raises NotFound for one that is not registered."""
    if node and (node not in snap.nodes or snap.nodes[node].incarnation is None):
        raise nothing_named("node", node, snap.nodes)
    pictures = [snap.nodes[name] for name in sorted(snap.nodes) if name == node or not node]
    pictures = [picture for picture in pictures if picture.incarnation is not None]
    claims = by_gpu(all_claims(snap))
    return GpuList(
        tuple(_node_view(picture) for picture in pictures),
        tuple(view for picture in pictures for view in _views(snap, picture, claims)),
    )


def _node_view(picture: NodeState) -> GpuNodeView:
    held = reported(picture)
    if held is None:
        return GpuNodeView(picture.node, problem=NOT_TOLD)
    return GpuNodeView(picture.node, held.value.driver, held.value.problem)


def _views(snap: Snapshot, picture: NodeState, claims: dict[str, list[Claim]]) -> list[GpuView]:
    held = reported(picture)
    if held is None:
        return []
    return [_view(snap, picture, gpu, claims.get(gpu.uuid, [])) for gpu in held.value.gpus]


def _view(snap: Snapshot, picture: NodeState, gpu: Gpu, claims: list[Claim]) -> GpuView:
    barred = quarantined(snap, gpu.uuid)
    return GpuView(
        node=picture.node,
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        memory_bytes=gpu.memory_bytes,
        state=QUARANTINED if barred is not None else gpu.health.value,
        reason=barred.reason if barred is not None else gpu.reason,
        action=(barred.action if barred is not None else gpu.action).value,
        fault=gpu.fault,
        numa=gpu.numa,
        peers=gpu.peers,
        mig=gpu.mig,
        tasks=tuple(sorted(f"{claim.job}/{claim.member.replace('.', ':')}" for claim in claims)),
        load=picture.beat.gpus.get(gpu.uuid) if picture.beat is not None else None,
    )
