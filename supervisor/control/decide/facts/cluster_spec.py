"""The ClusterSpec of a plan, from what the agents have prepared."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.contract.desired import ClusterSpec, Plan, RoleAddresses
from supervisor.contract.errors import InvariantBroken
from supervisor.contract.job.spec import JobSpec, RoleSpec
from supervisor.contract.observed import Prepared


def build(spec: JobSpec, plan: Plan, prepared: Mapping[str, Prepared]) -> ClusterSpec:
    """Every task's address by role, in the order of the job's roles; `outside` holds those not in it.

    `prepared` is by member (`ROLE.INDEX`). Raises InvariantBroken when a task of the job is missing, was not
    prepared for this plan where the plan puts it, has failed, or when two tasks have the same address.
    """
    seen: dict[str, str] = {}
    for task in spec.tasks():
        record = _checked(plan, task.member, prepared)
        other = seen.setdefault(record.address, task.member)
        if other != task.member:
            raise InvariantBroken(f"{_name(plan)}: {other} and {task.member} both have {record.address}")
    return ClusterSpec(
        job=plan.job,
        generation=plan.generation,
        plan_id=plan.plan_id,
        roles=tuple(_addresses(role, prepared) for role in spec.roles if not role.outside),
        outside=tuple(_addresses(role, prepared) for role in spec.roles if role.outside),
    )


def _checked(plan: Plan, member: str, prepared: Mapping[str, Prepared]) -> Prepared:
    record = prepared.get(member)
    placement = next((entry for entry in plan.placements if entry.member == member), None)
    if record is None or placement is None:
        missing = "prepared" if placement else "placed"
        raise InvariantBroken(f"{_name(plan)}: {member} is not {missing}")
    if record.plan_id != plan.plan_id or record.node != placement.node:
        raise InvariantBroken(
            f"{_name(plan)}: {member} belongs on {placement.node}, but is prepared on {record.node} "
            f"for plan {record.plan_id}"
        )
    if record.failure or not record.address:
        raise InvariantBroken(f"{_name(plan)}: {member} has no address: {record.failure or 'none reported'}")
    return record


def _addresses(role: RoleSpec, prepared: Mapping[str, Prepared]) -> RoleAddresses:
    members = (f"{role.name}.{index}" for index in range(role.count))
    return RoleAddresses(role.name, tuple(prepared[member].address for member in members))


def _name(plan: Plan) -> str:
    return f"plan {plan.plan_id} of {plan.job}, generation {plan.generation}"
