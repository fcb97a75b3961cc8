"""`python -m benchmarks.killing`: how long a task lives after its kill, when others keep all processors busy.

A task of a hundred threads, most of them TensorFlow's, runs under a real launcher. Its agent falls silent,
and the launcher kills it at its deadline (rule 4). Measured is the time from that deadline until the last
thread is gone, by the kernel's word (pidfd). Meanwhile other tasks of the priority that tasks have keep every
processor busy.

- `process`: plain processes, whose launcher is this user's: as root it may raise priorities;
- `process_user`: plain processes of another user, whose launcher has no privilege;
- `docker`: containers, whose launcher has no privilege either.

With `--before REV` a launcher of that revision kills in turn with today's. JSON on standard output, progress
on standard error. It must be root, for dockerd and for the other user.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

from agent.boundaries import Runtime
from agent.core.events import Event, LauncherSaid
from agent.core.instructions import Recipe
from agent.host.ownership import TaskDirectories
from agent.host.task_users import OneUser
from agent.inside import protocol
from agent.inside.processes import priority
from agent.launchers import SocketLaunchers
from agent.runtimes import docker, docker_mounts, process
from agent.runtimes.docker import DockerRuntime
from agent.runtimes.docker_engine import Engine
from agent.runtimes.docker_node import Allowed, DockerNode
from agent.runtimes.local import write_config
from agent.runtimes.marks import Marks, owner
from agent.runtimes.process import ProcessRuntime
from benchmarks.support.figures import Goal, figures, machine
from benchmarks.support.revision import export
from chaos.container_image import IMAGE, USER_ID, site_packages
from chaos.dockerd import Dockerd
from supervisor.contract.job.spec import ContainerSpec
from supervisor.contract.timing import FAST

RUNTIMES = ("process", "process_user", "docker")
TASK_NICE = 10
SETTLE_MS = 200
GRANT_MS = 60_000
LAST_GRANT_MS = 1_000
"""Of the answer after which the agent is silent."""
TRAINERS = 4
SETTLED_S = 0.4
DEADLINE_S = 120.0
ROOT = Path(__file__).resolve().parents[1]
PYTHON = "/usr/bin/python3"
"""One that other users may execute."""
PROGRAM = """
import hashlib, os, threading, time
import tensorflow as tf
server = tf.distribute.Server({"ps": ["127.0.0.1:0"]}, job_name="ps", task_index=0)
held = bytearray(os.urandom(1 << 20)) * 256
def train():
    while True:
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 20_000)
for _ in range(4):
    threading.Thread(target=train, daemon=True).start()
while len(os.listdir("/proc/self/task")) < 100:
    threading.Thread(target=time.sleep, args=(10_000,), daemon=True).start()
print("ready", flush=True)
time.sleep(10_000)
"""
TRAINER = """
import hashlib, threading
def train():
    while True:
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 20_000)
for _ in range(%d):
    threading.Thread(target=train, daemon=True).start()
train()
"""


class Quiet:
    """A `Sink` for warnings alone."""

    def debug(self, event: str, **fields: object) -> None:
        """Nothing."""

    info = debug

    def warning(self, event: str, **fields: object) -> None:
        """To standard error."""
        _say(f"{event} {fields}")

    error = warning


@dataclass(slots=True)
class Launched:
    """A launcher, what it has said last, and what it is granted; `killed_ms`: its last deadline."""

    launcher_id: str
    grant_ms: int = GRANT_MS
    pulled_ms: int = 0
    killed_ms: int = 0
    warm: asyncio.Event = field(default_factory=asyncio.Event)
    started: protocol.Started | None = None
    exited: protocol.Exited | None = None

    def forget(self) -> None:
        """Before the next attempt."""
        self.started = self.exited = None


class Site:
    """One runtime in a directory of its own, and an agent that does no more than this benchmark needs."""

    def __init__(self, root: Path, kind: str, dockerd: Dockerd | None) -> None:
        root.mkdir(mode=0o755)
        self._root = root
        self._kind = kind
        self._known: dict[str, Launched] = {}
        self._attempts = 0
        self.runtime: Runtime
        for name in ("locks", "attempts", "checkpoints"):
            (root / name).mkdir()
        (root / "locks").chmod(0o1777)
        (root / "tasks").mkdir(mode=0o711)
        self._work = root / "work"
        self._work.mkdir()
        (self._work / "program.py").write_text(PROGRAM)
        users = OneUser(USER_ID, USER_ID)
        marks = Marks(owner("bench/node", root))
        path = root / "tasks" / "agent.sock"
        if dockerd is None:
            tasks = TaskDirectories(users, root / "attempts", root / "checkpoints", root / "locks")
            plain = ProcessRuntime(
                *(root / "launchers", path, FAST, TASK_NICE, marks), tasks if kind == "process_user" else None
            )
            self.runtime = plain
            self.launchers = SocketLaunchers(path, Quiet(), plain.vouch, users)
            return
        node = DockerNode(
            cluster="bench",
            node="node",
            socket=str(dockerd.socket),
            image=IMAGE,
            users=users,
            homes=root / "launchers",
            tasks=root / "tasks",
            attempts=root / "attempts",
            checkpoints=root / "checkpoints",
            lock_dir=root / "locks",
            mounts=(Allowed(str(site_packages()), always=True), Allowed(str(self._work))),
        )
        boxed = DockerRuntime(node, Engine(str(dockerd.socket)), FAST, Quiet(), TASK_NICE)
        self.runtime = boxed
        self.launchers = SocketLaunchers(path, Quiet(), boxed.vouch, users, boxed.lend)

    async def launch(self, name: str, inside: Path) -> Launched:
        """A launcher whose own part is at `inside`, with TensorFlow imported."""
        launched = self._known[name] = Launched(name)
        python = "python3" if self._kind == "docker" else PYTHON
        container = ContainerSpec() if self._kind == "docker" else None
        recipe = Recipe(
            *("job", f"uuid-{name}", str(self._work), python, ("tensorflow",)),
            {"PYTHONPATH": str(site_packages())},
            container=container,
        )
        with _inside(inside):
            found = await self.runtime.spawn(name, recipe)
            self.runtime.watch(name, found, lambda _: None)
            async with asyncio.timeout(DEADLINE_S):
                await launched.warm.wait()
        return launched

    async def kill(self, launched: Launched) -> float:
        """Start an attempt, let its launcher kill it at its deadline; returns ms until it was gone."""
        self._attempts += 1
        name = f"job/ps:0@1.{self._attempts}"
        directory = self._root / "attempts" / f"uuid-{launched.launcher_id}" / str(self._attempts)
        directory.mkdir(parents=True)
        for each in (directory.parent, directory):
            os.chown(each, *((0, 0) if self._kind == "process" else (USER_ID, USER_ID)))
        launched.forget()
        self.runtime.launching(launched.launcher_id, yields=False)
        argv = ("python3" if self._kind == "docker" else PYTHON, str(self._work / "program.py"))
        start = protocol.Start(name, "bench", argv, str(self._work), str(directory))
        self.launchers.send(launched.launcher_id, start)
        log = directory / "output.log"
        await _until(lambda: log.exists() and b"ready" in log.read_bytes(), f"a task that is ready ({log})")
        started = launched.started
        assert started is not None
        await asyncio.sleep(SETTLED_S)
        gone = asyncio.Event()
        pidfd = os.pidfd_open(started.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, gone.set)
        try:
            launched.grant_ms = LAST_GRANT_MS
            async with asyncio.timeout(DEADLINE_S):
                await gone.wait()
            taken_ms = _now_ms() - launched.killed_ms
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        await _until(lambda: launched.exited is not None, "the exit")
        shutil.rmtree(directory, ignore_errors=True)
        return taken_ms

    def post(self, event: Event) -> None:
        """Answer as an agent does."""
        if not isinstance(event, LauncherSaid):
            return
        self.launchers.taken(event.launcher_id)
        if event.launcher_id not in self._known:
            return
        launched, message = self._known[event.launcher_id], event.message
        if isinstance(message, protocol.Hello):
            self.launchers.send(launched.launcher_id, protocol.Welcome(protocol.PROTOCOL, "bench"))
        elif isinstance(message, protocol.Warm):
            assert message.error is None, message.error
            launched.warm.set()
        elif isinstance(message, protocol.Pull):
            launched.pulled_ms = message.stamp_ms
            if launched.grant_ms:
                self._grant(launched)
        elif isinstance(message, protocol.Started):
            launched.started = message
        elif isinstance(message, protocol.StartFailed):
            raise RuntimeError(f"an attempt was not started: {message.reason}")
        elif isinstance(message, protocol.Exited):
            launched.exited = message
            launched.grant_ms = GRANT_MS
            self._grant(launched)
            self.launchers.send(launched.launcher_id, protocol.AckExit(message.attempt))

    def _grant(self, launched: Launched) -> None:
        granted_ms = launched.grant_ms
        self.launchers.send(launched.launcher_id, protocol.Grant(launched.pulled_ms, granted_ms, "bench"))
        if granted_ms == LAST_GRANT_MS:
            launched.grant_ms, launched.killed_ms = 0, launched.pulled_ms + granted_ms

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Site]:
        """Listen, and in the end kill all launchers."""
        await self.launchers.open(self.post)
        try:
            yield self
        finally:
            for name in self._known:
                await self.runtime.fence(name, ())
            await self.launchers.close()
            await self.runtime.close()


@contextmanager
def _inside(path: Path) -> Iterator[None]:
    """Launchers that are made meanwhile run this code, and settle soon."""

    def soon(home: Path, config: protocol.LauncherConfig) -> Path:
        return write_config(home, replace(config, settle_ms=SETTLE_MS))

    with (
        patch.object(process, "INSIDE", path),
        patch.object(docker_mounts, "INSIDE", path),
        patch.object(process, "write_config", soon),
        patch.object(docker, "write_config", soon),
    ):
        yield


@contextmanager
def _trainers(dockerd: Dockerd | None, threads: int, loops: int) -> Iterator[None]:
    """Other tasks, of the priority that tasks have, and `loops` busy loops of the usual one."""
    with ExitStack() as stack:
        for number in range(TRAINERS + loops):
            usual = number >= TRAINERS
            source = TRAINER % (0 if usual else threads - 1)
            if dockerd is not None and not usual:
                shares = str(round(1024 / 1.25**TASK_NICE))
                name = f"trainer-{number}"
                dockerd.cli(
                    "run",
                    "--detach",
                    "--network",
                    "none",
                    "--cpu-shares",
                    shares,
                    "--name",
                    name,
                    IMAGE,
                    "python3",
                    "-c",
                    source,
                )
                stack.callback(dockerd.cli, "rm", "--force", name)
                continue
            child = subprocess.Popen([PYTHON, "-c", source], start_new_session=True)
            stack.callback(child.wait)
            stack.callback(child.kill)
            if not usual:
                time.sleep(1)  # until its threads are there
                priority.lower(child.pid, TASK_NICE)
        yield


async def _until(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {DEADLINE_S:g} s")
        await asyncio.sleep(0.02)


def _now_ms() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def _measure(
    root: Path, kind: str, variants: dict[str, Path], kills: int, threads: int, loops: int
) -> tuple[dict[str, list[float]], list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in variants}
    loads: list[float] = []
    async with AsyncExitStack() as stack:
        dockerd = stack.enter_context(Dockerd(shares=1024)) if kind == "docker" else None
        site = await stack.enter_async_context(Site(root / kind, kind, dockerd).open())
        launched = {
            name: await site.launch(f"{kind}-{name}".replace("_", "-"), inside)
            for name, inside in variants.items()
        }
        stack.enter_context(_trainers(dockerd, threads, loops))
        for number in range(kills):
            # In turn, and each turn in the other order: what else this machine does hits both.
            for name in list(variants)[:: 1 if number % 2 else -1]:
                samples[name].append(await site.kill(launched[name]))
            loads.append(os.getloadavg()[0])
            taken = ", ".join(f"{name} {each[-1]:.0f} ms" for name, each in samples.items())
            _say(f"{kind}: kill {number + 1} of {kills}: {taken}")
    return samples, loads


def main() -> int:
    """Parse the flags, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.killing", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=200, help="of each variant and runtime (%(default)s)")
    parser.add_argument("--only", choices=RUNTIMES, action="append", help="of the runtimes; may be repeated")
    parser.add_argument("--before", help="a revision whose launchers are measured, too")
    parser.add_argument(
        "--threads", type=int, default=4, help="busy threads of each of the other tasks (%(default)s)"
    )
    parser.add_argument(
        "--loops", type=int, default=0, help="busy loops of usual priority beside (%(default)s)"
    )
    flags = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("it must be root")
    os.umask(0o022)
    about = machine()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    root = Path(tempfile.mkdtemp(prefix="killing-"))
    root.chmod(0o755)
    docker.SETTLE_S = SETTLE_MS / 1000
    results: dict[str, object] = {}
    goals = []
    try:
        shutil.copytree(process.INSIDE, root / "now", ignore=shutil.ignore_patterns("__pycache__"))
        variants = {"now": root / "now"}
        if flags.before:
            before = export(flags.before, root / "before", ("agent/inside",))
            variants = {"before": before / "agent" / "inside", **variants}
        for kind in flags.only or RUNTIMES:
            samples, loads = asyncio.run(
                _measure(root, kind, variants, flags.kills, flags.threads, flags.loops)
            )
            found = {name: figures([round(each, 1) for each in values]) for name, values in samples.items()}
            results[kind] = {
                **{name: asdict(each) for name, each in found.items() if each is not None},
                "load_1min_p50": sorted(loads)[len(loads) // 2],
            }
            now = found["now"]
            goals.append(
                Goal(f"{kind}: longest, ms", FAST.kill_time_ms, now.max if now is not None else None)
            )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    document = {
        "benchmark": "killing",
        "machine": about,
        "before": flags.before,
        "kills": flags.kills,
        "other_tasks": {"tasks": TRAINERS, "threads_of_each": flags.threads, "busy_loops": flags.loops},
        "unit": "ms from the deadline at which the launcher kills until the last thread is gone",
        "runtimes": results,
        "goals": [goal.row() for goal in goals],
    }
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
