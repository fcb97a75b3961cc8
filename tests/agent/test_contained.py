"""The core of an agent whose launchers are containers, and what it knows of them on this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.code import AGAIN_MS
from agent.core.desired import recipe_of
from agent.core.events import (
    BeatSeen,
    BroughtIn,
    Event,
    Fenced,
    Heard,
    Joined,
    LauncherGone,
    LauncherSaid,
    Observed,
    Reported,
    Spawned,
    SpawnFailed,
    SpecRead,
    Tick,
    Written,
)
from agent.core.instructions import BringIn, Instruction, Launch, Reach, Report, Say, Spawn, Write
from agent.core.launcher_events import PATIENCE_MS
from agent.core.saved.adopt import record_of, restore
from agent.core.state import AgentState
from agent.core.step import step
from agent.host.host_pids import PidSpace, peer, pids_of
from agent.host.task_users import OneUser
from agent.inside import protocol
from agent.runtimes import docker
from agent.runtimes.docker_engine import Engine
from agent.runtimes.docker_node import DockerNode
from agent.runtimes.weights import Weights
from agent.settings import AgentSettings
from supervisor.contract.desired import Assignment, ClusterSpec, JobPhase, JobSwitch, RoleAddresses
from supervisor.contract.job.spec import CodeRef, ContainerSpec, Pull, Resources
from supervisor.contract.observed import Exit, Incarnation, NodeResources, Prepared
from supervisor.contract.timing import FAST
from tests.support.sinks import ListSink

NODE = NodeResources(1.0, 1, runtime="docker")
SETTINGS = AgentSettings("n1", "h", "h:1", 20000, 20100, "/locks", FAST, NODE)
ME = Incarnation("n1", "life1", "boot", FAST.d_ms, "h", "h:1", 20000, 20100, 1, NODE)
SPEC = ContainerSpec(image="tf:1")
CODE = CodeRef("c" * 64, 10)
ORDER = Assignment(
    "job", "u", "worker", 0, 1, "p1", "n1", "life1", 1, ("python3", "x.py"), "/w", container=SPEC
)

IN_FORCE = JobSwitch("job", "u", JobPhase.RUNNING, 1, "p1")
NETWORKED = replace(ORDER, container=ContainerSpec(image="tf:1", network="training"))


class Agent:
    """The core of a docker node with one task to prepare."""

    def __init__(self, order: Assignment = ORDER) -> None:
        self.now_ms = 1000
        self.order = order
        self.state = AgentState(SETTINGS, "life1", "boot", FAST.d_ms)
        self.out: list[Instruction] = []
        self.give(Joined(ME, 1000, adopt=False, d_ms=FAST.d_ms))
        self.see(JobSwitch("job", "u", JobPhase.WAITING, 0), order)

    def give(self, event: Event, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        self.state, out = step(self.state, [event], self.now_ms)
        self.out += out

    def see(self, switch: JobSwitch, order: Assignment) -> None:
        self.give(Observed((order,), (switch,), self.now_ms))
        self.give(BeatSeen(self.now_ms))

    def all(self, kind: type) -> list[Instruction]:
        return [each for each in self.out if isinstance(each, kind)]

    @property
    def answers(self) -> list[str]:
        return [
            each.record.failure
            for each in self.out
            if isinstance(each, Write) and isinstance(each.record, Prepared) and not each.record.delay
        ]

    @property
    def delays(self) -> list[str]:
        return [
            each.record.delay
            for each in self.out
            if isinstance(each, Write)
            and each.tag.startswith("delayed/")
            and isinstance(each.record, Prepared)
        ]

    def prepare(self, port: int = 20001) -> None:
        """Its launcher comes up and holds a port."""
        launcher, reach = self.last, Reach("10.0.0.2", "seg") if self.order != ORDER else None
        self.give(Spawned(launcher, 100, 1, reach))
        self.give(LauncherSaid(launcher, protocol.Hello(1, launcher, "job", 100, 1, "boot", True)))
        self.give(LauncherSaid(launcher, protocol.Reserved("p1.worker.0", port)))

    @property
    def last(self) -> str:
        spawn = self.all(Spawn)[-1]
        assert isinstance(spawn, Spawn)
        return spawn.launcher_id


@pytest.mark.parametrize(
    "other",
    [
        replace(ORDER, resources=Resources(memory_bytes=1 << 30)),
        replace(ORDER, resources=Resources(cpus=2.0)),
        replace(ORDER, gpus=("GPU-1",)),
        replace(ORDER, container=ContainerSpec(image="tf:2")),
    ],
)
def test_a_launcher_is_for_those_alone_who_would_get_the_same_container(other: Assignment) -> None:
    assert recipe_of(other, "docker") != recipe_of(ORDER, "docker")
    assert recipe_of(other, "process") == recipe_of(ORDER, "process")


def test_what_only_places_a_task_does_not_make_another_container() -> None:
    asked = Resources(labels={"gpu": "h200"}, gpu_memory_bytes=1, gpu_model="H200", gpu_share=2)
    assert recipe_of(replace(ORDER, resources=asked), "docker") == recipe_of(ORDER, "docker")
    assert recipe_of(replace(ORDER, container=None), "docker").container == ContainerSpec()


def test_no_container_is_made_before_its_image_is_there() -> None:
    agent = Agent()
    assert agent.all(BringIn) == [BringIn("p1", None, SPEC)]
    agent.give(Tick(), 100)
    assert not agent.all(Spawn)
    agent.give(BroughtIn("p1"))
    assert len(agent.all(Spawn)) == 1


def test_where_a_launcher_is_there_nobody_waits_for_its_image() -> None:
    agent = Agent()
    agent.give(BroughtIn("p1"))
    agent.prepare()
    agent.give(Written("prepared/p1.worker.0", ok=True))
    again = replace(ORDER, plan_id="p2", generation=2)
    agent.see(JobSwitch("job", "u", JobPhase.RUNNING, 1, "p1"), again)
    agent.give(LauncherSaid(agent.last, protocol.Reserved("p2.worker.0", 20002)))
    assert len(agent.all(BringIn)) == 2
    assert agent.answers == ["", ""], "dockerd is not waited for"
    agent.give(BroughtIn("p2", "no such image any more"))
    assert agent.answers == ["", ""]
    assert len(agent.all(Spawn)) == 1


@pytest.mark.parametrize(("pull", "asked"), [(Pull.MISSING, False), (Pull.ALWAYS, True)])
def test_where_a_launcher_is_there_shipped_code_does_not_wait_for_docker(pull: Pull, asked: bool) -> None:
    container = replace(SPEC, pull=pull)
    order = replace(ORDER, code=CODE, container=container)
    agent = Agent(order)
    assert agent.all(BringIn) == [BringIn("p1", CODE, container)]
    agent.give(BroughtIn("p1"))
    agent.prepare()
    agent.give(Written("prepared/p1.worker.0", ok=True))
    again = replace(order, plan_id="p2", generation=2)
    agent.see(JobSwitch("job", "u", JobPhase.RUNNING, 1, "p1"), again)
    assert agent.all(BringIn)[1:] == [BringIn("p2", CODE, container if asked else None)]


def test_an_image_that_cannot_be_had_is_told_at_once_and_no_container_is_tried() -> None:
    agent = Agent()
    agent.give(BroughtIn("p1", "its image is not here: no tf:1"))
    assert agent.answers == ["its image is not here: no tf:1"]
    assert not agent.all(Spawn)


def test_a_dockerd_that_does_not_answer_is_asked_again_with_a_pause_and_is_no_failure() -> None:
    agent = Agent()
    agent.give(BroughtIn("p1"))
    agent.give(SpawnFailed(agent.last, "dockerd does not answer", unknown=True))
    for _ in range(3):
        agent.give(Tick(), 10)
    assert len(agent.all(Spawn)) == 1
    agent.give(Tick(), AGAIN_MS)
    assert len(agent.all(BringIn)) == 2
    agent.give(BroughtIn("p1"))
    assert len(agent.all(Spawn)) == 2
    assert agent.answers == []


def test_what_is_waited_for_is_told_once_and_the_answer_comes_after_it() -> None:
    agent = Agent()
    for _ in range(3):
        agent.give(BroughtIn("p1", "docker is frozen", unknown=True))
        agent.give(Written("delayed/p1.worker.0", ok=True))
        agent.give(Tick(), AGAIN_MS)
    assert agent.delays == ["docker is frozen"]
    agent.give(BroughtIn("p1", "no docker", unknown=True), AGAIN_MS)
    assert agent.delays == ["docker is frozen", "no docker"]
    agent.give(Tick(), AGAIN_MS)
    agent.give(BroughtIn("p1"))
    agent.prepare()
    assert agent.answers == [], "the other record is still being written"
    agent.give(Written("delayed/p1.worker.0", ok=True))
    assert agent.answers == [""]
    assert agent.delays == ["docker is frozen", "no docker"]


def test_a_delay_that_could_not_be_written_is_told_again() -> None:
    agent = Agent()
    agent.give(BroughtIn("p1", "docker is frozen", unknown=True))
    agent.give(Written("delayed/p1.worker.0", ok=False))
    assert agent.delays == ["docker is frozen"] * 2


def running(agent: Agent) -> None:
    """Its first attempt runs, then its launcher is gone."""
    agent.give(BroughtIn("p1"))
    agent.prepare()
    agent.give(Written("prepared/p1.worker.0", ok=True))
    address = "10.0.0.2:20001" if agent.order != ORDER else "h:20001"
    spec = ClusterSpec("job", 1, "p1", (RoleAddresses("worker", (address,)),))
    agent.see(IN_FORCE, agent.order)
    agent.give(SpecRead("p1", spec))
    launcher, attempt = agent.last, str(agent.order.attempt_id)
    agent.give(LauncherSaid(launcher, protocol.Started(attempt, 101, 1, agent.now_ms)))
    agent.give(LauncherGone(launcher, "killed"))
    agent.give(Fenced(launcher, 0))
    for _ in range(3):
        told = [each for each in agent.all(Report) if isinstance(each, Report)][-1]
        agent.give(Reported(told.record.attempt, told.serial, ok=True))
    agent.see(IN_FORCE, replace(agent.order, attempt=2))


def ends(agent: Agent) -> list[Exit]:
    return [
        each.record.exit
        for each in agent.out
        if isinstance(each, Report) and each.record.number == 2 and each.record.exit is not None
    ]


def test_in_place_a_launcher_is_waited_for_and_then_given_up_with_the_reason() -> None:
    agent = Agent()
    running(agent)
    began_ms, known = agent.now_ms, 0
    while not ends(agent):
        if len(agent.all(Spawn)) > known:
            known = len(agent.all(Spawn))
            agent.give(SpawnFailed(agent.last, "no docker", unknown=True))
            agent.give(Written("delayed/p1.worker.0", ok=True))
        agent.give(BeatSeen(agent.now_ms))
        agent.give(Heard(agent.now_ms))
        agent.give(Tick(), 100)
        assert agent.now_ms < began_ms + 2 * PATIENCE_MS
    assert agent.now_ms >= began_ms + PATIENCE_MS
    assert known <= 2 + PATIENCE_MS / AGAIN_MS
    assert agent.delays == ["no docker", ""]
    assert "no launcher for 60 s: no docker" in ends(agent)[0].detail


def test_what_was_waited_for_in_place_is_told_to_be_over() -> None:
    agent = Agent()
    running(agent)
    agent.give(SpawnFailed(agent.last, "no docker", unknown=True))
    agent.give(Written("delayed/p1.worker.0", ok=True))
    agent.give(Tick(), AGAIN_MS)
    agent.prepare()
    assert agent.delays == ["no docker", ""]
    agent.give(Written("delayed/p1.worker.0", ok=False))
    assert agent.delays == ["no docker", "", ""], "the leader still has the delay"
    agent.give(Written("delayed/p1.worker.0", ok=True))
    agent.give(Tick(), AGAIN_MS)
    assert agent.delays == ["no docker", "", ""]
    assert not ends(agent)


def test_an_address_that_is_gone_with_its_container_is_never_another_attempts() -> None:
    agent = Agent(NETWORKED)
    running(agent)
    (first,) = {
        each.record.exit.address_lost
        for each in agent.out
        if isinstance(each, Report) and each.record.number == 1 and each.record.exit is not None
    }
    assert first
    agent.prepare(port=20002)
    assert not [
        each for each in agent.all(Launch) if isinstance(each, Launch) and each.assignment.attempt == 2
    ]
    (end, *_) = ends(agent)
    assert end.address_lost
    assert "gone" in end.detail


def test_the_address_of_a_network_is_the_containers_and_waits_for_it() -> None:
    agent = Agent(NETWORKED)
    agent.give(BroughtIn("p1"))
    launcher = agent.last
    agent.give(LauncherSaid(launcher, protocol.Hello(1, launcher, "job", 100, 1, "boot", True)))
    asked = [each.message for each in agent.all(Say) if isinstance(each, Say)]
    (request,) = [each for each in asked if isinstance(each, protocol.Reserve)]
    assert request.lock_dir == "", "the machine's locks say nothing of another network"
    agent.give(LauncherSaid(launcher, protocol.Reserved("p1.worker.0", 20001)))
    assert agent.answers == [], "docker has not said which address it has"
    agent.give(Spawned(launcher, 100, 1, Reach("10.0.0.2", "seg")))
    (write,) = agent.all(Write)
    assert isinstance(write, Write)
    assert isinstance(write.record, Prepared)
    assert (write.record.address, write.record.segment) == ("10.0.0.2:20001", "seg")


def test_a_successor_keeps_addresses_that_it_knows_and_no_other_containers() -> None:
    agent = Agent(NETWORKED)
    agent.give(BroughtIn("p1"))
    unknown = record_of(agent.state)
    agent.prepare()
    known = record_of(agent.state)
    alive = {(100, 1)}
    after = restore(known, SETTINGS, "life2", "boot", 5_000, alive)
    assert after.reach_of(agent.last) == Reach("10.0.0.2", "seg")
    assert not after.launchers[agent.last].doomed
    assert restore(unknown, SETTINGS, "life2", "boot", 5_000, alive).launchers[agent.last].doomed


def test_launchers_that_end_before_their_hello_are_told_of_with_dockers_words() -> None:
    agent = Agent()
    agent.give(BroughtIn("p1"))
    for number in range(1, 5):
        if len(agent.all(Spawn)) < number:
            break
        agent.give(LauncherGone(agent.last, "code 1: no module named zlib"))
        agent.state.launchers.pop(agent.last, None)
        agent.give(Tick(), 600)
    (answer,) = agent.answers
    assert "code 1: no module named zlib" in answer


def test_pids_of_a_plain_process_are_this_machines() -> None:
    started = protocol.Started("a", 7, 7, 1)
    space = PidSpace(os.getpid())
    assert not space.nested
    assert space.here(started) is started


def test_who_has_ended_has_no_pid_here() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        space = PidSpace(child.pid)
        space.levels = (child.pid, 1)
        found = space.here(protocol.Started("a", 7, 7, 1))
        assert isinstance(found, protocol.Started)
        assert found.pid == 0
        child.communicate(b"\n")
    assert pids_of(child.pid) == ()


class Recorder(Weights):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.settled = asyncio.Event()

    def weigh(self, pid: int, nice: int) -> None:
        self.told.append(nice)
        if nice == 10:
            self.settled.set()


async def test_what_starts_comes_first_then_what_can_only_wait_then_what_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "SETTLE_S", 0.01)
    node = DockerNode(
        "c", "n", "", "", OneUser(1, 1), tmp_path / "homes", tmp_path, tmp_path, tmp_path, tmp_path
    )
    runtime = docker.DockerRuntime(node, Engine(str(tmp_path / "none")), FAST, ListSink(), task_nice=10)
    runtime._weights = weights = Recorder()
    me = peer(os.getpid())
    assert me is not None
    runtime._processes["x"] = me
    for yields in (False, True):
        runtime.launching("x", yields=yields)
        await weights.settled.wait()
        weights.settled.clear()
    runtime.launching("unknown", yields=False)
    assert weights.told == [0, 10, 5, 10]
    await runtime.close()


async def test_who_is_no_first_process_of_a_container_is_known_without_dockerd(tmp_path: Path) -> None:
    """A task may try all names at the agent's socket; a dockerd asked for each would be slow for all."""
    node = DockerNode(
        "c", "n", "", "", OneUser(1, 1), tmp_path / "homes", tmp_path, tmp_path, tmp_path, tmp_path
    )
    runtime = docker.DockerRuntime(node, Engine(str(tmp_path / "none")), FAST, ListSink())
    me = peer(os.getpid())
    assert me is not None
    assert not await runtime.vouch("any", me)
    await runtime.close()


@pytest.mark.parametrize(
    ("lines", "file", "full", "settled"),
    [
        ("4:memory:/x\n1:cpu,cpuacct:/docker/c1\n", "cpu,cpuacct/docker/c1/cpu.shares", "1024", "110"),
        ("0::/docker/c1\n", "docker/c1/cpu.weight", "100", "11"),
    ],
)
def test_a_containers_weight_is_its_cgroups(
    tmp_path: Path, lines: str, file: str, full: str, settled: str
) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    for name, text in (("self", "1:cpu,cpuacct:/agent\n0::/agent\n"), ("9", lines)):
        (proc / name).mkdir(parents=True)
        (proc / name / "cgroup").write_text(text)
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text("")
    weights = Weights(proc, root)
    weights.weigh(9, 0)
    assert (root / file).read_text() == full
    (root / file).write_text("")
    weights.weigh(9, 10)
    assert (root / file).read_text() == settled
    weights.hasten(9)
    most = (root / file).read_text()
    assert int(most) > 10 * int(full)
    lent = weights.lend(9)
    assert lent is not None
    fd, message = lent
    assert (message.first, message.usual) == (int(most), int(full))
    (root / file).write_text("")
    os.write(fd, b"7")
    os.close(fd)
    assert (root / file).read_text() == "7"
    (proc / "9" / "cgroup").write_text((proc / "self" / "cgroup").read_text())
    weights.weigh(9, 0)
    weights.hasten(9)
    assert weights.lend(9) is None
    assert not (root / "agent").exists(), "its own cgroup is left alone"


async def test_the_container_that_has_the_pid_of_a_dead_launcher_keeps_its_weight(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    me = peer(os.getpid())
    assert me is not None
    for name, line in (("self", "0::/agent\n"), (str(me.pid), "0::/docker/other\n")):
        (proc / name).mkdir(parents=True)
        (proc / name / "cgroup").write_text(line)
    (root / "docker/other").mkdir(parents=True)
    (root / "docker/other/cpu.weight").write_text("100")
    node = DockerNode(
        "c", "n", "", "", OneUser(1, 1), tmp_path / "homes", tmp_path, tmp_path, tmp_path, tmp_path
    )
    runtime = docker.DockerRuntime(node, Engine(str(tmp_path / "none")), FAST, ListSink())
    runtime._weights = Weights(proc, root)
    runtime.watch("gone", replace(me, start_ticks=me.start_ticks - 1), lambda _: None)
    await runtime.fence("gone", ())
    assert (root / "docker/other/cpu.weight").read_text() == "100"
    await runtime.close()


async def test_an_agent_that_cannot_weigh_containers_says_so_once(tmp_path: Path) -> None:
    sink = ListSink()
    node = DockerNode(
        "c", "n", "", "", OneUser(1, 1), tmp_path / "homes", tmp_path, tmp_path, tmp_path, tmp_path
    )
    runtime = docker.DockerRuntime(node, Engine(str(tmp_path / "none")), FAST, sink)
    me = peer(os.getpid())
    assert me is not None
    assert [runtime.lend(me), runtime.lend(me)] == [None, None]
    assert ["weights of containers" in event for _, event, _ in sink.lines] == [True]
    await runtime.close()
