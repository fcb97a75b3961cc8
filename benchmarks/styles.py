"""`python -m benchmarks.recovery --styles`: a task is lost, in every style, against a shell loop.

Each style's program trains under the supervisor, warm, in an embedded cluster that stays up for all styles,
and with a shell loop around each task; the two take turns. Its tasks are killed, and the output files say
when it trains again. JSON on standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from benchmarks.support.figures import figures, machine, medians
from benchmarks.support.outputs import POLL_S, Kill, Sample, longest_pause_ms, sample, stepping
from benchmarks.support.quiet import Quiet
from benchmarks.support.style_subjects import STYLES, ShellLoops, Style, Subject, Supervised
from examples.demo.watch import PromiseBroken
from supervisor.api.client import ControlClient
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.errors import TfSupervisorError

STATE = Path("var/bench/styles")
WARM, LOOP = "warm", "shell_loop"
READY_S = 180.0
CONFIRM_S = 3.0
"""Recovered is what stays so for so long: a program ends up to 2.9 s after the task that it misses."""
GOES_ON_S = 10.0
"""The same where no trainer got a new process: the killed task is back by then, in a shell loop too, so that
what its coming back costs the others is part of the longest pause."""

TIMES: dict[str, Callable[[Sample], float]] = {
    "first_step": attrgetter("first_ms"),
    "all_step": attrgetter("all_ms"),
    "pause": attrgetter("pause_ms"),
}


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    kills: int
    blocks: int
    within_s: float
    settle_s: float
    state: Path
    styles: tuple[str, ...]
    quiet: Quiet


@dataclass(slots=True)
class Kills:
    """The kills of one task in one variant: those that healed, how many did not, and those that could not be
    made because the job did not train again after what was before.
    """

    samples: list[Sample] = field(default_factory=list)
    not_within: int = 0
    not_ready: list[str] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)
    phases: list[dict[str, int]] = field(default_factory=list)

    def times(self, of: Callable[[Sample], float]) -> list[float]:
        """One of its times, of every kill; infinite where it did not heal in time."""
        return [of(each) for each in self.samples] + [math.inf] * self.not_within

    def report(self, within_s: float) -> dict[str, object]:
        """For JSON. The figures are of the kills that healed."""
        times = {
            f"{name}_ms": figures([round(of(each), 1) for each in self.samples]) for name, of in TIMES.items()
        }
        return {
            "kills": len(self.samples) + self.not_within,
            f"not_within_{within_s:g}_s": self.not_within,
            "not_ready_for_a_kill": self.not_ready,
            **{name: None if found is None else asdict(found) for name, found in times.items()},
            "scope": sorted(set(self.scopes)),
            "phases_p50_ms": medians(self.phases),
        }


@dataclass(slots=True)
class Results:
    """By style, killed task and variant."""

    kills: dict[tuple[str, str, str], Kills] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def of(self, style: str, victim: str, variant: str) -> Kills:
        """The kills to add to."""
        return self.kills.setdefault((style, victim, variant), Kills())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all styles and print the figures; exit code 1 when something failed, 130 when interrupted."""
    flags = _flags(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    info, results, code = machine(), Results(), 0
    shutil.rmtree(flags.state, ignore_errors=True)
    try:
        with LocalCluster(flags.state / "cluster") as cluster:
            asyncio.run(_all(cluster, flags, results))
    except KeyboardInterrupt:
        say("interrupted: the figures are of what was measured until now")
        code = 130
    print(json.dumps(report(info, flags, results), indent=2))
    return code or int(bool(results.failures))


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def _flags(arguments: Sequence[str] | None) -> Flags:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery --styles", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=5, help="of each task and variant (%(default)s)")
    parser.add_argument("--blocks", type=int, default=2, help="turns of each variant (%(default)s)")
    parser.add_argument("--within-s", type=float, default=90.0, help="wait so long (%(default)s)")
    parser.add_argument(
        "--settle-s", type=float, default=6.0, help="train at least so long before a kill (%(default)s)"
    )
    parser.add_argument("--only", choices=STYLES, action="append", help="these styles alone")
    parser.add_argument("--quiet-s", type=float, default=0.0, help="wait this long for an idle moment")
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    given = parser.parse_args(arguments)
    return Flags(
        kills=given.kills,
        blocks=given.blocks,
        within_s=given.within_s,
        settle_s=given.settle_s,
        state=given.state.resolve(),
        styles=tuple(given.only or STYLES),
        quiet=Quiet(given.quiet_s),
    )


async def _all(cluster: LocalCluster, flags: Flags, results: Results) -> None:
    async with cluster.client() as client:
        for name in flags.styles:
            for block in range(flags.blocks):
                for variant in (WARM, LOOP):
                    say(f"{name}, block {block + 1} of {flags.blocks}: {variant}")
                    turn = _Turn(name, variant, block, flags, results)
                    try:
                        await turn.run(cluster, client)
                    except TfSupervisorError as error:
                        say(f"{name} {variant} failed: {error}")
                        results.failures.append(f"{name} {variant}: {error}")


@dataclass(slots=True)
class _Turn:
    """One block of kills of one variant. After a job that does not heal, the next kill is of a new one."""

    name: str
    variant: str
    block: int
    flags: Flags
    results: Results
    started: int = 0

    async def run(self, cluster: LocalCluster, client: ControlClient) -> None:
        style = STYLES[self.name]
        subject: Subject | None = None
        try:
            for victim in kills_of_block(style.victims, self.flags.kills, self.flags.blocks, self.block):
                if subject is None:
                    subject = await self._start(cluster, client, style)
                if not await self._kill(subject, style, victim):
                    ended, subject = subject, None
                    await ended.close()
        finally:
            if subject is not None:
                await subject.close()

    async def _start(self, cluster: LocalCluster, client: ControlClient, style: Style) -> Subject:
        self.started += 1
        name = f"{self.name}-{self.block + 1}-{self.started}"
        if self.variant == WARM:
            return await Supervised.start(client, cluster.layout, style, name)
        return ShellLoops(self.flags.state / "loop" / name, style, name)

    async def _kill(self, subject: Subject, style: Style, victim: str) -> bool:
        """One kill; whether the job trains again after it."""
        kills = self.results.of(self.name, victim, self.variant)
        try:
            found = await measure(subject, style, victim, self.flags)
        except PromiseBroken as error:
            say(f"  {victim}: {error}")
            kills.not_ready.append(str(error))
            return False
        if found is None:
            say(f"  {victim}: not within {self.flags.within_s:g} s")
            kills.not_within += 1
            return False
        say(
            f"  {victim}: first step {found.first_ms:.0f} ms, all {found.all_ms:.0f} ms, "
            f"longest pause {found.pause_ms:.0f} ms"
        )
        kills.samples.append(found)
        incident = await subject.incident()
        if incident is not None:
            kills.scopes.append(incident.scope)
            kills.phases.append(incident.phases_ms)
        return True


def kills_of_block(victims: Sequence[str], kills: int, blocks: int, block: int) -> list[str]:
    """The kills of this block, the victims in turn."""
    return list(victims) * (kills * (block + 1) // blocks - kills * block // blocks)


async def measure(subject: Subject, style: Style, victim: str, flags: Flags) -> Sample | None:
    """Wait until the job trains, kill, and time it from outside; None when it does not train again in time.

    Raises PromiseBroken when there is nothing to kill within READY_S, or the job has ended.
    """
    outputs = subject.outputs
    pid = await _under_load(subject, style, victim, flags.settle_s)
    await flags.quiet.wait()
    outputs.read()
    outputs.mark()
    runs = frozenset(run for each in outputs.runs.values() for run in each)
    kill = Kill(time.monotonic_ns(), runs, subject.renewed(victim))
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError as error:
        raise PromiseBroken(f"{victim} ended by itself") from error
    last: Sample | None = None
    since = time.monotonic()
    began = since
    while True:
        await asyncio.sleep(POLL_S)
        outputs.read()
        now = time.monotonic()
        found = sample(outputs.runs, outputs.steps, style.trainers, victim, kill)
        if found != last:
            last, since = found, now
        if found is None and now - began > flags.within_s:
            return None
        goes_on = all(outputs.runs[task][-1] in kill.runs for task in style.trainers)
        if found is not None and now - since > (GOES_ON_S if goes_on else CONFIRM_S):
            if found.all_ms > flags.within_s * 1000:
                return None
            return replace(found, pause_ms=longest_pause_ms(outputs.steps, kill))


async def _under_load(subject: Subject, style: Style, victim: str, settle_s: float) -> int:
    """Wait until every trainer has trained in health; returns the victim's process."""
    began = time.monotonic()
    subject.outputs.mark()
    while True:
        await asyncio.sleep(5 * POLL_S)
        subject.outputs.read()
        waited_s = time.monotonic() - began
        if waited_s >= settle_s and stepping(subject.outputs, style.trainers, style.advance):
            pid = await subject.pid_of(victim)
            if pid:
                return pid
        if waited_s > READY_S:
            raise PromiseBroken(f"not under load within {READY_S:g} s")


def report(info: dict[str, object], flags: Flags, results: Results) -> dict[str, object]:
    """The document."""
    styles: dict[str, dict[str, dict[str, object]]] = {}
    for name, victim, variant in results.kills:
        row = styles.setdefault(name, {}).setdefault(victim, {})
        row[variant] = results.of(name, victim, variant).report(flags.within_s)
    for name, rows in styles.items():
        for victim, row in rows.items():
            ours, theirs = results.of(name, victim, WARM), results.of(name, victim, LOOP)
            row["times_faster"] = {
                name: times_faster(ours.times(of), theirs.times(of)) for name, of in TIMES.items()
            }
    return {
        "benchmark": "recovery_styles",
        "machine": info,
        "settings": {
            "kills": flags.kills,
            "blocks": flags.blocks,
            "within_s": flags.within_s,
            "settle_s": flags.settle_s,
            "quiet_s": flags.quiet.patience_s,
        },
        "styles": styles,
        "failures": results.failures,
    }


def times_faster(ours: Sequence[float], theirs: Sequence[float]) -> float | str | None:
    """By the medians of all kills; a word where a median is of those that did not heal."""
    own, plain = figures(ours), figures(theirs)
    if own is None or plain is None:
        return None
    if math.isinf(own.p50):
        return "ours did not heal"
    return "the loop did not heal" if math.isinf(plain.p50) else round(plain.p50 / own.p50, 1)


if __name__ == "__main__":
    sys.exit(main())
