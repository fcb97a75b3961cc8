"""Whose directory is this? Each job that is submitted to a store first takes a numbered claim there.

It finds out what no spelling of a URI can: a symbolic link, a second mount, another name of a NameNode,
another cluster. Claims have consecutive numbers, and a number can be taken once: of two clusters, or two
names, that take a directory in the same moment one is told, before it has recorded its job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import Conflict, NotFound, StoreUnreachable, UserError

CLAIMS = ".jobs"
_FILE = "job"
_MAX_BYTES = 512


@dataclass(frozen=True, slots=True)
class Claim:
    """One job that was submitted to this store, in this or another cluster."""

    number: int
    job_uuid: str
    job: str


async def read_claims(store: CheckpointStore) -> tuple[Claim, ...]:
    """All claims, by number. Raises StoreUnreachable, Refused."""
    found = []
    for name in (await store.list(CLAIMS)).directories:
        if not name.isdecimal():
            continue
        try:
            text = (await store.read_bytes(f"{CLAIMS}/{name}/{_FILE}", _MAX_BYTES)).decode(errors="replace")
        except NotFound:
            continue  # it is being taken, or withdrawn
        except UserError:
            text = ""
        job_uuid, _, job = text.strip().partition(" ")
        found.append(Claim(int(name), job_uuid or "unknown", job or "unknown"))
    return tuple(sorted(found, key=lambda claim: claim.number))


async def take_claim(
    store: CheckpointStore, before: Sequence[Claim], job_uuid: str, job: str, *, again: bool = False
) -> Claim | None:
    """Take the next number after the claims that were looked at; None where this job has one already.

    `again`: it takes one more, which tells that etcd had forgotten it once more.

    Raises Conflict when somebody else was faster: their claim was not looked at. StoreUnreachable, Refused.
    """
    if not again and any(claim.job_uuid == job_uuid for claim in before):
        return None
    claim = Claim(max((each.number for each in before), default=0) + 1, job_uuid, job)
    try:
        with effect("claims.take", StoreUnreachable):
            await store.write_bytes(f"{_path(claim)}/{_FILE}", f"{job_uuid} {job}\n".encode())
    except Conflict as error:
        raise Conflict(
            "another job takes this directory in the very same moment; look whose it is, then submit again"
        ) from error
    return claim


async def withdraw_claim(store: CheckpointStore, claim: Claim) -> None:
    """The job was not recorded: nobody needs to know of it. Raises StoreUnreachable, Refused."""
    with effect("claims.withdraw", StoreUnreachable):
        await store.delete_tree(_path(claim))


def _path(claim: Claim) -> str:
    return f"{CLAIMS}/{claim.number:05d}"
