"""`python -m benchmarks.reading`: a job's TFRecords, read by tf.data through the mount, on a real HDFS.

The same files are read in turn by the bare client, by tf.data through a fresh mount (nothing is in the page
cache), and by tf.data again through the same mount (all is). tf.data on a copy on the local disk, in the page
cache, tells what tf.data itself can do. Then each DataNode sends no more than `--limit-mb-s` on average, as
over a network, and the client and tf.data read again. A DataNode that was idle may send as much as for 1.5 s
at once. JSON on standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.reading.cost import Reading, measured
from benchmarks.support.figures import Goal, machine
from chaos.hdfs import HdfsCluster
from recovery.mount.control import mounted
from recovery.mount.record import MountFiles, MountWish
from recovery.stores.hdfs_client import HdfsClient
from supervisor.adapters.files.hadoop import HadoopSettings

STATE = Path("var/bench/data")
LEAST = 0.8
"""The goal: tf.data through the mount against the client, as a part."""

LEAST_LIMITED = 0.95
"""The same where the DataNodes limit both."""

Processes = dict[str, tuple[int, ...]]
"""Process ids by kind."""

LIMIT = "dfs.datanode.data.read.bandwidthPerSec"

WRITE = """
import os, sys
import tensorflow as tf
size, count = map(int, sys.argv[1:3])
for path in sys.argv[3:]:
    with tf.io.TFRecordWriter(path) as writer:
        for _ in range(count):
            writer.write(os.urandom(size))
"""
READ = """
import dataclasses, json, os, sys
import tensorflow as tf
from benchmarks.reading.cost import measured

def read(paths):
    sizes = tf.data.TFRecordDataset(paths).map(tf.strings.length)
    return int(sizes.reduce(tf.constant(0, tf.int64), lambda so_far, size: so_far + tf.cast(size, tf.int64)))

read(["/dev/null"])  # what TensorFlow does once is no part of the reading
processes = json.loads(sys.argv[2]) | {"reader": [os.getpid()]}
for _ in range(int(sys.argv[1])):
    print(json.dumps(dataclasses.asdict(measured(lambda: read(sys.argv[3:]), processes))))
"""


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    files: int
    mib: int
    record_kib: int
    rounds: int
    limit_mb_s: int


def say(text: str) -> None:
    """Progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def write_records(directory: Path, flags: Flags) -> tuple[Path, ...]:
    """Files of random records."""
    directory.mkdir(parents=True)
    paths = tuple(directory / f"part-{number:05d}.tfrecord" for number in range(flags.files))
    count = flags.mib * 1024 // flags.record_kib
    _python(WRITE, str(flags.record_kib << 10), str(count), *map(str, paths))
    return paths


async def upload(cluster: HdfsCluster, paths: tuple[Path, ...]) -> str:
    """Copy the files to a new directory of HDFS; returns its path there."""
    top = cluster.fresh_uri("data").removeprefix(cluster.uri)
    client = _client(cluster)
    for path in paths:
        writer = await client.create(f"{top}/{path.name}", overwrite=False, parents=True)
        with path.open("rb") as file:
            while data := file.read(4 << 20):
                await writer.write(data)
        await writer.close()
    await client.close()
    return top


async def read_by_client(cluster: HdfsCluster, paths: tuple[str, ...]) -> int:
    """The bytes that the client reads, one file after the other, as they come."""
    client, total = _client(cluster), 0
    for path in paths:
        reader = await client.open(path)
        taken, _ = await reader.read_into(0, reader.size, lambda _at, _data: None)
        total += taken
    await client.close()
    return total


def read_by_tf(paths: tuple[str, ...], epochs: int, others: Processes) -> list[Reading]:
    """Each epoch of tf.data, with its defaults: all records, one file after the other."""
    lines = _python(READ, str(epochs), json.dumps(others), *paths).splitlines()
    return [Reading(**json.loads(line)) for line in lines]


def read_plainly(paths: tuple[str, ...]) -> int:
    """The bytes of the files, by read(2)."""
    total = 0
    for path in paths:
        with Path(path).open("rb", buffering=0) as file:
            while data := file.read(256 << 10):
                total += len(data)
    return total


class Rounds:
    """The readings so far, by their kind."""

    def __init__(self) -> None:
        self._readings: dict[str, list[Reading]] = {}

    def add(self, what: str, reading: Reading) -> None:
        """Add one."""
        self._readings.setdefault(what, []).append(reading)
        costs = ", ".join(f"{kind} {cost:.2f}" for kind, cost in reading.cpu_s_per_gib.items())
        say(f"{what}: {reading.mb_per_s:.0f} MB/s, load {os.getloadavg()[0]:.1f}, CPU s/GiB: {costs}")

    def rate(self, what: str) -> float:
        """The median of MB/s."""
        return median(each.mb_per_s for each in self._readings[what])

    def rows(self) -> dict[str, dict[str, object]]:
        """The figures of each kind. `bound_mb_per_s`: with no core of this machine ever idle."""
        rows: dict[str, dict[str, object]] = {}
        for what, readings in self._readings.items():
            costs = {
                kind: round(median(each.cpu_s_per_gib[kind] for each in readings), 2)
                for kind in readings[0].cpu_s_per_gib
            }
            rows[what] = {
                "mb_per_s": round(self.rate(what), 1),
                "rounds": [round(each.mb_per_s, 1) for each in readings],
                "cpu_s_per_gib": costs,
                "bound_mb_per_s": round((os.cpu_count() or 1) * (1 << 30) / 1e6 / sum(costs.values())),
            }
        return rows


def measure(cluster: HdfsCluster, flags: Flags) -> Rounds:
    """All rounds, first without a limit, then with it."""
    local = write_records(STATE / "records", flags)
    top = asyncio.run(upload(cluster, local))
    names = tuple(path.name for path in local)
    stored, rounds = tuple(f"{top}/{name}" for name in names), Rounds()
    for number in range(flags.rounds):
        _read_from_hdfs(cluster, rounds, stored, f"a{number}", "")
        with _fresh_mount(cluster, top, f"b{number}") as (directory, serving):
            shown = tuple(str(directory / name) for name in names)
            others = serving | {"reader": (os.getpid(),)}
            rounds.add("mount, read(2)", measured(partial(read_plainly, shown), others))
        rounds.add("local disk", read_by_tf(tuple(map(str, local)), 1, {})[0])
    limit(cluster, flags.limit_mb_s)
    for number in range(flags.rounds):
        _read_from_hdfs(cluster, rounds, stored, f"c{number}", _limited(flags))
    return rounds


def _read_from_hdfs(
    cluster: HdfsCluster, rounds: Rounds, stored: tuple[str, ...], name: str, how: str
) -> None:
    """The client, then tf.data through a fresh mount, two epochs."""
    pids = _datanodes(cluster) | {"reader": (os.getpid(),)}
    rounds.add(f"client{how}", measured(lambda: asyncio.run(read_by_client(cluster, stored)), pids))
    with _fresh_mount(cluster, str(Path(stored[0]).parent), name) as (directory, serving):
        first, second = read_by_tf(tuple(str(directory / Path(each).name) for each in stored), 2, serving)
        rounds.add(f"mount{how}", first)
        rounds.add(f"mount, second epoch{how}", second)


def _limited(flags: Flags) -> str:
    return f", DataNodes of {flags.limit_mb_s} MB/s"


def limit(cluster: HdfsCluster, mb_s: int) -> None:
    """Let each DataNode send at most so many MB/s."""
    site = cluster.directory / "server" / "hdfs-site.xml"
    line = f"<property><name>{LIMIT}</name><value>{mb_s * 1_000_000}</value></property>"
    site.write_text(site.read_text().replace("</configuration>", f"{line}</configuration>"))
    for index in range(3):
        cluster.datanode(index).restart()
    cluster.wait_ready()


def _datanodes(cluster: HdfsCluster) -> Processes:
    return {"DataNodes": tuple(cluster.datanode(index).pid for index in range(3))}


@contextmanager
def _fresh_mount(cluster: HdfsCluster, top: str, name: str) -> Iterator[tuple[Path, Processes]]:
    """A mount's directory, and the processes behind it."""
    parent = STATE.absolute() / name
    wish = MountWish(
        *("bench", name, 0, f"{cluster.uri}{top}", "", str(parent / "data")),
        call_ms=30_000,
        hadoop=HadoopSettings(conf_dir=str(cluster.conf_dir)),
        data=True,
    )
    with mounted(parent, wish) as directory:
        beat = MountFiles(parent, wish.generation).read_beat()
        assert beat is not None
        yield directory, _datanodes(cluster) | {"mount": (beat.pid,)}


def _python(program: str, *words: str) -> str:
    """The output of a program of TensorFlow."""
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, env=quiet, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.reading", description=__doc__)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--mib", type=int, default=128, help="size of a file")
    parser.add_argument("--record-kib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit-mb-s", type=int, default=125, help="of each DataNode in the last rounds")
    flags = Flags(**vars(parser.parse_args()))
    shutil.rmtree(STATE, ignore_errors=True)
    began_load = os.getloadavg()
    with HdfsCluster(fast_start=False) as cluster:
        os.environ["HADOOP_CONF_DIR"] = str(cluster.conf_dir)
        found = measure(cluster, flags)
    shutil.rmtree(STATE, ignore_errors=True)
    part = found.rate("mount") / found.rate("client")
    goal = Goal("tf.data through the mount, as a part of the client's throughput", LEAST, part, at_most=False)
    limited = _limited(flags)
    slow = found.rate(f"mount{limited}") / found.rate(f"client{limited}")
    document = {
        "machine": machine(),
        "load": {"before": began_load, "after": os.getloadavg()},
        "read": {"files": flags.files, "mib": flags.mib, "record_kib": flags.record_kib},
        "readings": found.rows(),
        "goals": [goal.row(), Goal(f"the same{limited}", LEAST_LIMITED, slow, at_most=False).row()],
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def _client(cluster: HdfsCluster) -> HdfsClient:
    hadoop = HadoopSettings(conf_dir=str(cluster.conf_dir))
    return HdfsClient(cluster.uri.removeprefix("hdfs://"), hadoop)


if __name__ == "__main__":
    main()
