"""The cluster that manifests are asked for, and the names that all of them share."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.contract.access import Role, valid_user
from supervisor.contract.addresses import split_host_port
from supervisor.contract.errors import UserError
from supervisor.contract.ids import check_name
from supervisor.contract.pool.record import check_pool

SUPERVISOR, AGENT = "supervisor", "agent"
"""The StatefulSets. A pod is named after its set and its number."""
PORT, AGENT_PORT, HTTP_PORT = 7600, 7601, 7602
LOW, HIGH = 20_000, 29_999
"""The ports of tasks."""
MOST_AGENTS = 500
"""A Secret holds 1 MiB, and an agent's certificate and key take up to 2 KiB of it."""
MOST_HOST = 63
"""Most characters in the name of a host in a certificate of `certs issue`."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:/@-]{0,400}")
_INTERFACE = re.compile(r"[a-zA-Z0-9_.-]{1,15}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Addresses outside that pods may connect to."""

    network: str
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options of `kubernetes manifests`, checked.

    Attributes:
        cpus, memory: what tasks of one agent have together.
        gpus: of each agent.
        disk: the room of one agent for checkpoints, logs and work of its tasks.
        shm: of each agent, counted as memory.
        notice_s: how long an agent has to leave.
        drain_as: the user of the cluster as whom an agent that leaves has itself drained; empty: it is not.
        hadoop: the files of Hadoop's configuration by their names.
        claim: a PersistentVolumeClaim for `file:///store`; empty: none.
    """

    cluster: str
    namespace: str
    image: str
    etcd: tuple[str, ...]
    supervisors: int
    agents: int
    cpus: int
    memory: int
    gpus: int
    disk: int
    shm: int
    notice_s: int
    interface: str
    users: Mapping[str, Role]
    drain_as: str = ""
    hadoop: Mapping[str, str] = field(default_factory=dict)
    hadoop_user: str = ""
    claim: str = ""
    reach: tuple[Reach, ...] = ()

    def check(self) -> None:
        """Raise UserError if an option has no meaning to Kubernetes or to the daemons."""
        check_name("cluster", self.cluster)
        check_pool(self.cluster)
        self._check_spelling()
        for each in self.etcd:
            if each.startswith("unix:"):
                raise UserError(f"--etcd {each}: a pod reaches no socket of a machine; write HOST:PORT")
            split_host_port(each)
        if self.supervisors % 2 == 0:
            raise UserError(f"--supervisors {self.supervisors}: an odd number, such as 3")
        if self.agents > MOST_AGENTS:
            raise UserError(
                f"--agents {self.agents}: at most {MOST_AGENTS}, whose certificates fit into one Secret"
            )
        if not self.hadoop and not self.claim:
            raise UserError(
                "checkpoints need a place: give --hadoop-conf DIR for HDFS, or --claim NAME of a "
                "PersistentVolumeClaim that many pods may write to (ReadWriteMany)"
            )
        if self.hadoop and not self.reach:
            raise UserError(
                "--hadoop-conf needs --reach, as no pod may connect to HDFS otherwise: "
                "--reach 10.1.0.0/16:8020 --reach 10.1.0.0/16:9866"
            )

    def _check_spelling(self) -> None:
        for option, value in (("--namespace", self.namespace), ("--claim", self.claim or "store")):
            if not _LABEL.fullmatch(value):
                raise UserError(
                    f"{option} {value!r}: use at most 63 small letters, digits and '-', not at the ends"
                )
        if len(self.host(self.supervisor_names[-1])) > MOST_HOST:
            raise UserError(
                f"--namespace {self.namespace}: use at most 35 characters: names of hosts have 63"
            )
        if not _IMAGE.fullmatch(self.image):
            raise UserError(f"--image {self.image!r}: use letters, digits and '._:/@-'")
        if not _INTERFACE.fullmatch(self.interface):
            raise UserError(f"--interface {self.interface!r}: use letters, digits and '._-'")
        for user in (*self.users, *filter(None, (self.drain_as,))):
            if not valid_user(user) or user == "*":
                raise UserError(f"{user!r} is no name of a user: use letters, digits, '_', '.', '-' and '@'")
        if "@" in self.drain_as:
            raise UserError(f"--drain-as {self.drain_as}: a Secret has no file with '@' in its name")
        if self.drain_as in self.users:
            raise UserError(f"--drain-as {self.drain_as}: tasks can read its key; name nobody of --user")

    @property
    def supervisor_names(self) -> list[str]:
        """The pods of supervisors."""
        return [f"{SUPERVISOR}-{index}" for index in range(self.supervisors)]

    @property
    def agent_names(self) -> list[str]:
        """The pods of agents."""
        return [f"{AGENT}-{index}" for index in range(self.agents)]

    def node(self, pod: str) -> str:
        """The node that the agent of a pod is, as the keeper names it."""
        return f"{self.cluster}.{pod}"

    def host(self, pod: str) -> str:
        """The name of a pod in the cluster's DNS: the headless Service is named after the set."""
        return f"{pod}.{pod.rpartition('-')[0]}.{self.namespace}.svc"


def users_of(texts: Sequence[str]) -> dict[str, Role]:
    """Read `NAME:ROLE` of each user. Raises UserError."""
    found: dict[str, Role] = {}
    for text in texts:
        name, _, role = text.rpartition(":")
        try:
            found[name] = Role(role)
        except ValueError as error:
            roles = ", ".join(each.value for each in Role)
            raise UserError(f"--user {text!r}: write NAME:ROLE, the role one of {roles}") from error
    return found


def reach_of(text: str) -> Reach:
    """Read `CIDR:PORT` or `CIDR:PORT-PORT`. Raises UserError."""
    network, _, ports = text.rpartition(":")
    low, _, high = ports.partition("-")
    try:
        found = ipaddress.ip_network(network.strip("[]"))
        first, last = int(low), int(high or low)
        if not 0 < first <= last < 65_536:
            raise ValueError
    except ValueError as error:
        raise UserError(
            f"--reach {text!r}: write a network and a port, as 10.1.0.0/16:8020 or 10.1.0.7/32:9866-9867"
        ) from error
    return Reach(network=str(found), low=first, high=last)
