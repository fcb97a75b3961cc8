"""The rights of each daemon in etcd, where etcd has users of its own (docs/security.md).

A user's name is the common name of its certificate, which `supervisorctl certs issue` makes the same as its
identity: `agent:NODE`, `supervisor:NAME`. The agents of a pool that supervisors certify are one user,
`pool:NAME`, so that nobody makes and removes users as agents come and go. Keys are those of `contract.keys`,
without the cluster's namespace.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.contract import keys
from supervisor.contract.access import Kind
from supervisor.contract.boundaries import BULK
from supervisor.contract.errors import UserError
from supervisor.contract.ids import check_name
from supervisor.contract.pool.record import check_pool


@dataclass(frozen=True, slots=True)
class Grant:
    """A right to one key, or to all keys with that prefix.

    `writes`: to read and write; otherwise only to read.
    """

    key: str
    prefix: bool = False
    writes: bool = False

    def covers(self, key: str, *, prefix: bool, writes: bool) -> bool:
        """Whether this right is enough for a key, or with `prefix` for all keys that begin with it."""
        if writes and not self.writes:
            return False
        return key.startswith(self.key) if self.prefix else key == self.key and not prefix


LOOKED_AT = "doctor"
"""The key that `supervisorctl doctor` reads to see whether etcd answers."""
EVERYTHING = (Grant("", prefix=True, writes=True), Grant(BULK, prefix=True, writes=True))
"""The rights of a supervisor."""
OF_EVERY_AGENT = (
    Grant(LOOKED_AT),
    Grant(keys.CLUSTER),
    *(Grant(prefix, prefix=True) for prefix in ("nodes/", "jobs/", "switches/", "specs/", f"{BULK}code/")),
    *(
        Grant(prefix, prefix=True, writes=True)
        for prefix in ("prepared/", "staged/", "attempts/", "commits/", "heads/")
    ),
)
"""The rights that agents share. Reports are listed by job, so that etcd cannot tell nodes apart there."""


def of_node(node: str) -> tuple[Grant, ...]:
    """The rights of one node's agent."""
    return (
        Grant(keys.node(node), writes=True),
        Grant(keys.gpus(node), writes=True),
        Grant(keys.appeal(node, ""), prefix=True, writes=True),
        Grant(keys.lost(node, ""), prefix=True),
        Grant(keys.assignments_of(node), prefix=True),
        Grant(keys.spares_of(node), prefix=True),
    )


def of_pool(pool: str) -> tuple[Grant, ...]:
    """The rights of all agents of a pool: those of the nodes POOL.PLACE."""
    first = f"{pool}."
    return (
        *(Grant(key, prefix=True, writes=True) for key in (keys.node(first), keys.gpus(first))),
        Grant(f"appeals/{first}", prefix=True, writes=True),
        *(Grant(f"{family}/{first}", prefix=True) for family in ("lost", "assignments", "spares")),
    )


def roles_of(holder: str) -> dict[str, tuple[Grant, ...]]:
    """The roles of a user, by their names, each with its rights. Raises UserError for other holders."""
    kind, _, name = holder.partition(":")
    if kind == Kind.SUPERVISOR.value:
        check_name("the name of a supervisor", name)
        return {"supervisors": EVERYTHING}
    if kind == Kind.AGENT.value:
        check_name("the name of a node", name)
        return {"agents": OF_EVERY_AGENT, f"node-{name}": of_node(name)}
    if kind == Kind.POOL.value:
        return {"agents": OF_EVERY_AGENT, f"pool-{check_pool(name)}": of_pool(name)}
    raise UserError(f"{holder!r}: write supervisor:NAME, agent:NODE or pool:NAME")


def may(holder: str, key: str, *, prefix: bool = False, writes: bool = False) -> bool:
    """Whether etcd allows this to a user."""
    grants = [grant for each in roles_of(holder).values() for grant in each]
    return any(each.covers(key, prefix=prefix, writes=writes) for each in grants)
