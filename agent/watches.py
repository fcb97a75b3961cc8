"""The watches of an agent in etcd: its node's assignments and spares, and the switches of jobs that are here.

A watch of all switches would have etcd tell every agent of every job. Where many jobs start, that is most of
etcd's work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import NoReturn

from agent.core.state import AgentState
from supervisor.adapters.etcd.mirror import Mirror, MirrorUpdate
from supervisor.contract import keys
from supervisor.contract.boundaries import Clock, Coordination, KeyValue, Logger


class Watches:
    """The mirrors of an agent. `deliver` is called after each change of one of them.

    Attributes:
        assignments: those of this node.
        spares: its launchers in reserve. No safety rule depends on them.
    """

    def __init__(
        self,
        coordination: Coordination,
        node: str,
        deliver: Callable[[MirrorUpdate], None],
        clock: Clock,
        sink: Logger,
        apart_ms: int,
    ) -> None:
        self._mirror = partial(
            Mirror, coordination, deliver=deliver, clock=clock, sink=sink, apart_ms=apart_ms
        )
        self.assignments = self._mirror(keys.assignments_of(node))
        self.spares = self._mirror(keys.spares_of(node))
        self._switches: dict[str, tuple[Mirror, asyncio.Task[NoReturn]]] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Keep all mirrors until cancelled. Only errors that no retry can mend are raised."""
        async with asyncio.TaskGroup() as self._group:
            for mirror in (self.assignments, self.spares):
                self._group.create_task(mirror.run())

    def follow(self, jobs: Collection[str]) -> None:
        """Watch the switches of exactly these jobs."""
        assert self._group is not None, "watches run before anything can be followed"
        for job in self._switches.keys() - set(jobs):
            self._switches.pop(job)[1].cancel()
        for job in set(jobs) - self._switches.keys():
            mirror = self._mirror(keys.switch(job))
            self._switches[job] = (mirror, self._group.create_task(mirror.run()))

    def switches(self) -> Iterator[KeyValue]:
        """The switches of the jobs that are followed, as far as there are any."""
        for job, (mirror, _) in self._switches.items():
            # The mirror's prefix is that of other jobs, too: `a` begins `ab`.
            found = mirror.entries.get(keys.switch(job))
            if found is not None:
                yield found

    def jobs(self) -> set[str]:
        """The jobs of which assignments and spares are here."""
        return {keys.parse(key)[1] for key in (*self.assignments.entries, *self.spares.entries)}

    def heard_ms(self) -> int | None:
        """The oldest of the signs of life of assignments and switches; None until all of them are whole."""
        awaited = self._awaited()
        if any(each.revision is None for each in awaited):
            return None
        return min(each.last_alive_ms or 0 for each in awaited)

    def doubt(self) -> None:
        """Note that they may show an etcd, or a time of it, that is gone."""
        for mirror in (*self._awaited(), self.spares):
            mirror.doubt()

    def _awaited(self) -> list[Mirror]:
        return [self.assignments, *(mirror for mirror, _ in self._switches.values())]


def jobs_of(state: AgentState) -> Iterable[str]:
    """The jobs of which an agent still has something: a task, a launcher, a port, files or work on them."""
    return chain(
        (each.id.task.job for each in state.attempts.values()),
        (each.recipe.job for each in state.launchers.values()),
        (each.job for each in state.holds.values()),
        (each.job for each in state.staging.values()),
        state.commits,
        state.following,
        state.cleaned,
    )
