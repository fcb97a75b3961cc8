"""Publishing the models that one task exports, under the numbers that model servers look for.

A look finds new exports in the task's output directory, and takes each of them to its end: copy, verify, try,
upload, note in the index, rename. What is killed in between is done again, or finished from the index.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from agent.models.exports import Copied, Export, copy_export, find_exports, is_unchanged
from recovery.io.deadline import Motion, while_moving
from recovery.io.in_thread import Worker
from recovery.io.trees import remove_tree
from recovery.models.index import ModelIndex, ModelVersion, claim_objection, with_refused, with_version
from recovery.models.store import ModelStore
from recovery.outputs.note import OutputState
from recovery.outputs.reading import Changed
from recovery.outputs.scan import Seen, shown
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore, Clock, Logger
from supervisor.contract.errors import BadCheckpoint, StoreUnreachable, UserError
from supervisor.contract.job.serving import Exports, pattern_of
from supervisor.contract.job.spec import ModelCheck

T = TypeVar("T")
QUIET_MS = 60_000
STEADY_MS = 2_000
"""An export whose last write is younger is left to the next look: its program may be at work on it."""
TRIES = 5
TRIALS = 2
"""So many models are tried at once on a node."""
LOOK_TRIALS_MS = 30_000
"""After this time in trials a look leaves the rest to the next: other outputs are sent between them."""
FINAL_TRIALS_MS = 600_000
"""The same for the last look, which refuses the rest."""
COPY = "model-"
"""Prefix of the directories of copies in the spool."""
_ID = re.compile(r"g(\d{1,9})\.(\d{1,9})-[0-9a-z]{1,32}", re.ASCII)
MAX_WHY = 300

Load = Callable[[str, Exports, Path], Awaitable[str]]
"""Tries to load the model in a directory, for a job's UUID; returns why that fails, empty if it does not."""


class NotTried(Exception):
    """A model could not be tried for a reason of this node. The next look tries again."""


class _Over(Exception):
    """Another attempt publishes this model from now on. The text says so."""


@dataclass(frozen=True, slots=True)
class Node:
    """The means that all publishers of a node share.

    Attributes:
        load: tries a model; None: this node can not, and its check of files is all.
        trials: a place for each model that is tried at a time.
        published: told of each version that was published.
    """

    clock: Clock
    sink: Logger
    new_id: Callable[[], str]
    load: Load | None = None
    threads: Executor | None = None
    trials: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, TRIALS))
    published: Callable[[ModelVersion], None] = lambda _: None


class ModelPublisher:
    """Publishes the models of one attempt of a task; one look at a time.

    Args:
        directory: the task's output directory.
        spool: a directory for copies that tasks of another user cannot write to.
        state: the note on the task's outputs, with `exports`.
        in_force: whether the attempt's generation is in force. Raises errors of etcd.
        uid: the owner whose files are taken; None: any owner.

    Attributes:
        refused: source -> why it was not published; for notices.
    """

    def __init__(
        self,
        store: CheckpointStore,
        directory: Path,
        spool: Path,
        state: OutputState,
        node: Node,
        in_force: Callable[[], Awaitable[bool]],
        uid: int | None = None,
    ) -> None:
        assert state.exports is not None
        self._exports = state.exports
        self._serving = state.exports.serving
        self._pattern = pattern_of(self._serving.export)
        self._models = ModelStore(store, self._serving.model)
        self._directory = directory
        self._spool = spool
        self._state = state
        self._clock = node.clock
        self._sink = node.sink
        self._node = node
        self._worker = Worker(node.threads, f"read {directory}")
        self._in_force = in_force
        self._uid = uid
        self._handled: dict[str, dict[str, Seen]] = {}
        self._tries: dict[str, int] = {}
        self._tried_ms = 0
        self._claimed = False
        self._over = False
        self.refused: dict[str, str] = {}

    async def look(self, *, final: bool) -> None:
        """Publish what is new. `final`: the program is dead, and everything is published when this returns.

        Raises the store's and etcd's errors; the next look goes on.
        """
        if self._over:
            return
        self._tried_ms = 0
        motion = Motion(self._clock)
        what = f"publishing model {self._serving.model} of {self._state.job}/{self._state.member}"
        try:
            if not self._claimed:
                async with while_moving(motion, self._clock, QUIET_MS, what):
                    await self._claim()
            for _ in range(TRIES if final else 1):
                if not await self._look(motion, what, final=final):
                    return
            if final:
                raise StoreUnreachable(f"{self._directory} is still changed, or cannot be tried on this node")
        except _Over as error:
            self._over = True
            self._sink.warning("models are not published from here any more", reason=str(error))

    async def _claim(self) -> None:
        """Take the model for this attempt: no earlier one publishes then. Finish what those have begun."""
        await self._require_force()
        with effect("models.remove_copies"):
            await self._worker.run(partial(_remove_all, self._spool))
        await self._models.update(lambda index, _: self._mine(index))
        await self._models.settle()
        await self._models.sweep(self._is_mine)
        self._claimed = True

    async def _look(self, motion: Motion, what: str, *, final: bool) -> bool:
        """Take all new exports; returns whether some are left."""
        found = await self._worker.run(partial(find_exports, self._directory, self._pattern, self._uid))
        self._handled = {each.source: dict(each.files) for each in found if self._is_handled(each)}
        left = False
        for export in found:
            if self._is_handled(export):
                continue
            if not final and self._tried_ms >= LOOK_TRIALS_MS:
                return True
            if not final and self._clock.wall_ms() - export.modified_ns // 1_000_000 < STEADY_MS:
                left = True
                continue
            try:
                await self._take(export, motion, what)
            except (Changed, NotTried):
                left = True
                continue
            self._handled[export.source] = dict(export.files)
        return left

    def _is_handled(self, export: Export) -> bool:
        return self._handled.get(export.source) == dict(export.files)

    async def _take(self, export: Export, motion: Motion, what: str) -> None:
        """Publish an export, or note why it is none. Raises Changed, NotTried."""
        name = f"g{self._state.generation}.{self._state.attempt}-{self._node.new_id()[:12]}"
        copy = self._spool / f"{COPY}{name}"
        try:
            async with while_moving(motion, self._clock, QUIET_MS, what):
                if export.size > self._state.budget_bytes:
                    raise BadCheckpoint(f"it has {export.size} bytes, more than limits.output_budget")
                copied = await self._worker.run_stoppable(
                    partial(copy_export, self._directory, export, copy, moved=motion)
                )
                check = partial(is_unchanged, self._directory, export, self._pattern, self._uid)
                if not await self._worker.run(check):
                    raise Changed(export.source)
                index = await self._models.read()
                if self._has(index, copied, export):
                    await self._models.settle()
                    return
            tried = await self._try(export, copy)
            async with while_moving(motion, self._clock, QUIET_MS, what):
                await self._publish(self._version(name, export, copied, tried), copy, copied, motion)
        except (BadCheckpoint, UserError) as error:
            await self._refuse(export, str(error)[:MAX_WHY])
        finally:
            with effect("models.remove_copy"):
                await self._worker.run(partial(_remove, copy))

    async def _try(self, export: Export, copy: Path) -> ModelCheck:
        """Load a model if the job wants that; returns what was tried. Raises BadCheckpoint, NotTried."""
        wanted = self._serving.check
        if wanted is ModelCheck.CHECKSUMS or self._node.load is None:
            return ModelCheck.CHECKSUMS
        if self._tried_ms >= FINAL_TRIALS_MS:
            minutes = FINAL_TRIALS_MS // 60_000
            raise BadCheckpoint(f"it was not tried: other exports of its task took {minutes} minutes to try")
        try:
            why = await self._load(copy, self._node.load)
        except NotTried as error:
            tries = self._tries[export.source] = self._tries.get(export.source, 0) + 1
            if tries < TRIES:
                raise
            raise BadCheckpoint(str(error)) from error
        self._tries.pop(export.source, None)
        if why:
            raise BadCheckpoint(f"it cannot be loaded: {why}")
        return wanted

    async def _load(self, copy: Path, load: Load) -> str:
        """Load a model once it is its turn on this node. That wait does not count as time in trials."""
        async with self._node.trials:
            began_ms = self._clock.now_ms()
            try:
                return await load(self._state.job_uuid, self._exports, copy)
            finally:
                self._tried_ms += self._clock.now_ms() - began_ms

    async def _publish(self, new: ModelVersion, copy: Path, copied: Copied, motion: Motion) -> None:
        await self._require_force()
        await self._models.put(new.id, copy, copied.files, motion)
        motion()
        await self._models.update(lambda index, seen: with_version(self._mine(index), new, seen))
        motion()
        index = await self._models.settle()
        version = next((each for each in index.versions if each.id == new.id), None)
        if version is None:
            raise StoreUnreachable(f"version {new.source} of model {index.model} is gone from its index")
        self.refused.pop(new.source, None)
        told = {"model": index.model, "version": version.version, "export": new.source, "check": new.check}
        if version.version in self._models.blocked:
            self._sink.error("something else lies where a model is to be published; remove it", **told)
        elif index.held:
            self._sink.info("a model was taken and is held until an operator publishes it", **told)
        else:
            self._node.published(version)
            self._sink.info("a model was published", **told)

    async def _refuse(self, export: Export, why: str) -> None:
        source = shown(export.source)
        self.refused[source] = why
        self._sink.warning(
            "an export is not published as a model",
            task=f"{self._state.job}/{self._state.member}",
            export=source,
            reason=why,
        )
        await self._models.update(lambda index, _: with_refused(self._mine(index), source, why))

    def _has(self, index: ModelIndex, copied: Copied, export: Export) -> bool:
        return index.has(copied.digest, export.source, self._state.member, self._state.job_uuid)

    def _version(self, name: str, export: Export, copied: Copied, check: ModelCheck) -> ModelVersion:
        return ModelVersion(
            version=0,
            id=name,
            digest=copied.digest,
            source=export.source,
            member=self._state.member,
            check=check.value,
            size=export.size,
            job_uuid=self._state.job_uuid,
            generation=self._state.generation,
            attempt=self._state.attempt,
            taken_ms=self._clock.wall_ms(),
        )

    def _mine(self, index: ModelIndex) -> ModelIndex:
        """The index as this attempt's. Raises _Over."""
        state = self._state
        if why := claim_objection(index, state.job, state.generation, state.attempt):
            if not self._claimed and (index.job != state.job or index.generation > state.generation):
                # This generation is in force, so the store is another job's, or was another cluster's.
                self.refused[self._serving.export] = why
            raise _Over(why)
        return replace(
            index,
            job=state.job,
            generation=state.generation,
            attempt=state.attempt,
            keep=self._serving.keep,
            servers=self._serving.servers,
        )

    def _is_mine(self, name: str) -> bool:
        """Whether a directory was begun by this attempt or an earlier one."""
        match = _ID.fullmatch(name)
        mine = (self._state.generation, self._state.attempt)
        return match is not None and (int(match[1]), int(match[2])) <= mine

    async def _require_force(self) -> None:
        if not await self._in_force():
            raise _Over(f"generation {self._state.generation} of job {self._state.job} is over")


def _remove(copy: Path) -> None:
    if copy.exists():
        remove_tree(copy)


def _remove_all(spool: Path) -> None:
    """Remove the copies of earlier lives."""
    for copy in spool.glob(f"{COPY}*"):
        remove_tree(copy)
