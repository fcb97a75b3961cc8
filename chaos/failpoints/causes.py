"""Causes that bring daemons to their failpoints: events of a job, and commands of operators."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chaos.cluster import CommandFailed
from chaos.cluster.hadoop import NAMENODE
from chaos.failpoints import beside, often
from chaos.failpoints.beside import DONE_S
from chaos.faults import FAULTS, points
from chaos.faults.daemons import all_dead, frozen
from chaos.faults.families import hdfs
from chaos.faults.families.etcd import several_dead
from chaos.faults.families.node import off
from chaos.faults.families.store import STRUCK_S, commits, flip, spoilt
from chaos.faults.families.supervisor import leader
from chaos.faults.families.task import hangs, slow
from chaos.faults.scene import Scene, send
from recovery.commit.outbox import OUTBOX, TAKING_PREFIX
from recovery.commit.stage import BUILD_PREFIX, LEFTOVER_AGE_S
from recovery.formats.paths import STAGING, TRASH
from supervisor.contract.desired import JobPhase

FROZEN_S = 5.0
"""Longer than D of the fast profile."""
UNREADABLE_S = 30.0
"""Longer than it takes to find that a checkpoint cannot be read, and what jobs of that ground then wait."""
SLOW_MS, PACE_S = 300.0, 45.0
LEASE_S = 11.0
"""Longer than an agent's lease in the fast profile."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One of them. `do` raises DidNotBite, CommandFailed, OSError where a daemon died in the middle of it.

    `program_faults`: so many at most are the program's own, and burn its budget.
    """

    name: str
    text: str
    do: Callable[[Scene], None]
    program_faults: int = 0


def _calm(_: Scene) -> None:
    """Do nothing: a healthy job reaches these points by itself."""


def _kill(role: str) -> Callable[[Scene], None]:
    def kill(scene: Scene) -> None:
        life = scene.process(scene.task(f"{role}.0"))
        send(life, signal.SIGKILL)
        scene.gone(life)

    return kill


def _kill_agent(scene: Scene) -> None:
    _end(scene, scene.task("worker.0").node, "agent", signal.SIGKILL)


def _restart_agent(scene: Scene) -> None:
    _end(scene, scene.task("worker.0").node, "agent", signal.SIGTERM)


def _restart_leader(scene: Scene) -> None:
    """End the leader by SIGTERM: it resigns first."""
    _end(scene, leader(scene)[0], "supervisor", signal.SIGTERM)


def _kill_supervisor(scene: Scene) -> None:
    """Any: who leads nobody can say while etcd is away."""
    _end(scene, scene.nodes("sup-")[0].name, "supervisor", signal.SIGKILL)


def _end(scene: Scene, node: str, daemon: str, number: int) -> None:
    """A daemon gets a signal; its successor comes by itself."""
    life = scene.daemon(node, daemon)
    scene.cluster.nodes[node].daemons[daemon].kill(number, stay=False)
    scene.gone(life)


def _freeze_agent(scene: Scene, for_s: float) -> None:
    _freeze(scene, scene.task("worker.1").node, for_s)


def _freeze(scene: Scene, node: str, for_s: float) -> None:
    with frozen(scene, node, daemon="agent"):
        time.sleep(for_s)


def _power(scene: Scene) -> None:
    with off(scene, scene.task("worker.1").node):
        time.sleep(FROZEN_S)


def _unreadable(scene: Scene) -> None:
    """A node is lost while HDFS cannot be read; then an operator wants another checkpoint than the newest."""
    older = scene.wait("three commits", lambda: some if len(some := commits(scene)) > 2 else None)[0]
    namenode = hdfs.active(scene)[0]
    with (
        hdfs.dead(scene, namenode, daemon=NAMENODE),
        off(scene, scene.task("ps.0").node),
    ):
        time.sleep(UNREADABLE_S)
        scene.job.operator.ctl("restart", scene.job.name, "--from", f"g{older.generation}-s{older.step}")


def _gpu_reset(scene: Scene) -> None:
    """The node of a GPU that asks for a reset is switched off and on."""
    node = scene.task("worker.0").node
    with FAULTS["xid-reset"].inject(scene, "worker.0"), off(scene, node):
        time.sleep(FROZEN_S)


def _restart(scene: Scene) -> None:
    scene.job.operator.ctl("restart", scene.job.name)


def _stop_and_start(scene: Scene) -> None:
    with _stopped(scene):
        pass


@contextmanager
def _stopped(scene: Scene, *how: str) -> Iterator[None]:
    """The job stands still in this block, whoever dies of it; afterwards it is started again."""
    scene.job.operator.insist("stop", scene.job.name, *how)
    _until(scene, JobPhase.STOPPED)
    try:
        yield
    finally:
        scene.job.operator.insist("start", scene.job.name)


def _until(scene: Scene, phase: JobPhase) -> None:
    def there() -> bool | None:
        view = scene.job.view()
        return (view is not None and view.phase is phase) or None

    scene.wait(phase.value, there, DONE_S)


def _drain(scene: Scene) -> None:
    node = scene.task("worker.1").node
    try:
        scene.job.operator.ctl("drain", node)
        scene.wait("a moved task", lambda: scene.task("worker.1").node != node or None, DONE_S)
    finally:
        with suppress(CommandFailed):
            scene.job.operator.ctl("uncordon", node)


def _ask(scene: Scene) -> None:
    """Run the commands of an operator beside a job: signals, commands, pins, cordons."""
    ctl, name = scene.job.operator.ctl, scene.job.name
    ctl("signal", f"{name}/worker:0", "CONT")
    ctl("exec", f"{name}/worker:0", "--", "true")
    newest = scene.wait("a checkpoint", lambda: (view := scene.job.view()) and view.newest_commit)
    ctl("pin", name, str(newest))
    ctl("unpin", name, str(newest))
    ctl("cordon", scene.task("worker.0").node)
    ctl("uncordon", scene.task("worker.0").node)


def _checkpoints(scene: Scene) -> None:
    """Run the commands of an operator on the checkpoints of a stopped job."""
    ctl, name = scene.job.operator.ctl, scene.job.name
    copy = scene.job.control.parent / f"copy-{time.monotonic_ns()}"
    newest = scene.wait("a checkpoint", lambda: (view := scene.job.view()) and view.newest_commit)
    deeds = ("verify",), ("gc",), ("restore", str(newest), "--to", str(copy))
    with _stopped(scene):
        for words in deeds:
            ctl("checkpoints", name, *words)


def _without_etcd(act: Callable[[Scene], None]) -> Callable[[Scene], None]:
    """While etcd is away, for longer than D, `act` happens."""

    def do(scene: Scene) -> None:
        with several_dead(scene, "", but=0):
            time.sleep(FROZEN_S)
            act(scene)
            time.sleep(FROZEN_S)

    return do


def _hang(scene: Scene) -> None:
    """Let a worker hang until it is restarted."""
    before = scene.task("worker.0")
    with hangs(scene, "worker.0"):
        scene.successor(before, DONE_S)


def _slow(scene: Scene) -> None:
    """Make a worker slow for as long as its pace is measured."""
    with slow(scene, "worker.0", ms=SLOW_MS):
        time.sleep(PACE_S)


def _damage(scene: Scene) -> None:
    """A restart finds the newest checkpoint bad, and takes the one before."""
    with spoilt(scene, "ps.0", damage=flip, blame=True):
        pass


def _save_and_stop(scene: Scene) -> None:
    """Its program is asked to save and end, and the job is started again."""
    with _stopped(scene, "--save"):
        pass


def _overlong(scene: Scene) -> None:
    """A command that stops whoever guards it, and is still there when its time is over."""
    words = ("sh", "-c", "kill -STOP $PPID; sleep 60 & wait")
    scene.job.operator.ctl("exec", f"{scene.job.name}/worker:0", "--timeout", "1", "--", *words)


def _leaderless(scene: Scene) -> None:
    """While nobody leads, an agent stands still until its lease is over."""
    supervisors = [node.name for node in scene.nodes("sup-")]
    node = scene.task("worker.1").node
    with all_dead(scene, supervisors, daemon="supervisor"):
        _freeze(scene, node, LEASE_S)
        time.sleep(FROZEN_S)


def _declined(scene: Scene) -> None:
    """An operator wants to go back to a checkpoint that turns out to be bad."""
    found = scene.wait("two commits", lambda: some if len(some := commits(scene)) > 1 else None)
    oldest = found[0]
    scene.damages.append(oldest.path)
    flip(scene.cluster.store / scene.job.name / oldest.path)
    scene.job.operator.ctl("restart", scene.job.name, "--from", f"g{oldest.generation}-s{oldest.step}")
    # The answer comes when all nodes of the next generation have read it.
    time.sleep(FROZEN_S)


def _late_join(scene: Scene) -> None:
    """An agent's successor stands still in the middle of joining until its predecessor is given up."""
    node = scene.cluster.nodes[scene.task("worker.1").node]
    with points.armed([node], "membership.lease.after", f"pause:{FROZEN_S * 1000:.0f}") as trap:
        _end(scene, node.name, "agent", signal.SIGKILL)
        scene.wait("an agent that joins", trap.struck, STRUCK_S)
        time.sleep(FROZEN_S)


def _leftovers(scene: Scene) -> None:
    """A collection broke off and the same was committed again; agents died an hour ago in the middle."""
    store = scene.cluster.store / scene.job.name
    _make(store / TRASH / "left")
    for record in commits(scene):
        name = Path(record.path).name
        _make(store / TRASH / name)
        _make(store / STAGING / name)
    for node in scene.nodes("node-"):
        for parent in (node.root / "tasks").glob("*/"):
            for name in (f"{BUILD_PREFIX}left", f"{OUTBOX}/{TAKING_PREFIX}left"):
                _make(parent / name, age_s=2 * LEFTOVER_AGE_S)
    # Leaders clean up when a job ends, agents when another generation is in force.
    _stop_and_start(scene)


def _make(directory: Path, age_s: float = 0.0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "part").write_text("half of it")
    when_s = time.time() - age_s
    os.utime(directory, (when_s, when_s))


CAUSES = (
    Cause("calm", "nothing: the job trains, saves and is looked after", _calm),
    Cause("worker", "a worker's process is killed", _kill("worker")),
    Cause("ps", "the parameter server's process is killed", _kill("ps")),
    Cause("evaluator", "the evaluator's process is killed", _kill("evaluator")),
    Cause("agent", "an agent is killed", _kill_agent),
    Cause("upgrade", "an agent is told to end, and started again", _restart_agent),
    Cause("leader", "the leader is told to end, and started again", _restart_leader),
    Cause("restart", "an operator restarts the job", _restart),
    Cause("stop", "an operator stops the job, and starts it again", _stop_and_start),
    Cause("ask", "an operator signals, runs a command, pins, cordons", _ask),
    Cause("checkpoints", "an operator verifies and restores checkpoints of the stopped job", _checkpoints),
    Cause("save", "an operator lets the job save and end, and starts it again", _save_and_stop),
    Cause("overlong", "an operator's command outlives its time and its guard", _overlong),
    Cause("declined", "an operator goes back to a checkpoint that is bad", _declined, program_faults=1),
    Cause("hang", "a worker hangs in its own code", _hang, program_faults=1),
    Cause("slow", "a worker takes many times as long for a step", _slow),
    Cause("damage", "the newest checkpoint is damaged, and the parameter server killed", _damage),
    Cause("fail", "another job fails for good", beside.fails),
    Cause("another-job", "another job comes and goes", beside.trains),
    Cause("drain", "an operator drains a node", _drain),
    Cause("blink", "an agent stands still for less than D", partial(_freeze_agent, for_s=FROZEN_S / 3)),
    Cause("frozen", "an agent stands still for longer than D", partial(_freeze_agent, for_s=FROZEN_S)),
    Cause("power", "a node loses power, and gets it back", _power),
    Cause("leaderless", "no supervisor is there while an agent stands still", _leaderless),
    Cause("late-join", "an agent's successor stands still while it joins", _late_join),
    Cause("leftovers", "a collection and stage-ins have broken off", _leftovers),
    Cause("codes", "other jobs with code of their own come and go", beside.many_codes),
    Cause("environments", "another job comes again with other packages each time", beside.many_environments),
    Cause("half-unpacked", "an agent dies while it unpacks code", beside.half_unpacked),
    Cause("chatty", "another job prints more than its node keeps", beside.prints_much),
    Cause("files", "another job saves files that are not TensorFlow's", beside.saves_files),
    Cause("no-time", "another job runs out of time, and its processes are kept", beside.runs_out_of_time),
    Cause("alone", "the node of another job's evaluator loses power", beside.loses_its_evaluator),
    Cause("judged", "another job's checkpoint is bad, then whole; one is imported", beside.judged),
    Cause("twice", "two operators submit jobs of the same name at once", beside.comes_twice),
    Cause("forgotten", "etcd has lost another job, whose records are rebuilt", beside.is_forgotten),
    Cause("large", "another job's plan is too large for one transaction", beside.is_large),
)

MOUNTED = (
    Cause("scribble", "another job does to its directory what programs may", beside.scribbles),
    Cause("unanswered", "another job's node is cut off from HDFS for long", beside.waits_for_its_directory),
)
"""For jobs whose directory is mounted."""

LATE = (
    Cause("unreadable", "a node is lost while HDFS is away; an operator asks for another base", _unreadable),
    Cause("large-files", "another job saves files that go to HDFS in parts", beside.saves_large_files),
)
"""For jobs that have HDFS as their store, and go back to an older checkpoint rather than wait."""

PULLED = (Cause("pulled", "another job's image comes from a registry", beside.has_its_own_image),)
"""For clusters whose tasks are containers."""

GPUS = (Cause("reset", "the node of a GPU that asks for a reset boots", _gpu_reset),)
"""For clusters with GPUs."""

OFTEN = (
    Cause("restarts", "an operator restarts another job's task again and again", often.restarts),
    Cause("cordons", "two operators cordon a node again and again", often.cordons),
)
"""For searches that have minutes for each."""

PROMISED = (
    Cause("etcd-away", "etcd is away for longer than D", _without_etcd(_calm)),
    Cause("etcd-away-agent", "meanwhile an agent is killed", _without_etcd(_kill_agent)),
    Cause("etcd-away-worker", "meanwhile a worker is killed", _without_etcd(_kill("worker"))),
    Cause("etcd-away-supervisor", "meanwhile a supervisor is killed", _without_etcd(_kill_supervisor)),
)
"""For clusters whose supervisors let tasks live on without etcd."""
