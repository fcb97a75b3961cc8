"""Pins in the store: `PATH/.pinned/` exists while an operator wants to keep the checkpoint at PATH.

The record in etcd decides. The mark in the store is for rebuilding lost records. It is deleted with the
checkpoint's directory.
"""

from __future__ import annotations

from contextlib import suppress

from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import Conflict, StoreUnreachable

PINNED = ".pinned"
_FILE = "by-an-operator"


async def mark(store: CheckpointStore, path: str, *, pinned: bool) -> None:
    """Set or remove the mark of a pin. Safe to repeat.

    Raises StoreUnreachable, Refused.
    """
    if not pinned:
        with effect("pins.remove", StoreUnreachable):
            await store.delete_tree(f"{path}/{PINNED}")
        return
    with suppress(Conflict), effect("pins.write", StoreUnreachable):
        await store.write_bytes(f"{path}/{PINNED}/{_FILE}", b"")


async def is_marked(store: CheckpointStore, path: str) -> bool:
    """Whether the mark is set. Raises StoreUnreachable, Refused."""
    return PINNED in (await store.list(path)).directories
