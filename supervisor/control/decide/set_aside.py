"""Jobs and nodes that no rule looks at.

Resources that such a job may have are given to no other job. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from supervisor.contract.desired import ClusterSpec, Plan
from supervisor.contract.job.spec import JobRecord, Resources
from supervisor.contract.observed import AttemptReport


@dataclass(frozen=True, slots=True)
class Claim:
    """The resources that a task has on a node, or may have: those of its role, and GPUs by UUID."""

    job: str
    node: str
    member: str
    resources: Resources
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """Why nothing is decided about a job or node, and where that was met: a line of code, or the key of a
    record that cannot be read.
    """

    why: str
    place: str


@dataclass(frozen=True, slots=True)
class Aside:
    """A job that no rule looks at, as it cannot be dealt with and its switch cannot be made to say so.

    `why`, `place`: as in `Left`. `uuid`, `uri`: of its record; empty where that cannot be read. `claims`:
    what all of its plans and attempts may have; without CPUs and memory where its record cannot be read.
    `addresses`: (node, address) of its tasks.
    """

    job: str
    why: str
    place: str = ""
    uuid: str = ""
    uri: str = ""
    claims: tuple[Claim, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()


def aside(
    job: str,
    left: Left,
    record: JobRecord | None,
    attempts: Iterable[AttemptReport],
    plans: Iterable[Plan],
    specs: Iterable[ClusterSpec],
) -> Aside:
    """Set a job aside, with what its records name."""
    attempts = tuple(attempts)
    roles = {role.name: role.resources for role in record.spec.roles} if record is not None else {}
    found: dict[tuple[str, str], Claim] = {}

    def add(node: str, role: str, member: str, gpus: tuple[str, ...]) -> None:
        claim = found.setdefault((node, member), Claim(job, node, member, roles.get(role, Resources())))
        found[node, member] = replace(claim, gpus=tuple(dict.fromkeys((*claim.gpus, *gpus))))

    for plan in plans:
        for each in plan.placements:
            add(each.node, each.role, each.member, each.gpus)
    for report in attempts:
        if not report.confirmed_dead:
            add(report.node, report.role, report.attempt.task.member, report.gpus)
    addresses = {(report.node, report.address) for report in attempts if report.address}
    addresses |= {("", address) for spec in specs for address in spec.known}
    uuid, uri = (record.uuid, record.spec.checkpoint.uri) if record is not None else ("", "")
    claims = tuple(found.values())
    return Aside(job, left.why, left.place, uuid, uri, claims, tuple(sorted(addresses)))
