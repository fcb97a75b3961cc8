"""`python -m benchmarks.goodput`: what is left of training when a task or a node is lost every minute?

The same job runs twice for the same time, each on a fresh cluster: undisturbed, and with one fault at a
random moment of each minute. Every third one is the loss of a worker's node: its agent, its launchers and its
task are killed together, the worker moves, and the node is back before the next fault. The others are a
SIGKILL of a random task. Goodput is the steps that the job is ahead at the end of its time, disturbed against
undisturbed; steps that were rolled back are not ahead. `--with-loop` adds plain TensorFlow with a shell loop
around each task. There the loss of a node is a kill of the worker alone. JSON on standard output, progress on
standard error.

`cost_steps` of a fault are the steps that are missing until the next one, or the end, at the run's own pace:
the median of its steps in five seconds.
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
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.support.figures import Goal, machine
from benchmarks.support.nodes import lose_node, node_back
from benchmarks.support.subjects import ShellLoop, Subject, Supervised, until
from examples.demo.job import Training, digits_job
from examples.demo.steplog import StepLog
from examples.demo.watch import TRAINERS, PromiseBroken, Watch, beside
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import Scope
from supervisor.contract.views.jobs import IncidentView, SubmitRequest

STATE = Path("var/bench/goodput")
ENDLESS = 100_000_000
SAVE_STEPS = 100
WARM_UP_STEPS = 300
READY_S = 300.0
NODES = 5
"""One for each task, and one to move to."""
TASKS = ("chief:0", "ps:0", "worker:0", "worker:1")
WORKERS = TASKS[2:]
QUIET_SHARE = 0.1
"""No fault in the first and last tenth of a minute, so that each one's recovery falls into its minute."""
NS = 1_000_000_000
PACE_S = 5
UNDISTURBED, KILLED, LOOP = "undisturbed", "killed", "shell_loop"


@dataclass(frozen=True, slots=True)
class Fault:
    """A task to kill, `at_s` after the start of the measured time; `node`: with all of its node."""

    at_s: float
    task: str
    node: bool = False


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    minutes: int
    every_s: float
    seed: int
    step_delay_ms: float
    state: Path
    variants: tuple[str, ...]
    node_every: int = 3

    def faults(self) -> tuple[Fault, ...]:
        """The same for every variant of the run."""
        chance = random.Random(self.seed)
        edge = self.every_s * QUIET_SHARE
        found = []
        for turn in range(int(self.minutes * 60 / self.every_s)):
            at_s = turn * self.every_s + chance.uniform(edge, self.every_s - edge)
            node = self.node_every > 0 and turn % self.node_every == self.node_every - 1
            found.append(Fault(at_s, chance.choice(WORKERS if node else TASKS), node))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that happened, at which step and when (CLOCK_MONOTONIC); `node`: the one that was lost."""

    task: str
    node: str
    ns: int
    step: int


@dataclass(slots=True)
class Run:
    """One variant: how far it came in its time, and what happened on the way."""

    steps: int = 0
    seconds: float = 0.0
    faults: list[dict[str, object]] = field(default_factory=list)
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
    parser.add_argument("--fault-every-s", type=float, default=60.0, help="(%(default)s)")
    parser.add_argument(
        "--node-every",
        type=int,
        default=3,
        metavar="N",
        help="each Nth fault is a lost node; 0: none (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the faults (%(default)s)")
    parser.add_argument(
        "--step-delay-ms", type=float, default=10.0, help="pause of each replica (%(default)s)"
    )
    parser.add_argument("--with-loop", action="store_true", help="also plain TensorFlow in shell loops")
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    given = parser.parse_args()
    return Flags(
        minutes=given.minutes,
        every_s=given.fault_every_s,
        node_every=given.node_every,
        seed=given.seed,
        step_delay_ms=given.step_delay_ms,
        state=given.state.resolve(),
        variants=(UNDISTURBED, KILLED, LOOP) if given.with_loop else (UNDISTURBED, KILLED),
    )


def _run(variant: str, flags: Flags) -> Run:
    directory = flags.state / variant
    shutil.rmtree(directory, ignore_errors=True)
    training = Training(ENDLESS, flags.step_delay_ms, SAVE_STEPS, directory / "steps")
    faults = () if variant == UNDISTURBED else flags.faults()
    if variant == LOOP:
        with ShellLoop(directory, training) as loop:
            return asyncio.run(_train(loop, partial(_kill, loop), faults, flags))
    with LocalCluster(directory, nodes=NODES) as cluster:
        return asyncio.run(_supervised(cluster, training, faults, flags))


async def _supervised(
    cluster: LocalCluster, training: Training, faults: Sequence[Fault], flags: Flags
) -> Run:
    spec = digits_job(training, cluster.layout.checkpoint_base)
    async with cluster.client() as client:
        await client.submit(SubmitRequest(spec))
        watch = Watch(client, spec.name, StepLog(training.step_log))
        subject = Supervised(watch)

        async def strike(fault: Fault) -> str:
            if not fault.node:
                return await _kill(subject, fault)
            return await _lose_node_of(cluster, watch, fault.task, flags.every_s)

        run = await beside(_train(subject, strike, faults, flags), *watch.looks())
        explained = await client.explain(spec.name)
        run.incidents = tuple(
            incident for incident in explained.incidents if incident.cause != Cause.SUBMITTED.value
        )
        return run


async def _train(
    subject: Subject, strike: Callable[[Fault], Awaitable[str]], faults: Sequence[Fault], flags: Flags
) -> Run:
    """`strike` makes a fault happen, and returns the node that is lost, or an empty string."""
    log = subject.step_log

    def trained() -> bool:
        return _step(log) >= WARM_UP_STEPS and all(log.newest(trainer) for trainer in TRAINERS)

    await until(log, trained, "a job that trains", READY_S)
    began, first, struck = time.monotonic(), _step(log), list[Struck]()
    for fault in faults:
        await _sleep_until(began + fault.at_s)
        await until(log, subject.settled, "a job without an open incident", flags.every_s)
        log.read()
        ns, step = time.monotonic_ns(), _step(log)
        say(f"  {time.monotonic() - began:.0f} s: {'node of ' * fault.node}{fault.task}, at step {step}")
        struck.append(Struck(fault.task, await strike(fault), ns, step))
    await _sleep_until(began + flags.minutes * 60)
    log.read()
    seconds, end_ns = time.monotonic() - began, time.monotonic_ns()
    run = Run(_step(log) - first, seconds, costs(log, struck, end_ns))
    say(f"  {run.steps} steps in {run.seconds:.0f} s")
    return run


async def _kill(subject: Subject, fault: Fault) -> str:
    os.kill(subject.pid_of(fault.task), signal.SIGKILL)
    return ""


async def _lose_node_of(cluster: LocalCluster, watch: Watch, worker: str, wait_s: float) -> str:
    """Lose the node of a worker, which comes back once the worker trains elsewhere."""
    node = watch.tasks[worker].node
    if beside_it := sorted(
        name for name, each in watch.tasks.items() if each.node == node and name != worker
    ):
        raise PromiseBroken(f"{node} runs {', '.join(beside_it)} beside {worker}")
    log, before = watch.step_log, watch.step_log.processes(worker)
    lost_ns = await lose_node(cluster, node)
    await until(log, lambda: log.first_after(lost_ns, worker, not_of=before), f"steps of {worker}", wait_s)
    await node_back(cluster, watch, node, wait_s)
    return node


def costs(log: StepLog, struck: Sequence[Struck], end_ns: int) -> list[dict[str, object]]:
    """Each fault, and the steps and seconds that are missing until the next one."""
    if not struck:
        return []
    every = sorted((each.ns, each.step) for steps in log.steps.values() for each in steps)

    def reached(ns: int) -> int:
        return every[max(0, bisect_right(every, (ns, sys.maxsize)) - 1)][1]

    begins = range(struck[0].ns, max(struck[0].ns + 1, end_ns - PACE_S * NS), NS)
    pace = median(reached(ns + PACE_S * NS) - reached(ns) for ns in begins) / PACE_S
    ends = [*((each.ns, each.step) for each in struck[1:]), (end_ns, reached(end_ns))]
    found: list[dict[str, object]] = []
    for each, (ns, step) in zip(struck, ends, strict=True):
        missing = pace * (ns - each.ns) / NS - (step - each.step)
        found.append(
            {
                "task": each.task,
                "node": each.node,
                "cost_steps": round(missing, 1),
                "cost_s": round(missing / pace, 2) if pace else None,
            }
        )
    return found


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
            "fault_every_s": flags.every_s,
            "node_every": flags.node_every,
            "seed": flags.seed,
            "step_delay_ms": flags.step_delay_ms,
            "save_steps": SAVE_STEPS,
        },
        "variants": {
            variant: {
                "steps": run.steps,
                "seconds": round(run.seconds, 1),
                "faults": run.faults,
                "goodput": shares[variant],
            }
            for variant, run in runs.items()
        },
        "lost_steps": lost_steps(killed, rate) if killed is not None and rate else None,
        "incidents": len(killed.incidents) if killed is not None else None,
        "goals": [
            Goal("goodput, share of the undisturbed run", 0.99, shares.get(KILLED), at_most=False).row()
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
