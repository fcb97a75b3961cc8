"""All watches of a client over one stream to one member of etcd.

etcd answers the question for a sign of life for a stream as a whole, so that a watch more costs nothing while
nothing changes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeAlias

import grpc
from aetcd import rpc

from supervisor.adapters.etcd.endpoints import Link

WatchCall: TypeAlias = grpc.aio.StreamStreamCall[rpc.WatchRequest, rpc.WatchResponse]

# A member that is cut off from the others ends streams that carry this; it would keep them silent for ever.
REQUIRE_LEADER = (("hasleader", "true"),)
_OF_ALL = -1
"""The id of a response that concerns no single watch."""


class Watch:
    """One watch of a stream, from `open` until `close`."""

    def __init__(self, stream: WatchStream) -> None:
        self.inbox: asyncio.Queue[rpc.WatchResponse | None] = asyncio.Queue()
        """The answers of etcd; None: the stream is over."""
        self.watch_id = _OF_ALL
        self.closed = False
        self._stream = stream

    @property
    def error(self) -> grpc.aio.AioRpcError | None:
        """The error that has ended the stream; None if etcd or this client has closed it."""
        return self._stream.error

    async def read(self) -> rpc.WatchResponse | None:
        """The next response for this watch, or a sign of life; None once the stream is over."""
        return await self.inbox.get()

    def close(self) -> None:
        """Hear no more."""
        self.closed = True
        self._stream.close_watch(self)


class WatchStream:
    """The stream. `error` is what has ended it: gRPC's error, or None if etcd or the channel was closed.

    Args:
        link: the member.
        ask_every_s: interval at which etcd is asked for a sign of life.
    """

    def __init__(self, link: Link, ask_every_s: float) -> None:
        self.link = link
        self.error: grpc.aio.AioRpcError | None = None
        self.over = False
        self._ask_every_s = ask_every_s
        self._call: WatchCall = link.watch.Watch(metadata=REQUIRE_LEADER)
        self._asked: deque[Watch] = deque()
        """Watches that etcd has not confirmed yet. It does so in the order of the requests."""
        self._watches: dict[int, Watch] = {}
        self._outbox: asyncio.Queue[rpc.WatchRequest] = asyncio.Queue()
        # A write that is cancelled would end the call of all watches, so one task makes them all.
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    def open(self, create: rpc.WatchCreateRequest) -> Watch:
        """Begin another watch; the first response confirms it."""
        watch = Watch(self)
        self._asked.append(watch)
        self._outbox.put_nowait(rpc.WatchRequest(create_request=create))
        return watch

    def close_watch(self, watch: Watch) -> None:
        """End a watch, and the stream with the last one."""
        if self._watches.pop(watch.watch_id, None) is not None:
            self._cancel(watch.watch_id)
        if not self._watches and all(each.closed for each in self._asked):
            self.close()

    def close(self) -> None:
        """End the stream; the watches read None."""
        for task in self._tasks:
            task.cancel()
        self._call.cancel()
        self._end()

    def _cancel(self, watch_id: int) -> None:
        cancel = rpc.WatchCancelRequest(watch_id=watch_id)
        self._outbox.put_nowait(rpc.WatchRequest(cancel_request=cancel))

    def _end(self) -> None:
        self.over = True
        for watch in (*self._watches.values(), *self._asked):
            watch.inbox.put_nowait(None)
        self._watches.clear()
        self._asked.clear()

    async def _write(self) -> None:
        progress = rpc.WatchRequest(progress_request=rpc.WatchProgressRequest())
        try:
            while True:
                try:
                    async with asyncio.timeout(self._ask_every_s):
                        request = await self._outbox.get()
                except TimeoutError:
                    request = progress
                await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the stream is over; its reader finds out why

    async def _read(self) -> None:
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self._take(response)
        except grpc.aio.AioRpcError as error:
            self.error = error
        finally:
            self._end()

    def _take(self, response: rpc.WatchResponse) -> None:
        if response.created:
            watch = self._asked.popleft()
            watch.watch_id = response.watch_id
            if not watch.closed:
                self._watches[watch.watch_id] = watch
                watch.inbox.put_nowait(response)
            elif not response.canceled:
                self._cancel(watch.watch_id)
        elif response.watch_id == _OF_ALL:
            for watch in self._watches.values():
                watch.inbox.put_nowait(response)
        elif response.watch_id in self._watches:
            self._watches[response.watch_id].inbox.put_nowait(response)
