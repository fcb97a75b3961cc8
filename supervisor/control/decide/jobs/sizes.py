"""Whether etcd could take what a job will have written there; asked before the job is recorded. Pure."""

from __future__ import annotations

from dataclasses import replace

from supervisor.contract import codec, keys
from supervisor.contract.bounds import MAX_GIVEN_BYTES
from supervisor.contract.desired import ClusterSpec, Placement, Plan, RoleAddresses
from supervisor.contract.errors import UserError
from supervisor.contract.job.data import as_user
from supervisor.contract.job.spec import JobRecord, JobSpec, as_hdfs_user
from supervisor.control.decide.jobs.admission import MOST_FORMER
from supervisor.control.decide.jobs.prepare import bare_assignment
from supervisor.control.decide.snapshot import Snapshot

SPARE_NAME = 64
LONGEST_USER = "u" * 63
SPARE_PORTS = tuple(range(64_000, 65_000))
GPU = "GPU-" + "0" * 36


def check_sizes(snap: Snapshot, spec: JobSpec) -> None:
    """Raise UserError for a job whose records etcd could not take, with the names that nodes have now."""
    node = "n" * max((len(name) for name in snap.nodes), default=SPARE_NAME)
    hosts = [len(each.incarnation.value.host) for each in snap.nodes.values() if each.incarnation is not None]
    address = "h" * max(hosts, default=SPARE_NAME) + ":65535"
    digest, life = "0" * 64, "0" * 32
    placements = tuple(
        Placement(task.role, task.index, node, life, (GPU,) * spec.role(task.role).resources.gpus)
        for task in spec.tasks()
    )
    plan = Plan(spec.name, life[:16], 10**8, "i" * SPARE_NAME, placements, digest)
    addresses = tuple(RoleAddresses(role.name, (address,) * role.count) for role in spec.roles)
    records: list[tuple[str, str, object]] = [
        (
            "the job file",
            keys.job_record(spec.name),
            JobRecord(
                *(spec, life, 10**13, 10**8),
                former=(life,) * MOST_FORMER,
                owner="o" * 80,
                group="g" * 80,
                hdfs_user=LONGEST_USER,
                given=("f" * MAX_GIVEN_BYTES,),
            ),
        ),
        ("its plan", keys.plan(spec.name, plan.plan_id), plan),
        (
            "its ClusterSpec",
            keys.cluster_spec(spec.name, plan.plan_id),
            ClusterSpec(spec.name, 10**8, plan.plan_id, addresses),
        ),
    ]
    for role in spec.roles:
        first = next(each for each in placements if each.role == role.name)
        uri = as_hdfs_user(spec.checkpoint.uri, LONGEST_USER)
        order = replace(bare_assignment(spec, life, plan, first), avoid_ports=SPARE_PORTS, checkpoint_uri=uri)
        order = replace(order, data=as_user(spec.data, LONGEST_USER))
        records.append((f"role {role.name}", keys.assignment(node, order.task, plan.plan_id), order))
    for what, key, record in records:
        size, most = len(codec.encode(record)), keys.family(key).max_bytes
        if size > most:
            raise UserError(
                f"job {spec.name} is too large: {what} takes {size} bytes in etcd, at most {most} are "
                "allowed; use fewer tasks, shorter commands or less `env`"
            )
