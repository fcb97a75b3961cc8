"""A leader with a job, the store of its checkpoints, and what programs have saved into it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from recovery.formats.manifest import (
    MANIFEST_FILE,
    Manifest,
    ManifestFile,
    crc32c_of_bytes,
    encode_manifest,
)
from recovery.formats.paths import stored_path
from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete, DeletePrefix
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, Verify
from supervisor.contract.desired import JobPhase
from supervisor.contract.views.checkpoints import (
    CheckProgress,
    CheckView,
    CollectReport,
    Thing,
)
from supervisor.control.decide.plan import put
from supervisor.control.services.jobs import JobService
from tests.control.world import World, check

FILE = "weights.bin"


class Bank:
    """A leader with a job `digits`, its store, and what programs have saved into it."""

    def __init__(self) -> None:
        self.world = World()
        self.world.form_cluster()
        self.store = MemoryCheckpointStore()
        self.job_service = JobService(
            MemoryCoordination(self.world.store),
            lambda _uri: self.store,
            BootClock(),
            lambda: "new-uuid",
            lambda: None,
            self.world.snapshot,
        )
        self.checkpoints = self.job_service.checkpoints

    async def save(
        self,
        generation: int,
        step: int,
        parent: CheckpointRef | None = None,
        *,
        uuid: str = "uuid",
        job: str = "digits",
        name: str = "id",
        data: bytes = b"weights",
        commit: bool = True,
        verified: Verify = Verify.READBACK,
    ) -> CheckpointRef:
        """A complete directory, and its record."""
        ref = CheckpointRef(generation, step)
        path = stored_path(ref, name)
        file = ManifestFile(FILE, len(data), crc32c_of_bytes(data))
        manifest = Manifest(uuid, job, ref, parent, "n0", "i0", "", 5, (file,))
        raw = encode_manifest(manifest)
        await self.store.write_bytes(f"{path}/{FILE}", data)
        await self.store.write_bytes(f"{path}/{MANIFEST_FILE}", raw)
        if commit:
            record = CommitRecord(uuid, ref, parent, path, len(data), crc32c_of_bytes(raw), "n0", "i0", 5)
            self.world.commit(generation, step)
            self.world.write(put(keys.commit("digits", ref), replace(record, verified=verified)))
        return ref

    def damage(self, ref: CheckpointRef, data: bytes | None = b"Weights") -> None:
        path = f"{stored_path(ref, 'id')}/{FILE}"
        del self.store.disk.files[path]
        if data is not None:
            self.store.disk.files[path] = data

    def record(self, ref: CheckpointRef) -> CommitRecord:
        return self.world.job().commits[ref].value

    def end(self, phase: JobPhase = JobPhase.STOPPED) -> None:
        self.world.write(put(keys.switch("digits"), replace(self.world.switch(), phase=phase, closing=None)))

    def lose_etcd(self) -> None:
        """All that is left is the store."""
        for key in (
            keys.job_record("digits"),
            keys.switch("digits"),
            keys.intent("digits"),
            keys.head("digits"),
        ):
            self.world.write(Delete(key))
        self.world.write(DeletePrefix(keys.commits_of("digits")))
        self.world.write(DeletePrefix("plans/"), DeletePrefix("assignments/"), DeletePrefix("attempts/"))

    def decide(self) -> None:
        check(self.world.snapshot())
        self.world.decide()


async def open_bank() -> Bank:
    """One whose job runs, and whose store is there."""
    made = Bank()
    made.world.start()
    await made.store.prepare()
    return made


async def views(stream: AsyncGenerator[CheckProgress, None]) -> list[CheckView]:
    return [item.found async for item in stream if item.found is not None]


async def last(stream: AsyncGenerator[CheckProgress, None]) -> str:
    return [item.end async for item in stream][-1]


def items(report: CollectReport) -> dict[str, tuple[Thing, bool, str]]:
    return {item.path: (item.thing, item.goes, item.why) for item in report.items}
