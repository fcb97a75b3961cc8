"""What the page and its API read: the leader's documents, as `supervisorctl` gets them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from supervisor.api.gpus import gpu_list
from supervisor.api.nodes import node_list
from supervisor.api.server import ControlService
from supervisor.contract import codec
from supervisor.contract.errors import nothing_named
from supervisor.contract.ids import TaskId, check_name
from supervisor.contract.views.description import Description
from supervisor.contract.views.jobs import (
    CheckpointList,
    ClusterStatus,
    EventBatch,
    EventsRequest,
    Explanation,
    JobRequest,
)
from supervisor.contract.views.nodes import GpuList, NodeList
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.services.jobs import JobService

MOST_EVENTS = 1_000


@dataclass(frozen=True, slots=True)
class Source:
    """The documents of one supervisor. All raise NotLeading where another one leads."""

    control: ControlService
    service: JobService
    cluster: str

    def snapshot(self) -> Snapshot:
        """The leader's present snapshot."""
        return self.control.leading()

    async def status(self, job: str = "") -> ClusterStatus:
        """All jobs, or one; raises NotFound."""
        return await self.control.status(JobRequest(check_name("job", job) if job else ""))

    async def explain(self, job: str) -> Explanation:
        """A job and its incidents; raises NotFound."""
        return await self.control.explain(JobRequest(check_name("job", job)))

    async def describe(self, job: str) -> Description:
        """A job's stored file; raises NotFound, Conflict."""
        return await self.control.describe(JobRequest(check_name("job", job)))

    async def checkpoints(self, job: str) -> CheckpointList:
        """A job's checkpoints; raises NotFound, Conflict."""
        return await self.control.checkpoints(JobRequest(check_name("job", job)))

    async def nodes(self, node: str = "") -> NodeList:
        """All nodes, or one; raises NotFound."""
        found = node_list(self.snapshot())
        if not node:
            return found
        only = tuple(each for each in found.nodes if each.node == node)
        if not only:
            raise nothing_named("node", node, (each.node for each in found.nodes))
        return replace(found, nodes=only)

    async def gpus(self, node: str = "") -> GpuList:
        """The GPUs of all nodes, or of one."""
        return gpu_list(self.snapshot(), node)

    async def events(self, job: str = "", last: int = 100, after: int = -1) -> EventBatch:
        """The newest events, or those after a batch; raises NotFound."""
        last = max(0, min(last, MOST_EVENTS))
        request = EventsRequest(check_name("job", job) if job else "", False, last, after)
        async for batch in self.control.events(request):
            return replace(batch, events=batch.events[-MOST_EVENTS:])
        raise AssertionError("there is always a first batch")


def task_of(job: str, text: str) -> TaskId:
    """The task `ROLE:INDEX` of a job; raises UserError."""
    return TaskId.parse(f"{job}/{text}")


def encoded(document: object) -> bytes:
    """A document as `--output json` prints it."""
    return json.dumps(codec.to_plain(document), indent=2).encode() + b"\n"
