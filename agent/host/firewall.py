"""The firewall of a node's tasks: a table of nftables that is the agent's own (decision 0052).

Only packets that begin a TCP connection are looked at. A task reaches, of the ports that are tasks', those of
its own job; a task's port is reached by the machines of its job. The table outlives the agent, as tasks do.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import ip_address

from agent.core.events import FirewallSet
from agent.core.instructions import Opening
from agent.host.task_users import TaskUsers, UserRange
from supervisor.adapters.failpoints import effect
from supervisor.contract.addresses import bare
from supervisor.contract.errors import Refused, UserError

NFT_S = 10.0
LOOKUPS = 64
"""Names that are looked up at a time."""
LOOPBACK = ("127.0.0.1", "::1")
_PORTS = range(1, 1 << 16)
_NO_TABLES = ("not supported", "cache initialization failed: Invalid argument", "No such file or directory")
"""Texts of `nft` for a kernel without nf_tables, or without the table."""
_BEGINS = "tcp flags & (fin | syn | rst | ack) == syn"


@dataclass(frozen=True, slots=True)
class Rule:
    """The allowed connections of tasks of one uid.

    Attributes:
        reach: (address, port) of the tasks of their job.
        ports: their own ports on this node.
        peers: addresses of the machines of their job.
    """

    uid: int
    reach: frozenset[tuple[str, int]]
    ports: frozenset[int]
    peers: frozenset[str]


@dataclass(slots=True)
class NftFirewall:
    """`Firewall` by the program `nft`.

    `ports`: the lowest and the highest port of tasks, the same on all nodes.
    """

    table: str
    users: UserRange
    ports: tuple[int, int]
    _known: dict[str, frozenset[str]] | None = field(default=None, init=False, repr=False)
    """Addresses of the hosts in force; None before this life has set anything."""

    def check(self) -> None:
        """Raise UserError if this machine does not support such rules."""
        uid = self.users.high
        reach = frozenset((each, self.ports[0]) for each in LOOPBACK)
        sample = Rule(uid, reach, frozenset({self.ports[0]}), frozenset(LOOPBACK))
        try:
            _nft(self.text((sample,)), "--check")
        except Refused as error:
            raise UserError(
                f"firewall: true: {error}; it needs an agent that is root, a kernel with nf_tables and the "
                "program nft (deploy/get-nft.sh)"
            ) from error

    async def set(self, openings: tuple[Opening, ...]) -> FirewallSet:
        """Put these in force, atomically.

        A host name that cannot be resolved now keeps its last addresses. A plan with a name that never had an
        address is left out: none of its tasks runs yet. At the first call of a life its tasks may run
        already, so the table of the life before stays then.

        Raises Refused, and the errors of `TaskUsers.of`.
        """
        return await asyncio.to_thread(self._set, openings)

    def _set(self, openings: tuple[Opening, ...]) -> FirewallSet:
        known = self._resolve(openings)
        left_out = {
            opening.plan_id: f"cannot resolve {host}"
            for opening in openings
            for host, _ in _tasks(opening)
            if not known[host]
        }
        if left_out and self._known is None:
            raise Refused(next(iter(left_out.values())))
        _nft(self.text([self._rule(each, known) for each in openings if each.plan_id not in left_out]))
        self._known = known
        return FirewallSet(openings, left_out=left_out)

    def _resolve(self, openings: tuple[Opening, ...]) -> dict[str, frozenset[str]]:
        """The addresses of all hosts: those of now, else those that a host had."""
        before = self._known or {}
        hosts = {host for opening in openings for host, _ in _tasks(opening)}
        # All at once: a resolver that does not answer takes 10 s for each, and new openings wait for that.
        with ThreadPoolExecutor(LOOKUPS) as pool:
            found = dict(zip(hosts, pool.map(_addresses_of, hosts), strict=True))
        return {host: addresses or before.get(host, frozenset()) for host, addresses in found.items()}

    def _rule(self, opening: Opening, known: Mapping[str, frozenset[str]]) -> Rule:
        """The rule of a plan whose hosts have these addresses. Raises what `TaskUsers.of` raises."""
        reach = {(each, port) for each in LOOPBACK for port in opening.ports}
        reach |= {(each, port) for host, port in _tasks(opening) for each in known[host]}
        peers = frozenset(each for each, _ in reach) - {*LOOPBACK}
        uid = self.users.of(opening.job_uuid)[0]
        return Rule(uid, frozenset(reach), frozenset(opening.ports), peers)

    def text(self, rules: Iterable[Rule]) -> str:
        """The input for `nft -f`: one transaction that replaces the table."""
        reach: dict[int, set[str]] = {4: set(), 6: set()}
        peers: dict[int, set[str]] = {4: set(), 6: set()}
        ports: set[str] = set()
        for rule in rules:
            for address, port in rule.reach:
                reach[ip_address(address).version].add(f"{rule.uid} . {address} . {port}")
            for address in rule.peers:
                peers[ip_address(address).version].update(f"{address} . {port}" for port in rule.ports)
            ports.update(map(str, rule.ports))
        low, high = self.ports
        return f"""\
table inet {self.table}
delete table inet {self.table}
table inet {self.table} {{
    {_set("reach4", "meta skuid . ip daddr . tcp dport", reach[4])}
    {_set("reach6", "meta skuid . ip6 daddr . tcp dport", reach[6])}
    {_set("peers4", "ip saddr . tcp dport", peers[4])}
    {_set("peers6", "ip6 saddr . tcp dport", peers[6])}
    {_set("ports", "tcp dport", ports)}
    chain from_task {{
        meta skuid . ip daddr . tcp dport @reach4 accept
        meta skuid . ip6 daddr . tcp dport @reach6 accept
        reject with tcp reset
    }}
    chain to_task {{
        ip saddr . tcp dport @peers4 accept
        ip6 saddr . tcp dport @peers6 accept
        reject with tcp reset
    }}
    chain output {{
        type filter hook output priority filter; policy accept;
        {_BEGINS} tcp dport {low}-{high} meta skuid {self.users.low}-{self.users.high} jump from_task
    }}
    chain input {{
        type filter hook input priority filter; policy accept;
        iifname != "lo" {_BEGINS} tcp dport @ports jump to_task
    }}
}}
"""


def remove(table: str, users: TaskUsers) -> None:
    """Remove the table of an earlier life after the firewall was switched off, if there is one.

    Raises Refused if it may still be there. If this agent cannot look, a node without a uid for each job is
    assumed to have none.
    """
    if not isinstance(users, UserRange) and (os.geteuid() != 0 or shutil.which("nft") is None):
        return
    try:
        _nft(f"table inet {table}\ndelete table inet {table}\n")
    except Refused as error:
        if not str(error).startswith("nft: ") or not any(each in str(error) for each in _NO_TABLES):
            raise Refused(
                f"{error}; if an agent here had `firewall: true`, its rules reset connections of tasks: "
                f"`nft delete table inet {table}` removes them"
            ) from error


def table_name(cluster: str, node: str) -> str:
    """The name of an agent's table."""
    return f"tfsup_{cluster}_{node}"


def _tasks(opening: Opening) -> Iterator[tuple[str, int]]:
    """Host and port of each task of a plan. Only a forged record has an address without a port."""
    for address in opening.addresses:
        host, _, port = address.rpartition(":")
        if port.isdecimal() and int(port) in _PORTS:
            yield host, int(port)


def _set(name: str, kind: str, elements: set[str]) -> str:
    held = f" elements = {{ {', '.join(sorted(elements))} }};" if elements else ""
    return f"set {name} {{ typeof {kind};{held} }}"


def _addresses_of(host: str) -> frozenset[str]:
    """The addresses of a host, resolved as by programs on this machine; empty if that fails."""
    try:
        found = socket.getaddrinfo(bare(host), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(str(each[4][0]).partition("%")[0] for each in found)


def _nft(text: str, *options: str) -> None:
    """Run `nft` with this input; raises Refused."""
    command = ["nft", *options, "-f", "-"]
    try:
        with effect("firewall.nft"):
            done = subprocess.run(
                command, input=text, text=True, capture_output=True, timeout=NFT_S, check=False
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"cannot run nft: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise Refused(f"nft: {said[0] if said else f'code {done.returncode}'}")
