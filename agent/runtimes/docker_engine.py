"""dockerd, for an agent: every call in a thread of its own, with a deadline, and with our errors.

A call without an answer in time is *unknown* (rule 10): its thread ends by itself at the SDK's own deadline,
and the call may still take effect.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar, cast

from docker import APIClient

from supervisor.adapters import dockerd
from supervisor.adapters.failpoints import effect
from supervisor.contract.errors import NotFound, TfSupervisorError, Unreachable

T = TypeVar("T")
CALL_S = 10
THREADS = 4
END_S = 3
"""How long it is waited for what docker knows of a container whose first process is dead."""
PULL_SILENCE_S = 120
"""Seconds without a message of a pull after which it has failed. The caller limits its whole time."""
TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class Image:
    """An image of dockerd. `env` is the first environment of its containers; for each directory in `volumes`
    they would get a volume.
    """

    id: str
    architecture: str
    env: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Container:
    """dockerd's record of a container.

    `pid` is its first process here, 0 while it does not run. `addresses`: network -> its IPv4 address.
    """

    id: str
    pid: int
    status: str
    code: int
    error: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Network:
    """A network of dockerd's; `driver`: bridge, overlay, macvlan, ..."""

    id: str
    driver: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A container in a list."""

    id: str
    labels: Mapping[str, str]


class Engine:
    """The dockerd at a Unix socket. Raises Unreachable, NotFound, Conflict, Refused."""

    def __init__(self, path: str) -> None:
        self._address = f"unix://{path}"
        self._calls = asyncio.Semaphore(THREADS)
        self._pulls = asyncio.Semaphore(1)
        self._ends = asyncio.Semaphore(THREADS)
        self._lock = threading.Lock()
        self._client: APIClient | None = None

    async def image(self, name: str) -> Image:
        """An image by name; raises NotFound."""

        def work(client: APIClient) -> Image:
            said = client.inspect_image(name)
            config = said.get("Config") or {}
            env = dict(each.partition("=")[::2] for each in config.get("Env") or ())
            volumes = tuple(sorted(config.get("Volumes") or ()))
            return Image(str(said["Id"]), str(said.get("Architecture", "")), env, volumes)

        return await self._call(work)

    async def pull(self, name: str, timeout_s: float, moved: Callable[[int, int], None]) -> None:
        """Fetch an image; `moved` is called in another thread with (bytes done, bytes known so far)."""
        over = threading.Event()

        def work(client: APIClient) -> None:
            dockerd.pull(client, name, moved, over.is_set)

        try:
            async with asyncio.timeout(timeout_s):
                with effect("docker.pull", Unreachable):
                    await _in_thread(self._pulls, lambda: self._mapped(work, PULL_SILENCE_S))
        except TimeoutError as error:
            raise Unreachable(f"image {name} was not pulled within {timeout_s:.0f} s") from error
        finally:
            over.set()

    async def create(self, name: str, config: Mapping[str, object]) -> str:
        """Make a container of this API body; returns its id."""

        def work(client: APIClient) -> str:
            return str(client.create_container_from_config(dict(config), name)["Id"])

        with effect("docker.create", Unreachable):
            return await self._call(work)

    async def start(self, container: str) -> None:
        """Start a container."""
        with effect("docker.start", Unreachable):
            await self._call(lambda client: client.start(container))

    async def inspect(self, container: str) -> Container:
        """The record of a container; raises NotFound."""
        return await self._call(lambda client: _record(client, container))

    async def ended(self, container: str) -> Container:
        """The record of a container that ends, once docker knows its exit code, too; raises NotFound.

        Whoever waits so holds up no other call.
        """

        def work(client: APIClient) -> Container:
            client.wait(container, timeout=END_S)  # without it the SDK waits for ever
            return _record(client, container)

        return await self._call(work, self._ends)

    async def network(self, name: str) -> Network:
        """A network by its whole name; raises NotFound."""

        def work(client: APIClient) -> Network:
            # By name alone docker's own look-up would also take the beginning of another one's id.
            for each in client.networks(names=[name]):
                if each["Name"] == name:
                    return Network(str(each["Id"]), str(each["Driver"]))
            raise NotFound(f"no network {name}")

        return await self._call(work)

    async def output(self, container: str) -> bytes:
        """The last lines of its output."""
        return await self._call(lambda client: bytes(client.logs(container, tail=TAIL_LINES)))

    async def list(self, labels: Mapping[str, str]) -> list[Listed]:
        """All containers with these labels, in any state."""

        def work(client: APIClient) -> list[Listed]:
            wanted = [f"{name}={value}" for name, value in labels.items()]
            found = client.containers(all=True, filters={"label": wanted})
            return [Listed(str(each["Id"]), dict(each["Labels"])) for each in found]

        return await self._call(work)

    async def remove(self, container: str) -> None:
        """Remove a container and its anonymous volumes, even a running one; not an error if it is gone."""
        try:
            with effect("docker.remove", Unreachable):
                await self._call(lambda client: client.remove_container(container, force=True, v=True))
        except NotFound:
            return

    async def runtimes(self) -> frozenset[str]:
        """The names of its OCI runtimes."""
        return await self._call(lambda client: frozenset(client.info().get("Runtimes") or ()))

    def close(self) -> None:
        """Close connections. A thread in a call ends with the call, or with this process."""
        if self._client is not None:
            self._client.close()

    async def _call(self, work: Callable[[APIClient], T], limit: asyncio.Semaphore | None = None) -> T:
        try:
            async with asyncio.timeout(CALL_S + 1):
                return await _in_thread(limit or self._calls, lambda: self._mapped(work, CALL_S))
        except TimeoutError as error:
            raise Unreachable(f"dockerd at {self._address} does not answer") from error

    def _mapped(self, work: Callable[[APIClient], T], timeout_s: int) -> T:
        with dockerd.mapped_errors(self._address):
            client = self._connected()
            if timeout_s == CALL_S:
                return work(client)
            with dockerd.another(client, self._address, timeout_s) as patient:
                return work(patient)

    def _connected(self) -> APIClient:
        with self._lock:
            if self._client is None:
                self._client = dockerd.connect(self._address, CALL_S)
            return self._client


def _record(client: APIClient, container: str) -> Container:
    said = client.inspect_container(container)
    state = said["State"]
    networks = said["NetworkSettings"]["Networks"]
    return Container(
        str(said["Id"]),
        int(state["Pid"]) if state["Running"] else 0,
        str(state["Status"]),
        int(state["ExitCode"]),
        str(state["Error"]),
        {str(name): str(each["IPAddress"]) for name, each in networks.items()},
    )


async def _in_thread(limit: asyncio.Semaphore, work: Callable[[], T]) -> T:
    """Run `work` in a thread of its own.

    A thread that is given up does not hold up the process: an executor's threads would keep an ending agent,
    and the lock of its state directory, until a frozen dockerd answers.
    """
    await limit.acquire()
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        limit.release()
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(cast(T, result))

    def run() -> None:
        result: T | None = None
        error: BaseException | None = AssertionError("a bug, whose traceback this thread prints")
        try:
            result, error = work(), None
        except TfSupervisorError as problem:
            error = problem
        finally:
            with suppress(RuntimeError):  # the loop is closed: nobody asks any more
                loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="docker", daemon=True).start()
    return await answer
