"""The check whether a job may use the store in its assignment, if each user has a place of its own."""

from __future__ import annotations

import asyncio
import os

from recovery.stores.open import Stores
from supervisor.adapters.files.store_uri import Scheme, StoreUri
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Coordination
from supervisor.contract.errors import StoreUnreachable, UserError
from supervisor.contract.job.spec import JobRecord


class Places:
    """Checks stores by the owner of a job in etcd, and the allowed places in this agent's own
    configuration.
    """

    def __init__(self, coordination: Coordination, stores: Stores) -> None:
        self._coordination = coordination
        self._stores = stores

    async def check(self, job: str, job_uuid: str, uri: str) -> None:
        """Raises UserError if the job's owner may not use this place, StoreUnreachable if the job is over."""
        if not self._stores.by_owner:
            return
        found = await self._coordination.get(keys.job_record(job))
        record = codec.decode(JobRecord, found.value) if found is not None else None
        if record is None or record.uuid != job_uuid:
            raise StoreUnreachable(f"job {job} is over, and no record names its owner any more")
        place = self._stores.place(uri, record.owner)
        own = self._stores.own_part(place, record.owner)
        if place.scheme is Scheme.FILE and own:
            await asyncio.to_thread(_check_links, place, own)


def _check_links(place: StoreUri, own: str) -> None:
    """Raise UserError if a link below `own`, the user's directory, leads away from the place.

    A user with access to the disk can make a link to another user's directory there, and the agent has the
    right to write through it. A link that is made after this check is not found.
    """
    real, expected = os.path.realpath(place.path), os.path.realpath(own) + place.path[len(own) :]
    if real != expected:
        raise UserError(
            f"checkpoint.uri {place} leads by a link to {real}; use a directory without links"
        ).about("checkpoint", "uri")
