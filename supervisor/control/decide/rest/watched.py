"""A snapshot that notes what is read of it, so that it is known when its reader must look again. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar, overload

from supervisor.control.decide.rest.moment import Moment
from supervisor.control.decide.snapshot import NodeState, Snapshot

T = TypeVar("T")
Fact = Callable[[Snapshot], object]

NEVER = -1
"""The number of the news of a node that is not there."""


@dataclass(slots=True)
class Reads:
    """The reads of a snapshot. The answers hold while all that was read is the same.

    Attributes:
        now_ms: when it was read.
        until_ms: until when the answers about time hold.
        nodes: the number of the newest news of each node that was read.
        patience_ms: for so long after a node's last beat the answers about its silence hold.
        whole: other parts of the snapshot, by the name of its field.
        facts: what was found out about the whole of it.
    """

    now_ms: int
    until_ms: float = math.inf
    nodes: dict[str, int] = field(default_factory=dict)
    patience_ms: dict[str, float] = field(default_factory=dict)
    whole: dict[str, object] = field(default_factory=dict)
    facts: dict[Fact, object] = field(default_factory=dict)

    def hold(self, for_ms: float) -> None:
        """An answer about time holds for so long."""
        self.until_ms = min(self.until_ms, self.now_ms + for_ms)


class Facts(Protocol):
    """Facts about whole snapshots, which may still hold."""

    def of(self, fact: Callable[[Snapshot], T], snap: Snapshot) -> T:
        """A fact about a snapshot: the same object for as long as it is equal."""
        ...


@dataclass(frozen=True)
class _Waits:
    """The note of how long a node's silence lasts: it begins anew with each beat."""

    reads: Reads
    node: str
    silence_ms: int

    def __call__(self, for_ms: float) -> None:
        patience = self.reads.patience_ms
        patience[self.node] = min(patience.get(self.node, math.inf), self.silence_ms + for_ms)


class _Nodes(Mapping[str, NodeState]):
    """The nodes of a snapshot: it is noted which are read, or that all are. `plain`: without notes."""

    def __init__(self, nodes: Mapping[str, NodeState], news: int, reads: Reads) -> None:
        self.plain, self._news, self._reads = nodes, news, reads

    def __getitem__(self, name: str) -> NodeState:
        found = self.plain.get(name)
        self._reads.nodes[name] = found.news if found is not None else NEVER
        return self.plain[name]

    @overload
    def get(self, name: str, default: None = None, /) -> NodeState | None: ...
    @overload
    def get(self, name: str, default: NodeState | T, /) -> NodeState | T: ...
    def get(self, name: str, default: NodeState | T | None = None, /) -> NodeState | T | None:
        """As of any mapping, but in one turn: rules ask this for each task of each job."""
        found = self.plain.get(name)
        self._reads.nodes[name] = found.news if found is not None else NEVER
        return default if found is None else found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        self._reads.whole["news"] = self._news
        return iter(self.plain)

    def __len__(self) -> int:
        self._reads.whole["news"] = self._news
        return len(self.plain)

    def items(self) -> ItemsView[str, NodeState]:
        self._reads.whole["news"] = self._news
        return self.plain.items()

    def values(self) -> ValuesView[NodeState]:
        self._reads.whole["news"] = self._news
        return self.plain.values()


@dataclass(frozen=True, slots=True)
class Watched(Snapshot):
    """A snapshot that notes what is read of it."""

    reads: Reads = field(kw_only=True)
    known: Facts = field(kw_only=True)

    def once(self, fact: Callable[[Snapshot], T]) -> T:
        """A fact that may be known from an earlier snapshot."""
        found = self.known.of(fact, self)
        self.reads.facts[fact] = found
        return found

    def since_heard_ms(self, picture: NodeState, heard_ms: int) -> int:
        """The time since a node was heard. It begins anew with each beat."""
        if picture.beat is None or heard_ms != picture.beat.received_ms:
            return self.now_ms - heard_ms
        silence_ms = self.reads.now_ms - heard_ms
        return Moment(silence_ms, _Waits(self.reads, picture.node, silence_ms))


_PARTS = tuple(each.name for each in fields(Snapshot) if each.init)
WHOLE = tuple(name for name in _PARTS if name not in ("now_ms", "wall_ms", "nodes"))
"""The parts that are compared by themselves: of time and nodes it is noted what is read of them."""
_SLOTS: dict[str, Any] = {name: vars(Snapshot)[name] for name in _PARTS}
"""The parts themselves, without a note of who reads them."""
_READS = [(name, _SLOTS[name].__get__) for name in WHOLE]


def _noted(name: str) -> property:
    """A part of a watched snapshot. The clock for people holds for no time; the others are compared."""
    slot = _SLOTS[name]

    def read(snap: Watched) -> object:
        value: object = slot.__get__(snap)
        if name == "wall_ms":
            snap.reads.hold(0)
        else:
            snap.reads.whole[name] = value
        return value

    return property(read, slot.__set__)


for _name in (*WHOLE, "wall_ms"):
    setattr(Watched, _name, _noted(_name))


def watch(snap: Snapshot, reads: Reads, known: Facts) -> Watched:
    """The snapshot for one reader, whose reads are noted in `reads`."""
    parts: dict[str, Any] = whole_parts(snap)
    nodes: Any = part_of(snap, "nodes")
    return Watched(
        **parts,
        now_ms=Moment(reads.now_ms, reads.hold),
        wall_ms=_SLOTS["wall_ms"].__get__(snap),
        nodes=_Nodes(nodes, parts["news"], reads),
        reads=reads,
        known=known,
    )


def whole_parts(snap: Snapshot) -> dict[str, object]:
    """The parts that are compared by themselves, without a note of them."""
    return {name: read(snap) for name, read in _READS}


def part_of(snap: Snapshot, name: str) -> object:
    """A part of a snapshot, without a note of it."""
    part = _SLOTS[name].__get__(snap)
    if isinstance(part, _Nodes):
        return part.plain
    return snap.reads.now_ms if isinstance(part, Moment) and isinstance(snap, Watched) else part
