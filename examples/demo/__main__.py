"""`python -m examples.demo`: a cluster on this machine, a job, and everything killed in turn.

Exit codes: 0, all went on as promised; 1, something did not; 2, wrong use; 4, the directory is in use;
130, interrupted. Whatever happens, the cluster is brought down, and the kernel is asked whether anything
is left of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import psutil
from rich.console import Console

from agent.host.kill_times import rehearse
from chaos.hdfs import HdfsCluster
from examples.demo import kernel
from examples.demo.acts import Acts, Kill, logs_of
from examples.demo.boxes import Boxes
from examples.demo.job import JOB_FILE, Training, digits_job
from examples.demo.pool import Pool
from examples.demo.screen import Screen
from examples.demo.steplog import StepLog
from examples.demo.watch import PromiseBroken, Watch, beside
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract import codec
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import Conflict, NotFound, Refused, TfSupervisorError
from supervisor.contract.incident import Cause
from supervisor.contract.timing import FAST, PROFILES, Timing
from supervisor.contract.views.jobs import IncidentView, SubmitRequest

STATE = Path("var/demo")
OUTPUTS = "outputs"
STEPS = 4000
FAST_STEPS = 3000
STEP_DELAY_MS = 20.0
SAVE_STEPS = 100
ACCURACY_GOAL = 0.93
FIRST_STEPS_S = 300.0
"""On a machine whose processors others keep busy, TensorFlow takes minutes to be imported by all tasks."""
FINISH_S = 120.0
TICK_S = 0.2
GONE_S = 5.0
LOOK_S = 1.0
BUSY_PERCENT = 50.0
TASK_NICE = 10
DIRECTORY = "/demo"
NEXT = (
    "next: . .venv/bin/activate, supervisorctl local up, supervisorctl run examples/digits_async/job.yaml",
    "your own program: docs/job-file.md; what is promised, and the test of each promise: docs/guarantees.md",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of the demonstration."""

    accuracy: float
    kills: tuple[Kill, ...]
    incidents: tuple[IncidentView, ...]


def main() -> int:
    """Parse the flags, run, and always clean up."""
    flags = _flags()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    state: Path = flags.state.resolve()
    screen = Screen(Console(highlight=False), "digits")
    boxes = Boxes(state / OUTPUTS) if flags.runtime == "docker" else None
    timing = PROFILES[flags.profile or _profile(screen)]
    docker = boxes.docker if boxes is not None else None
    pool = Pool(state, screen.say) if flags.on == "yarn" else None
    cluster = LocalCluster(
        state, nodes=1 if pool else 3, profile=timing.profile, docker=docker, progress=screen.say
    )
    hdfs = HdfsCluster() if flags.store == "hdfs" else None
    try:
        _fresh(cluster)
    except TfSupervisorError as error:
        screen.say(str(error), "bold red")
        return error.exit_code
    code = 1
    try:
        if hdfs is not None:
            _start(hdfs, screen)
        if boxes is not None:
            screen.say("start a dockerd of our own; every task will be in a container")
            boxes.start()
        agents = "an agent" if pool else "three agents"
        screen.say(f"start etcd, two supervisors and {agents}; all their state is under {state}")
        screen.say(f"watch it in a browser: {cluster.up().page}")
        steps = flags.steps or (FAST_STEPS if flags.fast else STEPS)
        outcome = asyncio.run(_run(cluster, timing, screen, steps, hdfs, boxes, pool))
        _finish(screen, outcome, state)
        code = 0
    except KeyboardInterrupt:
        code = 130
        screen.close()
        screen.say("interrupted", "bold red")
    except TfSupervisorError as error:
        screen.close()
        screen.say(f"FAILED: {error}", "bold red")
        screen.say(logs_of(state))
    finally:
        kept = flags.keep and code == 0
        if not kept and not _down(cluster, screen):
            code = code or 1
        if boxes is not None:
            boxes.stop()
            screen.say("our dockerd is gone, with its containers and its data")
        if hdfs is not None:
            hdfs.stop()
            screen.say("the HDFS is down; its processes and its data are gone")
    return code


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--state", type=Path, default=STATE, help="directory for all that it writes (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=0, help="train to this global step")
    parser.add_argument("--fast", action="store_true", help=f"train to step {FAST_STEPS} instead of {STEPS}")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running when all went well")
    parser.add_argument(
        "--store", choices=("local", "hdfs"), default="local", help="where checkpoints are kept (%(default)s)"
    )
    parser.add_argument(
        "--runtime", choices=("process", "docker"), default="process", help="what tasks run in (%(default)s)"
    )
    parser.add_argument(
        "--on", choices=("local", "yarn"), default="local", help="where agents run (%(default)s)"
    )
    parser.add_argument(
        "--profile", choices=sorted(PROFILES), help="timing; by default fast, unless this machine is busy"
    )
    flags = parser.parse_args()
    if flags.keep and flags.runtime == "docker":
        parser.error(
            "--keep: the dockerd ends with the demonstration; `supervisorctl local up` takes another"
        )
    if flags.keep and flags.store == "hdfs":
        parser.error("--keep: the HDFS ends with the demonstration; use `make hdfs-up` to keep one")
    if flags.on == "yarn" and (flags.keep or flags.store == "hdfs" or flags.runtime == "docker"):
        parser.error("--on yarn: leave --keep, --store and --runtime out")
    return flags


def _profile(screen: Screen) -> str:
    """Fast, where processors are free and a kill is quick; else what allows for a busy machine."""
    reason = _why_not_fast()
    if not reason:
        return "fast"
    waits_s = {name: timing.d_ms // 1000 for name, timing in PROFILES.items()}
    screen.say(
        f"{reason}: a node is lost after {waits_s['default']} s without a beat, not after {waits_s['fast']} "
        "(--profile fast insists)"
    )
    return "default"


def _why_not_fast() -> str:
    busy = psutil.cpu_percent(LOOK_S)
    if busy >= BUSY_PERCENT:
        return f"the processors are {busy:.0f} % busy with something else"
    try:
        kill_ms = asyncio.run(rehearse(TASK_NICE, None))
    except Refused as error:
        return f"it is not known how long a kill takes here ({error})"
    return f"a kill takes {kill_ms} ms here" if FAST.kill_time_for(kill_ms) > FAST.kill_time_ms else ""


def _start(hdfs: HdfsCluster, screen: Screen) -> None:
    """Bring it up; agents and supervisors find it by their environment."""
    screen.say("start an HDFS: one NameNode, three DataNodes")
    hdfs.start()
    os.environ["HADOOP_CONF_DIR"] = str(hdfs.conf_dir)
    screen.say(f"checkpoints are kept in {hdfs.uri}{DIRECTORY}")


def _fresh(cluster: LocalCluster) -> None:
    """An empty state directory; raises Conflict when a cluster runs in it."""
    state = cluster.layout.state
    with suppress(NotFound):
        if cluster.status().running:
            raise Conflict(
                f"a cluster runs in {state} already; stop it with `supervisorctl local down --state {state}`"
            )
    if state.exists() and any(state.iterdir()) and not cluster.layout.settings.exists():
        raise Conflict(f"{state} holds something else than an earlier demonstration; choose another --state")
    shutil.rmtree(state, ignore_errors=True)


async def _run(
    cluster: LocalCluster,
    timing: Timing,
    screen: Screen,
    steps: int,
    hdfs: HdfsCluster | None,
    boxes: Boxes | None,
    pool: Pool | None,
) -> Outcome:
    """Submit the job, kill everything in turn, and wait for its end."""
    state = cluster.layout.state
    step_log = StepLog(state / OUTPUTS / "steps")
    accuracy_file = state / OUTPUTS / "accuracy.json"
    training = Training(steps, STEP_DELAY_MS, SAVE_STEPS, step_log.directory, accuracy_file)
    base = cluster.layout.checkpoint_base if hdfs is None else hdfs.uri + DIRECTORY
    spec = digits_job(training, base)
    if boxes is not None:
        spec = boxes.boxed(spec)
    async with cluster.client() as client, pool or nullcontext():
        if pool is not None:
            await pool.up(client)
        watch = Watch(client, spec.name, step_log, screen.decided)
        acts = Acts(cluster, watch, screen, timing.d_ms, hdfs, pool)
        await client.submit(SubmitRequest(spec))
        screen.say(f"submit {JOB_FILE.name}: 1 chief, 1 ps, 2 workers, {steps} steps of training")
        screen.say("each task imports TensorFlow first: seconds, or minutes where processors are busy")
        screen.show(watch)
        await beside(_play(watch, acts, screen), *watch.looks(), *watch.listens(), _tick(screen))
        screen.close()
        accuracy = float(json.loads(accuracy_file.read_text())["accuracy"])
        story = (await client.explain(spec.name)).incidents
        failures = tuple(incident for incident in story if incident.cause != Cause.SUBMITTED.value)
        return Outcome(accuracy, tuple(acts.kills), failures)


async def _play(watch: Watch, acts: Acts, screen: Screen) -> None:
    started_ns = time.monotonic_ns()
    await watch.until(lambda: watch.healthy_since(started_ns), "the first step of every task", FIRST_STEPS_S)
    start_s = (time.monotonic_ns() - started_ns) / 1e9
    screen.say(f"all tasks step, {start_s:.1f} s after the job was submitted")
    await acts.play(start_s)
    screen.title("Nothing more is killed: let the training finish")

    def succeeded() -> bool:
        return watch.view is not None and watch.view.phase is JobPhase.SUCCEEDED

    await watch.until(succeeded, "the end of the training", FINISH_S)


async def _tick(screen: Screen) -> NoReturn:
    while True:
        screen.tick()
        await asyncio.sleep(TICK_S)


def _finish(screen: Screen, outcome: Outcome, state: Path) -> None:
    """Print the end and write report.json; raises PromiseBroken when the model is worse than promised."""
    wall_s = time.monotonic() - screen.started_s
    report = {
        "accuracy": outcome.accuracy,
        "incidents": [json.loads(codec.encode(incident)) for incident in outcome.incidents],
        "kills": [asdict(kill) for kill in outcome.kills],
        "wall_s": round(wall_s, 1),
    }
    path = state / "report.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    screen.console.print()
    screen.incidents(outcome.incidents, {kill.incident: kill.outside_ms for kill in outcome.kills})
    if outcome.accuracy < ACCURACY_GOAL:
        raise PromiseBroken(f"the test accuracy is {outcome.accuracy:.4f}, below {ACCURACY_GOAL}")
    screen.say(
        f"test accuracy {outcome.accuracy:.4f} (goal {ACCURACY_GOAL}), after {wall_s:.1f} s", "bold green"
    )
    screen.say(f"the same as JSON: {path}")
    for line in NEXT:
        screen.say(line)


def _down(cluster: LocalCluster, screen: Screen) -> bool:
    """Bring everything down; whether the kernel agrees that nothing is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        status = cluster.status()
        ours = kernel.family(status.keeper_pid) if status.running else []
        cluster.down()
    except NotFound:
        return True
    except TfSupervisorError as error:
        screen.say(f"the cluster could not be brought down: {error}", "bold red")
        return False
    # A large process that was killed takes a moment until its last thread is gone.
    deadline = time.monotonic() + GONE_S
    while left := {ref for ref in ours if ref.alive} | set(kernel.using(cluster.layout.state)):
        if time.monotonic() > deadline:
            break
        time.sleep(TICK_S)
    if left:
        screen.say(f"still alive: pids {sorted(ref.pid for ref in left)}", "bold red")
        return False
    screen.say(f"the cluster is down; all its {len(ours)} processes are gone")
    return True


if __name__ == "__main__":
    sys.exit(main())
