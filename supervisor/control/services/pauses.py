"""The requests of operators to hold restarts and moves, of all jobs or of one, and to let them go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from supervisor.adapters.caller import CALLER
from supervisor.contract import keys
from supervisor.contract.boundaries import Clock
from supervisor.contract.errors import UserError
from supervisor.contract.job.pause import MOST_REASON, Pause
from supervisor.contract.views.jobs import Accepted
from supervisor.control.decide.facts.hold import held_cluster, told
from supervisor.control.decide.plan import Action, put, unchanged, unchanged_or_absent
from supervisor.control.decide.snapshot import JobState, Snapshot

PAUSED, RESUMED = "paused", "resumed"
"""Kinds of the events."""
_CLUSTER = "nothing is restarted or moved by itself, of any job; what runs goes on"
_JOB = "nothing of it is restarted or moved by itself; what runs goes on"


class PauseService:
    """Pauses of the cluster and of jobs (rule 6.14). Repeating a request does no harm.

    Args:
        leading: the present snapshot; raises Unreachable while this supervisor follows.
        job: one job of it; raises NotFound.
        run: one transaction under the leader token; raises Conflict when a compare fails.
    """

    def __init__(
        self,
        leading: Callable[[], Snapshot],
        job: Callable[[str], JobState],
        run: Callable[[Action], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._leading = leading
        self._job = job
        self._run = run
        self._clock = clock

    async def pause(self, reason: str) -> Accepted:
        """Hold restarts and moves of all jobs, also after the brake would be released."""
        before = self._leading().pause
        if before is not None and before.value.in_force and not before.value.brake:
            return Accepted("", f"it is {told(before.value)} already")
        passed = before.value.passed if before is not None else 0
        wanted = replace(self._made(reason), passed=passed)
        text = f"all jobs are paused{_because(reason)}"
        compares = (unchanged_or_absent(keys.PAUSE, before),)
        await self._run(Action(PAUSED, "", text, compares, (put(keys.PAUSE, wanted),)))
        return Accepted("", f"{_CLUSTER}; `supervisorctl resume` ends that")

    async def resume(self) -> Accepted:
        """End the pause of the cluster, or the brake. The nodes that are lost now do not begin it again."""
        snap = self._leading()
        held = snap.pause
        if held is None or not held.value.in_force:
            waits = held_cluster(snap)
            return Accepted("", f"{waits}; ask again" if waits else "it is not paused")
        what = "the brake is released by an operator" if held.value.brake else "all jobs go on"
        over = replace(held.value, in_force=False, passed=snap.revision)
        await self._run(Action(RESUMED, "", what, (unchanged(held),), (put(keys.PAUSE, over),)))
        return Accepted("", f"{what}; a job with a pause of its own stays paused")

    async def pause_job(self, name: str, reason: str) -> Accepted:
        """Hold restarts and moves of a job. It stays so over a stop and a start."""
        job = self._job(name)
        before = job.intent.value.paused
        if before is not None:
            return Accepted(name, f"it is {told(before)} already")
        intent = replace(job.intent.value, paused=self._made(reason))
        text = f"the job is paused{_because(reason)}"
        ops = (put(job.intent.key, intent),)
        await self._run(Action(PAUSED, name, text, (unchanged(job.intent),), ops))
        return Accepted(name, f"{_JOB}; `supervisorctl resume {name}` ends that")

    async def resume_job(self, name: str) -> Accepted:
        """End the pause of a job."""
        job, held = self._job(name), held_cluster(self._leading())
        still = f"; but all jobs are held: {held}" if held else ""
        if job.intent.value.paused is None:
            return Accepted(name, f"it is not paused{still}")
        ops = (put(job.intent.key, replace(job.intent.value, paused=None)),)
        await self._run(Action(RESUMED, name, "the job goes on", (unchanged(job.intent),), ops))
        return Accepted(name, f"it goes on{still}")

    def _made(self, reason: str) -> Pause:
        if len(reason) > MOST_REASON:
            raise UserError(f"the reason has {len(reason)} characters; at most {MOST_REASON} are allowed")
        return Pause(by=str(CALLER.get() or ""), reason=reason, wall_ms=self._clock.wall_ms())


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
