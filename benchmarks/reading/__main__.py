"""`python -m benchmarks.reading`: a job's TFRecords, read by tf.data through the mount, on a real HDFS.

The same files are read in turn by the bare client, by tf.data through a fresh mount (nothing is in the page
cache), and by tf.data again through the same mount (all is). tf.data on a copy on the local disk, in the page
cache, tells what tf.data itself can do. JSON on standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.support.figures import Goal, machine
from chaos.hdfs import HdfsCluster
from recovery.mount.control import mounted
from recovery.mount.record import MountWish
from recovery.stores.hdfs_client import HdfsClient
from supervisor.adapters.files.hadoop import HadoopSettings

STATE = Path("var/bench/data")
MB = 1e6
LEAST = 0.8
"""The goal: tf.data through the mount against the client, as a part."""


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
import sys, time
import tensorflow as tf

def read(paths):
    sizes = tf.data.TFRecordDataset(paths).map(tf.strings.length)
    return int(sizes.reduce(tf.constant(0, tf.int64), lambda so_far, size: so_far + tf.cast(size, tf.int64)))

read(["/dev/null"])  # what TensorFlow does once is no part of the reading
for _ in range(int(sys.argv[1])):
    began = time.monotonic()
    size = read(sys.argv[2:])
    print(size / 1e6 / (time.monotonic() - began))
"""


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    files: int
    mib: int
    record_kib: int
    rounds: int


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


def read_by_tf(paths: tuple[str, ...], epochs: int) -> list[float]:
    """MB/s of each epoch of tf.data, with its defaults: all records, one file after the other."""
    return [float(each) for each in _python(READ, str(epochs), *paths).split()]


def read_plainly(paths: tuple[str, ...]) -> int:
    """The bytes of the files, by read(2)."""
    total = 0
    for path in paths:
        with Path(path).open("rb", buffering=0) as file:
            while data := file.read(256 << 10):
                total += len(data)
    return total


def timed(work: Callable[[], int]) -> float:
    """The MB/s of a reading."""
    began = time.monotonic()
    return work() / MB / (time.monotonic() - began)


def measure(cluster: HdfsCluster, flags: Flags) -> dict[str, list[float]]:
    """All rounds."""
    local = write_records(STATE / "records", flags)
    top = asyncio.run(upload(cluster, local))
    stored = tuple(f"{top}/{path.name}" for path in local)
    found: dict[str, list[float]] = {}

    def add(what: str, rate: float) -> None:
        found.setdefault(what, []).append(rate)
        say(f"{what}: {rate:.0f} MB/s, load {os.getloadavg()[0]:.1f}")

    for number in range(flags.rounds):
        add("client", timed(lambda: asyncio.run(read_by_client(cluster, stored))))
        with _fresh_mount(cluster, top, f"a{number}") as directory:
            shown = tuple(str(directory / path.name) for path in local)
            first, second = read_by_tf(shown, 2)
            add("mount", first)
            add("mount, second epoch", second)
        with _fresh_mount(cluster, top, f"b{number}") as directory:
            shown = tuple(str(directory / path.name) for path in local)
            add("mount, read(2)", timed(partial(read_plainly, shown)))
        add("local disk", read_by_tf(tuple(map(str, local)), 1)[0])
    return found


def _fresh_mount(cluster: HdfsCluster, top: str, name: str) -> AbstractContextManager[Path]:
    parent = STATE.absolute() / name
    wish = MountWish(
        *("bench", name, 0, f"{cluster.uri}{top}", "", str(parent / "data")),
        call_ms=30_000,
        hadoop=HadoopSettings(conf_dir=str(cluster.conf_dir)),
        data=True,
    )
    return mounted(parent, wish)


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
    given = parser.parse_args()
    flags = Flags(given.files, given.mib, given.record_kib, given.rounds)
    shutil.rmtree(STATE, ignore_errors=True)
    began_load = os.getloadavg()
    with HdfsCluster(fast_start=False) as cluster:
        os.environ["HADOOP_CONF_DIR"] = str(cluster.conf_dir)
        found = measure(cluster, flags)
    shutil.rmtree(STATE, ignore_errors=True)
    rates = {what: round(median(each), 1) for what, each in found.items()}
    part = rates["mount"] / rates["client"]
    goal = Goal("tf.data through the mount, as a part of the client's throughput", LEAST, part, at_most=False)
    document = {
        "machine": machine(),
        "load": {"before": began_load, "after": os.getloadavg()},
        "read": {"files": flags.files, "mib": flags.mib, "record_kib": flags.record_kib},
        "mb_per_s": rates,
        "rounds": {what: [round(each, 1) for each in rounds] for what, rounds in found.items()},
        "goals": [goal.row()],
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def _client(cluster: HdfsCluster) -> HdfsClient:
    hadoop = HadoopSettings(conf_dir=str(cluster.conf_dir))
    return HdfsClient(cluster.uri.removeprefix("hdfs://"), hadoop)


if __name__ == "__main__":
    main()
