"""A check that etcd still has a write that it once showed.

After a loss of data or an old snapshot it has not.

A smaller revision than before proves a loss. A larger one proves nothing, as others may have written since
then. So the newest write is remembered, and read again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from supervisor.contract.boundaries import Coordination, KeyValue, Seen
from supervisor.contract.errors import Compacted


def newest(entries: Iterable[KeyValue]) -> Seen | None:
    """The newest of these writes; None without any."""
    last = max(entries, key=lambda entry: entry.mod_revision, default=None)
    return Seen(last.key, last.mod_revision, _digest(last.value)) if last is not None else None


async def still_holds(coordination: Coordination, seen: Seen | None) -> bool:
    """False when etcd lacks that write, or has another one in its place.

    True too if its history is compacted, so that this is unknown. Raises CoordinationUnreachable.
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
