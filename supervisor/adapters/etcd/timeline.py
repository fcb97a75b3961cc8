"""Whether etcd still has what it once showed: not when its data were lost, or an old snapshot was restored.

A revision that is less than before proves that. More proves nothing: others may have written since to an etcd
that went back. So the newest write is remembered, and looked for where it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from supervisor.contract.boundaries import Coordination, KeyValue, Seen
from supervisor.contract.errors import Compacted


def newest(entries: Iterable[KeyValue]) -> Seen | None:
    """The newest of these writes; None of none."""
    last = max(entries, key=lambda entry: entry.mod_revision, default=None)
    return Seen(last.key, last.mod_revision, _digest(last.value)) if last is not None else None


async def still_holds(coordination: Coordination, seen: Seen | None) -> bool:
    """False when etcd lacks that write, or has another one in its place.

    True also where that cannot be told, as its history is compacted. Raises CoordinationUnreachable.
    """
    if seen is None:
        return True
    try:
        found = await coordination.get_at(seen.key, seen.revision)
    except Compacted:
        return True
    if found is None or found.mod_revision != seen.revision:
        return False
    return _digest(found.value) == seen.digest


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()[:16]
