"""A save before what costs the steps since the last one: the savers of jobs are asked, by their agents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from supervisor.api.agents import Agents, address_of, node_of
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.views.jobs import SAVE_S, Accepted, SaveRequest
from supervisor.control.decide.checkpoints.saving import saver_beat
from supervisor.control.decide.snapshot import JobState, Snapshot
from supervisor.wire.rpc import Guard

_AGENT_S = 5.0


async def save_first(guard: Guard, snap: Snapshot, jobs: Iterable[str]) -> str:
    """Have jobs save that run, and wait for the commits; returns what came of it, to follow another text.

    A job whose saver may not be asked, or whose node does not answer, is not waited for.
    """
    found = [snap.jobs[name] for name in sorted({*jobs} & snap.jobs.keys())]
    told = await asyncio.gather(*(_save(guard, snap, job) for job in found))
    return "".join(f"; {each}" for each in told if each)


async def _save(guard: Guard, snap: Snapshot, job: JobState) -> str:
    if job.switch.value.phase is not JobPhase.RUNNING or saver_beat(snap, job) is None:
        return ""
    with suppress(TfSupervisorError):
        address, request = address_of(snap, node_of(job, job.saver)), SaveRequest(str(job.saver))
        # A connection for each job: a call that fails closes its own.
        async with Agents(guard) as agents:
            answer = await agents.ask(address, "Save", request, Accepted, SAVE_S + _AGENT_S)
        return f"{job.saver} {answer.detail}" if answer.detail else ""
    return ""
