"""`python -m benchmarks.recovery --runtime docker`: recovery in containers, beside running a new one.

A worker or the parameter server is killed. The same job runs supervised in containers, supervised as plain
processes, and in containers that a shell loop removes and runs anew, block by block in turn, with a dockerd
of its own. JSON on standard output, progress on standard error.
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

from agent.runtimes.docker_node import HOME
from benchmarks.support.figures import Figures, Goal, figures, machine, medians
from benchmarks.support.quiet import Quiet
from benchmarks.support.subjects import Plain, Sample, Supervised, measure
from chaos.container_image import IMAGE, USER_ID, site_packages
from examples.demo.boxes import Boxes
from examples.demo.job import PROGRAM, Training, digits_job
from examples.demo.steplog import StepLog
from examples.demo.watch import Watch, beside
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.job.spec import JobSpec
from supervisor.contract.views.jobs import SubmitRequest

STATE = Path("var/bench/boxed")
KILLED = {"worker": "worker:1", "ps": "ps:0"}
VARIANTS = ("docker", "process", "new_container")
ENDLESS = 100_000_000
SAVE_STEPS = 100
STEP_DELAY_MS = 10.0
ADVANCE = 150
STATUS_EVERY_S = 0.3
GOAL_MS = 800
Samples = dict[tuple[str, str], list[Sample]]


class NewContainer(Plain):
    """`while true; do docker run --rm ...; done` for each task: what has ended is removed, and run anew."""

    def __init__(self, boxes: Boxes, directory: Path, training: Training) -> None:
        super().__init__(directory, training)
        self._dockerd = boxes.dockerd

    def pid_of(self, task: str) -> int:
        """The first process of the task's container, as this machine knows it."""
        return int(self._dockerd.cli("inspect", "--format", "{{.State.Pid}}", _name(task)))

    def restarted_with(self, task: str) -> Sequence[str]:
        """The killed one alone; the others see a broken connection and try again."""
        return () if task.startswith("ps") else (task,)

    def _start(self, tasks: dict[str, str]) -> None:
        for directory in (self._directory, self._directory / "checkpoints"):
            os.chown(directory, USER_ID, USER_ID)
        for task, tf_config in tasks.items():
            self._stack.callback(self._dockerd.attempt, "rm", "--force", _name(task))
            command = self._docker_run(task, {**self._variables(), "TF_CONFIG": tf_config})
            self._shell(task, ["/bin/sh", "-c", 'while true; do "$@"; done', "loop", *command], {})

    def _docker_run(self, task: str, variables: dict[str, str]) -> list[str]:
        variables["PYTHONPATH"] = str(site_packages())
        mounts = {site_packages(): ",readonly", PROGRAM.parent: ",readonly", self._directory: ""}
        return [
            *(self._dockerd.client, "--host", self._dockerd.url, "run", "--rm", "--name", _name(task)),
            *("--network", "host", "--user", f"{USER_ID}:{USER_ID}", "--read-only", "--tmpfs", HOME),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "4096"),
            *("--workdir", str(PROGRAM.parent)),
            *(
                word
                for path, mode in mounts.items()
                for word in ("--mount", f"type=bind,source={path},target={path}{mode}")
            ),
            *(word for name, value in variables.items() for word in ("--env", f"{name}={value}")),
            *(IMAGE, "python3", str(PROGRAM), *self._training.flags()),
        ]


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    kills: int
    blocks: int
    variants: tuple[str, ...]
    profile: str
    state: Path
    quiet: Quiet


@dataclass(slots=True)
class Run:
    """One run of the benchmark."""

    flags: Flags
    boxes: Boxes
    samples: Samples = field(default_factory=dict)

    def block(self, number: int, variant: str) -> None:
        """Kill what falls to this block. Raises TfSupervisorError."""
        total, blocks = self.flags.kills, self.flags.blocks
        kills = total * (number + 1) // blocks - total * number // blocks
        directory = self.flags.state / "outputs" / f"{variant}-{number}"
        training = Training(ENDLESS, STEP_DELAY_MS, SAVE_STEPS, directory / "steps")
        if variant == "new_container":
            with NewContainer(self.boxes, directory, training) as loop:
                asyncio.run(self._kill(loop, variant, kills))
            return
        boxed = variant == "docker"
        state = self.flags.state / f"cluster-{variant}-{number}"
        docker = self.boxes.docker if boxed else None
        with LocalCluster(state, profile=self.flags.profile, docker=docker) as cluster:
            spec = digits_job(training, cluster.layout.checkpoint_base)
            asyncio.run(self._supervised(cluster, self.boxes.boxed(spec) if boxed else spec, variant, kills))

    async def _supervised(self, cluster: LocalCluster, spec: JobSpec, variant: str, kills: int) -> None:
        async with cluster.client() as client:
            await client.submit(SubmitRequest(spec))
            log = StepLog(Path(spec.env["STEP_LOG"]))
            watch = Watch(client, spec.name, log, status_every_s=STATUS_EVERY_S)
            await beside(self._kill(Supervised(watch), variant, kills), *watch.looks())

    async def _kill(self, subject: Supervised | NewContainer, variant: str, kills: int) -> None:
        for what, task in KILLED.items():
            for _ in range(kills):
                sample = await measure(subject, task, ADVANCE, self.flags.quiet)
                if isinstance(subject, Supervised):
                    sample = replace(sample, phases_ms=(await subject.incident()).phases_ms)
                taken = self.samples.setdefault((variant, what), [])
                taken.append(sample)
                times = f"first step {sample.first_ms:.0f} ms, all {sample.all_ms:.0f} ms"
                say(f"{variant} {what} {len(taken)}: {times}")


def main(arguments: Sequence[str]) -> int:
    """Run all blocks and print the figures; exit code 1 when a block failed, 130 when interrupted."""
    flags = _flags(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shutil.rmtree(flags.state, ignore_errors=True)
    info, run, code = machine(), Run(flags, Boxes(flags.state / "outputs")), 0
    try:
        run.boxes.start()
        for number in range(flags.blocks):
            for variant in flags.variants:
                say(f"block {number + 1} of {flags.blocks}: {variant}")
                run.block(number, variant)
    except KeyboardInterrupt:
        say("interrupted: the figures are of what was measured until now")
        code = 130
    except (TfSupervisorError, AssertionError) as error:
        say(f"failed: {error}")
        code = 1
    finally:
        run.boxes.stop()
        shutil.rmtree(flags.state, ignore_errors=True)
    print(json.dumps(_report(info, run), indent=2))
    return code


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def _name(task: str) -> str:
    return f"loop-{task.replace(':', '-')}"


def _flags(arguments: Sequence[str]) -> Flags:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery --runtime docker", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=10, help="of each kind and variant (%(default)s)")
    parser.add_argument("--blocks", type=int, default=2, help="turns of each variant (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="3 kills of each, in one block")
    parser.add_argument("--only", choices=VARIANTS, action="append", help="these variants alone")
    parser.add_argument(
        "--quiet-s", type=float, default=0.0, help="wait this long before a kill for an idle moment"
    )
    parser.add_argument(
        "--profile",
        choices=("fast", "default"),
        default="fast",
        help="default: for a busy machine (%(default)s)",
    )
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    given = parser.parse_args(arguments)
    return Flags(
        kills=3 if given.quick else given.kills,
        blocks=1 if given.quick else given.blocks,
        variants=tuple(given.only or VARIANTS),
        profile=given.profile,
        state=given.state.resolve(),
        quiet=Quiet(given.quiet_s),
    )


def _report(info: dict[str, object], run: Run) -> dict[str, object]:
    first = {key: _figures([sample.first_ms for sample in taken]) for key, taken in run.samples.items()}
    every = {key: _figures([sample.all_ms for sample in taken]) for key, taken in run.samples.items()}
    variants: dict[str, dict[str, object]] = {}
    for (variant, what), taken in run.samples.items():
        row: dict[str, object] = {
            "first_step_ms": asdict(first[variant, what]),
            "all_step_ms": asdict(every[variant, what]),
        }
        phases = [sample.phases_ms for sample in taken if sample.phases_ms]
        variants.setdefault(variant, {})[what] = row | ({"phases_p50_ms": medians(phases)} if phases else {})
    goals = []
    for what in KILLED:
        found = first.get(("docker", what))
        goals.append(Goal(f"{what}: first new step p50, ms", GOAL_MS, None if found is None else found.p50))
    return {
        "benchmark": "recovery in containers",
        "machine": info,
        "settings": {
            "step_delay_ms": STEP_DELAY_MS,
            "save_steps": SAVE_STEPS,
            "blocks": run.flags.blocks,
            "profile": run.flags.profile,
            "quiet_s": run.flags.quiet.patience_s,
        },
        "variants": variants,
        "times_faster_than_a_new_container": {
            f"{what}, {name}": _ratio(table.get(("docker", what)), table.get(("new_container", what)))
            for what in KILLED
            for name, table in (("first step", first), ("all step", every))
        },
        "goals": [goal.row() for goal in goals],
    }


def _figures(samples: list[float]) -> Figures:
    found = figures([round(sample, 1) for sample in samples])
    assert found is not None
    return found


def _ratio(ours: Figures | None, theirs: Figures | None) -> float | None:
    return None if ours is None or theirs is None else round(theirs.p50 / ours.p50, 1)
