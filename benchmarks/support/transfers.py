"""Ways to bring a checkpoint's files into HDFS and back: ours, the bare client library, Hadoop's own command.

Each measures itself in seconds, from the first call to the last byte's end. Before a measurement what others
left to be written to the disk is written, so that nobody pays for another's bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import secrets
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hdfs_native import Client, WriteOptions

from chaos.hdfs import HdfsCluster
from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.commit import Committer
from recovery.commit.outbox import SavingJob, TakenCheckpoint, generation_directory
from recovery.commit.stage import Stager
from recovery.families.commit_rule import CommitIdentity, Committed
from recovery.mount.control import mounted
from recovery.mount.layout import live_path
from recovery.mount.live import LiveDirectory
from recovery.mount.open import open_backend
from recovery.mount.record import MountWish
from recovery.stores.open import Stores
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import CreatedAt, Put
from supervisor.contract.checkpoint import CommitRecord, Verify
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.errors import StoreUnreachable

JOB = "bench"
UUID = "b" * 32
NODE = "n0"
LIFE = "life"
QUIET_MS = 120_000
CHUNK_BYTES = 4 << 20
COPY_BYTES = 1 << 20
SHELL_TIMEOUT_S = 300


def settle() -> None:
    """Have everything on the disk that was written so far."""
    os.sync()


@dataclass(frozen=True, slots=True)
class Cost:
    """The time that something took.

    Attributes:
        seconds: by the clock.
        own_s: of processors, by this process and the children that have ended.
        hdfs_s: of processors, by the daemons of HDFS.
    """

    seconds: float
    own_s: float = 0.0
    hdfs_s: float = 0.0


async def timed(work: Callable[[], Awaitable[object]], daemons: Sequence[int] = ()) -> Cost:
    """Do the work and return its cost; `daemons` are the processes of HDFS."""
    await asyncio.to_thread(settle)
    own_s, hdfs_s, began = _own_s(), _used_s(daemons), time.monotonic()
    await work()
    return Cost(time.monotonic() - began, _own_s() - own_s, _used_s(daemons) - hdfs_s)


def _own_s() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)


def _used_s(pids: Sequence[int]) -> float:
    """Seconds of processors that these processes have used, user's and kernel's."""
    ticks = 0
    for pid in pids:
        # The name in brackets may hold anything; what follows it is regular.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a checkpoint in a local directory."""

    directory: Path
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes, all together."""
        return sum((self.directory / name).stat().st_size for name in self.names)


class Ours:
    """Commit and restore as agents do them, in this process; etcd is in memory, which costs a commit 1 ms."""

    def __init__(self, uri: str, stores: Stores, home: Path) -> None:
        self.uri = uri
        self.store = stores.open(uri)
        self.parent = home / "node"
        self._home = home
        self._clock = BootClock()
        self._numbers = itertools.count(2)

    async def take(self, save: Callable[[Path], None]) -> tuple[TakenCheckpoint, float]:
        """Have a checkpoint of generation 1 saved, and take it from its program; with the seconds."""
        directory = generation_directory(self.parent, 1)
        directory.mkdir(parents=True)
        await asyncio.to_thread(save, directory)
        watcher = self.watcher()
        began = time.monotonic()
        taken = await watcher.look(final=True)
        assert isinstance(taken, TakenCheckpoint), taken
        return taken, time.monotonic() - began

    def watcher(self) -> CheckpointWatcher:
        """Of generation 1."""
        return CheckpointWatcher(self.parent, SavingJob(UUID, JOB, NODE, LIFE), 1, None, self._clock)

    async def commit(self, taken: TakenCheckpoint, verify: Verify) -> CommitRecord:
        """Into the store, and its record into an etcd that knows of no other."""
        etcd = MemoryStore()
        switch = JobSwitch(JOB, UUID, JobPhase.RUNNING, taken.manifest.ref.generation, "p")
        written = etcd.commit(
            [], [Put(keys.switch(JOB), codec.encode(switch)), Put(keys.node(NODE), b"{}")], []
        )
        coordination = MemoryCoordination(etcd)
        committer = Committer(self.store, coordination, self._clock, verify)
        identity = CommitIdentity(NODE, LIFE, CreatedAt(keys.node(NODE), written.revision))
        try:
            outcome = await committer.commit(taken, identity, secrets.token_hex(8), QUIET_MS)
        finally:
            await coordination.close()
        assert isinstance(outcome, Committed), outcome
        return outcome.record

    async def restore(self, record: CommitRecord, *, own: bool) -> None:
        """Stage it for a generation: from the copy that this node has, or on a node that has none."""
        parent = self.parent if own else self._home / "elsewhere"
        number = next(self._numbers)
        stager = Stager(self.store, parent, self._clock)
        staged = await stager.stage_base(record, number, secrets.token_hex(8), QUIET_MS, fresh=True)
        assert staged.base is not None

    async def forget(self) -> None:
        """Remove what `restore` made."""
        for parent in (self.parent, self._home / "elsewhere"):
            for path in parent.glob("g*"):
                if path.name != "g1":
                    await asyncio.to_thread(shutil.rmtree, path)

    async def tidy(self, record: CommitRecord) -> None:
        """Remove the checkpoint from the store."""
        await self.store.delete_tree(record.path)


@dataclass(frozen=True, slots=True)
class Library:
    """`hdfs-native` as its documentation shows it: file after file, no checks, no deadlines."""

    client: Client
    root: str

    async def put(self, files: Files, name: str) -> None:
        """Write all files."""
        await asyncio.to_thread(self._put, files, name)

    async def get(self, files: Files, name: str, target: Path) -> None:
        """Read all files into a directory that is there."""
        await asyncio.to_thread(self._get, files, name, target)

    def make(self, name: str) -> None:
        """A directory for others to write to."""
        self.client.mkdirs(f"{self.root}/{name}", create_parent=True)

    def delete(self, name: str) -> None:
        """Remove a directory."""
        self.client.delete(f"{self.root}/{name}", recursive=True)

    def _put(self, files: Files, name: str) -> None:
        options = WriteOptions(overwrite=True, create_parent=True)
        for file in files.names:
            with (
                (files.directory / file).open("rb") as source,
                self.client.create(f"{self.root}/{name}/{file}", options) as target,
            ):
                while chunk := source.read(CHUNK_BYTES):
                    target.write(chunk)

    def _get(self, files: Files, name: str, target: Path) -> None:
        for file in files.names:
            reader = self.client.read(f"{self.root}/{name}/{file}")
            with (target / file).open("wb") as local:
                for chunk in reader.read_range_stream(0, len(reader)):
                    local.write(chunk)


@dataclass(frozen=True, slots=True)
class Shell:
    """`hdfs dfs -put` and `-get`: one command for all files. `command`: Java with all but the verb."""

    command: tuple[str, ...]
    root: str

    @classmethod
    def of(cls, cluster: HdfsCluster, root: str) -> Shell:
        """With Hadoop's own defaults for Java."""
        java, jars = _printed("get-java.sh"), _printed("hdfs/get-jars.sh")
        classes = f"{cluster.conf_dir}:{jars}/lib/*"
        options = ("-Djava.net.preferIPv4Stack=true", "-cp", classes)
        return cls((java, *options, "org.apache.hadoop.fs.FsShell"), root)

    async def put(self, files: Files, name: str) -> None:
        """Write all files into a directory that is there."""
        sources = (str(files.directory / file) for file in files.names)
        await self._run("-put", *sources, f"{self.root}/{name}/")

    async def get(self, files: Files, name: str, target: Path) -> None:
        """Read all files into a directory that is there."""
        await self._run("-get", *(f"{self.root}/{name}/{file}" for file in files.names), str(target))

    async def nothing(self) -> None:
        """Start it and do nothing, to measure the cost of a start."""
        await self._run("-test", "-d", "/")

    async def _run(self, *arguments: str) -> None:
        def run() -> None:
            done = subprocess.run(
                [*self.command, *arguments],
                capture_output=True,
                text=True,
                timeout=SHELL_TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0:
                raise StoreUnreachable(f"hdfs dfs {arguments[0]}: {done.stderr}")

        await asyncio.to_thread(run)


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the store as the tasks of a mounted job see it."""

    uri: str
    stores: Stores
    home: Path

    async def put_and_get(self, files: Files, target: Path) -> tuple[float, float]:
        """Seconds to write all files, and to read them through another mount, which has none cached."""
        live = LiveDirectory(open_backend(self.uri, self.stores), live_path(1, "bench"))
        await live.make()
        wrote = await asyncio.to_thread(self._copy, files.directory, None, files.names)
        read = await asyncio.to_thread(self._copy, None, target, files.names)
        await live.backend.delete(live.root, recursive=True)
        return wrote, read

    def _copy(self, source: Path | None, target: Path | None, names: tuple[str, ...]) -> float:
        """From one directory to another; None is the mount."""
        parent = self.home / UUID
        wish = MountWish(JOB, UUID, 1, self.uri, live_path(1, "bench"), str(parent / "g1"))
        with mounted(parent, wish) as directory:
            settle()
            began = time.monotonic()
            for name in names:
                _copy((source or directory) / name, (target or directory) / name)
            return time.monotonic() - began


def _copy(old: Path, new: Path) -> None:
    with old.open("rb", buffering=0) as source, new.open("wb", buffering=0) as target:
        while data := source.read(COPY_BYTES):
            target.write(data)


def _printed(script: str) -> str:
    """The path that a script of deploy/ prints."""
    path = Path(__file__).resolve().parents[2] / "deploy" / script
    return subprocess.run([str(path)], capture_output=True, text=True, check=True).stdout.strip()
