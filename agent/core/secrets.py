"""Secrets of attempts that are about to start. The core knows whether values are there, and no value."""

from __future__ import annotations

from dataclasses import replace

from agent.core.desired import Wants
from agent.core.events import SecretsFetched
from agent.core.instructions import FetchSecrets
from agent.core.state import SecretStanding
from agent.core.step_context import Work
from supervisor.contract.desired import Assignment

AGAIN_MS = 1_000
MOST_AGAIN_MS = 16_000
"""Each question costs lines in the audit logs, and may run commands."""

_NONE = SecretStanding(done=True)


def standing(work: Work, assignment: Assignment) -> SecretStanding:
    """Whether the agent has the secrets of the wanted attempt; asks for them, again and again, if not."""
    if not assignment.secrets:
        return _NONE
    attempt = assignment.attempt_id
    known = work.state.secrets.get(attempt)
    if known is None or 0 <= known.again_ms <= work.now_ms:
        known = replace(known, again_ms=-1) if known is not None else SecretStanding()
        work.state.secrets[attempt] = known
        work.emit(FetchSecrets(attempt, assignment.plan_id, tuple(sorted(assignment.secrets.items()))))
    return known


def on_fetched(work: Work, event: SecretsFetched) -> None:
    """They are there, or cannot be had now."""
    known = work.state.secrets.get(event.attempt)
    if known is None or known.done:
        return
    if event.delay:
        if event.delay != known.delay:
            work.note(
                "an attempt waits for its secrets; trying again",
                "warning",
                attempt=str(event.attempt),
                reason=event.delay,
            )
        again_ms = work.now_ms + min(AGAIN_MS << known.tries, MOST_AGAIN_MS)
        known = replace(known, delay=event.delay, again_ms=again_ms, tries=min(known.tries + 1, 8))
    else:
        known = SecretStanding(done=True)
    work.state.secrets[event.attempt] = known


def delay(work: Work, assignment: Assignment) -> str:
    """Why the wanted attempt waits for its secrets; empty if it does not."""
    known = work.state.secrets.get(assignment.attempt_id)
    return known.delay if known is not None else ""


def forget(work: Work, wants: Wants) -> None:
    """Drop what is known of attempts that are not wanted any more."""
    wanted = {each.attempt_id for each in wants.run.values()}
    for attempt in [each for each in work.state.secrets if each not in wanted]:
        del work.state.secrets[attempt]
