"""The secrets of a task, for the agent of the node on which it is placed; from the supervisor that leads."""

from __future__ import annotations

import asyncio

from supervisor.adapters.secret_sources import SecretSources
from supervisor.api import views
from supervisor.api.agents import node_of
from supervisor.contract.errors import IncompatibleRecord, NotFound, Refused
from supervisor.contract.ids import TaskId
from supervisor.contract.observed import LINK_PROTOCOL
from supervisor.contract.secret import SecretsAnswer, SecretsRequest, secrets_of
from supervisor.control.decide.snapshot import Snapshot


async def deliver(request: SecretsRequest, snap: Snapshot, sources: SecretSources) -> SecretsAnswer:
    """The values.

    The caller is the agent of `request.node`. It gets the secrets that the job's record names, whatever it
    asks for.

    Raises:
        NotFound: there is no such task, or it is not placed on that node by the plan in force, as far as this
            leader has seen.
        Refused: the job's owner may not use one of them, or there is no such secret.
        Unreachable: the value of a secret cannot be had now.
    """
    if request.protocol != LINK_PROTOCOL:
        raise IncompatibleRecord(f"link protocol {request.protocol}, this supervisor speaks {LINK_PROTOCOL}")
    task = TaskId.parse(request.task)
    job = views.find_job(snap, task.job)
    if job.switch.value.plan_id != request.plan_id or node_of(job, task) != request.node:
        raise NotFound(f"{task} is not placed on {request.node} by plan {request.plan_id[:40]!r}")
    record = job.record.value
    names = sorted(set(secrets_of(record.spec, record.spec.role(task.role)).values()))
    for name in names:
        if why := sources.objection(name, record.owner, record.group):
            raise Refused(why)
    values = await asyncio.gather(*(sources.read(name) for name in names))
    return SecretsAnswer(dict(zip(names, values, strict=True)))
