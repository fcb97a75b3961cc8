"""etcd's own log (the write-ahead log of one member), read without etcd: every request that was agreed on.

A watch tells what changed; only the log tells what a transaction had compared. Replaying the log gives the
revisions a second time, which must be those that the watch has shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chaos.history.formats import Compared, Transaction
from chaos.history.protobuf import BadMessage, Message, parse

_ENTRY, _STATE = 2, 3
_NORMAL = 0
# Fields of etcd's InternalRaftRequest.
_V2, _PUT, _DELETE_RANGE, _TXN, _LEASE_GRANT, _LEASE_REVOKE, _ALARM = 2, 4, 5, 6, 8, 9, 10
_RESULTS = ("=", ">", "<", "!=")
_TARGETS = ("version", "create", "mod", "value", "lease")
_NOSPACE, _ACTIVATE, _DEACTIVATE = 1, 1, 2


class LogCut(ValueError):
    """The log does not reach back to its beginning: etcd has removed its oldest files."""


def requests(member: Path) -> Iterator[Message]:
    """The committed requests, oldest first; `member` is a member's data directory. Raises LogCut, OSError."""
    entries: dict[int, Message] = {}
    committed = 0
    for file in sorted((member / "member" / "wal").glob("*.wal")):
        for kind, data in _frames(file.read_bytes()):
            if kind == _ENTRY:
                entry = parse(data)
                # A later leader may have overwritten what was never agreed on.
                entries[entry.number(3)] = entry
            elif kind == _STATE:
                committed = max(committed, parse(data).number(3))
    if entries and min(entries) != 1:
        raise LogCut(f"{member}: the log begins with entry {min(entries)}")
    for index in range(1, committed + 1):
        if index not in entries:
            raise LogCut(f"{member}: entry {index} of {committed} is not in the log")
        agreed = entries[index]
        if agreed.number(1) == _NORMAL and agreed.has(4):
            try:
                request = parse(agreed.bytes(4))
            except BadMessage:
                continue  # a request of etcd's second API: members publish their names so
            if not request.has(_V2):
                yield request


def _frames(raw: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 8 <= len(raw):
        length = int.from_bytes(raw[at : at + 8], "little")
        if length == 0:
            return  # allocated, and not written yet
        size = length & ~(0xFF << 56)
        pad = (length >> 56) & 0x7 if length >> 63 else 0
        if at + 8 + size > len(raw):
            return  # it was being written when we read
        try:
            record = parse(raw[at + 8 : at + 8 + size])
        except BadMessage:
            return
        yield record.number(1), record.bytes(3)
        at += 8 + size + pad


@dataclass(slots=True)
class _Key:
    created: int
    modified: int
    version: int
    lease: int
    value: bytes


@dataclass(slots=True)
class Replay:
    """etcd's rules, as far as the product uses them: what each request does to keys and revision.

    Attributes:
        prefix: only keys below it are told, without it.
        transactions: those that changed such a key.
    """

    prefix: str
    revision: int = 1
    transactions: list[Transaction] = field(default_factory=list)
    _keys: dict[bytes, _Key] = field(default_factory=dict)
    _leases: dict[int, set[bytes]] = field(default_factory=dict)
    _full: set[int] = field(default_factory=set)

    def run(self, request: Message) -> None:
        """Apply one request."""
        if request.has(_PUT):
            put = request.message(_PUT)
            if not self._full and self._lease_known(put):
                self._change((), [(_PUT_OP, put)])
        elif request.has(_DELETE_RANGE):
            self._change((), [(_DELETE_OP, request.message(_DELETE_RANGE))])
        elif request.has(_TXN):
            self._txn(request.message(_TXN))
        elif request.has(_LEASE_GRANT):
            if not self._full:
                self._leases.setdefault(request.message(_LEASE_GRANT).signed(2), set())
        elif request.has(_LEASE_REVOKE):
            self._revoke(request.message(_LEASE_REVOKE).signed(1))
        elif request.has(_ALARM):
            self._alarm(request.message(_ALARM))

    def _lease_known(self, put: Message) -> bool:
        return put.signed(3) == 0 or put.signed(3) in self._leases

    def _alarm(self, alarm: Message) -> None:
        if alarm.number(3) == _NOSPACE and alarm.number(1) == _ACTIVATE:
            self._full.add(alarm.number(2))
        elif alarm.number(3) == _NOSPACE and alarm.number(1) == _DEACTIVATE:
            self._full.discard(alarm.number(2))

    def _txn(self, txn: Message) -> None:
        compares = txn.messages(1)
        holds = all(self._holds(compare) for compare in compares)
        branches = [[_op(each) for each in txn.messages(name)] for name in (2, 3)]
        if self._full and any(kind == _PUT_OP for branch in branches for kind, _ in branch):
            return
        ops = branches[0] if holds else branches[1]
        if all(self._lease_known(op) for kind, op in ops if kind == _PUT_OP):
            self._change(tuple(map(self._compared, compares)) if holds else (), ops)

    def _compared(self, compare: Message) -> Compared:
        result, target = compare.number(1), compare.number(2)
        key = compare.bytes(3).decode(errors="replace").removeprefix(self.prefix)
        number = compare.signed(4 + target) if _TARGETS[target] not in ("value", "lease") else 0
        return Compared(key, _TARGETS[target], _RESULTS[result], number)

    def _holds(self, compare: Message) -> bool:
        held = self._keys.get(compare.bytes(3))
        target = _TARGETS[compare.number(2)]
        if target == "value":
            if held is None:
                return False
            return _related(_RESULTS[compare.number(1)], held.value, compare.bytes(7))
        if target == "lease":
            found, wanted = (held.lease if held is not None else 0), compare.signed(8)
        else:
            wanted = compare.signed(4 + compare.number(2))
            found = 0 if held is None else (held.version, held.created, held.modified)[compare.number(2)]
        return _related(_RESULTS[compare.number(1)], found, wanted)

    def _change(self, compares: tuple[Compared, ...], ops: list[tuple[str, Message]]) -> None:
        puts: list[bytes] = []
        deletes: list[bytes] = []
        for kind, op in ops:
            if kind == _PUT_OP:
                self._put(op)
                puts.append(op.bytes(1))
            elif kind == _DELETE_OP:
                deletes += self._delete(op.bytes(1), op.bytes(2))
        self._record(compares, puts, deletes, by_lease=False)

    def _put(self, put: Message) -> None:
        key, lease = put.bytes(1), put.signed(3)
        held = self._keys.get(key)
        if held is not None and held.lease:
            self._leases.get(held.lease, set()).discard(key)
        fresh = self.revision + 1
        created, version = (held.created, held.version) if held is not None else (fresh, 0)
        self._keys[key] = _Key(created, fresh, version + 1, lease, put.bytes(2))
        if lease:
            self._leases.setdefault(lease, set()).add(key)

    def _delete(self, key: bytes, end: bytes) -> list[bytes]:
        if not end:
            gone = [key] if key in self._keys else []
        else:
            gone = [each for each in self._keys if each >= key and (end == b"\0" or each < end)]
        for each in gone:
            held = self._keys.pop(each)
            if held.lease:
                self._leases.get(held.lease, set()).discard(each)
        return gone

    def _revoke(self, lease: int) -> None:
        gone = sorted(self._leases.pop(lease, set()))
        for key in gone:
            self._keys.pop(key, None)
        self._record((), [], gone, by_lease=True)

    def _record(
        self, compares: tuple[Compared, ...], puts: list[bytes], deletes: list[bytes], *, by_lease: bool
    ) -> None:
        if not puts and not deletes:
            return
        self.revision += 1
        ours = [self._ours(each) for each in (puts, deletes)]
        if any(ours):
            self.transactions.append(
                Transaction(self.revision, compares, tuple(ours[0]), tuple(ours[1]), by_lease)
            )

    def _ours(self, raw: list[bytes]) -> list[str]:
        texts = [key.decode(errors="replace") for key in raw]
        return [text.removeprefix(self.prefix) for text in texts if text.startswith(self.prefix)]


_PUT_OP, _DELETE_OP, _OTHER_OP = "put", "delete", "other"


def _op(request: Message) -> tuple[str, Message]:
    for name, kind in ((2, _PUT_OP), (3, _DELETE_OP)):
        if request.has(name):
            return kind, request.message(name)
    # Nested transactions are not among what the product sends.
    assert not request.has(4), "a nested transaction"
    return _OTHER_OP, request


def _related(result: str, found: int | bytes, wanted: int | bytes) -> bool:
    if result == "=":
        return found == wanted
    if result == "!=":
        return found != wanted
    assert isinstance(found, int)
    assert isinstance(wanted, int)
    return found > wanted if result == ">" else found < wanted


def transactions(member: Path, prefix: str) -> list[Transaction]:
    """The transactions that took effect below a prefix, from a member's log. Raises LogCut, OSError."""
    replay = Replay(prefix)
    for request in requests(member):
        replay.run(request)
    return replay.transactions
