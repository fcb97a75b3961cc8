"""Keeping a job's store clean: what commits that were interrupted have left, which no record will ever name.

Why nothing that counts is lost, although commits go on meanwhile and this leader may have been deposed:

- A complete directory goes only if it was listed *before* the switch and the records were read, in one
  transaction, and if it is of a generation below the one that the switch named. A commit compares the switch
  (rule 7), so one of an older generation had succeeded by then, and the record names its directory, or it
  never will. Generations only grow, so that this stays true however late the deletion comes. Quarantined and
  collecting checkpoints have records, and are for rule 9.
- A job that started from a checkpoint has a head, which its first commit wrote. Where that is gone, etcd has
  lost its records, and the store is all that is left to make them again from: nothing is touched.
- What an earlier life of the job has left goes only if this cluster itself has ended that life for good, by
  `submit --fresh`, and days ago: its record says so, which is read in that same transaction.
- A directory under `.staging` goes when its generation is over. One of the generation in force goes when
  this leader has seen it there for a day, on its own clock, and no mount leads to it: then it is at worst a
  copy of what some node has, and its commit is tried again. No two clocks are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import partial

from recovery.formats.retention import GRACE_MS
from recovery.io.deadline import within
from recovery.logs.segments import LOGS
from recovery.retention.collect import (
    Staged,
    clean_store,
    delete_stored,
    delete_uncommitted,
    finished_live,
    read_staging,
    scan_store,
)
from recovery.retention.leftovers import Leftover, leftovers
from supervisor.adapters.failpoints import effect
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import CheckpointStore, Clock, Coordination, Get, GetPrefix, Logger, Op
from supervisor.contract.checkpoint import CommitRecord
from supervisor.contract.containment import contained, told
from supervisor.contract.desired import DeletedJob, JobPhase, JobSwitch, LeaderToken
from supervisor.contract.errors import Conflict, NotFound, StoreUnreachable, TfSupervisorError
from supervisor.contract.job.spec import JobRecord
from supervisor.contract.views.checkpoints import Thing
from supervisor.control.decide.facts.cluster_time import Ages
from supervisor.control.decide.snapshot import JobState

SWEEP_EVERY_MS = 60_000
SWEEP_ENDED_MS = 3_600_000
"""The interval for a job that has ended: its tasks may have left files in the store, and write no more."""

LOGS_S = 60.0
"""Seconds for deleting the logs of a job."""

STAGING_AGE_MS = 24 * 3600 * 1000
"""How long a commit may take. It gives up when nothing has moved for a minute."""


@dataclass(frozen=True, slots=True)
class Place:
    """A job's store, and whose it is."""

    job: str
    job_uuid: str
    store: CheckpointStore


async def look_over(
    coordination: Coordination,
    token: LeaderToken,
    place: Place,
    *,
    ages: Ages,
    delete: bool,
    stale: Callable[[Staged], bool] = lambda _staged: False,
) -> tuple[Leftover, ...]:
    """The entries of the store that no record names; with `delete`, those that may go are gone afterwards.

    `stale`: whether an entry of `.staging` of the generation in force has been there for too long. `ages`:
    the grace of an earlier life counts from when this one was submitted.

    Raises StoreUnreachable, Refused, CoordinationUnreachable; Conflict when another supervisor leads or the
    job has begun a new life; NotFound when there is no such job.
    """
    scan = await scan_store(place.store)
    wanted: list[Op] = [
        Get(keys.switch(place.job)),
        GetPrefix(keys.commits_of(place.job)),
        Get(keys.head(place.job)),
        Get(keys.job_record(place.job)),
    ]
    result = await coordination.txn([token.compare()], wanted)
    if not result.succeeded:
        raise Conflict("another supervisor leads now; ask again")
    if not result.reads[0] or not result.reads[3]:
        raise NotFound(f"there is no job {place.job!r}")
    switch = codec.decode(JobSwitch, result.reads[0][0].value)
    if switch.job_uuid != place.job_uuid:
        raise Conflict(f"job {place.job} was submitted anew; ask again")
    records = [codec.decode(CommitRecord, entry.value) for entry in result.reads[1]]
    lost = switch.base is not None and not result.reads[2]
    staging = await read_staging(place.store, scan, switch)
    gone = {each.name for each in staging if each.over or (not each.linked and stale(each))}
    record = codec.decode(JobRecord, result.reads[3][0].value)
    over = ages.since(record.submitted_ms) > GRACE_MS
    found = await leftovers(
        place.store,
        scan,
        records,
        switch,
        staging,
        abandoned=() if lost else gone,
        former=dict.fromkeys(record.former, over),
        records_lost=lost,
    )
    if delete and not lost:
        for each in found:
            if each.thing is Thing.FOREIGN and each.goes:
                await delete_stored(place.store, each.path)
        await delete_uncommitted(place.store, scan, records, switch)
        for path in finished_live(scan, switch):
            with effect("sweep.delete_live", StoreUnreachable):
                await place.store.delete_tree(path)
        await clean_store(place.store, gone)
    return found


class Sweeper:
    """Sweeps each running job's store once a minute, an ended one's at its end and then once an hour; one job
    at a time, and again a minute after it could not. It deletes the logs of deleted jobs, too.

    Attributes:
        open_logs: opens the store of a job's logs.
    """

    def __init__(
        self,
        coordination: Coordination,
        open_store: Callable[[str], CheckpointStore],
        clock: Clock,
        sink: Logger,
    ) -> None:
        self._coordination = coordination
        self.open_logs = self._open_store = open_store
        self._clock = clock
        self._sink = sink
        self._due_ms: dict[str, int] = {}
        self._pauses_ms: dict[str, int] = {}
        self._not_ended: set[str] = set()
        self._seen: dict[str, dict[str, int]] = {}
        self._busy = False

    def due(self, job: JobState) -> bool:
        """Whether it is this job's turn: it trains or has ended, and nothing waits for its store."""
        switch, now_ms = job.switch.value, self._clock.now_ms()
        if not switch.phase.ended:
            self._not_ended.add(switch.job_uuid)
            due_ms = self._due_ms.setdefault(switch.job_uuid, now_ms)
        elif switch.job_uuid in self._not_ended:
            self._not_ended.discard(switch.job_uuid)
            due_ms = self._due_ms[switch.job_uuid] = now_ms
        else:
            due_ms = self._due_ms.setdefault(switch.job_uuid, now_ms + SWEEP_ENDED_MS)
        if self._busy or switch.closing is not None:
            return False
        return (switch.phase is JobPhase.RUNNING or switch.phase.ended) and now_ms >= due_ms

    async def sweep(self, token: LeaderToken, job: str, job_uuid: str, uri: str, ages: Ages) -> None:
        """Delete what is left over. Errors of the store or of etcd put it off until the next time.

        An unexpected one does so for an hour.
        """

        def tell(error: Exception) -> None:
            self._due_ms[job_uuid] = now_ms + SWEEP_ENDED_MS
            text = "an unexpected error in the search of a job's store for leftovers; trying again in an hour"
            self._sink.error(text, job=job, error=told(error))

        self._busy = True
        now_ms, ended = self._clock.now_ms(), job_uuid not in self._not_ended
        # Set before, not after: an end that is seen while this goes on wants a sweep of its own.
        self._due_ms[job_uuid] = now_ms + (SWEEP_ENDED_MS if ended else SWEEP_EVERY_MS)
        try:
            with contained(tell):
                await self._look_over(token, job, job_uuid, uri, ages, now_ms)
        finally:
            self._busy = False

    async def _look_over(
        self, token: LeaderToken, job: str, job_uuid: str, uri: str, ages: Ages, now_ms: int
    ) -> None:
        try:
            place = Place(job, job_uuid, self._open_store(uri))
            stale = partial(self._stale, job_uuid)
            found = await look_over(self._coordination, token, place, ages=ages, delete=True, stale=stale)
            self._forget(job_uuid, found)
            for each in found:
                if each.goes:
                    self._sink.info(
                        "deleted files in the store that no record names", job=job, path=each.path
                    )
        except TfSupervisorError as error:
            self._due_ms[job_uuid] = min(self._due_ms[job_uuid], now_ms + SWEEP_EVERY_MS)
            self._sink.debug(
                "cannot look for leftover files in a store; trying again later", job=job, error=str(error)
            )

    def logs_due(self, job: DeletedJob) -> bool:
        """Whether it is the turn of a deleted job's logs: at once, and then less and less often, as a node
        may send the last of them late.
        """
        if self._busy or not job.store_uri:
            return False
        now_ms = self._clock.now_ms()
        pause_ms = self._pauses_ms.get(job.job_uuid, 0)
        return now_ms >= self._due_ms.setdefault(job.job_uuid, now_ms) or not pause_ms

    async def delete_logs(self, job: DeletedJob) -> None:
        """Delete the stored logs of a deleted job. Errors put it off until the next time."""

        def tell(error: Exception) -> None:
            text = "an unexpected error while the logs of a deleted job were removed"
            self._sink.error(text, job=job.job, error=told(error))

        self._busy = True
        pause_ms = min(SWEEP_ENDED_MS, 2 * self._pauses_ms.get(job.job_uuid, SWEEP_EVERY_MS // 2))
        self._pauses_ms[job.job_uuid] = pause_ms
        self._due_ms[job.job_uuid] = self._clock.now_ms() + pause_ms
        try:
            with contained(tell):
                await self._delete_logs(job)
        finally:
            self._busy = False

    async def _delete_logs(self, job: DeletedJob) -> None:
        try:
            async with within(LOGS_S, f"the store has not answered for {LOGS_S:g} s"):
                store = self.open_logs(job.store_uri)
                if job.job_uuid in (await store.list(LOGS)).directories:
                    with effect("sweep.delete_logs", StoreUnreachable):
                        await store.delete_tree(f"{LOGS}/{job.job_uuid}")
                    self._sink.info("the logs of a deleted job are removed from its store", job=job.job)
        except TfSupervisorError as error:
            self._sink.info(
                "the logs of a deleted job cannot be removed now; trying again", job=job.job, error=str(error)
            )

    def keep(self, job_uuids: Container[str]) -> None:
        """Forget all other jobs: there are no records of them any more."""
        for gone in [each for each in self._due_ms if each not in job_uuids]:
            del self._due_ms[gone]
            self._pauses_ms.pop(gone, None)
            self._not_ended.discard(gone)
            self._seen.pop(gone, None)

    def _stale(self, job_uuid: str, staged: Staged) -> bool:
        if staged.over is None:
            return False
        first_ms = self._seen.setdefault(job_uuid, {}).setdefault(staged.name, self._clock.now_ms())
        return self._clock.now_ms() - first_ms > STAGING_AGE_MS

    def _forget(self, job_uuid: str, found: Iterable[Leftover]) -> None:
        """Forget the entries that are not there any more."""
        there = {
            each.path.rpartition("/")[2] for each in found if each.thing is Thing.STAGING and not each.goes
        }
        seen = {name: at_ms for name, at_ms in self._seen.pop(job_uuid, {}).items() if name in there}
        if seen:
            self._seen[job_uuid] = seen
