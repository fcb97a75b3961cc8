"""`python -m benchmarks.polling`: a parameter server of TF1 workers is killed; which way back is fastest?

TensorFlow's non-chief workers look only every 30 s whether their cluster is ready. Four ways, in turn:

- `restart_all`: what the table says for `async`: a new generation, under the launcher's shortened poll;
- `restart_all_30s`: the same with TensorFlow's own poll;
- `in_place`: only the parameter server is restarted (`restart.scope.ps: task`), and each MonitoredSession
  recovers by itself, under the shortened poll;
- `in_place_30s`: the same with TensorFlow's own poll.

JSON on standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.support.figures import figures, machine, medians
from benchmarks.support.quiet import Quiet
from benchmarks.support.subjects import Sample, Supervised, measure
from examples.demo.job import PROGRAM, Training, digits_job
from examples.demo.steplog import StepLog
from examples.demo.watch import Watch, beside
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import JobSpec, Scope
from supervisor.contract.views.jobs import SubmitRequest

STATE = Path("var/bench/polling")
ENDLESS = 100_000_000
SAVE_STEPS = 100
ADVANCE = 150
STATUS_EVERY_S = 0.3
VICTIM = "ps:0"
VARIANTS = ("restart_all", "in_place", "restart_all_30s", "in_place_30s")
OWN_POLL = '''\
"""Runs a program with TensorFlow's own poll of 30 s, which the launcher has shortened."""

import runpy
import sys

from tensorflow.python.training.session_manager import SessionManager

names = SessionManager.__init__.__code__.co_varnames
defaults = list(SessionManager.__init__.__defaults__)
first = SessionManager.__init__.__code__.co_argcount - len(defaults)
defaults[names.index("recovery_wait_secs") - first] = 30
SessionManager.__init__.__defaults__ = tuple(defaults)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
'''


@dataclass(slots=True)
class Way:
    """The samples of one way back. `lost`: the steps lost at each kill, by the step log;
    `incidents`: how many all the kills together became.
    """

    samples: list[Sample] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    scope: str = ""
    incidents: int = 0
    failure: str = ""

    def report(self) -> dict[str, object]:
        """For JSON."""
        first = figures([round(sample.first_ms, 1) for sample in self.samples])
        every = figures([round(sample.all_ms, 1) for sample in self.samples])
        return {
            "first_step_ms": None if first is None else asdict(first),
            "all_step_ms": None if every is None else asdict(every),
            "steps_lost": self.lost,
            "scope": self.scope,
            "kills": len(self.samples),
            "incidents": self.incidents,
            "phases_p50_ms": medians([sample.phases_ms for sample in self.samples if sample.phases_ms]),
            "failure": self.failure,
        }


def main() -> int:
    """Run all ways and print the figures; exit code 1 when one failed, 130 when interrupted."""
    flags = _flags()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    info, ways, code = machine(), {name: Way() for name in flags.only or VARIANTS}, 0
    try:
        for name, way in ways.items():
            say(name)
            kills = min(flags.kills, flags.slow_kills) if name.endswith("_30s") else flags.kills
            try:
                _measure(name, way, kills, flags)
            except TfSupervisorError as error:
                say(f"{name} failed: {error}")
                way.failure, code = str(error), 1
    except KeyboardInterrupt:
        say("interrupted: the figures are of what was measured until now")
        code = 130
    document = {
        "benchmark": "polling",
        "machine": info,
        "settings": {"step_delay_ms": flags.step_delay_ms, "save_steps": SAVE_STEPS, "victim": VICTIM},
        "ways": {name: way.report() for name, way in ways.items()},
        "fastest_to_all_step": _fastest(ways),
    }
    print(json.dumps(document, indent=2))
    return code


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.polling", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=10, help="of each way (%(default)s)")
    parser.add_argument("--slow-kills", type=int, default=4, help="where 30 s pass each time (%(default)s)")
    parser.add_argument(
        "--step-delay-ms", type=float, default=10.0, help="pause of each replica (%(default)s)"
    )
    parser.add_argument("--only", choices=VARIANTS, action="append", help="these ways alone")
    parser.add_argument("--quiet-s", type=float, default=0.0, help="wait this long for an idle moment")
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    return parser.parse_args()


def _measure(name: str, way: Way, kills: int, flags: argparse.Namespace) -> None:
    directory: Path = (flags.state / name).resolve()
    shutil.rmtree(directory, ignore_errors=True)
    training = Training(ENDLESS, flags.step_delay_ms, SAVE_STEPS, directory / "steps")
    with LocalCluster(directory) as cluster:
        spec = _job(name, directory, digits_job(training, cluster.layout.checkpoint_base))
        asyncio.run(_supervised(cluster, spec, way, kills, StepLog(training.step_log), flags))


def _job(name: str, directory: Path, spec: JobSpec) -> JobSpec:
    if name.startswith("in_place"):
        spec = replace(spec, restart=replace(spec.restart, scope={"ps": Scope.TASK}))
    if name.endswith("_30s"):
        wrapper = directory / "own_poll.py"
        wrapper.write_text(OWN_POLL)
        commands = [(*role.command[:1], str(wrapper), str(PROGRAM), *role.command[2:]) for role in spec.roles]
        roles = zip(spec.roles, commands, strict=True)
        spec = replace(spec, roles=tuple(replace(role, command=command) for role, command in roles))
    return spec


async def _supervised(
    cluster: LocalCluster, spec: JobSpec, way: Way, kills: int, log: StepLog, flags: argparse.Namespace
) -> None:
    async with cluster.client() as client:
        await client.submit(SubmitRequest(spec))
        watch = Watch(client, spec.name, log, status_every_s=STATUS_EVERY_S)
        subject = InPlace(watch) if spec.restart.scope else Supervised(watch)
        await beside(_kill(subject, way, kills, Quiet(flags.quiet_s)), *watch.looks())


class InPlace(Supervised):
    """The parameter server alone gets a new process."""

    def restarted_with(self, task: str) -> Sequence[str]:
        """Of that one no trainer."""
        return () if task == VICTIM else super().restarted_with(task)


async def _kill(subject: Supervised, way: Way, kills: int, quiet: Quiet) -> None:
    for number in range(kills):
        since_ns = time.monotonic_ns()
        sample = await measure(subject, VICTIM, ADVANCE, quiet)
        incident = await subject.incident()
        way.samples.append(Sample(sample.first_ms, sample.all_ms, incident.phases_ms))
        way.lost.append(_went_back(subject.step_log, since_ns))
        way.scope = incident.scope
        way.incidents = sum(entry.cause != Cause.SUBMITTED.value for entry in subject.watch.incidents)
        say(f"  {number + 1}: first step {sample.first_ms:.0f} ms, all {sample.all_ms:.0f} ms")


def _went_back(log: StepLog, since_ns: int) -> int:
    """The most that a step was behind one before it; a few where no task was restarted."""
    recent = sorted(
        (step.ns, step.step) for steps in log.steps.values() for step in steps if step.ns > since_ns
    )
    highest = list(itertools.accumulate((step for _, step in recent), max))
    return max((top - step for top, (_, step) in zip(highest, recent, strict=True)), default=0)


def _fastest(ways: dict[str, Way]) -> str:
    found = {name: figures([sample.all_ms for sample in way.samples]) for name, way in ways.items()}
    known = {name: figure.p50 for name, figure in found.items() if figure is not None}
    return min(known, key=lambda name: known[name]) if known else ""


if __name__ == "__main__":
    sys.exit(main())
