"""Whether etcd is the one that a daemon has served, with all that it had. Each daemon then acts for itself.

Etcd is another one when it was begun anew: its record of the cluster is gone, or has another UUID. It went
back when an old snapshot was restored. A revision that is less than before proves that. More proves nothing:
others may have written since to an etcd that went back. So the newest write is remembered, and looked for
where it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import Enum, auto

from supervisor.contract.boundaries import Coordination, KeyValue, Seen
from supervisor.contract.desired import ClusterRecord
from supervisor.contract.errors import Compacted


class Loss(Enum):
    """A fault of an etcd: it has no record of the cluster, another one's, or lacks what it had."""

    NO_RECORD = auto()
    BEGUN_ANEW = auto()
    WENT_BACK = auto()


class EtcdIdentity:
    """The etcd that a daemon has served. Before the daemon has read a cluster's record, any etcd is right.

    Args:
        cluster: the UUID of the cluster that an earlier life has served.
        revision: how far its etcd had come.
        seen: the newest write that the earlier life saw.
    """

    def __init__(self, cluster: str = "", revision: int = 0, seen: Seen | None = None) -> None:
        self.cluster = cluster
        self.revision = revision
        self._seen = seen
        self._lacks = False

    def knows(self, record: ClusterRecord | None) -> bool:
        """Whether this is the record of the cluster that was served. That of an early release has no UUID."""
        return record is not None and record.uuid in {"", self.cluster}

    def forked(self) -> None:
        """A watch has shown that etcd lacks what it had."""
        self._lacks = True

    async def look_back(self, coordination: Coordination) -> bool:
        """Look once for the newest write of the earlier life; False when etcd lacks it.

        Raises CoordinationUnreachable.
        """
        holds = await still_holds(coordination, self._seen)
        self._seen = None
        self._lacks |= not holds
        return holds

    def loss(self, record: ClusterRecord | None, revision: int) -> Loss | None:
        """The fault of an etcd that shows this record at this revision; None for nothing."""
        if not self.cluster:
            self.cluster = record.uuid if record is not None else ""
        elif record is None:
            return Loss.NO_RECORD
        elif not self.knows(record):
            return Loss.BEGUN_ANEW
        elif self._lacks or revision < self.revision:
            return Loss.WENT_BACK
        self.revision = revision
        return None


def newest(entries: Iterable[KeyValue]) -> Seen | None:
    """The newest of these writes; None without any."""
    last = max(entries, key=lambda entry: entry.mod_revision, default=None)
    return Seen(last.key, last.mod_revision, _digest(last.value)) if last is not None else None


async def still_holds(coordination: Coordination, seen: Seen | None) -> bool:
    """False when etcd lacks that write, or has another one in its place.

    True too if that is unknown: its history is compacted, and the key was written again or deleted. Raises
    CoordinationUnreachable.
    """
    if seen is None:
        return True
    try:
        found = await coordination.get_at(seen.key, seen.revision)
    except Compacted:
        found = await coordination.get(seen.key)
        if found is None or found.mod_revision > seen.revision:
            return True
    if found is None or found.mod_revision != seen.revision:
        return False
    return _digest(found.value) == seen.digest


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()[:16]
