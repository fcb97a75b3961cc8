"""The part of an embedded cluster that other machines reach (`local up --advertise HOST`).

Supervisors and etcd listen on TCP then, and take no connection without a certificate of the cluster's own
authorities, which are in STATE/tls. The cluster has one user: whoever can read that directory.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from supervisor.adapters.files.private import write_private
from supervisor.contract.addresses import bare, join
from supervisor.contract.errors import UserError

OWNER = "owner"
"""The name of the cluster's only user."""
ETCD, ADMIN = "etcd", "admin"
DAYS = 825
"""The life of certificates. A shorter one keeps nobody out: the authorities are in the same directory."""
AGENT_PORT = 7601
"""The port of a pool's first agent on a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachable:
    """The addresses and certificates of one cluster.

    Attributes:
        tls: the directory of `supervisorctl certs`.
        host: the name or address at which other machines reach this one.
        ports: member -> port.
        scratch: a directory that each machine has to itself.
        mark: keeps the agents of two clusters of one user apart there.
        life: the start of the cluster that this is. It has certificates of its own, in a directory of `tls`:
            no other start replaces one of them.
    """

    tls: Path
    host: str
    ports: Mapping[str, int]
    scratch: Path
    mark: str
    life: int

    @property
    def listen(self) -> str:
        """The address to listen on: the host where it is one, else all: a name may mean another one here."""
        try:
            return str(ipaddress.ip_address(bare(self.host)))
        except ValueError:
            return "0.0.0.0"

    def check(self) -> None:
        """Raise UserError where a certificate cannot name this host, or nobody would listen there."""
        from supervisor.cli.cluster import certs

        certs.read_holder(f"{ETCD}:{ETCD},{bare(self.host)}")
        try:
            family = socket.AF_INET6 if ":" in self.listen else socket.AF_INET
            socket.getaddrinfo(bare(self.host), None, family)
        except OSError as error:
            raise UserError(
                f"--advertise {self.host}: this machine knows no IPv4 address of it ({error}); give an "
                "address, IPv4 or IPv6"
            ) from error

    def address(self, member: str) -> str:
        """The address of etcd or a supervisor."""
        return join(self.host, self.ports[member])

    @property
    def own(self) -> Path:
        """The directory of this start's certificates and their keys."""
        return self.tls / str(self.life)

    def holder(self, name: str) -> dict[str, str]:
        """The certificate of `KIND-NAME`, as `tls` of a configuration names it."""
        stem = self.own / name
        return {"ca": self._pem("ca"), "cert": f"{stem}.pem", "key": f"{stem}.key"}

    def certify(self, supervisors: Sequence[str]) -> None:
        """Make the authorities where there are none, and the certificates of this start. Raises Refused."""
        from supervisor.cli.cluster import certs

        at = bare(self.host)
        machines = (*(f"supervisor:{name},{at}" for name in supervisors), f"etcd:{ETCD},{at}")
        certs.make(self.tls, self.own, [*machines, f"user:{OWNER}", f"etcdctl:{ADMIN}"], DAYS)
        certs.make_pool_authority(self.tls)
        both = b"".join((self.tls / f"{each}.pem").read_bytes() for each in ("ca", "pool-ca-etcd"))
        write_private(self._of_etcd, both)

    def forget_before(self) -> None:
        """Remove the certificates of former starts, which no configuration names any more."""
        with suppress(OSError):
            for each in self.tls.iterdir():
                if each.name.isdecimal() and int(each.name) < self.life:
                    shutil.rmtree(each, ignore_errors=True)

    def admit(self, supervisor_config: Path, holders: Sequence[str]) -> None:
        """Make these the users of etcd, and let it refuse all others. Raises Unreachable, Refused."""
        from supervisor.cli.cluster import etcd

        etcd.give_users(supervisor_config, self.own / f"etcdctl-{ADMIN}.pem", holders)

    def etcd_flags(self) -> tuple[str, ...]:
        """The addresses of etcd for clients, and whom it takes for one."""
        own = self.holder(f"etcd-{ETCD}")
        return (
            *("--listen-client-urls", f"https://{join(self.listen, self.ports[ETCD])}"),
            *("--advertise-client-urls", f"https://{self.address(ETCD)}"),
            *("--client-cert-auth", "--trusted-ca-file", str(self._of_etcd)),
            *("--cert-file", own["cert"], "--key-file", own["key"]),
        )

    def supervisor(self, name: str) -> dict[str, object]:
        """The fields of a supervisor's configuration."""
        own = self.holder(f"supervisor-{name}")
        return {
            "etcd": {"endpoints": [self.address(ETCD)], "tls": own},
            "listen": join(self.listen, self.ports[name]),
            "advertise": self.address(name),
            "tls": own,
            "user_ca": self._pem("user-ca"),
            "users": {OWNER: {"role": "admin"}},
            "pools": {"issuer": {"cert": self._pem("pool-ca"), "key": str(self.tls / "pool-ca.key")}},
        }

    def agents(self) -> dict[str, object]:
        """The fields of the configuration that all agents of pools share. They get certificates by a token.

        Those of a cluster on loopback stay there, too.
        """
        ca = {"ca": self._pem("ca")}
        here = self.listen if ipaddress.ip_address(self.listen).is_loopback else ""
        everywhere = "[::]" if ":" in self.listen else "0.0.0.0"
        own = self.scratch / f"tfsup-agents-{os.geteuid()}-{self.mark}"
        return {
            "etcd": {"endpoints": [self.address(ETCD)], "tls": ca},
            "tls": ca,
            "listen": join(here or everywhere, AGENT_PORT),
            **({"host": here} if here else {"advertise": join("{host}", AGENT_PORT)}),
            "state_dir": str(own),
            "run_dir": str(own),
            "checkpoint_parent": str(own / "tasks"),
            "lock_dir": str(self.scratch / "tfsup-ports"),
        }

    @property
    def _of_etcd(self) -> Path:
        """The authorities whose certificates etcd takes."""
        return self.own / "of-etcd.pem"

    def _pem(self, name: str) -> str:
        return str(self.tls / f"{name}.pem")

    def client(self) -> dict[str, object]:
        """The fields of the configuration of the cluster's user."""
        return {"tls": self.holder(f"user-{OWNER}")}
