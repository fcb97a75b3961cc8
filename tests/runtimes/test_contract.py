"""The contract of both runtimes, with real launchers: plain processes, and containers of a real dockerd."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.boundaries import LastWords, Process, Runtime
from agent.core.events import Event, LauncherGone, LauncherSaid
from agent.core.instructions import Recipe
from agent.host.task_users import OneUser
from agent.inside import protocol
from agent.inside.launcher import exits
from agent.inside.processes import fence
from agent.launchers import SocketLaunchers
from agent.runtimes.docker import DockerRuntime
from agent.runtimes.docker_engine import Engine
from agent.runtimes.docker_node import Allowed, DockerNode
from agent.runtimes.process import ProcessRuntime
from chaos.container_image import IMAGE
from chaos.dockerd import Dockerd
from supervisor.contract.errors import Refused, UserError
from supervisor.contract.job.spec import ContainerSpec
from supervisor.contract.timing import FAST
from tests.support.sinks import ListSink

ESCAPES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("escaped", flush=True)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""

COMPLAINS = r"""
import os
os.write(2, b"no licence: \xff\x1b[2J\n\n  ask   for one\n")
os._exit(3)
"""


class Site:
    """One runtime, the socket where its launchers say hello, and what they have said."""

    def __init__(self, root: Path, dockerd: Dockerd | None) -> None:
        self.root = root
        self.sink = ListSink()
        self.work = root / "work"
        self.work.mkdir()
        (root / "locks").mkdir()
        self.events: list[Event] = []
        self._serial = 0
        self.python = sys.executable
        self.runtime: Runtime
        if dockerd is None:
            self.runtime = ProcessRuntime(root / "launchers", root / "agent.sock", FAST)
            self.launchers = SocketLaunchers(root / "agent.sock", self.sink)
            return
        self.python = "python3"
        (root / "tasks").mkdir(mode=0o711)
        node = DockerNode(
            cluster="contract",
            node=root.name,
            socket=str(dockerd.socket),
            image=IMAGE,
            users=OneUser(1000, 1000),
            homes=root / "launchers",
            tasks=root / "tasks",
            attempts=root / "attempts",
            checkpoints=root / "checkpoints",
            lock_dir=root / "locks",
            mounts=(Allowed(str(self.work)),),
        )
        runtime = DockerRuntime(node, Engine(str(dockerd.socket)), FAST, self.sink)
        self.launchers = SocketLaunchers(root / "tasks" / "agent.sock", self.sink, runtime.vouch, node.users)
        self.runtime = runtime

    def recipe(self, program: str = "", preload: tuple[str, ...] = ()) -> Recipe:
        container = None if isinstance(self.runtime, ProcessRuntime) else ContainerSpec()
        return Recipe("job", "uuid", str(self.work), program or self.python, preload, container=container)

    async def spawn(self, recipe: Recipe | None = None) -> tuple[str, Process]:
        self._serial += 1
        launcher_id = f"{self.root.name}-{self._serial}"
        process = await self.runtime.spawn(launcher_id, recipe or self.recipe())
        self.runtime.watch(launcher_id, process, self.events.append)
        return launcher_id, process

    async def until(self, what: str, found: Callable[[], object]) -> None:
        deadline = asyncio.get_running_loop().time() + 30
        while not found():
            assert asyncio.get_running_loop().time() < deadline, f"{what}: {self.events} {self.sink.lines}"
            await asyncio.sleep(0.01)

    async def heard(self, launcher_id: str, kind: type) -> object:
        """The first message of this kind."""

        def look() -> list[object]:
            return [
                each.message
                for each in self.events
                if isinstance(each, LauncherSaid) and each.launcher_id == launcher_id
                if isinstance(each.message, kind)
            ]

        await self.until(kind.__name__, look)
        return look()[0]

    async def gone(self, launcher_id: str) -> LauncherGone:
        def look() -> list[LauncherGone]:
            return [each for each in self.ends() if each.launcher_id == launcher_id]

        await self.until("LauncherGone", look)
        return look()[0]

    async def reason(self, launcher_id: str) -> str:
        """How a launcher ended and what it wrote, as its agent tells it."""
        gone = await self.gone(launcher_id)
        left = await self.runtime.last_words(launcher_id, ())
        return replace(gone, said=gone.said or left.said).reason

    def ends(self) -> list[LauncherGone]:
        return [each for each in self.events if isinstance(each, LauncherGone)]

    async def run(self, launcher_id: str, source: str, *argv: str) -> protocol.Started:
        """Start a program, as an agent does, with a grant of half a minute."""
        (self.work / "prog.py").write_text(source)
        await self.heard(launcher_id, protocol.Hello)
        self.launchers.send(launcher_id, protocol.Welcome(protocol.PROTOCOL, "inc"))
        start = protocol.Start(
            "job/worker:0@1.1",
            "inc",
            argv or (self.python, "prog.py"),
            str(self.work),
            str(self.root / "attempts" / "uuid" / "1"),
        )
        self.launchers.send(launcher_id, start)
        pull = await self.heard(launcher_id, protocol.Pull)
        assert isinstance(pull, protocol.Pull)
        self.launchers.send(launcher_id, protocol.Grant(pull.stamp_ms, 30_000, "inc"))
        started = await self.heard(launcher_id, protocol.Started)
        assert isinstance(started, protocol.Started)
        return started

    async def close(self) -> None:
        ids = [f"{self.root.name}-{number + 1}" for number in range(self._serial)]
        for launcher_id in ids:
            assert await self.runtime.fence(launcher_id, ()) == 0
        await self.runtime.tidy(set)
        await self.launchers.close()
        await self.runtime.close()


@pytest.fixture(params=["process", "docker"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    dockerd = request.getfixturevalue("dockerd") if request.param == "docker" else None
    site = Site(Path(tempfile.mkdtemp(prefix="runtime-")), dockerd)
    await site.launchers.open(site.events.append)
    yield site
    await site.close()


async def test_a_launcher_says_hello_with_this_machines_pid(site: Site) -> None:
    launcher_id, process = await site.spawn()
    hello = await site.heard(launcher_id, protocol.Hello)
    assert isinstance(hello, protocol.Hello)
    assert (hello.pid, hello.start_ticks) == (process.pid, process.start_ticks)
    assert hello.launcher_id == launcher_id
    assert hello.boot_id == site.runtime.boot_id()
    assert site.runtime.is_alive(process)
    assert not site.runtime.is_alive(Process(process.pid, process.start_ticks + 1))


async def test_an_attempts_pid_is_this_machines(site: Site) -> None:
    launcher_id, process = await site.spawn()
    started = await site.run(launcher_id, "import time; time.sleep(600)")
    found = fence.read_process(started.pid)
    assert found is not None
    assert (found.parent, found.start_ticks) == (process.pid, started.start_ticks)


async def test_a_launcher_that_ends_is_told_of_once(site: Site) -> None:
    launcher_id, process = await site.spawn()
    await site.heard(launcher_id, protocol.Hello)
    os.kill(process.pid, signal.SIGKILL)
    assert (await site.gone(launcher_id)).reason == "killed by SIGKILL (signal 9)"
    assert not site.runtime.is_alive(process)
    site.runtime.watch(launcher_id, process, site.events.append)
    await site.until("the end of one that ended before it is watched", lambda: len(site.ends()) == 2)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV (signal 11); it wrote nothing"),
        (COMPLAINS, "exit code 3; it wrote: no licence: \\xff\\x1b[2J | ask for one"),
        ("import os; os.write(2, bytes(range(256)) * 4096); os._exit(7)", "exit code 7; it wrote: "),
    ],
    ids=["signal", "error", "junk"],
)
async def test_how_a_launcher_ended_before_it_was_ready_is_told(site: Site, source: str, reason: str) -> None:
    (site.work / "ends.py").write_text(source)
    path = {"PYTHONPATH": str(site.work)}
    launcher_id, _ = await site.spawn(replace(site.recipe(preload=("ends",)), env=path))
    told = await site.reason(launcher_id)
    assert told[: len(reason)] == reason
    assert told.isprintable()
    assert len(told) < 500


async def test_what_an_interpreter_said_that_does_not_start_is_told(site: Site) -> None:
    recipe = replace(site.recipe(), env={"PYTHONHOME": "/nowhere"})
    try:
        launcher_id, _ = await site.spawn(recipe)
        told = await site.reason(launcher_id)
    except Refused as error:  # docker knew already that it had ended
        told = str(error)
    assert "exit code 1; it wrote: " in told
    assert "No module named 'encodings'" in told


async def test_fencing_leaves_nothing_of_what_escaped(site: Site) -> None:
    launcher_id, process = await site.spawn()
    started = await site.run(launcher_id, ESCAPES)
    log = site.root / "attempts" / "uuid" / "1" / "output.log"
    await site.until("output", lambda: log.exists() and b"escaped" in log.read_bytes())
    marked = fence.survivors(f"{launcher_id}#")
    assert {process.pid, started.pid} < {each.pid for each in marked}
    assert process in (await site.runtime.living())[launcher_id]
    assert await site.runtime.fence(launcher_id, (process,)) == 0
    assert not fence.survivors(f"{launcher_id}#")
    assert launcher_id not in await site.runtime.living()
    assert not [each for each in marked if fence.read_process(each.pid)]
    assert await site.runtime.fence(launcher_id, (process,)) == 0, "again: nothing, and no error"
    assert not (site.root / "launchers" / launcher_id).exists()


async def test_a_launcher_is_fenced_before_anybody_knows_its_pid(site: Site) -> None:
    launcher_id, process = await site.spawn()
    await site.heard(launcher_id, protocol.Hello)
    assert await site.runtime.fence(launcher_id, ()) == 0
    assert not site.runtime.is_alive(process)


async def test_preloading_that_fails_is_told(site: Site) -> None:
    launcher_id, _ = await site.spawn(site.recipe(preload=("no_such_module",)))
    warm = await site.heard(launcher_id, protocol.Warm)
    assert isinstance(warm, protocol.Warm)
    assert warm.error is not None
    assert "no_such_module" in warm.error


async def test_a_wrappers_python_starts_warm(site: Site) -> None:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    env = {"PATH": path} if isinstance(site.runtime, ProcessRuntime) else {}
    launcher_id, _ = await site.spawn(replace(site.recipe("sh", preload=("calendar",)), env=env))
    await site.heard(launcher_id, protocol.Warm)
    source = "import sys, time; print('calendar' in sys.modules); time.sleep(600)"
    started = await site.run(launcher_id, source, "sh", "-c", "python3 prog.py; echo over")
    assert started.warm
    log = site.root / "attempts" / "uuid" / "1" / "output.log"
    await site.until("output", lambda: log.exists() and log.read_bytes())
    assert log.read_bytes() == b"True\n"
    members = fence.survivors(f"{launcher_id}#")
    assert len(members) == 5, "launcher, main process, shell, what stands for the program, the program"
    assert await site.runtime.fence(launcher_id, ()) == 0
    assert not [each for each in members if fence.read_process(each.pid)]


async def test_an_interpreter_that_is_not_there_is_the_jobs_fault(site: Site) -> None:
    with pytest.raises(UserError, match="no/such/python3"):
        await site.spawn(site.recipe("/no/such/python3"))


async def test_what_is_known_no_more_is_removed(site: Site) -> None:
    left = site.root / "launchers" / "life-7"
    left.mkdir(parents=True)
    launcher_id, process = await site.spawn()
    await site.runtime.tidy(lambda: {launcher_id})
    assert not left.exists()
    assert site.runtime.is_alive(process)
    assert (site.root / "launchers" / launcher_id / "config.json").exists()


async def test_what_a_launcher_wrote_of_an_attempts_end_outlives_it(site: Site) -> None:
    launcher_id, process = await site.spawn()
    started = await site.run(launcher_id, "raise SystemExit(7)")
    await site.heard(launcher_id, protocol.Exited)
    os.kill(process.pid, signal.SIGKILL)
    await site.gone(launcher_id)
    left = await site.runtime.last_words(launcher_id, (started.attempt, "job/worker:1@1.1"))
    (exited,) = left.exits
    assert (exited.attempt, exited.reason, exited.code) == (started.attempt, "exit", 7)


@pytest.mark.parametrize("nonsense", [b"", b"[" * 100_000, b'{"attempt": 1}', None])
async def test_nonsense_in_the_place_of_last_words_is_none(tmp_path: Path, nonsense: bytes | None) -> None:
    runtime = ProcessRuntime(tmp_path, tmp_path / "agent.sock", FAST)
    path = Path(exits.record_path(str(tmp_path / "L" / exits.DIRECTORY), "job/worker:0@1.1"))
    path.parent.mkdir(parents=True)
    if nonsense is None:
        os.mkfifo(path)
    else:
        path.write_bytes(nonsense)
    assert await runtime.last_words("L", ("job/worker:0@1.1",)) == LastWords()
    await runtime.close()
