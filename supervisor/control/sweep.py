"""Keeping a job's store clean: what commits that were interrupted have left, which no record will ever name.

Why nothing that counts is lost, although commits go on meanwhile and this leader may have been deposed:

- A complete directory goes only if it was listed *before* the switch and the records were read, in one
  transaction, and if it is of a generation below the one that the switch named. A commit compares the switch
  (rule 7), so one of an older generation had succeeded by then, and the record names its directory, or it
  never will. Generations only grow, so that this stays true however late the deletion comes. Quarantined and
  collecting checkpoints have records, and are for rule 9.
- A directory under `.staging` goes a day after it was begun, by the hosts' wall clocks. A commit gives up
  after a minute, so that only clocks that are a day apart could make one lose its directory while it writes.
"""

from __future__ import annotations

from collections.abc import Callable

from recovery.collect import clean_store, delete_uncommitted, scan_store
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import CheckpointStore, Clock, Coordination, Get, GetPrefix, Op, Sink
from supervisor.contract.checkpoint import CommitRecord
from supervisor.contract.desired import JobPhase, JobSwitch, LeaderToken
from supervisor.contract.errors import TfSupervisorError
from supervisor.control.snapshot import JobPicture

SWEEP_EVERY_MS = 60_000
STAGING_AGE_MS = 24 * 3600 * 1000


class Sweeper:
    """Sweeps each running job's store at most once a minute, one job at a time."""

    def __init__(
        self,
        coordination: Coordination,
        open_store: Callable[[str], CheckpointStore],
        clock: Clock,
        sink: Sink,
    ) -> None:
        self._coordination = coordination
        self._open_store = open_store
        self._clock = clock
        self._sink = sink
        self._swept: dict[str, int] = {}
        self._busy = False

    def due(self, job: JobPicture) -> bool:
        """Whether it is this job's turn: it trains, and nothing waits for its store."""
        switch = job.switch.value
        if self._busy or switch.phase is not JobPhase.RUNNING or switch.closing is not None:
            return False
        last_ms = self._swept.get(switch.job_uuid)
        return last_ms is None or self._clock.now_ms() - last_ms >= SWEEP_EVERY_MS

    async def sweep(self, token: LeaderToken, job: str, job_uuid: str, uri: str) -> None:
        """Delete what is left over. Errors of the store or of etcd put it off until the next time."""
        self._busy = True
        self._swept[job_uuid] = self._clock.now_ms()
        try:
            store = self._open_store(uri)
            scan = await scan_store(store)
            wanted: list[Op] = [Get(keys.switch(job)), GetPrefix(keys.commits_of(job))]
            result = await self._coordination.txn([token.compare()], wanted)
            if not result.succeeded or not result.reads[0]:
                return
            switch = codec.decode(JobSwitch, result.reads[0][0].value)
            records = [codec.decode(CommitRecord, entry.value) for entry in result.reads[1]]
            if switch.job_uuid != job_uuid:
                return
            for ref in await delete_uncommitted(store, scan, records, switch):
                self._sink.info("deleted what was never committed", job=job, checkpoint=str(ref))
            await clean_store(store, self._clock.wall_ms(), STAGING_AGE_MS)
        except TfSupervisorError as error:
            self._sink.debug("the store could not be swept", job=job, error=str(error))
        finally:
            self._busy = False
