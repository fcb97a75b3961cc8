"""Reports to the leader on tasks in preparation: their addresses, their failures, and what they wait for."""

from __future__ import annotations

from dataclasses import replace

from agent.core import code, secrets
from agent.core.desired import Wants, name_of
from agent.core.instructions import Reach, Write
from agent.core.state import Delay, HoldState, PortReservation
from agent.core.step_context import Work
from supervisor.contract import keys
from supervisor.contract.addresses import join
from supervisor.contract.desired import Assignment
from supervisor.contract.observed import Prepared

LONGEST_DELAY = 400
IMPORT_MS = 20_000
"""For so long an import is not worth a word, on a busy machine either."""
OUTPUTS_MS = 2_000
"""For so long the wait for earlier outputs is not worth a word."""


def answer_plans(work: Work, wants: Wants) -> None:
    """Tell the leader of each prepared task: its address, or why there is none; anew when it changes."""
    for name, assignment in wants.prepare.items():
        hold = work.state.holds.get(name)
        held = hold is not None and hold.state is HoldState.HELD
        brought = code.standing_at(work, assignment, launcher=held)
        delay = work.state.delays.get(name)
        if hold is None or hold.answering or not brought.done or (delay is not None and delay.telling):
            continue
        if hold.state not in {HoldState.HELD, HoldState.FAILED}:
            continue
        ready = held and not brought.failure
        reach = work.state.reach_of(hold.launcher_id)
        if ready and reach is None:
            continue
        address = address_of(reach, hold) if ready else ""
        if hold.answered and address == hold.told:
            continue
        work.put_hold(replace(hold, answering=True, told=address))
        record = replace(
            _about(work, assignment),
            address=address,
            warm=hold.warm,
            failure=brought.failure or hold.failure,
            no_code=bool(brought.failure) and not brought.hopeless,
            hopeless=brought.hopeless,
            segment=reach.segment if reach is not None and ready else "",
        )
        _write(work, "prepared", assignment, record)


def _importing(work: Work, hold: PortReservation | None) -> str:
    """What a launcher still imports that has said nothing since its hello; empty if it does not."""
    launcher = work.state.launchers.get(hold.launcher_id) if hold is not None else None
    if launcher is None or not launcher.welcomed or launcher.settled or launcher.doomed:
        return ""
    if work.now_ms - launcher.heard_ms < IMPORT_MS or launcher.recipe.import_ms is None:
        return ""
    limit = f"{launcher.recipe.import_ms / 1000:g} s (limits.startup)"
    return f"its launcher still imports {', '.join(launcher.recipe.preload)}; after {limit} it starts cold"


def _bringing(work: Work, assignment: Assignment) -> str:
    """The store that the wanted attempt's earlier outputs are still to come from; empty for a moment, or if
    they are there.
    """
    since_ms = work.state.outputs.get(assignment.attempt_id, -1)
    if since_ms < 0 or work.now_ms - since_ms < OUTPUTS_MS:
        return ""
    store = assignment.checkpoint_uri
    return f"it waits for its earlier outputs from {store}, and starts without them if nothing comes for long"


def tell_delays(work: Work, wants: Wants) -> None:
    """Tell the leader what a launcher or an attempt waits for here, and when it does no more."""
    wanted = {name_of(each): each for each in (*wants.prepare.values(), *wants.run.values())}
    delays = work.state.delays
    for name, assignment in wanted.items():
        hold, known, preparing = work.state.holds.get(name), delays.get(name), name in wants.prepare
        brought = code.standing_at(work, assignment, launcher=hold is not None)
        reason = (hold.delay if hold is not None else "") or brought.delay
        reason = reason or secrets.delay(work, assignment) or _bringing(work, assignment)
        reason = reason or _importing(work, hold)
        # When it is prepared after all, the answer itself says so.
        news = reason != (known.reason if known is not None else "") and (reason or not preparing)
        if not news or (known is not None and known.telling) or (hold is not None and hold.answering):
            continue
        delays[name] = Delay(reason)
        if hold is not None:
            work.put_hold(replace(hold, answered=False))
        record = replace(_about(work, assignment), delay=reason[:LONGEST_DELAY])
        _write(work, "delayed", assignment, record)
    for name in [each for each in delays if each not in wanted]:
        del delays[name]


def address_of(reach: Reach | None, hold: PortReservation) -> str:
    """`host:port` of a task whose launcher holds the port; empty while its host is not known."""
    return join(reach.host, hold.port) if reach is not None else ""


def refuse(work: Work, assignment: Assignment, why: str) -> None:
    """Tell the leader that a task cannot be prepared here, whatever is there of it."""
    _write(work, "refused", assignment, replace(_about(work, assignment), failure=why))


def _about(work: Work, assignment: Assignment) -> Prepared:
    """The fields that every report on a task in preparation has."""
    return Prepared(
        assignment.job,
        assignment.plan_id,
        assignment.role,
        assignment.index,
        work.state.settings.node,
        work.state.life,
    )


def _write(work: Work, kind: str, assignment: Assignment, record: Prepared) -> None:
    key = keys.prepared(assignment.task, assignment.plan_id)
    requires = keys.assignment(assignment.node, assignment.task, assignment.plan_id)
    work.emit(Write(f"{kind}/{name_of(assignment)}", key, record, requires))
