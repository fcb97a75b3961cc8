"""How far etcd has come, kept on this machine: one that was restored from a snapshot is behind that.

It knows nothing of what was decided and committed since. Who went on from there would begin generations again
that have been, and take the store's checkpoints of the time since for leftovers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import NoReturn, Protocol

from supervisor.adapters.etcd.mirror import Mirror, MirrorUpdate
from supervisor.adapters.etcd.timeline import newest, still_holds
from supervisor.contract.boundaries import Coordination, Logger, Seen
from supervisor.contract.errors import Refused, UserError

KEEP_S = 0.5


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a cluster's etcd had come, and its newest write. `cluster`: its UUID."""

    cluster: str
    revision: int
    seen: Seen | None = None


class MarkFile(Protocol):
    """Where it outlives the process."""

    def read(self) -> Mark | None:
        """What an earlier life has left; None for nothing. Raises Refused, UserError."""

    async def save(self, mark: Mark) -> None:
        """Replace it; durable when this returns. Raises Refused."""


class HighWater:
    """The mark of one supervisor. Without a file it knows what it has seen itself.

    `mirror`: of all of etcd.
    """

    def __init__(self, file: MarkFile | None, mirror: Mirror, sink: Logger) -> None:
        self._file = file
        self._mirror = mirror
        self._sink = sink
        self._earlier: Mark | None = None
        self._mark = self._saved = Mark("", 0)

    def open(self) -> None:
        """Take up what an earlier life has left. Raises Refused, UserError."""
        if self._file is not None:
            self._earlier = self._file.read()
            self._mark = self._saved = self._earlier or self._mark

    async def check(self, cluster: str, coordination: Coordination) -> None:
        """Compare what an earlier life has left; until then that is not replaced.

        Raises UserError when etcd lacks it, CoordinationUnreachable.
        """
        before = self._earlier
        known = before.seen if before is not None and before.cluster == cluster else None
        if not await still_holds(coordination, known):
            self._refuse("it lacks what it had when this supervisor saw it last")
        self._earlier = None

    def rise(self, cluster: str, update: MirrorUpdate) -> None:
        """So far it has come now. Raises UserError when it lacks what it had."""
        same, before = cluster == self._mark.cluster, self._mark.revision
        if same and (update.forked or update.revision < before):
            self._refuse(f"it is at revision {update.revision}, was at {before}, and lacks what it had then")
        self._mark = Mark(cluster, update.revision)

    def _refuse(self, why: str) -> NoReturn:
        raise UserError(
            f"etcd has gone back: {why}. A snapshot was restored, which knows nothing of what was committed "
            "since. Nothing is decided on it; stop all supervisors and start an empty etcd "
            "(docs/checkpoints.md, When etcd is lost)"
        )

    async def keep(self) -> NoReturn:
        """Write it down, now and then."""
        refused = ""
        while True:
            await asyncio.sleep(KEEP_S)
            if self._file is None or self._earlier is not None or self._mark == self._saved:
                continue
            mark = self._mark
            with_write = replace(mark, seen=newest(self._mirror.entries.values()))
            try:
                await self._file.save(with_write)
            except Refused as error:
                if str(error) != refused:
                    self._sink.warning("how far etcd has come is not on disk", reason=str(error))
                refused = str(error)
                continue
            self._saved, refused = mark, ""
