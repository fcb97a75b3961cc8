"""Removes from stores of code what no record in etcd names: unused archives, and what uploads have left.

Why no archive that counts is lost, although uploads go on meanwhile and this leader may have been deposed: a
directory is of one upload alone, and etcd names it before it exists. It goes only if it was listed *before*
etcd was read, and etcd named it no more. No later record names it again, so that this stays true however late
the deletion comes. The directories of other clusters are elsewhere, by the UUID of each cluster.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import NoReturn

from recovery.stores.code import OpenStore
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Coordination, Logger
from supervisor.contract.code import CodeChunk, digest_of
from supervisor.contract.containment import contained, told
from supervisor.contract.errors import IncompatibleRecord, StoreUnreachable, TfSupervisorError
from supervisor.control.decide.snapshot import Snapshot

SWEEP_EVERY_S = 60.0
STORE_S = 60.0
"""The time for one store. A sweep that ends early has removed something, and the next one goes on."""


class CodeSweep:
    """One supervisor's sweep, of the stores that records name and of the configured one.

    `snapshot` returns None while this supervisor does not lead. `store`: empty for none.
    """

    def __init__(
        self,
        coordination: Coordination,
        open_store: OpenStore,
        snapshot: Callable[[], Snapshot | None],
        store: str,
        sink: Logger,
    ) -> None:
        self._coordination = coordination
        self._open_store = open_store
        self._snapshot = snapshot
        self._store = store
        self._sink = sink
        self._stores: set[str] = set()
        """Those that records have named since this supervisor started."""

    async def run(self) -> NoReturn:
        """Sweep now and then, until cancelled. An error ends one sweep."""

        def failed(error: Exception) -> None:
            why = str(error) if isinstance(error, TfSupervisorError) else told(error)
            self._sink.warning("the store of code is not swept; trying again later", reason=why)

        while True:
            with contained(failed):
                await self.sweep()
            await asyncio.sleep(SWEEP_EVERY_S)

    async def sweep(self) -> None:
        """Sweep once, if this supervisor leads. Raises the first store's error, after all were tried."""
        snap = self._snapshot()
        if snap is None or snap.cluster is None or not snap.cluster.value.uuid:
            return
        self._stores |= {held.value.store for held in snap.codes.values() if held.value.store}
        errors: list[TfSupervisorError] = []
        for uri in sorted(self._stores | {self._store} - {""}):
            try:
                async with asyncio.timeout(STORE_S):
                    await self._sweep(uri, snap.cluster.value.uuid)
            except TimeoutError:
                errors.append(StoreUnreachable(f"{uri} has not answered in {STORE_S:g} s"))
            except TfSupervisorError as error:
                # Before its first upload a store is not prepared.
                if uri in self._stores:
                    errors.append(error)
        if errors:
            raise errors[0]

    async def _sweep(self, uri: str, cluster: str) -> None:
        store = self._open_store(uri)
        listed: dict[str, list[str]] = defaultdict(list)
        for name in (await store.list(cluster)).directories:
            listed[digest_of(name)].append(f"{cluster}/{name}")
        listed.pop("", None)
        if not listed:
            return
        known = {entry.key for entry in (await self._coordination.list(keys.CODE)).entries}
        unreadable: IncompatibleRecord | None = None
        for digest, directories in listed.items():
            named = set(directories)
            if keys.shipped(digest) not in known:
                named = set()
            elif len(directories) > 1:
                try:
                    named = {await self._named(digest)}
                except IncompatibleRecord as error:
                    unreadable = error
            for directory in directories:
                if directory not in named:
                    await store.delete_tree(directory)
                    self._sink.info("an unused archive of code is removed", store=uri, directory=directory)
        if unreadable is not None:
            raise unreadable

    async def _named(self, digest: str) -> str:
        """The directory that etcd names now; empty if it names none."""
        found = await self._coordination.get(keys.chunk(digest, 0))
        stored = codec.decode(CodeChunk, found.value).stored if found is not None else None
        return stored.directory if stored is not None else ""
