"""The work of a leader beside its looks: it deletes files, and sweeps the stores of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable

from supervisor.control.decide.facts.cluster_time import ages
from supervisor.control.decide.plan import DeleteFiles
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.loop.apply import Applier
from supervisor.control.loop.sweep import Sweeper


class Background:
    """The work that goes on beside the looks of a supervisor."""

    def __init__(self, sweeper: Sweeper) -> None:
        self._sweeper = sweeper
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Do this beside the looks."""
        self._tasks.add(asyncio.create_task(work))

    def raise_faults(self) -> None:
        """Work in the background deals with errors of our tree itself: any other is a bug, and ends this."""
        for task in [each for each in self._tasks if each.done()]:
            self._tasks.discard(task)
            task.result()

    def delete(self, applier: Applier, decisions: Iterable[DeleteFiles]) -> None:
        """Delete the files of checkpoints that are being collected."""
        for decision in decisions:
            if not applier.is_deleting(decision.key):
                self.begin(applier.delete_files(decision))

    def sweep(self, picture: Snapshot) -> None:
        """Sweep the store of one job that is due; if none is, delete the logs of a deleted job."""
        for job in picture.jobs.values():
            if job.switch.value.parked is None and self._sweeper.due(job):
                uri, uuid = job.record.value.store_uri, job.switch.value.job_uuid
                known = ages(picture)
                self._keep(picture)
                self.begin(self._sweeper.sweep(picture.token, job.name, uuid, uri, known))
                return
        for deleted in picture.deleted.values():
            if self._sweeper.logs_due(deleted.value):
                self._keep(picture)
                self.begin(self._sweeper.delete_logs(deleted.value))
                return

    def _keep(self, picture: Snapshot) -> None:
        known = {each.switch.value.job_uuid for each in picture.jobs.values()}
        self._sweeper.keep(known | {each.value.job_uuid for each in picture.deleted.values()})
