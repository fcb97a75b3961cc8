"""The reaction of a supervisor to the identity of etcd: it ends where etcd is another one, or went back.

An etcd that was restored from a snapshot knows nothing of what was decided and committed since. A leader that
went on from there would begin generations again that have been, and take the store's checkpoints of the time
since for leftovers. How far etcd has come is kept on this machine: the next life of the supervisor compares.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import NoReturn, Protocol

from supervisor.adapters.etcd.identity import EtcdIdentity, Loss, newest
from supervisor.adapters.etcd.mirror import Mirror, MirrorUpdate
from supervisor.contract.boundaries import Coordination, Logger, Seen
from supervisor.contract.desired import ClusterRecord
from supervisor.contract.errors import Fenced, Refused, UserError

KEEP_S = 0.5


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a cluster's etcd had come, and its newest write. `cluster`: its UUID."""

    cluster: str
    revision: int
    seen: Seen | None = None


class MarkFile(Protocol):
    """The file in which the mark outlives the process."""

    def read(self) -> Mark | None:
        """The mark that an earlier process left; None without one. Raises Refused, UserError."""

    async def save(self, mark: Mark) -> None:
        """Replace it; durable when this returns. Raises Refused."""


class EtcdGuard:
    """Guards one supervisor. Without a file it knows what it has seen itself.

    `mirror`: of all of etcd.

    Attributes:
        trouble: why how far etcd has come cannot be kept on this machine; empty if it can be.
    """

    def __init__(self, file: MarkFile | None, mirror: Mirror, sink: Logger) -> None:
        self._file = file
        self._mirror = mirror
        self._sink = sink
        self._earlier: Mark | None = None
        self._saved = Mark("", 0)
        self.trouble = ""
        self.identity = EtcdIdentity()

    def open(self) -> None:
        """Take up what an earlier life has left. Raises Refused, UserError."""
        if self._file is not None:
            self._earlier = self._file.read()
            self._saved = self._earlier or self._saved

    def take(self, record: ClusterRecord | None, update: MirrorUpdate) -> None:
        """Etcd shows this now. Raises Fenced when it was begun anew, UserError when it went back."""
        earlier, first = self._earlier, not self.identity.cluster
        # A supervisor begins with whatever cluster there is: no task depends on its earlier life.
        if first and record is not None and earlier is not None and earlier.cluster == record.uuid:
            self.identity = EtcdIdentity(earlier.cluster, earlier.revision, earlier.seen)
        if update.forked and self.identity.cluster:
            self.identity.forked()
        before = self.identity.revision
        match self.identity.loss(record, update.revision):
            case None:
                pass
            case Loss.WENT_BACK:
                self._refuse(
                    f"it is at revision {update.revision}, was at {before}, and lacks what it had then"
                )
            case Loss.NO_RECORD | Loss.BEGUN_ANEW:
                raise Fenced(
                    "etcd holds no record of the cluster that this supervisor has served, or another's: it "
                    "was begun anew. Started again, this supervisor goes on from what etcd holds now"
                )

    async def check(self, coordination: Coordination) -> None:
        """Compare what an earlier life has left; until then that is not replaced.

        Raises UserError when etcd lacks it, CoordinationUnreachable.
        """
        if not await self.identity.look_back(coordination):
            self._refuse("it lacks what it had when this supervisor saw it last")
        self._earlier = None

    def _refuse(self, why: str) -> NoReturn:
        raise UserError(
            f"etcd has gone back: {why}. A snapshot was restored, which knows nothing of what was committed "
            "since. Nothing is decided on it; stop all supervisors and start an empty etcd "
            "(docs/checkpoints.md, When etcd is lost)"
        )

    async def keep(self) -> NoReturn:
        """Write down, now and then, how far etcd has come."""
        while True:
            await asyncio.sleep(KEEP_S)
            mark = Mark(self.identity.cluster, self.identity.revision)
            if self._file is None or self._earlier is not None or not mark.cluster or mark == self._saved:
                continue
            with_write = replace(mark, seen=newest(self._mirror.entries.values()))
            try:
                await self._file.save(with_write)
            except Refused as error:
                if str(error) != self.trouble:
                    self._sink.warning(
                        "cannot write etcd's newest revision to disk; trying again", reason=str(error)
                    )
                self.trouble = str(error)
                continue
            self._saved, self.trouble = mark, ""
