"""A task that exports models, its node's publisher, and the store that a model server polls."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.models.publisher import Load, ModelPublisher, Node
from recovery.models.index import ModelIndex
from recovery.models.store import ModelStore
from recovery.outputs.note import OutputState
from supervisor.adapters.clock import BootClock
from supervisor.contract.boundaries import CheckpointStore, Clock
from supervisor.contract.job.serving import Exports
from supervisor.contract.job.spec import ModelCheck, ServingSpec
from tests.support.sinks import ListSink

MODEL = "digits"
JOB, UUID, MEMBER = "job", "uuid-1", "chief.0"


def state(
    generation: int = 1,
    attempt: int = 1,
    *,
    keep: int = 3,
    check: ModelCheck = ModelCheck.CHECKSUMS,
    job: str = JOB,
    budget: int = 1 << 30,
) -> OutputState:
    """The note on the outputs of a task that exports models."""
    exports = Exports(ServingSpec(MODEL, "export/*", "chief", check, keep), "python")
    return OutputState(
        job, UUID, MEMBER, "file:///unused", "n1", generation, attempt, budget, exports=exports
    )


@dataclass
class Site:
    """The directories of a task.

    Attributes:
        in_force: what the cluster says of the generation.
    """

    root: Path
    store: CheckpointStore
    sink: ListSink = field(default_factory=ListSink)
    in_force: bool = True
    clock: Clock = field(default_factory=BootClock)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.out.mkdir(parents=True)
        self.spool.mkdir()

    @property
    def out(self) -> Path:
        """The task's output directory."""
        return self.root / "out"

    @property
    def spool(self) -> Path:
        """The agent's own directory."""
        return self.root / "spool"

    def publisher(
        self,
        note: OutputState | None = None,
        load: Load | None = None,
        threads: Executor | None = None,
        trials: asyncio.Semaphore | None = None,
    ) -> ModelPublisher:
        """A publisher of the task's models."""

        async def in_force() -> bool:
            return self.in_force

        node = Node(self.clock, self.sink, lambda: f"{next(self.numbers):012x}", load, threads)
        if trials is not None:
            node = replace(node, trials=trials)
        return ModelPublisher(self.store, self.out, self.spool, note or state(), node, in_force)

    async def index(self) -> ModelIndex:
        """The index in the store."""
        return await ModelStore(self.store, MODEL).read()

    async def seen(self) -> dict[int, dict[str, bytes]]:
        """What a model server sees: version -> its files."""
        found = {}
        for name in (await self.store.list(f"models/{MODEL}")).directories:
            found[int(name)] = await self._tree(f"models/{MODEL}/{name}")
        return found

    async def rest(self) -> list[str]:
        """What no index names: files of versions that are not there."""
        places = [
            (await self.store.list(f".models/{MODEL}/{each}")).directories for each in ("kept", "removed")
        ]
        return [name for place in places for name in place]

    async def _tree(self, root: str) -> dict[str, bytes]:
        found, waiting = {}, [root]
        while waiting:
            listed = await self.store.list(path := waiting.pop())
            for file in listed.files:
                found[file.path.removeprefix(f"{root}/")] = await self.store.read_bytes(file.path, 1 << 20)
            waiting += [f"{path}/{name}" for name in listed.directories]
        return found
