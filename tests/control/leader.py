"""A job service over a world that has a job, and the specification of another job."""

from __future__ import annotations

from dataclasses import replace

from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.desired import JobPhase, LeaderRecord
from supervisor.contract.job.spec import CheckpointSpec, JobRecord, JobSpec
from supervisor.control.decide.plan import put
from supervisor.control.services.jobs import JobService
from tests.control.world import World
from tests.support.builders import job_spec


class Leader:
    """A job service over a world that has the job `digits` already."""

    def __init__(self, coordination: type[MemoryCoordination] = MemoryCoordination) -> None:
        self.world = World()
        self.world.form_cluster()
        self.store = MemoryCheckpointStore()
        self.stores: dict[str, CheckpointStore] = {}
        self.job_service = self.beside(coordination)

    def beside(
        self, coordination: type[MemoryCoordination] = MemoryCoordination, uuid: str = "new-uuid"
    ) -> JobService:
        """Another job service over the same world."""
        return JobService(
            coordination(self.world.store),
            self._open_store,
            BootClock(),
            lambda: uuid,
            lambda: LeaderRecord("s", "", 1),
            self.world.snapshot,
        )

    def _open_store(self, uri: str) -> CheckpointStore:
        """Every name is a name of `store`, unless `stores` has another for it."""
        return self.stores.get(uri, self.store)

    def end(self, phase: JobPhase = JobPhase.SUCCEEDED) -> None:
        """The job of that name is over."""
        switch = replace(self.world.switch(), phase=phase, generation=7)
        self.world.write(put(keys.switch("digits"), switch))

    def record(self, name: str) -> JobRecord | None:
        found = self.world.store.read(keys.job_record(name))
        return codec.decode(JobRecord, found[0].value) if found else None


def other_job(uri: str = "file:///elsewhere") -> JobSpec:
    return replace(job_spec(name="other"), checkpoint=CheckpointSpec(uri))
