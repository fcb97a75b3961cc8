"""Whose directory is this? Each job that was submitted to a store leaves a claim there, before it saves.

It finds out what no spelling of a URI can: a symbolic link, a second mount, another name of a NameNode,
another cluster. It is no lock: two clusters may still claim a directory in the same moment.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import Conflict, NotFound, UserError

CLAIMS = ".jobs"
_MAX_BYTES = 256


@dataclass(frozen=True, slots=True)
class Claim:
    """One job that was submitted to this store, in this or another cluster."""

    job_uuid: str
    job: str


async def read_claims(store: CheckpointStore) -> tuple[Claim, ...]:
    """All claims, by UUID. Raises StoreUnreachable, Refused."""
    found = []
    for file in (await store.list(CLAIMS)).files:
        name = "unknown"
        with suppress(NotFound, UserError):
            name = (await store.read_bytes(file.path, _MAX_BYTES)).decode(errors="replace")
        found.append(Claim(file.path.rpartition("/")[2], name))
    return tuple(found)


async def leave_claim(store: CheckpointStore, claim: Claim) -> None:
    """Say whose directory this is; repeating it does no harm. Raises StoreUnreachable, Refused."""
    with suppress(Conflict):
        await store.write_bytes(f"{CLAIMS}/{claim.job_uuid}", claim.job.encode())
