"""One job on one machine: a checkpoint parent, a store, coordination, and files as TensorFlow writes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from agent.core.instructions import Commit
from chaos.bundles import bundle, plain
from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.commit import Committer
from recovery.commit.outbox import SavingJob, TakenCheckpoint, generation_directory
from recovery.commit.stage import Stager
from recovery.families.commit_rule import CommitIdentity, CommitRefused, Committed
from recovery.formats.manifest import Manifest
from recovery.formats.tf_files import render_state
from supervisor.adapters.clock import BootClock
from supervisor.contract import keys
from supervisor.contract.boundaries import (
    CheckpointStore,
    Coordination,
    CreatedAt,
    Delete,
    Moved,
    Put,
    StoredDirectory,
    StoredFile,
    unwatched,
)
from supervisor.contract.checkpoint import CheckpointRef, CommitHead, CommitRecord
from supervisor.contract.codec import decode, encode
from supervisor.contract.desired import Closing, JobPhase, JobSwitch
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.ids import TaskId

T = TypeVar("T")
P = ParamSpec("P")
JOB = "digits"
UUID = "5" * 32
NODE = "n1"
QUIET_MS = 10_000
UINT8 = 4
WORKER = TaskId(JOB, "worker", 0)
COMMIT = Commit(JOB, UUID, 1, None, "file:///unused", WORKER)
"""The work of a saver's node in the first generation."""

Point = Callable[[str], None]


def no_point(_: str) -> None:
    """Nothing goes wrong."""


class Crash(BaseException):
    """The process dies here."""


class StrikeAfter:
    """A point that raises from its `passes`-th call on."""

    def __init__(self, passes: int, kind: type[BaseException]) -> None:
        self.passes = passes
        self.kind = kind

    def __call__(self, point: str) -> None:
        self.passes -= 1
        if self.passes < 0:
            raise self.kind(point)


class InlineExecutor(Executor):
    """Runs work where it is submitted, with a point before and after it."""

    def __init__(self, point: Point = no_point) -> None:
        self.point = point

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            self.point("before local work")
            result = fn(*args, **kwargs)
            self.point("after local work")
            future.set_result(result)
        except (OSError, TfSupervisorError, Crash) as error:
            future.set_exception(error)
        return future


class PointedStore:
    """A store with a point before and after every effect."""

    def __init__(self, inner: CheckpointStore, point: Callable[[str], Awaitable[None] | None]) -> None:
        self.inner = inner
        self.point = point

    async def _call(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        await self._at(f"before {name}")
        result = await work()
        await self._at(f"after {name}")
        return result

    async def _at(self, point: str) -> None:
        waiting = self.point(point)
        if waiting is not None:
            await waiting

    async def prepare(self) -> None:
        await self._call("prepare", self.inner.prepare)

    async def upload(self, source: str, path: str, moved: Moved = unwatched) -> StoredFile:
        return await self._call("upload", lambda: self.inner.upload(source, path, moved))

    async def download(self, path: str, target: str, moved: Moved = unwatched) -> StoredFile:
        return await self._call("download", lambda: self.inner.download(path, target, moved))

    async def write_bytes(self, path: str, data: bytes) -> None:
        await self._call("write_bytes", lambda: self.inner.write_bytes(path, data))

    async def read_bytes(self, path: str, limit: int) -> bytes:
        return await self._call("read_bytes", lambda: self.inner.read_bytes(path, limit))

    async def crc32c(self, path: str, moved: Moved = unwatched) -> int:
        return await self._call("crc32c", lambda: self.inner.crc32c(path, moved))

    async def list(self, path: str) -> StoredDirectory:
        return await self._call("list", lambda: self.inner.list(path))

    async def rename(self, source: str, target: str) -> None:
        await self._call("rename", lambda: self.inner.rename(source, target))

    async def delete_tree(self, path: str) -> None:
        await self._call("delete_tree", lambda: self.inner.delete_tree(path))

    async def delete_file(self, path: str) -> None:
        await self._call("delete_file", lambda: self.inner.delete_file(path))


def contents(ref: CheckpointRef, life: str = "") -> dict[str, bytes]:
    """The files of a save of this step in this generation: one shard, its index and a meta graph.

    Another `life` of the job has other weights.
    """
    prefix = f"model.ckpt-{ref.step}"
    body = f"{ref}{life} ".encode() * 1000
    weights = plain(UINT8, [len(body)], body)
    return {**bundle(prefix, [{b"weights": weights}]), f"{prefix}.meta": b"graph"}


def save(parent: Path, ref: CheckpointRef, life: str = "") -> None:
    """Write a checkpoint as the program of that generation does, whole."""
    directory = generation_directory(parent, ref.generation)
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in contents(ref, life).items():
        (directory / name).write_bytes(data)
    (directory / "checkpoint").write_bytes(render_state(f"model.ckpt-{ref.step}"))


def snapshot(directory: Path) -> dict[str, bytes]:
    """Every file of a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def staged_form(ref: CheckpointRef) -> dict[str, bytes]:
    """The files of a directory in which this checkpoint was staged."""
    return contents(ref) | {"checkpoint": render_state(f"model.ckpt-{ref.step}")}


@dataclass
class World:
    """The job `JOB` with its switch in `coordination`, and whoever acts on it."""

    parent: Path
    store: CheckpointStore
    coordination: Coordination
    clock: BootClock = field(default_factory=BootClock)
    executor: Executor = field(default_factory=InlineExecutor)
    ids: int = 0

    def next_id(self) -> str:
        self.ids += 1
        return f"id{self.ids}"

    async def put_switch(
        self, generation: int, base: CheckpointRef | None = None, *, closing: bool = False
    ) -> None:
        closing_to = Closing("plan", base) if closing else None
        record = JobSwitch(
            JOB, UUID, JobPhase.RUNNING, generation, "plan", base, closing_to, saver=WORKER.member
        )
        await self.coordination.txn((), (Put(keys.switch(JOB), encode(record)),))

    async def register(self, incarnation: str = "i1", node: str = NODE) -> CommitIdentity:
        """A new incarnation of a node: its key is created anew."""
        key = keys.node(node)
        await self.coordination.txn((), (Delete(key),))
        await self.coordination.txn((), (Put(key, incarnation.encode()),))
        found = await self.coordination.get(key)
        assert found is not None
        return CommitIdentity(node, incarnation, CreatedAt(key, found.create_revision))

    async def take(self, ref: CheckpointRef, base: Manifest | None = None) -> TakenCheckpoint:
        """Save and take one."""
        save(self.parent, ref)
        taken = await self.watcher(ref.generation, base).look(final=True)
        assert isinstance(taken, TakenCheckpoint), taken
        return taken

    def watcher(self, generation: int, base: Manifest | None = None) -> CheckpointWatcher:
        job = SavingJob(UUID, JOB, NODE, "i1")
        return CheckpointWatcher(self.parent, job, generation, base, self.clock, self.executor)

    def committer(self) -> Committer:
        return Committer(self.store, self.coordination, self.clock, executor=self.executor)

    def stager(self, parent: Path | None = None) -> Stager:
        return Stager(self.store, parent or self.parent, self.clock, self.executor)

    async def commit(self, taken: TakenCheckpoint, identity: CommitIdentity) -> Committed | CommitRefused:
        return await self.committer().commit(taken, identity, self.next_id(), QUIET_MS)

    async def records(self) -> tuple[CommitRecord, ...]:
        listing = await self.coordination.list(keys.commits_of(JOB))
        return tuple(decode(CommitRecord, entry.value) for entry in listing.entries)

    async def head(self) -> CommitHead | None:
        found = await self.coordination.get(keys.head(JOB))
        return decode(CommitHead, found.value) if found else None
