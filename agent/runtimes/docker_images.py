"""The images of an agent's containers: those that dockerd has, and those that it fetches.

A fetch goes on by itself. A caller that prepares a plan gets an error with the progress every few seconds,
asks again, and so joins the same fetch, even if that has ended meanwhile. The text of the progress stays the
same for a while, as agents write each new one into etcd.
"""

from __future__ import annotations

import asyncio
import platform
from dataclasses import dataclass, field

from agent.runtimes.docker_engine import Engine, Image
from agent.runtimes.docker_node import DockerNode
from supervisor.adapters.dockerd import architecture
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import NotFound, Refused, Unreachable, UserError
from supervisor.contract.job.spec import ContainerSpec, Pull

TOLD_EVERY_S = 5.0
SAID_S = 30.0
"""Seconds for which the text of a fetch's progress stays the same."""
KEPT_S = 10.0
"""Seconds for which the outcome of a fetch is kept for callers that ask again."""


@dataclass(slots=True)
class _Moved:
    """Bytes done, bytes known so far, and the last text about them, which is used until `due_s`."""

    done: int = 0
    known: int = 0
    said: str = ""
    due_s: float = 0.0

    def tell(self, done: int, known: int) -> None:
        self.done, self.known = done, known

    def words(self, now_s: float) -> str:
        """The progress as a text."""
        if not self.known:
            return "its size is not known yet"
        if now_s >= self.due_s:
            self.said, self.due_s = f"{self.done >> 20} of {self.known >> 20} MiB so far", now_s + SAID_S
        return self.said


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One pull, and the plans that wait for its outcome."""

    task: asyncio.Task[None]
    moved: _Moved
    plans: set[str] = field(default_factory=set)


class Images:
    """The images of one node. Raises Unreachable, UserError, Refused."""

    def __init__(self, node: DockerNode, engine: Engine, sink: Logger) -> None:
        self._node = node
        self._engine = engine
        self._sink = sink
        self._one_at_a_time = asyncio.Lock()
        self._fetches: dict[str, _Fetch] = {}

    async def bring_in(self, spec: ContainerSpec, plan_id: str) -> None:
        """Fetch the image by the job's pull policy; `always` fetches once for each plan."""
        if spec.pull is Pull.ALWAYS:
            await self._fetched(self._node.image_of(spec), plan_id, TOLD_EVERY_S)
        await self.find(spec, plan_id, TOLD_EVERY_S)

    async def find(self, spec: ContainerSpec, plan_id: str = "", patience_s: float | None = None) -> Image:
        """The image of such a container.

        It is fetched if it is missing and the policy allows that, however long it takes.
        """
        name = self._node.image_of(spec)
        try:
            image = await self._engine.image(name)
        except NotFound:
            if spec.pull is Pull.NEVER:
                raise UserError(
                    f"image {name} is not on node {self._node.node}, and the job says `pull: never`"
                ).about("container", "image") from None
            await self._fetched(name, plan_id, patience_s)
            image = await self._engine.image(name)
        machine = architecture(platform.machine())
        if image.architecture not in ("", machine):
            raise UserError(f"image {name} is for {image.architecture}, this node is {machine}").about(
                "container", "image"
            )
        return image

    async def close(self) -> None:
        """Give all fetches up."""
        tasks = [fetch.task for fetch in self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetched(self, name: str, plan_id: str, patience_s: float | None) -> None:
        """Return once it was fetched after the plan's first request; raises Unreachable after
        `patience_s`.
        """
        fetch = self._fetches.get(name)
        if fetch is None or (fetch.task.done() and plan_id not in fetch.plans):
            fetch = self._begin(name)
        fetch.plans.add(plan_id)
        await asyncio.wait({fetch.task}, timeout=patience_s)
        if not fetch.task.done():
            words = fetch.moved.words(asyncio.get_running_loop().time())
            raise Unreachable(f"image {name} is being fetched: {words}")
        fetch.plans.discard(plan_id)
        if not fetch.plans:
            self._forget(name, fetch)
        await fetch.task

    def _begin(self, name: str) -> _Fetch:
        loop, moved = asyncio.get_running_loop(), _Moved()
        fetch = _Fetch(loop.create_task(self._fetch(name, moved)), moved)
        fetch.task.add_done_callback(lambda _: loop.call_later(KEPT_S, self._forget, name, fetch))
        self._fetches[name] = fetch
        return fetch

    def _forget(self, name: str, fetch: _Fetch) -> None:
        if self._fetches.get(name) is fetch:
            del self._fetches[name]
            # Its error may be of no interest to anybody any more.
            _ = fetch.task.cancelled() or fetch.task.exception()

    async def _fetch(self, name: str, moved: _Moved) -> None:
        async with self._one_at_a_time:
            self._sink.info("fetching an image", image=name)
            try:
                await self._engine.pull(name, self._node.pull_timeout_ms / 1000, moved.tell)
            except (NotFound, Refused) as error:
                raise UserError(
                    f"image {name} is not on node {self._node.node} and cannot be pulled: {error}"
                ).about("container", "image") from error
