"""Measures the space that each job takes on this node's disks, against `job_disk` of the configuration.

A job writes to its checkpoint and output directories, to the directories of its attempts and to those of its
launchers. One that fills a disk would stop the saves and the output of all others on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from agent.boundaries import Post, Tenants
from agent.core.events import OverDisk
from recovery.io.trees import TooMany, space_below

LOOK_S = 30.0
MOST_ENTRIES = 200_000
"""Most files of one job. More count as too much at any size, as a disk's number of files is limited too."""
SHARE = 20
"""Seconds of pause after each second that a measurement takes, at least."""


class DiskWatch:
    """Measures all jobs that have tasks here, one after the other, in a thread of its own.

    `parent` and `attempts` hold a directory for each job, by UUID; `launchers` one for each launcher.
    """

    def __init__(self, limit_bytes: int, parent: Path, attempts: Path, launchers: Path) -> None:
        self._limit_bytes = limit_bytes
        self._parent = parent
        self._attempts = attempts
        self._launchers = launchers
        self._thread = ThreadPoolExecutor(1, "disk")

    async def run(self, tenants: Tenants, post: Post) -> NoReturn:
        """Post OverDisk for each job that takes too much, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            for job_uuid, launcher_ids in tenants().items():
                # A disk that hangs holds up this thread alone.
                why = await loop.run_in_executor(self._thread, self.look, job_uuid, launcher_ids)
                if why:
                    post(OverDisk(job_uuid, why))
            await asyncio.sleep(max(LOOK_S, SHARE * (loop.time() - began_s)))

    def look(self, job_uuid: str, launcher_ids: Iterable[str]) -> str:
        """The reason why a job takes too much; empty if it does not. Blocks."""
        directories = [self._parent / job_uuid, self._attempts / job_uuid]
        directories += [self._launchers / each for each in launcher_ids]
        taken: dict[Path, int] = {}
        for directory in directories:
            try:
                taken[directory] = space_below(directory, MOST_ENTRIES)
            except TooMany as error:
                return f"{error}, and `job_disk` of this node's agent bounds what a job writes"
            except FileNotFoundError:
                continue
            except OSError as error:
                return f"{directory} cannot be looked at ({error.strerror}), and `job_disk` bounds its job"
        total = sum(taken.values())
        if total <= self._limit_bytes:
            return ""
        most = max(taken, key=lambda each: taken[each])
        return (
            f"its job takes {total / (1 << 30):.2f} GiB of this node's disks, most of it in {most}; "
            f"`job_disk` of this node's agent allows {self._limit_bytes / (1 << 30):.2f} GiB"
        )
