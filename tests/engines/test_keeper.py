"""A pool of real agents on a real embedded cluster; the engine is the tests' own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.inside.child.cadence import WANTED
from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.options import Globals
from supervisor.cli.pool import left_behind
from supervisor.cli.pool.order import Wanted, pool_of
from supervisor.contract.errors import Dismissed
from supervisor.contract.views.jobs import SAVE_S
from supervisor.engines import agent_file, keeper, pools
from supervisor.engines.engine import Pool
from supervisor.engines.keeper import Order
from tests.cli.printing import JOB, PROGRAM, PrintingShell
from tests.cli.shell import environment
from tests.engines.fake_engine import FakeEngine
from tests.support.waiting import DEADLINE_S, until, wait_until


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PrintingShell]:
    with LocalCluster(tmp_path / "state", nodes=1, supervisors=1) as cluster:
        found = PrintingShell(cluster)
        (tmp_path / "count.py").write_text(PROGRAM)
        (tmp_path / "job.yaml").write_text(JOB.format(python=sys.executable))
        yield found


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    found = FakeEngine()
    yield found
    found.close()


@pytest.mark.slow
def test_agents_join_are_replaced_and_leave(shell: PrintingShell, engine: FakeEngine, tmp_path: Path) -> None:
    wanted = Wanted(
        cpus=1,
        memory="1GiB",
        gpus="",
        queue="",
        time="",
        notice=60,
        requeue=False,
        python=sys.executable,
        archive=None,
        agent_config=None,
        logs=tmp_path,
    )
    pools.start(engine, pool_of(Globals(state=tmp_path / "state"), "p", wanted, engine.origin()), 2)
    shell("cordon", "node-0")
    wait_until(lambda: states(shell) == {"node-0": "cordoned", "p.n1": "ready", "p.n2": "ready"}, "both join")
    shell("submit", str(tmp_path / "job.yaml"))
    wait_until(lambda: shell.attempt_pid() > 0, "the task runs")
    place = str(shell.task()["node"])

    # An agent that dies is started again.
    agent_of(tmp_path, place).kill()
    wait_until(lambda: "started again" in logs(tmp_path), "its keeper has noticed")
    wait_until(shell.answers, "it is there again")
    place = str(shell.task()["node"])

    # One that is told to leave moves its task away first, and leaves no cordon.
    leaving = next(each for each in engine.agents("p") if f"p.{each.place}" == place)
    engine.notify([leaving.id])
    wait_until(lambda: shell.attempt_pid() > 0 and shell.task()["node"] != place, "the task has moved")
    wait_until(lambda: len(pools.live(engine)) == 1, "the agent has left")
    assert f"{place} is drained: pool p: it is given back" in shell("events").stdout
    wait_until(lambda: states(shell).get(place) != "drained", "its cordon is lifted")

    # The next one there has the same name.
    pools.scale(engine, "p", 2)
    wait_until(lambda: states(shell).get(place) == "ready", "its successor takes tasks")

    # One that the engine takes for ended is ended by the cluster, and its tasks with it.
    kept = next(each for each in reversed(engine.jobs) if f"p.{each.place}" == place)
    process, kept.process, kept.cancelled = kept.process, None, True
    given = Globals(state=tmp_path / "state")
    lost = left_behind.among(left_behind.nodes_of(given, "p"), engine.agents("p"), engine.origin())
    assert [each.node for each in lost] == [place]
    assert pools.end(engine, "p", 0) == 1
    assert left_behind.end(given, "p", engine, (), lambda _: None) == (1, [])
    assert process is not None
    assert process.wait(30) == 0
    assert [each for each in processes() if str(tmp_path) in each and "engines.keeper" in each] == []


def test_a_wrong_configuration_ends_the_keeper(engine: FakeEngine, tmp_path: Path) -> None:
    command = (sys.executable, "-P", "-m", "supervisor.engines.keeper", "--pool", "p")
    shared = tmp_path / "wrong.yaml"
    shared.write_text("cluster: training\n")
    pool = Pool(name="p", command=(*command, "--agent-config", str(shared)), directory=str(tmp_path))
    engine.start(pool, 1)
    wait_until(lambda: pools.live(engine) == [], "it gives up")
    assert "wrong.yaml:1: etcd: missing" in logs(tmp_path)


@pytest.mark.parametrize("then", [(), (signal.SIGTERM,), (signal.SIGUSR2,)])
async def test_an_agent_that_is_cancelled_in_its_notice_is_not_queued_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: tuple[signal.Signals, ...]
) -> None:
    draining = asyncio.Event()

    async def start(_module: str, *arguments: str, deaf: bool = False) -> asyncio.subprocess.Process:
        lasts = not {"--fence", "uncordon"} & {*arguments}
        if "drain" in arguments:
            draining.set()
        return await asyncio.create_subprocess_exec(*(("sleep", "600") if lasts else ("true",)))

    monkeypatch.setattr(keeper, "_start", start)
    queued = tmp_path / "queued"
    client = ("--state", str(tmp_path))
    order = Order(
        pool="p", place="n1", id="1_0", file=tmp_path, client=client, notice_s=16, then=("touch", str(queued))
    )
    kept = keeper.Keeper(order, "p.n1", tmp_path / "agent.yaml")
    running = asyncio.create_task(kept.run())
    await asyncio.sleep(0)
    for number in (signal.SIGUSR1, *then):
        os.kill(os.getpid(), number)
        await asyncio.wait_for(draining.wait(), 10)
    assert await asyncio.wait_for(running, 20) == 0
    assert queued.exists() == (not then)


async def test_a_save_keeps_no_sigterm_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []

    async def start(_module: str, *arguments: str, deaf: bool = False) -> asyncio.subprocess.Process:
        agent = ("sh", "-c", "trap '' USR1; exec sleep 600")
        return await asyncio.create_subprocess_exec(*(("true",) if "--fence" in arguments else agent))

    monkeypatch.setattr(keeper, "_start", start)
    monkeypatch.setattr(keeper, "say", said.append)
    (tmp_path / "attempts/a/1").mkdir(parents=True)
    (tmp_path / "attempts/a/1" / WANTED).touch()
    order = Order(pool="p", place="n1", id="1_0", file=tmp_path, client=())
    kept = keeper.Keeper(order, "p.n1", tmp_path / "agent.yaml")
    running = asyncio.create_task(kept.run())
    await until(lambda: kept._agent is not None)
    os.kill(os.getpid(), signal.SIGUSR2)
    await until(lambda: said != [])
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, SAVE_S / 2) == 0


@pytest.mark.parametrize("drain", ["false", "true"])
async def test_tasks_save_where_their_node_cannot_be_drained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, drain: str
) -> None:
    asked = tmp_path / "asked"

    async def start(_module: str, *arguments: str, deaf: bool = False) -> asyncio.subprocess.Process:
        agent = ("sh", "-c", f"trap 'touch {asked}' USR1; touch {tmp_path}/up; while :; do sleep 0.05; done")
        short = {"--fence", "uncordon"} & {*arguments}
        command = (drain,) if "drain" in arguments else ("true",) if short else agent
        return await asyncio.create_subprocess_exec(*command)

    monkeypatch.setattr(keeper, "_start", start)
    wanted = tmp_path / "attempts/a/1" / WANTED
    wanted.parent.mkdir(parents=True)
    wanted.touch()
    order = Order(pool="p", place="n1", id="1_0", file=tmp_path, client=("--state", str(tmp_path)))
    running = asyncio.create_task(keeper.Keeper(order, "p.n1", tmp_path / "agent.yaml").run())
    await until((tmp_path / "up").exists)
    os.kill(os.getpid(), signal.SIGUSR2)
    if drain == "false":
        await until(asked.exists)
        wanted.unlink()
    assert await asyncio.wait_for(running, 20) == 0
    assert asked.exists() == (drain == "false")


async def test_a_drain_is_not_lifted_by_the_start_of_its_keeper(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lifted, draining = tmp_path / "lifted", tmp_path / "draining"

    async def start(_module: str, *arguments: str, deaf: bool = False) -> asyncio.subprocess.Process:
        slow = f"touch {tmp_path}/lifting; while [ ! -e {draining} ]; do sleep 0.05; done; touch {lifted}"
        lift = slow if not draining.exists() else "true"
        drain = f"touch {draining}; sleep 1; [ ! -e {lifted} ]"
        found = {"uncordon": lift, "drain": drain, "--fence": "true"}
        command = next((found[each] for each in found if each in arguments), "exec sleep 600")
        return await asyncio.create_subprocess_exec("sh", "-c", command)

    monkeypatch.setattr(keeper, "_start", start)
    (tmp_path / keeper.DRAINED).touch()
    order = Order(pool="p", place="n1", id="1_0", file=tmp_path, client=("--state", str(tmp_path)))
    running = asyncio.create_task(keeper.Keeper(order, "p.n1", tmp_path / "agent.yaml").run())
    await until((tmp_path / "lifting").exists)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert await asyncio.wait_for(running, 20) == 0
    assert draining.exists()
    assert not lifted.exists()


async def test_a_full_disk_keeps_no_node_from_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[str] = []

    async def start(_module: str, *arguments: str, deaf: bool = False) -> asyncio.subprocess.Process:
        started.append(arguments[-1])
        return await asyncio.create_subprocess_exec(
            *(("true",) if "--fence" in arguments else ("sleep", "60"))
        )

    monkeypatch.setattr(keeper, "_start", start)
    monkeypatch.setattr(sys, "stderr", Full())
    order = Order(pool="p", place="n1", id="1_0", file=tmp_path, client=("--state", str(tmp_path)))
    running = asyncio.create_task(keeper.Keeper(order, "p.n1", tmp_path / "none/agent.yaml").run())
    await until(lambda: started != [])
    os.kill(os.getpid(), signal.SIGUSR2)
    assert await asyncio.wait_for(running, 20) == 0
    assert started[-1] == "--fence", "and nothing is drained that nobody would lift"


async def test_without_a_client_nothing_is_drained_and_the_node_is_fenced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[tuple[str, ...]] = []

    async def start(module: str, *arguments: str, deaf: bool = False) -> asyncio.subprocess.Process:
        started.append((module, *arguments[2:]))
        lasts = "--fence" not in arguments
        return await asyncio.create_subprocess_exec(*(("sleep", "600") if lasts else ("true",)))

    monkeypatch.setattr(keeper, "_start", start)
    order = Order(pool="p", place="n1", id="1_0", file=tmp_path, client=())
    running = asyncio.create_task(keeper.Keeper(order, "p.n1", tmp_path / "agent.yaml").run())
    await until(lambda: bool(started))
    os.kill(os.getpid(), signal.SIGUSR2)
    assert await asyncio.wait_for(running, 20) == 0
    assert started == [("agent.main",), ("agent.main", "--fence")]


async def test_an_agent_that_is_dismissed_is_not_started_again_and_its_node_is_fenced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[str] = []

    async def start(module: str, *arguments: str, deaf: bool = False) -> asyncio.subprocess.Process:
        fences = "--fence" in arguments
        started.append("--fence" if fences else module)
        code = 0 if fences else Dismissed.exit_code
        return await asyncio.create_subprocess_exec("sh", "-c", f"exit {code}")

    monkeypatch.setattr(keeper, "_start", start)
    queued = tmp_path / "queued"
    order = Order(pool="p", place="n1", id="1_0", file=tmp_path, client=(), then=("touch", str(queued)))
    running = asyncio.create_task(keeper.Keeper(order, "p.n1", tmp_path / "agent.yaml").run())
    assert await asyncio.wait_for(running, 20) == 0
    assert (started, queued.exists()) == (["agent.main", "--fence"], False)


@pytest.mark.parametrize(("read", "room"), [(True, True), (False, True), (False, False)])
def test_the_end_of_its_leash_ends_the_node_also_when_nobody_reads_its_output(
    tmp_path: Path, read: bool, room: bool
) -> None:
    if not room:
        (tmp_path / keeper.LAST_WORDS).mkdir()
    program = Path(__file__).with_name("leashed.py")
    kept = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert kept.stdin is not None
    assert kept.stdout is not None
    agents: list[psutil.Process] = []
    try:
        assert kept.stdout.readline() == b"tfsup-keeper: it keeps\n"
        wait_until(lambda: psutil.Process(kept.pid).children() != [], "its agent runs")
        agents += psutil.Process(kept.pid).children()
        kept.stdin.write(b"a word\n")
        kept.stdin.flush()
        assert kept.poll() is None
        if not read:
            kept.stdout.close()
        kept.stdin.close()
        assert kept.wait(30) == 0
        assert not any(each.is_running() for each in agents)
        if read:
            assert kept.stdout.read() == b"tfsup-keeper: the process that kept this one has ended\n"
    finally:
        for each in agents:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        kept.kill()
        kept.wait()
        kept.stdout.close()
    assert not room or (tmp_path / keeper.LAST_WORDS).read_text() == "fenced\nfenced\n"


@pytest.mark.parametrize("never", [("agent.main", "supervisor.cli.main"), ("supervisor.cli.main",)])
async def test_a_machine_that_can_start_no_process_ends_no_keeper(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, never: tuple[str, ...]
) -> None:
    tried: list[str] = []

    async def start(module: str, *arguments: str, deaf: bool = False) -> asyncio.subprocess.Process:
        tried.append(arguments[-1] if arguments[-1] == "--fence" else module)
        if module in never and "--fence" not in arguments:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return await asyncio.create_subprocess_exec(
            *(("true",) if "--fence" in arguments else ("sleep", "60"))
        )

    monkeypatch.setattr(keeper, "_start", start)
    monkeypatch.setattr(keeper, "AGAIN_MOST_S", 0.01)
    order = Order(pool="p", place="n1", id="1_0", file=tmp_path, client=("--state", str(tmp_path)))
    running = asyncio.create_task(keeper.Keeper(order, "p.n1", tmp_path / "agent.yaml").run())
    await until(lambda: len(tried) > (2 if "agent.main" in never else 0))
    os.kill(os.getpid(), signal.SIGUSR2)
    assert await asyncio.wait_for(running, 20) == 0
    assert tried[-1] == "--fence"
    assert not (tmp_path / keeper.DRAINED).exists()


async def test_what_ends_the_node_hears_none_of_the_keepers_signals(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slurm sends them to all processes of the keeper's job."""
    (tmp_path / "fencing.py").write_text(
        "import os, pathlib, sys, time\n"
        "pathlib.Path('begun').write_text(str(os.getpid()))\n"
        "until = time.monotonic() + 20\n"
        "while not os.path.exists('signalled') and time.monotonic() < until: time.sleep(0.01)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    running = asyncio.create_task(keeper._run(60.0, "fencing"))
    await until(lambda: Path("begun").exists() and Path("begun").read_text() != "", DEADLINE_S)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(int(Path("begun").read_text()), number)
    Path("signalled").touch()
    assert await running == 0


async def test_a_directory_that_hangs_keeps_no_keeper_from_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looked, over = threading.Event(), threading.Event()

    def hang(_: Path) -> agent_file.Addresses:
        looked.set()
        over.wait(60)
        return agent_file.Addresses((), ())

    async def start(_module: str, *_arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec("sleep", "60")

    async def run(*_: object) -> int:
        return 0

    monkeypatch.setattr(keeper, "_start", start)
    monkeypatch.setattr(keeper, "_run", run)
    monkeypatch.setattr(keeper, "FOLLOW_S", 0.01)
    monkeypatch.setattr(keeper, "_written_at", hang)
    monkeypatch.setattr(agent_file, "addresses", lambda _: agent_file.Addresses((), ()))
    order = Order(pool="p", place="n1", id="1_0", file=tmp_path, client=("--state", str(tmp_path)))

    running = asyncio.create_task(keeper.Keeper(order, "p.n1", tmp_path / "agent.yaml").run())
    await until(looked.is_set)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, 20) == 0
    # As `asyncio.run` does at the end.
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 10)
    over.set()


class Full(io.StringIO):
    """A log on a disk without room."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def states(shell: PrintingShell) -> dict[str, str]:
    nodes = shell.json("nodes")["nodes"]
    assert isinstance(nodes, list)
    return {str(node["node"]): str(node["state"]) for node in nodes if node["state"] not in ("gone", "lost")}


def agent_of(directory: Path, node: str) -> psutil.Process:
    """The process of a node's agent; forks of it have its command line."""
    found = [
        each
        for each in psutil.process_iter(["cmdline"])
        if f"{directory}/state/pool/{node}/agent.yaml" in (each.info["cmdline"] or ())
    ]
    return min(found, key=psutil.Process.create_time)


def processes() -> list[str]:
    return [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]


def logs(directory: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in directory.glob("*.log"))
