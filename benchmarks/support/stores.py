"""`python -m benchmarks.recovery --store hdfs`: does a restart take longer when checkpoints are in HDFS?

A parameter server is killed. The same job, with a large checkpoint, keeps its checkpoints in a local
directory, and in a real HDFS that this starts, block by block in turn. JSON on standard output, progress on
standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.support.figures import Figures, Goal, figures, machine, medians
from benchmarks.support.quiet import Quiet
from benchmarks.support.subjects import Sample, Supervised, measure, until
from chaos.hdfs import HdfsCluster
from examples.demo.job import Training, digits_job
from examples.demo.steplog import StepLog
from examples.demo.watch import Watch, beside
from recovery.stores.open import Stores
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.job.spec import JobSpec
from supervisor.contract.views.jobs import SubmitRequest

STATE = Path("var/bench/stores")
PROGRAM = Path(__file__).with_name("weighty.py")
STORES = ("local", "hdfs")
KILLED = "ps:0"
ENDLESS = 100_000_000
SAVE_STEPS = 1_000
STEP_DELAY_MS = 10.0
ADVANCE = 300
STATUS_EVERY_S = 0.3
COMMIT_S = 120.0
GOAL_MS = 300
WARM_UPS = 12


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    kills: int
    blocks: int
    mib: int
    state: Path
    quiet: Quiet


@dataclass(slots=True)
class Results:
    """Samples by store."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, store: str, sample: Sample) -> None:
        """Take in one kill and say so."""
        taken = self.samples.setdefault(store, [])
        taken.append(sample)
        say(f"{store} {len(taken)}: first step {sample.first_ms:.0f} ms, all {sample.all_ms:.0f} ms")

    def first(self, store: str) -> Figures | None:
        """Times to the first new step."""
        return figures([round(sample.first_ms, 1) for sample in self.samples.get(store, ())])

    def row(self, store: str) -> dict[str, object]:
        """For JSON."""
        samples = self.samples[store]
        first, every = self.first(store), figures([round(sample.all_ms, 1) for sample in samples])
        assert first is not None
        assert every is not None
        return {
            "first_step_ms": asdict(first),
            "all_step_ms": asdict(every),
            "phases_p50_ms": medians([sample.phases_ms for sample in samples]),
        }


def main(arguments: Sequence[str]) -> int:
    """Run all blocks and print the figures; exit code 1 when a block failed, 130 when interrupted."""
    flags = _flags(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    info, results, code = machine(), Results(), 0
    try:
        say("start an HDFS with three DataNodes")
        with HdfsCluster(fast_start=False) as hdfs:
            os.environ["HADOOP_CONF_DIR"] = str(hdfs.conf_dir)
            say("bring checkpoints in and out of it until it has compiled what it runs")
            asyncio.run(_warm_up(hdfs, flags))
            for block in range(flags.blocks):
                kills = flags.kills * (block + 1) // flags.blocks - flags.kills * block // flags.blocks
                for store in STORES:
                    say(f"block {block + 1} of {flags.blocks}: {store}")
                    base = f"{hdfs.uri}/block-{block}" if store == "hdfs" else None
                    _block(store, base, kills, flags, results)
    except KeyboardInterrupt:
        say("interrupted: the figures are of what was measured until now")
        code = 130
    except (TfSupervisorError, AssertionError) as error:
        say(f"failed: {error}")
        code = 1
    finally:
        shutil.rmtree(flags.state, ignore_errors=True)
    print(json.dumps(_report(info, flags, results), indent=2))
    return code


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def _flags(arguments: Sequence[str]) -> Flags:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery --store hdfs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=10, help="of each store (%(default)s)")
    parser.add_argument("--blocks", type=int, default=2, help="turns of each store (%(default)s)")
    parser.add_argument("--mib", type=int, default=100, help="size of the checkpoint (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="2 kills of each, in one block")
    parser.add_argument(
        "--quiet-s", type=float, default=0.0, help="wait this long before a kill for an idle moment"
    )
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    given = parser.parse_args(arguments)
    return Flags(
        kills=2 if given.quick else given.kills,
        blocks=1 if given.quick else given.blocks,
        mib=given.mib,
        state=given.state.resolve(),
        quiet=Quiet(given.quiet_s),
    )


async def _warm_up(hdfs: HdfsCluster, flags: Flags) -> None:
    """In use, a DataNode is not just started. Then it compiles for seconds after each checkpoint."""
    flags.state.mkdir(parents=True, exist_ok=True)
    source = flags.state / "warm-up"
    await asyncio.to_thread(source.write_bytes, os.urandom(flags.mib << 20))
    stores = Stores(HadoopSettings(conf_dir=str(hdfs.conf_dir)))
    store = stores.open(hdfs.fresh_uri("warm-up"))
    await store.prepare()
    for _ in range(WARM_UPS):
        stored = await store.upload(str(source), "d/f")
        assert await store.crc32c(stored.path) == stored.crc32c
        await store.delete_tree("d")
    await stores.close()
    await asyncio.to_thread(source.unlink)


def _block(store: str, base: str | None, kills: int, flags: Flags, results: Results) -> None:
    directory = flags.state / store
    shutil.rmtree(directory, ignore_errors=True)
    training = Training(ENDLESS, STEP_DELAY_MS, SAVE_STEPS, directory / "steps")
    with LocalCluster(directory) as cluster:
        spec = _weighty(digits_job(training, base or cluster.layout.checkpoint_base), training, flags.mib)
        asyncio.run(_run(cluster, spec, training, store, kills, flags, results))


def _weighty(spec: JobSpec, training: Training, mib: int) -> JobSpec:
    command = ("python", str(PROGRAM), *training.flags())
    roles = tuple(replace(role, command=command) for role in spec.roles)
    return replace(spec, roles=roles, env={**spec.env, "BALLAST_MIB": str(mib)})


async def _run(
    cluster: LocalCluster,
    spec: JobSpec,
    training: Training,
    store: str,
    kills: int,
    flags: Flags,
    results: Results,
) -> None:
    async with cluster.client() as client:
        await client.submit(SubmitRequest(spec))
        watch = Watch(client, spec.name, StepLog(training.step_log), status_every_s=STATUS_EVERY_S)
        await beside(_kill(Supervised(watch), store, kills, flags, results), *watch.looks())


async def _kill(subject: Supervised, store: str, kills: int, flags: Flags, results: Results) -> None:
    watch = subject.watch
    for _ in range(kills):
        enough = watch.committed_step + 1

        def committed(enough: int = enough) -> bool:
            return watch.committed_step >= enough

        await until(watch.step_log, committed, "a newer checkpoint", COMMIT_S)
        sample = await measure(subject, KILLED, ADVANCE, flags.quiet)
        incident = await subject.incident()
        results.add(store, replace(sample, phases_ms=incident.phases_ms))


def _report(info: dict[str, object], flags: Flags, results: Results) -> dict[str, object]:
    local, hdfs = results.first("local"), results.first("hdfs")
    more_ms = round(hdfs.p50 - local.p50, 1) if local is not None and hdfs is not None else None
    return {
        "benchmark": "recovery, by store",
        "machine": info,
        "settings": {
            "killed": KILLED,
            "checkpoint_mib": flags.mib,
            "step_delay_ms": STEP_DELAY_MS,
            "save_steps": SAVE_STEPS,
            "blocks": flags.blocks,
            "quiet_s": flags.quiet.patience_s,
        },
        "stores": {store: results.row(store) for store in STORES if store in results.samples},
        "goals": [Goal("first new step with HDFS, ms later than locally (p50)", GOAL_MS, more_ms).row()],
    }
