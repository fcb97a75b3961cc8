"""Whether a job may use the store that its assignment names, where each user has a place of its own."""

from __future__ import annotations

from recovery.stores.open import Stores
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Coordination
from supervisor.contract.errors import StoreUnreachable
from supervisor.contract.job import JobRecord


class Places:
    """Asks etcd whose a job is, and this agent's own configuration what is allowed to its owner."""

    def __init__(self, coordination: Coordination, stores: Stores) -> None:
        self._coordination = coordination
        self._stores = stores

    async def check(self, job: str, job_uuid: str, uri: str) -> None:
        """Raises UserError: the job's owner may not use this place. StoreUnreachable: the job is over."""
        if not self._stores.by_owner:
            return
        found = await self._coordination.get(keys.job_record(job))
        record = codec.decode(JobRecord, found.value) if found is not None else None
        if record is None or record.uuid != job_uuid:
            raise StoreUnreachable(f"job {job} is over, so that nobody says whose it is")
        self._stores.place(uri, record.owner)
