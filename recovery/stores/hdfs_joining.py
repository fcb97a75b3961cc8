"""Making one file of several that were written side by side, by the NameNode alone."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from recovery.stores.hdfs_errors import Failure, Meaning
from recovery.stores.hdfs_files import FileInfo, NotJoined, Patience
from recovery.stores.hdfs_threads import Threads
from recovery.stores.hdfs_web import WebFailed, WebNameNode
from supervisor.adapters.files.hadoop import USER_VARIABLE
from supervisor.contract.boundaries import Logger

T = TypeVar("T")
SILENT_S = 600.0
"""Seconds until the next try, after no NameNode answered."""
REFUSED_S = 86_400.0
"""Seconds until the next try, after HDFS refused to join, as in an encryption zone. Each try in vain costs a
second transfer of the file."""


class Joiner:
    """`concat` of one cluster, for those of its NameNodes that speak HTTP at `addresses`.

    `sink` gets the time for which files are sent in one piece, and the reason.
    """

    def __init__(
        self,
        uri: str,
        addresses: Sequence[str],
        info: Callable[[str], Awaitable[FileInfo]],
        patience: Patience,
        threads: Threads,
        sink: Logger | None = None,
    ) -> None:
        self._uri = uri
        self._addresses = addresses
        self._info = info
        self._patience = patience
        self._threads = threads
        self._sink = sink
        self._not_before_s = 0.0

    async def works(self, path: str) -> bool:
        """Whether `join` may work: whether the file `path` looks the same over HTTP.

        After a negative answer or a failed join, the answer is False for a while.
        """
        nodes = self._nodes()
        if not nodes or asyncio.get_running_loop().time() < self._not_before_s:
            return False
        info = await self._info(path)
        reasons = []
        for node in nodes:
            try:
                found = await self._ask(node.status, path)
            except WebFailed as error:
                reasons.append(error.failure.text)
            else:
                if found == (info.size, info.mtime_ms):
                    return True
                reasons.append(f"{node.address} speaks for another file system")
        self._rest(SILENT_S, "; ".join(reasons))
        return False

    async def join(self, target: str, parts: Sequence[str], size: int) -> None:
        """Make the file `target`, followed by the files `parts`, one file `target` of `size` bytes.

        All lie in one directory; `parts` are gone afterwards. No bytes are copied. Raises NotJoined; the join
        may still happen after that.
        """
        pauses, loop = self._patience.pauses(), asyncio.get_running_loop()
        end = loop.time() + self._patience.call_ms / 1000
        while True:
            failure = Failure(Meaning.LATER, "no NameNode answers")
            for node in self._nodes():
                try:
                    await self._ask(node.concat, target, parts)
                except WebFailed as error:
                    failure = error.failure
                else:
                    return
                # The answer may have been lost: of this try, or of one before it.
                if (await self._info(target)).size == size:
                    return
                if not failure.may_pass:
                    break
            if not failure.may_pass or loop.time() >= end:
                self._rest(SILENT_S if failure.may_pass else REFUSED_S, failure.text)
                raise NotJoined(f"cannot join the parts of {target} in {self._uri}: {failure.text}")
            await pauses.wait()

    def _nodes(self) -> list[WebNameNode]:
        user = _user()
        return [] if user is None else [WebNameNode(address, user) for address in self._addresses]

    def _rest(self, seconds: float, reason: str) -> None:
        self._not_before_s = asyncio.get_running_loop().time() + seconds
        if self._sink is not None:
            said = {"store": self._uri, "reason": reason, "again_in_s": seconds}
            self._sink.warning("large files go to HDFS in one piece, which takes longer", **said)

    async def _ask(self, call: Callable[..., T], *args: object) -> T:
        """Make one call in a thread. Raises WebFailed."""
        limit_s = self._patience.answer_ms / 1000
        try:
            return await self._threads.run(partial(call, *args, limit_s), limit_s)
        except (TimeoutError, RuntimeError) as error:
            raise WebFailed(Failure(Meaning.UNKNOWN, f"no answer within {limit_s:g} s")) from error


def _user() -> str | None:
    """The library's user in a cluster without Kerberos; None if this process's user has no name."""
    with suppress(KeyError):
        return os.environ.get(USER_VARIABLE) or pwd.getpwuid(os.geteuid()).pw_name
    return None
