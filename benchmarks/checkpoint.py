"""`python -m benchmarks.checkpoint`: what a checkpoint costs, on a real HDFS that this starts.

A checkpoint that TensorFlow wrote goes to HDFS and comes back: by a commit and a restore of ours, by the bare
client library, by `hdfs dfs -put` and `-get`, and through a mount, in turn. How long training stands still
meanwhile is measured on a program that steps and saves. JSON on standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

from hdfs_native import Client

from benchmarks.support.blocking import Blocking, measure_blocking
from benchmarks.support.figures import Goal, machine
from benchmarks.support.transfers import Cost, Files, Library, Mount, Ours, Shell, timed
from chaos.hdfs import HdfsCluster
from recovery.commit.outbox import TakenCheckpoint
from recovery.commit.verify import verify_bundle
from recovery.stores.open import Stores
from supervisor.adapters.files.hadoop import HadoopSettings, read_conf
from supervisor.contract.checkpoint import CommitRecord, Verify
from supervisor.contract.errors import TfSupervisorError

STATE = Path("var/bench/checkpoint")
SHAPES = (1, 8, 200)
PARTS = ("commit", "restore", "verify", "mount", "blocked")
VERIFY_TIMES = 3
WARM_UPS = 3
MB = 1e6


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    mib: int
    tensors: tuple[int, ...]
    rounds: int
    parts: frozenset[str]
    between_s: float
    state: Path


@dataclass(slots=True)
class Shape:
    """The measurements of checkpoints with so many tensors, by operation.

    `processor_s`: of ours and of HDFS's processes; it means something on a busy machine, too.
    """

    tensors: int
    size: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    processor_s: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, what: str, cost: Cost) -> None:
        """Take in one measurement and say so."""
        self.seconds.setdefault(what, []).append(cost.seconds)
        said = f"{cost.seconds:.2f} s, {self.size / MB / cost.seconds:.0f} MB/s"
        if cost.own_s:
            self.processor_s.setdefault(what, []).append((round(cost.own_s, 2), round(cost.hdfs_s, 2)))
            said += f"; processors {cost.own_s:.2f} s here, {cost.hdfs_s:.2f} s in HDFS"
        say(f"{self.tensors} tensors, {what}: {said}")

    def rate(self, what: str) -> float | None:
        """Median, in MB/s."""
        found = self.seconds.get(what)
        return round(self.size / MB / median(found), 1) if found else None

    def ratio(self, ours: str, *theirs: str) -> float | None:
        """The speed as a multiple of that of others, which do the same one after the other."""
        if not all(name in self.seconds for name in (ours, *theirs)):
            return None
        took = sum(median(self.seconds[name]) for name in theirs)
        return round(took / median(self.seconds[ours]), 2)


def main() -> int:
    """Measure and print; exit code 1 when a part failed, 130 when interrupted."""
    flags = _flags()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    info, shapes, code = machine(), [Shape(tensors) for tensors in flags.tensors], 0
    blocking: Blocking | None = None
    replication: int | None = None
    shutil.rmtree(flags.state, ignore_errors=True)
    try:
        say("start an HDFS with three DataNodes")
        with HdfsCluster(fast_start=False) as cluster:
            # Mounts and Hadoop's own command are told by the environment.
            os.environ["HADOOP_CONF_DIR"] = str(cluster.conf_dir)
            replication = int(read_conf(cluster.conf_dir).properties["dfs.replication"])
            for shape in shapes:
                asyncio.run(_measure(shape, flags, cluster))
            if "blocked" in flags.parts:
                say("a program that trains and saves, alone and while its checkpoints are committed")
                home = flags.state / "blocked"
                blocking = asyncio.run(
                    measure_blocking(cluster.fresh_uri("jobs"), home, flags.mib, flags.between_s, say)
                )
    except KeyboardInterrupt:
        say("interrupted: the figures are of what was measured until now")
        code = 130
    except (TfSupervisorError, AssertionError) as error:
        say(f"failed: {error}")
        code = 1
    finally:
        shutil.rmtree(flags.state, ignore_errors=True)
    print(json.dumps(_report(info, flags, shapes, blocking, replication), indent=2))
    return code


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def _flags() -> Flags:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checkpoint", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--mib", type=int, default=1024, help="size of the checkpoint (%(default)s)")
    parser.add_argument(
        "--tensors",
        type=int,
        action="append",
        help=f"a checkpoint of so many ({', '.join(map(str, SHAPES))})",
    )
    parser.add_argument("--rounds", type=int, default=2, help="of everything, in turn (%(default)s)")
    parser.add_argument("--only", choices=PARTS, action="append", help="these parts alone")
    parser.add_argument("--quick", action="store_true", help="one round of 1 and 8 tensors in 16 MiB")
    parser.add_argument(
        "--between-s", type=float, default=12.0, help="of training between two saves (%(default)s)"
    )
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    given = parser.parse_args()
    return Flags(
        mib=16 if given.quick else given.mib,
        tensors=tuple(given.tensors or (SHAPES[:2] if given.quick else SHAPES)),
        rounds=1 if given.quick else given.rounds,
        parts=frozenset(given.only or PARTS),
        between_s=3.0 if given.quick else given.between_s,
        state=given.state.resolve(),
    )


async def _measure(shape: Shape, flags: Flags, cluster: HdfsCluster) -> None:
    if not flags.parts - {"blocked"}:
        return
    home = flags.state / str(shape.tensors)
    stores = Stores(HadoopSettings(conf_dir=str(cluster.conf_dir)))
    uri = cluster.fresh_uri("jobs")
    ours = Ours(uri, stores, home)
    try:
        await ours.store.prepare()
        taken, took_s = await ours.take(lambda directory: _write(directory, shape.tensors, flags.mib))
        shape.size = taken.manifest.size
        shape.add("take", Cost(took_s))
        bench = _Bench(shape, ours, taken, cluster, home)
        await bench.warm_up()
        if "commit" in flags.parts:
            await bench.commits(flags.rounds)
        if "restore" in flags.parts:
            await bench.restores(flags.rounds)
        for _ in range(flags.rounds):
            if "verify" in flags.parts:
                await bench.verify()
            if "mount" in flags.parts:
                await bench.mount(Mount(uri, stores, home / "mount"))
    finally:
        await stores.close()
        shutil.rmtree(home, ignore_errors=True)


class _Bench:
    """One checkpoint, moved in every way."""

    def __init__(
        self, shape: Shape, ours: Ours, taken: TakenCheckpoint, cluster: HdfsCluster, home: Path
    ) -> None:
        root = "/others"
        self._shape = shape
        self._ours = ours
        self._root = ours.uri.removeprefix(cluster.uri)
        self._taken = taken
        self._files = Files(taken.directory, tuple(file.name for file in taken.manifest.files))
        self._library = Library(Client(cluster.uri, None, str(cluster.conf_dir)), root)
        self._shell = Shell.of(cluster, root)
        self._daemons = [daemon.pid for daemon in cluster.daemons]
        self._scratch = home / "scratch"
        self._scratch.mkdir()

    async def warm_up(self) -> None:
        """In and out, unmeasured: DataNodes that have compiled nothing yet take up to three times as long."""
        target = self._scratch / "warm"
        for _ in range(WARM_UPS):
            await asyncio.to_thread(target.mkdir)
            await self._library.put(self._files, "library")
            await self._library.get(self._files, "library", target)
            await asyncio.to_thread(self._library.delete, "library")
            await asyncio.to_thread(shutil.rmtree, target)

    async def commits(self, rounds: int) -> None:
        """Each way in, so many times, and none is always first."""
        records: dict[Verify, CommitRecord] = {}
        ways: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("client write", lambda: self._library.put(self._files, "library")),
            *((f"commit, {verify.value}", partial(self._commit, verify, records)) for verify in Verify),
            ("hdfs dfs -put", lambda: self._shell.put(self._files, "shell")),
            ("hdfs dfs -put, on disk", lambda: self._put_on_disk("synced")),
        ]
        for _ in range(rounds):
            for name in ("shell", "synced"):
                await asyncio.to_thread(self._library.make, name)
            for what, way in ways:
                await self._add(what, way())
            self._shape.add("hdfs dfs, nothing", await timed(self._shell.nothing, self._daemons))
            for name in ("library", "shell", "synced"):
                await asyncio.to_thread(self._library.delete, name)
            for record in records.values():
                await self._ours.tidy(record)
            ways.append(ways.pop(0))

    async def restores(self, rounds: int) -> None:
        """Each way out, so many times; what is in by one commit serves them all, and none is always first."""
        record = await self._ours.commit(self._taken, Verify.SIZE)
        library, shell = replace(self._library, root=self._root), replace(self._shell, root=self._root)
        ways: list[tuple[str, Callable[[Path], Awaitable[object]]]] = [
            ("client read", lambda target: library.get(self._files, record.path, target)),
            ("restore", lambda _: self._ours.restore(record, own=False)),
            ("hdfs dfs -get", lambda target: shell.get(self._files, record.path, target)),
            ("restore from the node's copy", lambda _: self._ours.restore(record, own=True)),
        ]
        for _ in range(rounds):
            for what, way in ways:
                target = self._scratch / "out"
                await asyncio.to_thread(target.mkdir)
                await self._add(what, way(target))
                await asyncio.to_thread(shutil.rmtree, target)
                await self._ours.forget()
            ways.append(ways.pop(0))
        await self._ours.tidy(record)

    async def verify(self) -> None:
        """In one thread, from memory."""
        for _ in range(VERIFY_TIMES):
            await self._add("verify", asyncio.to_thread(self._verify))

    async def mount(self, mount: Mount) -> None:
        """Through the kernel."""
        target = self._scratch / "mount"
        await asyncio.to_thread(target.mkdir)
        wrote, read = await mount.put_and_get(self._files, target)
        self._shape.add("mount write", Cost(wrote))
        self._shape.add("mount read", Cost(read))
        await asyncio.to_thread(shutil.rmtree, target)

    async def _put_on_disk(self, name: str) -> None:
        """To where a commit gets: on the disks of the DataNodes, which are all on this machine."""
        await self._shell.put(self._files, name)
        await asyncio.to_thread(os.sync)

    async def _commit(self, verify: Verify, records: dict[Verify, CommitRecord]) -> None:
        records[verify] = await self._ours.commit(self._taken, verify)

    def _verify(self) -> None:
        summary = verify_bundle(self._taken.directory, self._taken.manifest.prefix)
        assert len(summary.bundle.tensors) == self._shape.tensors

    async def _add(self, what: str, work: Awaitable[object]) -> None:
        """Time it, with nothing left to be written that another way has left in memory."""

        async def begin() -> None:
            await work

        await asyncio.to_thread(os.sync)
        self._shape.add(what, await timed(begin, self._daemons))


def _write(directory: Path, tensors: int, mib: int) -> None:
    say(f"TensorFlow writes {tensors} tensors of {mib} MiB in all")
    command = (sys.executable, "-m", "benchmarks.saving", "write", str(directory))
    subprocess.run([*command, "--tensors", str(tensors), "--mib", str(mib)], check=True)


def _report(
    info: dict[str, object],
    flags: Flags,
    shapes: list[Shape],
    blocking: Blocking | None,
    replication: int | None,
) -> dict[str, object]:
    return {
        "benchmark": "checkpoint",
        "machine": info,
        "settings": {
            "mib": flags.mib,
            "rounds": flags.rounds,
            "replication": replication,
            "datanodes": 3,
        },
        "tensors": {str(shape.tensors): _shape(shape) for shape in shapes if shape.seconds},
        "blocked": None if blocking is None else blocking.row(),
        "goals": [goal.row() for goal in _goals(shapes, blocking)],
    }


def _shape(shape: Shape) -> dict[str, object]:
    return {
        "bytes": shape.size,
        "mb_per_s": {what: shape.rate(what) for what in shape.seconds},
        "seconds": {what: [round(each, 3) for each in found] for what, found in shape.seconds.items()},
        "processor_s": {
            what: {"here": [here for here, _ in found], "hdfs": [hdfs for _, hdfs in found]}
            for what, found in shape.processor_s.items()
        },
    }


def _goals(shapes: Iterable[Shape], blocking: Blocking | None) -> list[Goal]:
    goals = []
    for shape in shapes:
        name = f"{shape.tensors} tensors: "
        rows: tuple[tuple[str, float, float | None], ...] = (
            ("commit (crc), times the client", 0.95, shape.ratio("commit, crc", "client write")),
            (
                "commit (readback), times the client's write and read",
                0.95,
                shape.ratio("commit, readback", "client write", "client read"),
            ),
            ("commit (crc), times hdfs dfs -put", 1.5, shape.ratio("commit, crc", "hdfs dfs -put")),
            (
                "commit (crc), times hdfs dfs -put until the disks have it",
                1.5,
                shape.ratio("commit, crc", "hdfs dfs -put, on disk"),
            ),
            ("restore, times the client", 0.95, shape.ratio("restore", "client read")),
            ("restore, times hdfs dfs -get", 1.5, shape.ratio("restore", "hdfs dfs -get")),
            ("verification, GB/s per core", 2, _gb(shape.rate("verify"))),
            ("mount write, times the client", 0.7, shape.ratio("mount write", "client write")),
            ("mount read, times the client", 0.7, shape.ratio("mount read", "client read")),
        )
        goals += [
            Goal(name + what, bound, measured, at_most=False)
            for what, bound, measured in rows
            if measured is not None
        ]
    if blocking is not None:
        goals.append(Goal("training is blocked, ms", 20, blocking.blocked_ms))
    return goals


def _gb(rate: float | None) -> float | None:
    return None if rate is None else round(rate / 1000, 2)


if __name__ == "__main__":
    sys.exit(main())
