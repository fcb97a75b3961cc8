"""Claims: each job that is submitted to a store first takes a numbered claim there.

A claim finds a second user of the directory where the URIs differ: by a symbolic link, a second mount,
another name of a NameNode, or another cluster. Claims have consecutive numbers, and each number can be taken
once. If two clusters take a directory at the same time, one of them gets a conflict before it has recorded
its job.
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
    """Take the number after the claims in `before`; None if this job has a claim already.

    `again`: it takes another one, which records that etcd lost the job once more.

    Raises Conflict if another job took that number, so its claim is not in `before`. StoreUnreachable,
    Refused.
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
    """Withdraw the claim of a job that was not recorded. Raises StoreUnreachable, Refused."""
    with effect("claims.withdraw", StoreUnreachable):
        await store.delete_tree(_path(claim))


def _path(claim: Claim) -> str:
    return f"{CLAIMS}/{claim.number:05d}"
