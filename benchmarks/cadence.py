"""`python -m benchmarks.cadence`: what do failures cost a program that saves as TensorFlow does by default?

The same job trains twice at once, each on a cluster of its own, with TensorFlow's `save_checkpoint_secs` of
600 s: with `checkpoint.cadence: off`, and with `auto`. At the same random moments the parameter server of
both is killed. Steps redone are those between the last step before the kill and the checkpoint that the
restart began from. JSON on standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.support.figures import Goal, figures, machine
from benchmarks.support.subjects import Supervised, until
from examples.demo.job import PROGRAM, Training, digits_job
from examples.demo.steplog import StepLog
from examples.demo.watch import TRAINERS, Watch, beside
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.job.spec import JobSpec
from supervisor.contract.views.jobs import SubmitRequest

STATE = Path("var/bench/cadence")
ENDLESS = 100_000_000
DEFAULT_SAVE_SECS = "600"
KILLED = "ps:0"
READY_S = 180.0
OFF, AUTO = "off", "auto"
MS = 1e-3


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    kills: int
    least_s: float
    most_s: float
    seed: int
    step_delay_ms: float
    state: Path

    def pauses(self) -> list[float]:
        """Seconds of training before each kill."""
        chance = random.Random(self.seed)
        return [chance.uniform(self.least_s, self.most_s) for _ in range(self.kills)]


@dataclass(slots=True)
class Arm:
    """One of the two jobs, and what was seen of it."""

    subject: Supervised
    state: Path
    redone: list[int] = field(default_factory=list)
    overheads: list[float] = field(default_factory=list)
    intervals_ms: list[int] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)


def main() -> int:
    """Run both and print the figures."""
    flags = _flags()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    info, arms = machine(), _run(flags)
    print(json.dumps(report(info, flags, arms), indent=2))
    return 0


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def _flags() -> Flags:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cadence", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=20, help="of each job (%(default)s)")
    parser.add_argument("--least-s", type=float, default=60.0, help="training before a kill (%(default)s)")
    parser.add_argument("--most-s", type=float, default=600.0, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (%(default)s)")
    parser.add_argument(
        "--step-delay-ms", type=float, default=20.0, help="pause of each replica (%(default)s)"
    )
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    given = parser.parse_args()
    return Flags(
        given.kills, given.least_s, given.most_s, given.seed, given.step_delay_ms, given.state.resolve()
    )


def _run(flags: Flags) -> dict[str, Arm]:
    shutil.rmtree(flags.state, ignore_errors=True)
    with (
        LocalCluster(flags.state / OFF, nodes=1, supervisors=1) as off,
        LocalCluster(flags.state / AUTO, nodes=1, supervisors=1) as auto,
    ):
        return asyncio.run(_both(flags, {OFF: off, AUTO: auto}))


async def _both(flags: Flags, clusters: dict[str, LocalCluster]) -> dict[str, Arm]:
    arms = {}
    async with AsyncExitStack() as stack:
        for name, cluster in clusters.items():
            client = await stack.enter_async_context(cluster.client())
            spec = _job(flags, name, cluster.layout.checkpoint_base)
            await client.submit(SubmitRequest(spec))
            watch = Watch(client, spec.name, StepLog(Path(spec.env["STEP_LOG"])))
            arms[name] = Arm(Supervised(watch), flags.state / name)
        looks = [look for arm in arms.values() for look in arm.subject.watch.looks()]
        await beside(_train(flags, arms), *looks)
    return arms


def _job(flags: Flags, cadence: str, checkpoint_base: str) -> JobSpec:
    training = Training(ENDLESS, flags.step_delay_ms, ENDLESS, flags.state / cadence / "steps")
    spec = digits_job(training, checkpoint_base)
    command = ("python", PROGRAM.name, *training.flags(), "--save-secs", DEFAULT_SAVE_SECS)
    return replace(
        spec,
        roles=tuple(replace(role, command=command) for role in spec.roles),
        checkpoint=replace(spec.checkpoint, cadence=cadence),
        # Each kill is a fault of its own; none is the program's.
        restart=replace(spec.restart, max_restarts=1000, max_in_window=1000),
    )


async def _train(flags: Flags, arms: dict[str, Arm]) -> None:
    for number, pause_s in enumerate(flags.pauses(), 1):
        for arm in arms.values():
            await _healthy(arm)
        began = {name: _chief_steps(arm) for name, arm in arms.items()}
        await asyncio.sleep(pause_s)
        for name, arm in arms.items():
            arm.paces.append((_chief_steps(arm) - began[name]) / pause_s)
        said = await asyncio.gather(*(_kill(arm) for arm in arms.values()))
        say(f"{number}: after {pause_s:.0f} s; redone, off and auto: {said[0]}, {said[1]}")


async def _healthy(arm: Arm) -> None:
    since_ns = time.monotonic_ns()
    log = arm.subject.step_log
    await until(
        log,
        lambda: arm.subject.settled() and all(log.first_after(since_ns, each) for each in TRAINERS),
        "a job that trains",
        READY_S,
    )


def _chief_steps(arm: Arm) -> int:
    arm.subject.step_log.read()
    return len(arm.subject.step_log.steps.get("chief:0", ()))


async def _kill(arm: Arm) -> int:
    log, subject = arm.subject.step_log, arm.subject
    _note_pace(arm)
    log.read()
    os.kill(subject.pid_of(KILLED), signal.SIGKILL)
    newest = log.newest()
    assert newest is not None
    incident = await subject.incident()
    arm.redone.append(newest.step - (incident.base.step if incident.base is not None else 0))
    return arm.redone[-1]


def _note_pace(arm: Arm) -> None:
    """Note the pace of saves that the process of the chief's newest attempt has measured."""
    files = sorted(arm.state.rglob("chief.0-g*/saves.json"), key=lambda path: path.stat().st_mtime)
    pace = json.loads(files[-1].read_text())["pace"] if files else {}
    if pace.get("every_ms", -1) > 0:
        arm.intervals_ms.append(pace["every_ms"])
        arm.overheads.append(100 * pace["cost_ms"] / pace["every_ms"])


def report(info: dict[str, object], flags: Flags, arms: dict[str, Arm]) -> dict[str, object]:
    """The document."""
    auto = arms[AUTO]
    redone = {name: figures([float(each) for each in arm.redone]) for name, arm in arms.items()}
    before, after = redone[OFF], redone[AUTO]
    ratio = before.p50 / max(1.0, after.p50) if before is not None and after is not None else None
    overhead = max(auto.overheads, default=None)
    return {
        "benchmark": "cadence",
        "machine": info,
        "settings": {
            "kills": flags.kills,
            "killed": KILLED,
            "training_before_a_kill_s": [flags.least_s, flags.most_s],
            "seed": flags.seed,
            "step_delay_ms": flags.step_delay_ms,
            "save_checkpoint_secs": int(DEFAULT_SAVE_SECS),
        },
        "steps_redone": {
            name: {"n": found.n, "p50": found.p50, "max": found.max, "all": arms[name].redone}
            for name, found in redone.items()
            if found is not None
        },
        "auto": {
            "interval_s": [round(each * MS, 1) for each in auto.intervals_ms],
            "overhead_percent": [round(each, 2) for each in auto.overheads],
        },
        "chief_steps_per_s": {
            name: round(sum(arm.paces) / max(1, len(arm.paces)), 2) for name, arm in arms.items()
        },
        "goals": [
            Goal("steps redone (p50), off over auto", 20.0, ratio, at_most=False).row(),
            Goal("the time that saves take, per cent (most)", 1.5, overhead).row(),
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
