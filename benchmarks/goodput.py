"""`python -m benchmarks.goodput`: what is left of training when a random task is killed every minute?

The same job runs twice for the same time, each on a fresh cluster: undisturbed, and with one SIGKILL at a
random moment of each minute, of a random task. Goodput is the steps that the job is ahead at the end of its
time, killed against undisturbed; steps that were rolled back are not ahead. `--with-loop` adds plain
TensorFlow with a shell loop around each task, under the same kills. JSON on standard output, progress on
standard error.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.support.figures import Goal, machine
from benchmarks.support.subjects import ShellLoop, Subject, Supervised, until
from examples.demo.job import Training, digits_job
from examples.demo.steplog import StepLog
from examples.demo.watch import TRAINERS, Watch, beside
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import Scope
from supervisor.contract.views.jobs import IncidentView, SubmitRequest

STATE = Path("var/bench/goodput")
ENDLESS = 100_000_000
SAVE_STEPS = 100
WARM_UP_STEPS = 300
READY_S = 120.0
TASKS = ("chief:0", "ps:0", "worker:0", "worker:1")
QUIET_SHARE = 0.1
"""No kill in the first and last tenth of a minute, so that each kill's recovery falls into its minute."""
UNDISTURBED, KILLED, LOOP = "undisturbed", "killed", "shell_loop"


@dataclass(frozen=True, slots=True)
class Kill:
    """A task to kill, `at_s` after the start of the measured time."""

    at_s: float
    task: str


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    minutes: int
    every_s: float
    seed: int
    step_delay_ms: float
    state: Path
    variants: tuple[str, ...]

    def kills(self) -> tuple[Kill, ...]:
        """The same for every variant of the run."""
        chance = random.Random(self.seed)
        count = int(self.minutes * 60 / self.every_s)
        edge = self.every_s * QUIET_SHARE
        return tuple(
            Kill(turn * self.every_s + chance.uniform(edge, self.every_s - edge), chance.choice(TASKS))
            for turn in range(count)
        )


@dataclass(slots=True)
class Run:
    """One variant: how far it came in its time, and what happened on the way."""

    steps: int = 0
    seconds: float = 0.0
    kills: list[str] = field(default_factory=list)
    incidents: tuple[IncidentView, ...] = ()


def main() -> int:
    """Run the variants in turn and print the figures; exit code 1 when one failed."""
    flags = _flags()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    info, runs, code = machine(), {}, 0
    for variant in flags.variants:
        say(f"{variant}: {flags.minutes} min")
        try:
            runs[variant] = _run(variant, flags)
        except TfSupervisorError as error:
            say(f"{variant} failed: {error}")
            code = 1
    print(json.dumps(_report(info, flags, runs), indent=2))
    return code


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def _flags() -> Flags:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.goodput", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--minutes", type=int, default=10, help="of each variant (%(default)s)")
    parser.add_argument("--kill-every-s", type=float, default=60.0, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the kills (%(default)s)")
    parser.add_argument(
        "--step-delay-ms", type=float, default=10.0, help="pause of each replica (%(default)s)"
    )
    parser.add_argument("--with-loop", action="store_true", help="also plain TensorFlow in shell loops")
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    given = parser.parse_args()
    return Flags(
        minutes=given.minutes,
        every_s=given.kill_every_s,
        seed=given.seed,
        step_delay_ms=given.step_delay_ms,
        state=given.state.resolve(),
        variants=(UNDISTURBED, KILLED, LOOP) if given.with_loop else (UNDISTURBED, KILLED),
    )


def _run(variant: str, flags: Flags) -> Run:
    directory = flags.state / variant
    shutil.rmtree(directory, ignore_errors=True)
    training = Training(ENDLESS, flags.step_delay_ms, SAVE_STEPS, directory / "steps")
    kills = () if variant == UNDISTURBED else flags.kills()
    if variant == LOOP:
        with ShellLoop(directory, training) as loop:
            return asyncio.run(_train(loop, kills, flags))
    with LocalCluster(directory) as cluster:
        return asyncio.run(_supervised(cluster, training, kills, flags))


async def _supervised(cluster: LocalCluster, training: Training, kills: Sequence[Kill], flags: Flags) -> Run:
    spec = digits_job(training, cluster.layout.checkpoint_base)
    async with cluster.client() as client:
        await client.submit(SubmitRequest(spec))
        watch = Watch(client, spec.name, StepLog(training.step_log))
        run = await beside(_train(Supervised(watch), kills, flags), *watch.looks())
        explained = await client.explain(spec.name)
        run.incidents = tuple(
            incident for incident in explained.incidents if incident.cause != Cause.SUBMITTED.value
        )
        return run


async def _train(subject: Subject, kills: Sequence[Kill], flags: Flags) -> Run:
    log = subject.step_log

    def trained() -> bool:
        return _step(log) >= WARM_UP_STEPS and all(log.newest(trainer) for trainer in TRAINERS)

    await until(log, trained, "a job that trains", READY_S)
    run, began, first = Run(), time.monotonic(), _step(log)
    for kill in kills:
        await _sleep_until(began + kill.at_s)
        await until(log, subject.settled, "a job without an open incident", flags.every_s)
        os.kill(subject.pid_of(kill.task), signal.SIGKILL)
        run.kills.append(kill.task)
        log.read()
        say(f"  {time.monotonic() - began:.0f} s: killed {kill.task} at step {_step(log)}")
    await _sleep_until(began + flags.minutes * 60)
    log.read()
    run.steps, run.seconds = _step(log) - first, time.monotonic() - began
    say(f"  {run.steps} steps in {run.seconds:.0f} s")
    return run


def _step(log: StepLog) -> int:
    newest = log.newest()
    return -1 if newest is None else newest.step


async def _sleep_until(moment_s: float) -> None:
    await asyncio.sleep(max(0.0, moment_s - time.monotonic()))


def _report(info: dict[str, object], flags: Flags, runs: dict[str, Run]) -> dict[str, object]:
    base = runs.get(UNDISTURBED)
    rate = base.steps / base.seconds if base is not None and base.seconds else None
    shares = {
        variant: round(run.steps / (rate * run.seconds), 4) if rate else None for variant, run in runs.items()
    }
    killed = runs.get(KILLED)
    return {
        "benchmark": "goodput",
        "machine": info,
        "settings": {
            "minutes": flags.minutes,
            "kill_every_s": flags.every_s,
            "seed": flags.seed,
            "step_delay_ms": flags.step_delay_ms,
            "save_steps": SAVE_STEPS,
        },
        "variants": {
            variant: {
                "steps": run.steps,
                "seconds": round(run.seconds, 1),
                "kills": run.kills,
                "goodput": shares[variant],
            }
            for variant, run in runs.items()
        },
        "lost_steps": lost_steps(killed, rate) if killed is not None and rate else None,
        "incidents": len(killed.incidents) if killed is not None else None,
        "goals": [
            Goal("goodput, share of the undisturbed run", 0.96, shares.get(KILLED), at_most=False).row()
        ],
    }


def lost_steps(run: Run, rate: float) -> dict[str, float]:
    """The missing steps by cause: each phase of each incident at the full rate, or at the share of the one
    replica that was away; steps that a new generation rolled back; and the rest, which is all that the
    incidents do not show (a slower start, noise of the machine), negative if the run was the faster one.
    """
    lost: dict[str, float] = {}
    for incident in run.incidents:
        share = 1.0 if incident.scope == Scope.ALL.value else 1 / len(TRAINERS)
        for phase, duration_ms in incident.phases_ms.items():
            lost[phase] = lost.get(phase, 0.0) + duration_ms / 1000 * rate * share
        if incident.scope == Scope.ALL.value and incident.to_step >= 0:
            rolled = max(0, incident.from_step - incident.to_step)
            lost["rolled_back"] = lost.get("rolled_back", 0.0) + rolled
    lost["rest"] = rate * run.seconds - run.steps - sum(lost.values())
    return {name: round(steps, 1) for name, steps in lost.items()}


if __name__ == "__main__":
    sys.exit(main())
