"""The end of a job that has failed."""

from __future__ import annotations

from dataclasses import replace

from supervisor.contract.desired import JobPhase
from supervisor.control import incidents
from supervisor.control.failures import Need
from supervisor.control.plan import Action, put, unchanged
from supervisor.control.snapshot import JobPicture, Snapshot


def fail(snap: Snapshot, job: JobPicture, need: Need, reason: str) -> Action:
    """End the job as failed, and remove what was prepared for it."""
    reason = f"{need.detail}; {reason}"
    ended = replace(
        job.switch.value,
        phase=JobPhase.FAILED,
        closing=None,
        reason=reason,
        # The wish that led here is answered; only a later one starts the job again (rule 8).
        restart_serial=job.intent.value.restart_serial,
    )
    return Action(
        kind="job_failed",
        job=job.name,
        text=f"job failed: {reason}",
        compares=(unchanged(job.switch), unchanged(job.intent)),
        ops=(
            put(job.switch.key, replace(ended, ledger=need.verdict.ledger)),
            *incidents.failed(snap, job, need, reason),
        ),
        fields={"cause": need.cause.value, "rule": need.rule, "incident": need.incident},
    )
