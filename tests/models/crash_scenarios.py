"""Models are published and rolled back by processes that crash somewhere, while a model server looks on.

The server looks at the store at each point. Whatever it sees there is a whole version, and a number has the
same bytes for good.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from recovery.formats.paths import PART_PREFIX
from recovery.models import index as models
from recovery.models.store import ModelStore
from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryDisk
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import NotFound, StoreUnreachable, TfSupervisorError
from tests.checkpoints.crashes import Fuse, HdfsLike
from tests.checkpoints.world import Crash, InlineExecutor, PointedStore
from tests.models.exported import export
from tests.models.site import MODEL, Site, state

KEEP = 2
Files = dict[str, bytes]


@dataclass
class Watched:
    """A store, and what a model server has seen in it.

    Attributes:
        exports: what the program has exported; a version is one of them.
        seen: version -> its bytes.
        looks: how often the server looked.
        read: what it has read of a directory in some state.
    """

    root: Path
    hdfs: bool
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    exports: list[Files] = field(default_factory=list)
    seen: dict[int, Files] = field(default_factory=dict)
    looks: int = 0
    read: dict[tuple[object, ...], Files] = field(default_factory=dict)

    def store(self, fuse: Fuse | None = None) -> CheckpointStore:
        """The store, as a life sees it that the fuse strikes."""
        if self.hdfs:
            found = HdfsLike(self.disk)
            if fuse is not None:
                found.strike_by(fuse)
            return found
        local = LocalStore(self.root / "store", InlineExecutor())
        return local if fuse is None else PointedStore(local, lambda at: fuse.reach(at, StoreUnreachable))

    def look(self) -> None:
        """What a server that polls now sees."""
        self.looks += 1
        for version, files in self._visible().items():
            assert files in self.exports, f"version {version} is visible in part: {sorted(files)}"
            assert self.seen.setdefault(version, files) == files, f"version {version} has other bytes"

    def _visible(self) -> dict[int, Files]:
        found: dict[int, Files] = {}
        if self.hdfs:
            place = f"{models.model_path(MODEL)}/"
            for path, data in self.disk.files.items():
                if path.startswith(place):
                    version, _, name = path.removeprefix(place).partition("/")
                    found.setdefault(int(version), {})[name] = data
            return found
        directory = self.root / "store" / models.model_path(MODEL)
        for each in directory.iterdir() if directory.is_dir() else ():
            paths = {path: path.stat() for path in _files(each) if not path.name.startswith(PART_PREFIX)}
            state = str(each), *((str(path), stat.st_ino, stat.st_mtime_ns) for path, stat in paths.items())
            if state not in self.read:
                self.read[state] = {str(path.relative_to(each)): path.read_bytes() for path in paths}
            found[int(each.name)] = self.read[state]
        return found


def _files(directory: Path) -> Iterator[Path]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(Path(entry.path))
            else:
                yield Path(entry.path)


async def life(site: Site, generation: int) -> None:
    """An agent publishes; an operator rolls the newest version back, and publishes it again."""
    await site.publisher(state(generation, keep=KEEP), threads=InlineExecutor()).look(final=True)
    found = ModelStore(site.store, MODEL)
    with suppress(NotFound):
        await found.update(lambda index, _: index if index.held else models.rolled_back(index, None))
    await found.settle()
    await found.update(lambda index, _: models.put_forward(index, None))
    await found.settle()


async def check_end(watched: Watched, site: Site) -> None:
    """In the end there is what should be, and nothing else."""
    watched.look()
    index = await site.index()
    assert list((await site.seen()).values()) == watched.exports[-KEEP:]
    assert [each.version for each in index.published] == sorted(await site.seen())
    assert len({each.digest for each in index.versions}) == len(watched.exports), "each was published once"
    assert await site.rest() == []
    assert list(site.spool.iterdir()) == []


async def strike_at(root: Path, fuse: Fuse, *, hdfs: bool) -> None:
    """One life that the fuse strikes, and another of the next generation."""
    watched = Watched(root, hdfs)
    site = Site(root, watched.store())
    await site.store.prepare()
    watched.exports = [
        export(site.out, f"export/{number}", b"%d" % number * 300, number) for number in (1, 2, 3)
    ]
    calm, site.store = site.store, watched.store(fuse)
    fuse.watch = watched.look
    with suppress(Crash, asyncio.CancelledError, TfSupervisorError, OSError):
        await fuse.run(life(site, 1))
    watched.look()
    site.store = calm
    await life(site, 2)
    await check_end(watched, site)
    assert watched.looks > 0
