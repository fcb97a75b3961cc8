"""The network between nodes: a bridge; links that are cut, one way or both, and that lose packets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chaos.cluster import wires
from chaos.cluster.enter import ip_in, run_in
from chaos.cluster.node import Node
from chaos.cluster.shape import OPERATOR
from chaos.cluster.wires import BRIDGE, Delay

Cut = tuple[str, str, str]
"""The place of a cut, and the source and target of the packets that do not pass."""
_RULE = re.compile(r"^\[(\d+):\d+\] (-A .*)$")


class Unavailable(Exception):
    """This cluster cannot do that here; the text says why."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Packets that a node drops: `name` is what `dropped` calls them, `spec` as iptables has it."""

    name: str
    spec: tuple[str, ...]


class Network:
    """The network between nodes, by name; OPERATOR is the machine of an operator.

    A change to a node's network holds across its reboots, until it is undone or healed.
    """

    def __init__(
        self, root: Path, addresses: Mapping[str, str], nodes: Mapping[str, Node], machine: int | None
    ) -> None:
        self._root = root
        self._addresses = dict(addresses)
        self._nodes = nodes
        self._machine = machine
        self._cuts: Counter[Cut] = Counter()
        self._loss: dict[str, float] = {}
        self._delay: dict[str, Delay] = {}
        self._bandwidth: dict[str, int] = {}
        self._in_force: dict[str, set[Rule]] = {}

    def open(self) -> None:
        """Make the bridge, with the operator's machine on it."""
        if self._machine is None:
            return
        address = self._addresses[OPERATOR]
        ip_in(
            self._machine,
            f"link add {BRIDGE} type bridge",
            f"address add {address}/16 dev {BRIDGE}",
            f"link set {BRIDGE} up",
            "link set lo up",
        )

    def attach(self, node: Node) -> None:
        """A node that has been switched on gets its link."""
        self._in_force.pop(node.name, None)
        if self._machine is None:
            return
        link = _link(node)
        ip_in(
            self._machine,
            f"link add {link} type veth peer name eth0 address {_mac(node.address)} netns {node.pid}",
            f"link set {link} master {BRIDGE} up",
        )
        ip_in(node.pid, f"address add {node.address}/16 dev eth0", "link set eth0 up", "link set lo up")
        wires.whole_frames(node.pid, "eth0")
        self._settle(node.name)
        if delay := self._delay.get(node.name):
            wires.lengthen(self._machine, self._root, node.name, link, delay)
        if bound := self._bandwidth.get(node.name):
            self._narrow(node, bound)

    def detach(self, node: Node) -> None:
        """A node that loses its power is silent at once."""
        self._in_force.pop(node.name, None)
        if self._machine is None:
            return
        with suppress(AssertionError):
            # It goes with the last process of its other end, too.
            ip_in(self._machine, f"link delete {_link(node)}")
        if node.name in self._delay:
            wires.shorten(self._machine, self._root, node.name, None)

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Drop all packets from `a` to `b`, and back unless `one_way`; connections stay open and hang."""
        self.cut_off(a, [b], back=not one_way)

    def cut_off(self, node: str, others: Iterable[str], *, out: bool = True, back: bool = True) -> None:
        """Drop all packets from a node to the others (`out`), and from them to it (`back`), at the same
        moment.

        Two cuts need two joins.
        """
        for other in others:
            self._cuts.update(_links(node, other, out=out, back=back))
        self._settle(node)

    def join(self, a: str, b: str) -> None:
        """Undo `cut`, either way."""
        self.rejoin(a, [b])

    def rejoin(self, node: str, others: Iterable[str], *, out: bool = True, back: bool = True) -> None:
        """Undo `cut_off`."""
        for other in others:
            self._cuts -= Counter(_links(node, other, out=out, back=back))
        self._settle(node)

    def isolate(self, node: str, but: Iterable[str] = ()) -> None:
        """Cut a node off from every other, the operator's machine included, but for those named."""
        self.cut_off(node, self._addresses.keys() - {node, *but})

    def loss(self, node: str, share: float) -> None:
        """A node loses so many of the packets that it sends and gets, at random; 0 ends it."""
        self._loss.pop(node, None)
        if share:
            self._loss[node] = share
        self._settle(node)

    def delay(
        self, node: str, ms: float, *, jitter_ms: float = 0.0, but: Iterable[str] = (), seed: int = 0
    ) -> None:
        """Each packet from and to a node takes so much longer, each way; 0 ends it.

        With jitter, packets overtake each other. Nodes in `but` are reached as fast as before.
        """
        machine, target = self._isolated(), self._nodes[node]
        if self._delay.pop(node, None) and target.on:
            wires.shorten(machine, self._root, node, _link(target))
        if ms or jitter_ms:
            spared = tuple(self._addresses[other] for other in but)
            self._delay[node] = Delay(ms, jitter_ms, seed, spared)
            if target.on:
                wires.lengthen(machine, self._root, node, _link(target), self._delay[node])

    def bandwidth(self, node: str, bytes_s: int) -> None:
        """A node sends, and gets, so many bytes a second at most; 0 ends it."""
        self._isolated()
        known = self._bandwidth.pop(node, None)
        if bytes_s:
            self._bandwidth[node] = bytes_s
        if self._nodes[node].on and (bytes_s or known):
            self._narrow(self._nodes[node], bytes_s)

    def held_up(self, node: str) -> int:
        """The number of packets that waited for `bandwidth`, or were lost to it, since it was set."""
        target = self._nodes[node]
        return wires.held_up(self._isolated(), _link(target)) + wires.held_up(target.pid, "eth0")

    def round_trip_ms(self, a: str, b: str, timeout_s: float = 2.0) -> float | None:
        """The time until node `a` hears that `b` refuses a connection; None when it does not hear it."""
        self._isolated()
        pid = self._pid(a)
        assert pid is not None, f"{a} is off"
        return wires.round_trip_ms(pid, self._addresses[b], timeout_s)

    def heal(self) -> None:
        """Undo everything."""
        for node in [*self._delay]:
            self.delay(node, 0)
        for node in [*self._bandwidth]:
            self.bandwidth(node, 0)
        self._cuts.clear()
        self._loss.clear()
        self._settle(*self._addresses)

    def dropped(self) -> dict[str, int]:
        """Packets that were dropped since that was asked for: `SENDER>RECEIVER` for a cut, `NODE loss`."""
        found: dict[str, int] = {}
        for name, rules in self._in_force.items():
            pid = self._pid(name)
            if pid is None or not rules:
                continue
            counts: dict[str, int] = {}
            for line in run_in(pid, "net", "iptables-save", "-c", "-t", "filter").splitlines():
                if match := _RULE.match(line):
                    counts[_plain(match[2])] = int(match[1])
            for rule in rules:
                found[rule.name] = found.get(rule.name, 0) + counts.get(
                    _plain("-A " + " ".join(rule.spec)), 0
                )
        return found

    def _isolated(self) -> int:
        """The process that has the bridge."""
        if self._machine is None:
            raise Unavailable("without root there is one network for all nodes")
        return self._machine

    def _narrow(self, node: Node, bytes_s: int) -> None:
        wires.narrow(self._isolated(), _link(node), bytes_s)
        wires.narrow(node.pid, "eth0", bytes_s)

    def _settle(self, *names: str) -> None:
        self._isolated()
        for name in names:
            pid = self._pid(name)
            if pid is None:
                continue
            wanted, present = self._wanted(name), self._in_force.get(name, set())
            lines = [" ".join(("-I", *rule.spec)) for rule in wanted - present]
            lines += [" ".join(("-D", *rule.spec)) for rule in present - wanted]
            if lines:
                said = "\n".join(["*filter", *lines, "COMMIT", ""])
                run_in(pid, "net", "iptables-restore", "-w", "--noflush", said=said)
            self._in_force[name] = wanted

    def _wanted(self, name: str) -> set[Rule]:
        """All at the node that is cut off, so that they come into force together."""
        rules = set()
        for (place, source, target), count in self._cuts.items():
            if place == name and count > 0:
                end = ("OUTPUT", "-d", target) if source == name else ("INPUT", "-s", source)
                address = f"{self._addresses[end[2]]}/32"
                rules.add(Rule(f"{source}>{target}", (*end[:2], address, "-j", "DROP")))
        if share := self._loss.get(name):
            chance = ("-m", "statistic", "--mode", "random", "--probability", f"{share:.11f}", "-j", "DROP")
            for chain, flag in (("INPUT", "-i"), ("OUTPUT", "-o")):
                rules.add(Rule(f"{name} loss", (chain, flag, "eth0", *chance)))
        return rules

    def _pid(self, name: str) -> int | None:
        if name == OPERATOR:
            return self._machine
        node = self._nodes[name]
        return node.pid if node.on else None


def _links(node: str, other: str, *, out: bool, back: bool) -> list[Cut]:
    return [(node, node, other)] * out + [(node, other, node)] * back


def _plain(rule: str) -> str:
    """A rule without the probability, which iptables rounds."""
    return re.sub(r"--probability \S+", "", rule)


def _link(node: Node) -> str:
    return f"{node.name}.{node.boots}"


def _mac(address: str) -> str:
    return "02:77:" + ":".join(f"{int(part):02x}" for part in address.split("."))
