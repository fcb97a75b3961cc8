"""An engine of local processes, with a few places that hold one agent each."""

from __future__ import annotations

import copy
import itertools
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.contract.errors import Refused
from supervisor.engines.engine import Pool, PoolAgent, State

PLACES = ("n1", "n2", "n3")
QUEUES = ("", "all")


@dataclass
class Job:
    id: str
    user: str
    pool: Pool
    place: str = ""
    process: subprocess.Popen[bytes] | None = None
    leaving: bool = False
    cancelled: bool = False


class FakeEngine:
    """Agents as processes of this one. A look at the queue is what starts those that wait.

    `user` is who asks: another user's jobs are not shown. All clusters number their jobs alike.
    """

    def __init__(self, user: str = "alice", cluster: str = "main") -> None:
        self._user = user
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self._one = threading.Lock()
        self.jobs: list[Job] = []

    def of(self, user: str) -> FakeEngine:
        """The same engine, asked by another user."""
        other = copy.copy(self)
        other._user = user
        return other

    def start(self, pool: Pool, agents: int) -> list[str]:
        if pool.queue not in QUEUES:
            raise Refused(f"there is no queue {pool.queue}")
        number = next(self._numbers)
        fresh = [Job(f"{number}_{index}", self._user, pool) for index in range(agents)]
        self.jobs += fresh
        self._begin()
        return [each.id for each in fresh]

    def add(self, name: str, agents: int) -> None:
        self.start(next(each.pool for each in self.jobs if each.pool.name == name), agents)

    def agents(self, name: str = "") -> list[PoolAgent]:
        self._begin()
        ours = [each for each in self.jobs if each.user == self._user]
        return [self._seen(each) for each in ours if not name or each.pool.name == name]

    def notify(self, ids: Sequence[str]) -> None:
        for each in self.jobs:
            if each.id in ids and each.process is not None and each.process.poll() is None:
                each.process.send_signal(signal.SIGUSR2)
                each.leaving = True

    def cancel(self, ids: Sequence[str], *, waiting_only: bool = False) -> None:
        for each in self.jobs:
            if each.id not in ids:
                continue
            if each.process is None:
                each.cancelled = True
            elif not waiting_only:
                each.process.terminate()

    def origin(self) -> str:
        return f"fake:{self._cluster}:{self._user}"

    def forget(self, name: str) -> None:
        pass

    def lose(self, ident: str) -> None:
        """End an agent as the loss of its machine would."""
        for each in self.jobs:
            if each.id == ident and each.process is not None:
                each.process.kill()
                each.process.wait()

    def close(self) -> None:
        for each in self.jobs:
            each.cancelled = True
            if each.process is not None:
                each.process.kill()
                each.process.wait()

    def _begin(self) -> None:
        with self._one:
            self._begin_waiting()

    def _begin_waiting(self) -> None:
        held = {each.place for each in self.jobs if each.process is not None and each.process.poll() is None}
        free = [each for each in PLACES if each not in held]
        waiting = [each for each in self.jobs if each.process is None and not each.cancelled]
        for place, job in zip(free, waiting, strict=False):
            job.place = place
            with (Path(job.pool.directory) / f"{job.id}.log").open("ab") as log:
                job.process = subprocess.Popen(
                    [*job.pool.command, "--place", place, "--id", job.id],
                    cwd=job.pool.directory,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )

    def _seen(self, job: Job) -> PoolAgent:
        state, reason = State.RUNNING, ""
        if job.process is None:
            state = State.ENDED if job.cancelled else State.WAITING
            reason = "" if job.cancelled else "Resources"
        elif job.process.poll() is not None:
            state = State.ENDED
        elif job.leaving:
            state = State.LEAVING
        log = f"{job.pool.directory}/{job.id}.log"
        return PoolAgent(
            id=job.id,
            pool=job.pool.name,
            state=state,
            word=state.value.upper(),
            place=job.place,
            reason=reason,
            log=log,
        )
