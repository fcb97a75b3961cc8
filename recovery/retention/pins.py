"""Pins, beside what they keep: `PATH/.pinned/` is there as long as an operator wants the checkpoint at PATH.

What counts is the record in etcd. This is for the day on which the records are made again from the store. It
goes with the checkpoint's directory.
"""

from __future__ import annotations

from contextlib import suppress

from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import Conflict, StoreUnreachable

PINNED = ".pinned"
_FILE = "by-an-operator"


async def mark(store: CheckpointStore, path: str, *, pinned: bool) -> None:
    """Note it in the store, or take that back; repeating it does no harm.

    Raises StoreUnreachable, Refused.
    """
    if not pinned:
        with effect("pins.remove", StoreUnreachable):
            await store.delete_tree(f"{path}/{PINNED}")
        return
    with suppress(Conflict), effect("pins.write", StoreUnreachable):
        await store.write_bytes(f"{path}/{PINNED}/{_FILE}", b"")


async def is_marked(store: CheckpointStore, path: str) -> bool:
    """Whether it is noted there. Raises StoreUnreachable, Refused."""
    return PINNED in (await store.list(path)).directories
