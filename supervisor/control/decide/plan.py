"""Plans are data: an Action is one transaction that the applier fences, runs and may find stale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Absent, Compare, CreatedAt, Delete, ModifiedAt, Op, Put
from supervisor.contract.checkpoint import CommitRecord
from supervisor.contract.desired import LostMark, Plan
from supervisor.contract.errors import InvariantBroken
from supervisor.contract.promise import Taking
from supervisor.control.decide.snapshot import Versioned

T = TypeVar("T")

OPS_PER_TRANSACTION = 100
BYTES_PER_TRANSACTION = 1_000_000
"""etcd takes 1.5 MiB a request; compares, the event and gRPC's own bytes are in that too."""
_BYTES_PER_OP = 64

MAX_TEXT, MAX_FIELD = 1500, 500
"""Characters of a sentence for people, and of one thing that it names. Each may take 6 bytes in a record."""


@dataclass(frozen=True, slots=True)
class Action:
    """One decision of the leader.

    Attributes:
        kind: what is done, in one word; also the kind of the event that tells of it.
        job: the job it is about; empty for a node.
        text: what and why, for people. An empty text makes no event.
        compares: what must still hold besides the leader token (which the applier adds).
        fields: names and values for the event and the log line.
        taking: whose tasks it takes away that may be alive; noted on disk before it is sent (rule 11).
        places: the plan that it makes or changes, as it will be; actions that follow in the look know of it.
    """

    kind: str
    job: str
    text: str
    compares: tuple[Compare, ...]
    ops: tuple[Op, ...]
    fields: dict[str, str] = field(default_factory=dict)
    taking: Taking | None = None
    places: Plan | None = None


@dataclass(frozen=True, slots=True)
class DeleteFiles:
    """After its record is COLLECTING: delete a checkpoint's files, then its record (rule 9)."""

    job: str
    key: str
    mod_revision: int
    record: CommitRecord
    uri: str


@dataclass(frozen=True, slots=True)
class PowerOff:
    """A suspected node on which tasks may run: switch its machine off, if a fence device can (rule 3).

    Attributes:
        mark: the lost mark that says so, as it was seen.
        begins: what holds when the device is asked: the mark, no other appeal, the same holder of the key.
        counts: what holds when the machine is off: the mark, and no other appeal.
        labels: of the node; none when its key is gone.
        suspected_ms: for how long this leader has seen the mark.
        left_ms: until D is over, and the device has nothing to give any more.
    """

    mark: Versioned[LostMark]
    begins: tuple[Compare, ...]
    counts: tuple[Compare, ...]
    labels: Mapping[str, str]
    suspected_ms: int
    left_ms: int

    @property
    def node(self) -> str:
        """Its name."""
        return self.mark.value.node


Decision = Action | DeleteFiles | PowerOff


def put(key: str, record: object) -> Put:
    """A write of `record`; raises InvariantBroken when it is not what that key holds, or too large."""
    family = keys.family(key)
    if type(record) is not family.record:
        raise InvariantBroken(f"{key} holds {family.record.__name__}, not {type(record).__name__}")
    raw = codec.encode(record)
    if len(raw) > family.max_bytes:
        raise InvariantBroken(f"{key}: {len(raw)} bytes, at most {family.max_bytes} are allowed")
    return Put(key, raw)


def short(text: str, most: int = MAX_TEXT) -> str:
    """A sentence that fits its record, whatever a program, a path or another machine's error put into it."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def unchanged(held: Versioned[T]) -> ModifiedAt:
    """Compare: the record is still this version."""
    return ModifiedAt(held.key, held.mod_revision)


def still(held: Versioned[T]) -> CreatedAt:
    """Compare: the key has not been deleted since, whatever was written to it."""
    return CreatedAt(held.key, held.create_revision)


def unchanged_or_absent(key: str, held: Versioned[T] | None) -> Compare:
    """Compare: the record is still this version, or still missing."""
    return Absent(key) if held is None else unchanged(held)


def fitting(ops: Iterable[Op], beside: Sequence[Op] = ()) -> tuple[Op, ...]:
    """The first of `ops`, as many as fit into one transaction together with `beside`."""
    count, room = len(beside), BYTES_PER_TRANSACTION - sum(_size(op) for op in beside)
    found: list[Op] = []
    for op in ops:
        count, room = count + 1, room - _size(op)
        if count > OPS_PER_TRANSACTION or room < 0:
            break
        found.append(op)
    return tuple(found)


def _size(op: Op) -> int:
    return _BYTES_PER_OP + (len(op.key) + len(op.value) if isinstance(op, Put) else 0)


def delete_all(held: Iterable[Versioned[T]]) -> tuple[Delete, ...]:
    """Deletes of records."""
    return tuple(Delete(entry.key) for entry in held)
