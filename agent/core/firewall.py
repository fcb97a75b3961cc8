"""The connections that a firewall opens for the tasks of this node (decision 0052).

They follow from the attempts here and the ClusterSpecs of their plans. No attempt starts before its openings
are in force. The plans' addresses are in the state file: a successor sets the same rules before it reads
etcd.
"""

from __future__ import annotations

from dataclasses import replace

from agent.core.desired import Wants
from agent.core.events import FirewallSet
from agent.core.instructions import Opening, SetFirewall
from agent.core.saved.record import PlanAddresses
from agent.core.state import AgentState, Attempt
from agent.core.step_context import Work
from supervisor.contract.desired import ClusterSpec

AGAIN_MS = 1_000
LOOK_AGAIN_MS = 10_000
"""The rules are set again so often: somebody may have removed the table, and names get other addresses."""


def admits(work: Work, attempt: Attempt, spec: ClusterSpec) -> bool:
    """Whether an attempt may start: it is reached, and reaches all tasks of its plan, by what is in force."""
    state = work.state
    launcher = state.launchers[attempt.launcher_id]
    if not state.settings.firewall or launcher.recipe.networked:
        return True
    if attempt.plan_id not in state.addresses:
        state.addresses[attempt.plan_id] = _addresses(attempt.plan_id, attempt.job_uuid, spec)
    if attempt.plan_id in state.firewall.left_out:
        return False
    in_force = state.firewall.in_force or ()
    return any(each.plan_id == attempt.plan_id and attempt.port in each.ports for each in in_force)


def tend(work: Work, wants: Wants) -> None:
    """Have the rules that are needed, and no others."""
    state = work.state
    if not state.settings.firewall:
        return
    plans = {each.plan_id for each in state.attempts.values() if each.alive}
    plans |= {each.plan_id for each in wants.run.values()}
    for plan_id in [each for each in state.addresses if each not in plans]:
        del state.addresses[plan_id]
    for plan_id, spec in state.specs.items():
        if plan_id in state.addresses and spec.edition:
            # A task has moved: it is to be reached from where it is now.
            state.addresses[plan_id] = _addresses(plan_id, state.addresses[plan_id].job_uuid, spec)
    known, needed = state.firewall, _needed(state)
    due = needed != known.in_force or 0 <= known.again_ms <= work.now_ms
    waits = known.setting or (known.failure and work.now_ms < known.again_ms)
    if due and not waits:
        work.state = replace(state, firewall=replace(known, setting=True))
        work.emit(SetFirewall(needed))


def _addresses(plan_id: str, job_uuid: str, spec: ClusterSpec) -> PlanAddresses:
    found = tuple(address for role in (*spec.roles, *spec.outside) for address in role.addresses)
    return PlanAddresses(plan_id, job_uuid, found)


def on_set(work: Work, event: FirewallSet) -> None:
    """The rules are in force, or those before still are."""
    known = replace(work.state.firewall, setting=False, failure=event.failure)
    if event.failure:
        if event.failure != work.state.firewall.failure:
            work.note("the firewall is not set; trying again", "warning", reason=event.failure)
        known = replace(known, again_ms=work.now_ms + AGAIN_MS)
    else:
        for plan_id, reason in event.left_out.items():
            if work.state.firewall.left_out.get(plan_id) != reason:
                work.note(
                    "a plan's tasks wait: the firewall cannot resolve a host name of it yet",
                    "warning",
                    plan=plan_id,
                    reason=reason,
                )
        again_ms = work.now_ms + (AGAIN_MS if event.left_out else LOOK_AGAIN_MS)
        known = replace(known, in_force=event.openings, left_out=event.left_out, again_ms=again_ms)
    work.state = replace(work.state, firewall=known)


def _needed(state: AgentState) -> tuple[Opening, ...]:
    """The openings for all attempts of plans that go on, so that a start in place finds its port open."""
    found = []
    for plan in state.addresses.values():
        ports = {each.port for each in state.attempts.values() if each.plan_id == plan.plan_id}
        found.append(Opening(plan.plan_id, plan.job_uuid, plan.addresses, tuple(sorted(ports - {0}))))
    return tuple(found)
