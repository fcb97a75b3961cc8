"""`python -m supervisor.engines.keeper`: keeps one agent of a pool, on the machine that an engine gave it.

The keeper is to the agent what systemd is on a machine of one's own. It makes the agent's configuration,
starts the agent again when it dies, and ends everything of the node before the engine does, so that the
cluster need not wait for D (docs/fencing.md).

| signal | what the keeper does |
|---|---|
| SIGUSR1, before a time limit | drains the node, ends the agent, and runs `--then` |
| SIGUSR2, to leave | drains the node, and ends the agent |
| SIGTERM | ends the agent and its tasks at once |

A drain has the jobs save first that move. Tasks that it leaves there save before they end.
An agent that is told by the cluster to end, as its engine has lost it, is not started again: this is SIGTERM,
too. After SIGUSR2, and after SIGTERM before the time limit, nothing runs `--then`.

With `--leash` standard input is a pipe of the process that the engine runs. When it closes, because that
process has ended however, this is SIGTERM: no engine needs to tell the keeper.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from agent.inside.child.cadence import WANTED
from agent.inside.launcher import ports
from agent.inside.processes import spawn
from supervisor.adapters.files.config.agent import load_agent
from supervisor.contract.addresses import split_host_port
from supervisor.contract.errors import Conflict, Dismissed, Refused, TfSupervisorError, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.pool.record import check_pool
from supervisor.contract.views.jobs import SAVE_S
from supervisor.engines import agent_file
from supervisor.engines.agent_file import Own
from supervisor.engines.credentials import Credentials

R = TypeVar("R")
MOST_BESIDE = 64
"""Most agents of a pool on one machine, and of all pools at one address."""
AGAIN_S, AGAIN_MOST_S = 0.2, 5.0
ENDING_S = 5.0
"""How long an agent may take to end at SIGTERM before it is killed."""
FENCING_S = 15.0
LOOK_S = 0.3
FOLLOW_S = 2.0
"""How often the file that all agents share is looked at."""
MARGIN_S = 15.0
"""The part of a notice that is kept for the end itself: the agent's, and the fence."""
WRONG_CONFIGURATION = 2
HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""The signals of the keeper. Slurm sends them to all processes of a job, so that the keeper's children get
them, too."""
DRAINED = "drained"
"""A file of the node: a keeper has had it drained, and that was not lifted yet."""
LAST_WORDS = "keeper.log"
"""A file of the node: what is printed once nobody reads this process's output any more."""
GPUS = "CUDA_VISIBLE_DEVICES"
"""The variable in which an engine says which GPUs of the machine it gave this agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The options that the keeper was started with.

    Attributes:
        place, id: the engine's names of the machine and of this agent.
        client: the options of `supervisorctl` that name the cluster; empty: the keeper drains no node.
        then: the command after a notice of the time limit; empty: none.
        labels: more of the node's labels, each as `NAME=VALUE`.
        token: the file with the pool's token; None where the shared file names certificates.
        leash: the end of standard input ends the node.
    """

    pool: str
    place: str
    id: str
    file: Path
    client: tuple[str, ...]
    cpus: float = 0
    memory: int = 0
    gpus: tuple[str, ...] = ()
    notice_s: int = 60
    then: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    token: Path | None = None
    leash: bool = False


@dataclass(slots=True)
class Claims:
    """Locks of this machine that live as long as the keeper."""

    files: list[int] = field(default_factory=list)

    def take(self, path: Path) -> bool:
        """Take a lock; False if another process has it. Raises Refused."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = ports.open_shared(str(path))
        except OSError as error:
            if error.errno in ports.SPOILT:
                return False  # another user keeps it for himself, or has put something else there
            raise Refused(f"cannot use {path}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self.files.append(file)
        return True

    def release(self) -> None:
        """Let the locks go."""
        for each in self.files:
            os.close(each)
        self.files.clear()


class Keeper:
    """One agent and its end."""

    def __init__(self, order: Order, node: str, config: Path, credentials: Credentials | None = None) -> None:
        self._order = order
        self._node = node
        self._config = config
        self._credentials = credentials
        self._drained = config.with_name(DRAINED)
        self._told: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._limit_at: float | None = None
        self._given_back = False
        self._at_once = False
        self._leaving = asyncio.Event()
        self._agent: asyncio.subprocess.Process | None = None
        self._renewing: asyncio.Task[NoReturn] | None = None

    async def run(self) -> int:
        """Keep the agent until a signal says otherwise; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in HEARD:
            loop.add_signal_handler(number, self._hear, number)
        if self._order.leash:
            loop.add_reader(sys.stdin.fileno(), self._feel)
        lifting = asyncio.create_task(self._lift())
        keeping = asyncio.create_task(self._keep())
        following = asyncio.create_task(self._follow())
        telling = asyncio.create_task(self._told.get())
        try:
            await asyncio.wait({keeping, telling}, return_when=asyncio.FIRST_COMPLETED)
            if not telling.done():
                await keeping
            # Else it may lift the drain that this end begins with.
            lifting.cancel()
            return await self._leave(telling.result())
        except (UserError, Refused) as error:
            say(str(error))
            return error.exit_code
        finally:
            beside = [
                keeping,
                telling,
                lifting,
                following,
                *([self._renewing] if self._renewing is not None else []),
            ]
            for each in beside:
                each.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    def _hear(self, number: signal.Signals) -> None:
        now = asyncio.get_running_loop().time()
        if number == signal.SIGUSR1:
            self._limit_at = now + self._order.notice_s
        elif number == signal.SIGUSR2 or self._limit_at is None or now < self._limit_at:
            self._given_back = True
        self._at_once |= number in (signal.SIGTERM, signal.SIGINT)
        self._told.put_nowait(number)

    def _feel(self) -> None:
        """Read the leash; when it is gone, end the node."""
        if os.read(sys.stdin.fileno(), 1 << 12):
            return
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._hear(signal.SIGTERM)
        say("the process that kept this one has ended")
        # It has read the output, too. Nothing that ends the node may fail because it prints.
        try:
            words = os.open(self._config.with_name(LAST_WORDS), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError:
            words = os.open(os.devnull, os.O_WRONLY)
        os.dup2(words, sys.stdout.fileno())
        os.dup2(words, sys.stderr.fileno())
        os.close(words)

    async def _keep(self) -> NoReturn:
        """Start the agent, again and again, once it has a certificate if it needs one.

        Raises UserError if its configuration is wrong, Refused if it gets no certificate.
        """
        if self._credentials is not None:
            await self._credentials.obtain()
            self._renewing = asyncio.create_task(self._credentials.keep())
        wait_s = AGAIN_S
        loop = asyncio.get_running_loop()
        while not self._leaving.is_set():
            began = loop.time()
            try:
                self._agent = await _start("agent.main", "--config", str(self._config))
            except OSError as error:
                say(f"the agent cannot be started now: {error.strerror}; trying again")
                await asyncio.sleep(AGAIN_MOST_S)
                continue
            if self._leaving.is_set():
                self._agent.kill()
            code = await self._agent.wait()
            if code == Dismissed.exit_code:
                say("the cluster does without this agent: the engine does not count it any more")
                self._hear(signal.SIGTERM)
                break
            if code == WRONG_CONFIGURATION:
                raise UserError(f"the agent's configuration is wrong (see above); correct {self._order.file}")
            # One that ran for a while died of something that may be over.
            wait_s = AGAIN_S if loop.time() - began > AGAIN_MOST_S else min(2 * wait_s, AGAIN_MOST_S)
            await asyncio.sleep(wait_s)
            if not self._leaving.is_set():
                say(f"the agent has ended with code {code}; it is started again{self._hint(code)}")
        await asyncio.Event().wait()
        raise AssertionError

    async def _follow(self) -> NoReturn:
        """Start the agent again when the file that all agents share has none of its supervisors any more, or
        none of its etcd.

        Its tasks run on, as long as they may without etcd. An agent that begins later has the addresses of
        then.
        """
        seen, said, began = None, "", None
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                began = began or agent_file.addresses(self._config)
                if (now := await _aside(partial(_written_at, self._order.file))) == seen:
                    continue
                moved = await _aside(partial(agent_file.follow, self._order.file, self._config))
                seen, said = now, ""
            except (OSError, TfSupervisorError) as error:
                if said != (said := str(error)):
                    say(f"{said}; the agent goes on with the addresses that it has")
                continue
            if moved is None or self._leaving.is_set():
                continue
            if self._credentials is not None:
                self._credentials.supervisors = list(moved.supervisors)
            if moved.have_left(began):
                now_at = ", ".join(moved.supervisors)
                say(f"supervisors or etcd have moved ({now_at}); the agent is started again")
                began = moved
                await self._end_agent()

    def _hint(self, code: int) -> str:
        """A likely cause of an agent's end, which its own line does not tell."""
        if self._credentials is None or code != Refused.exit_code:
            return ""
        return f" (where etcd has users, `supervisorctl etcd setup` makes pool:{self._order.pool})"

    async def _leave(self, number: signal.Signals) -> int:
        order = self._order
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            why = "its time limit nears" if number == signal.SIGUSR1 else "it is given back"
            within_s = max(1.0, order.notice_s - MARGIN_S)
            what = f"{self._node} is drained" if order.client else "its tasks save"
            say(f"{why}: {what}, for {within_s:g} s at most")
            save_s = min(SAVE_S, within_s / 3)
            until = asyncio.get_running_loop().time() + within_s - save_s
            if not order.client or not await self._drain(why, until):
                await self._save(save_s)
        self._leaving.set()
        await self._end_agent()
        began = self._credentials is None or self._credentials.is_there
        if began and await _run(FENCING_S, "agent.main", "--config", str(self._config), "--fence") != 0:
            say("the cluster was not told that the node's tasks are dead: it waits for D")
        await self._lift()
        # An engine may queue a job again that its user has cancelled.
        if number == signal.SIGUSR1 and order.then and not self._given_back:
            say(f"running {shlex.join(order.then)}")
            with contextlib.suppress(OSError):
                await (await asyncio.create_subprocess_exec(*order.then)).wait()
        return 0

    async def _save(self, within_s: float) -> None:
        """Have tasks that may be asked save, and wait until each has a commit since, or SIGTERM comes."""
        agent = self._agent
        if agent is None or agent.returncode is not None:
            return
        agent.send_signal(signal.SIGUSR1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self._at_once:
                    await asyncio.sleep(LOOK_S)
                    if not any(self._config.parent.glob(f"attempts/*/*/{WANTED}")):
                        return

    async def _drain(self, why: str, until: float) -> bool:
        """Move the node's tasks away, until that is done, its time is over, or SIGTERM comes.

        False if it cannot be drained, or tasks are left, which have trained on since the drain had them save.
        """
        reason = f"pool {self._order.pool}: {why}"
        try:
            # Without this file nobody would lift the drain.
            self._drained.touch()
            draining = await _start(
                "supervisor.cli.main", *self._order.client, "drain", self._node, "--reason", reason
            )
        except OSError as error:
            self._drained.unlink(missing_ok=True)
            say(f"{self._node} is not drained: {error.strerror}")
            return False
        waiting = asyncio.create_task(draining.wait())
        while not waiting.done() and (left_s := until - asyncio.get_running_loop().time()) > 0:
            telling = asyncio.create_task(self._told.get())
            await asyncio.wait({waiting, telling}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            told = telling.result() if telling.done() else None
            telling.cancel()
            if told in (signal.SIGTERM, signal.SIGINT):
                break
        if not waiting.done():
            draining.kill()
        return await waiting == 0

    async def _end_agent(self) -> None:
        agent = self._agent
        if agent is None or agent.returncode is not None:
            return
        agent.terminate()
        try:
            async with asyncio.timeout(ENDING_S):
                await agent.wait()
        except TimeoutError:
            agent.kill()
            await agent.wait()

    async def _lift(self) -> None:
        """Lift the drain that a keeper of this node has asked for: tasks may come to the next agent."""
        lift = ("supervisor.cli.main", *self._order.client, "uncordon", self._node)
        if self._drained.exists() and await _run(FENCING_S, *lift) == 0:
            self._drained.unlink(missing_ok=True)


def _written_at(file: Path) -> tuple[int, int, int]:
    """Inode, size and time of a file: each version of it has others. Raises OSError.

    A network file system asks its server about a file that is opened, and not about one that is named.
    """
    with file.open("rb") as opened:
        found = os.fstat(opened.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns


async def _aside(look: Callable[[], R]) -> R:
    """Look at what may hang for ever, in a thread that the end of this process does not wait for."""
    found: Future[R] = Future()

    def act() -> None:
        found.set_running_or_notify_cancel()
        try:
            found.set_result(look())
        except (OSError, TfSupervisorError) as error:
            found.set_exception(error)

    threading.Thread(target=act, daemon=True).start()
    return await asyncio.wrap_future(found)


async def _start(module: str, *arguments: str, deaf: bool = False) -> asyncio.subprocess.Process:
    """Start a program of ours, which does not outlive this process. `deaf`: it ignores this one's signals."""
    own = os.getpid()

    def become() -> None:
        for number in HEARD if deaf else ():
            signal.signal(number, signal.SIG_IGN)
        spawn.die_with(own)

    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        preexec_fn=become,
    )


async def _run(within_s: float, module: str, *arguments: str) -> int:
    """Run a program of ours to its end; it is killed when it takes too long. Returns its exit code.

    A signal that ends the node does not end it: a fence that died of one would leave the node's tasks, and
    have the cluster wait for D.
    """
    try:
        started = await _start(module, *arguments, deaf=True)
    except OSError as error:
        say(f"{module} cannot be started: {error.strerror}")
        return 1
    try:
        async with asyncio.timeout(within_s):
            return await started.wait()
    except TimeoutError:
        started.kill()
        return await started.wait()
    except asyncio.CancelledError:
        started.kill()
        raise


def prepare(order: Order, claims: Claims) -> tuple[str, Path]:
    """Claim a name and an address for the agent, and write its configuration.

    The name is POOL.PLACE, and POOL.PLACE.2 for a second agent of the pool on one machine. Raises UserError,
    Conflict, Refused.
    """
    found: dict[str, object] = {}

    def adapt(value: dict[str, object]) -> None:
        agent_file.make_locks(value)
        found.update(value)
        agent_file.adapt_to(value, Own(node=order.pool))

    config = load_agent(order.file, adapt)
    state, locks = Path(str(found["state_dir"])), Path(config.lock_dir)
    node = next((each for each in _names(order) if claims.take(state / each / "keeper.lock")), None)
    if node is None:
        raise Conflict(f"{MOST_BESIDE} agents of pool {order.pool} run on {order.place}")
    offset = (
        0 if config.listen.startswith("unix:") else _offset(split_host_port(config.listen)[1], locks, claims)
    )
    given = {name: value for name, _, value in (each.partition("=") for each in order.labels)}
    labels = {**given, "pool": order.pool, "place": order.place, "agent": order.id}
    own = Own(node=node, offset=offset, cpus=order.cpus, memory=order.memory, gpus=order.gpus, labels=labels)
    return node, agent_file.write(order.file, own)


def credentials_of(order: Order, file: Path) -> Credentials | None:
    """The certificate that this configuration needs; None if it names one. Raises UserError."""
    config = load_agent(file)
    if not agent_file.is_certified(config):
        return None
    if order.token is None:
        raise UserError(
            f"{order.file}: tls names no `cert` and `key`: add them, or start the pool by `supervisorctl "
            "pool up` of this release, which gives its agents a token"
        )
    return Credentials(config, order.token, say)


def _names(order: Order) -> list[str]:
    first = check_name("node", f"{order.pool}.{order.place}")
    return [first, *(check_name("node", f"{first}.{number}") for number in range(2, MOST_BESIDE + 1))]


def _offset(first: int, locks: Path, claims: Claims) -> int:
    """The number to add to the ports of the shared file, so that no two agents of this machine share one."""
    last = min(first + MOST_BESIDE, 65_536)
    for port in range(first, last):
        if claims.take(locks / f"agent-{port}.lock"):
            return port - first
    raise Conflict(f"agents of this machine hold all ports from {first} to {last - 1}")


def say(text: str) -> None:
    """Print a line into the engine's log of this agent, if that takes any: its disk may be full."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"tfsup-keeper: {text}\n")
        sys.stderr.flush()


def main() -> None:
    """Keep one agent of a pool."""
    parser = argparse.ArgumentParser(prog="tfsup-keeper")
    for name in ("--pool", "--place", "--id", "--agent-config"):
        parser.add_argument(name, required=True)
    for name in ("--state", "--config", "--then", "--token"):
        parser.add_argument(name, default="")
    parser.add_argument("--label", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--cpus", type=float, default=0)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--notice", type=int, default=60)
    parser.add_argument("--leash", action="store_true")
    given = parser.parse_args()
    client = ("--state", given.state) if given.state else ("--config", given.config) if given.config else ()
    try:
        order = Order(
            pool=check_pool(given.pool),
            place=given.place,
            id=given.id,
            file=Path(given.agent_config),
            client=client,
            cpus=given.cpus,
            memory=given.memory,
            gpus=tuple(filter(None, os.environ.get(GPUS, "").split(","))),
            notice_s=given.notice,
            then=tuple(shlex.split(given.then)),
            labels=tuple(given.label),
            token=Path(given.token) if given.token else None,
            leash=given.leash,
        )
        # Where a job says `python` it means the one that has TensorFlow: this one.
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        node, config = prepare(order, claims := Claims())
        say(f"node {node}, on {order.place}; its configuration is {config}")
        code = asyncio.run(Keeper(order, node, config, credentials_of(order, config)).run())
        claims.release()
    except TfSupervisorError as error:
        say(str(error))
        code = error.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()
