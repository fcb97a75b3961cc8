"""The node's Unix socket, at which launchers ask whether they may go on (`agent.inside.protocol`).

The process at the other end is identified by the kernel, not by its Hello.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from agent.boundaries import Post, Process
from agent.core.events import LauncherLeft, LauncherSaid
from agent.host.host_pids import PidSpace, peer
from agent.host.task_users import TaskUsers
from agent.inside import protocol
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import Conflict, Refused, TfSupervisorError, UserError

HELLO_S = 5.0
MOST_SILENT = 64
"""Most connections without a Hello yet. A launcher sends it at once; each connection may use memory for one
line."""
BACKLOG_BYTES = 4 << 20
MOST_WAITING = 64
"""Most messages of one launcher in the agent's inbox. Further ones are read when one is taken out."""
LONGEST_PATH_BYTES = 100
_UCRED = struct.Struct("3i")


Vouch = Callable[[str, Process], Awaitable[bool]]
"""Returns whether a process is the launcher of an id; may raise TfSupervisorError if that is unknown."""
Lend = Callable[[Process], "tuple[int, protocol.Weight] | None"]
"""Returns a descriptor for a launcher, and the message about its use; the descriptor is closed once sent."""


def _peer_of(writer: asyncio.StreamWriter) -> bytes:
    """(pid, uid, gid) of the other end at the time of its connection, from the kernel."""
    connected: socket.socket = writer.get_extra_info("socket")
    return connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)


class _Waiting:
    """The number of a launcher's messages in the inbox. `tell` is called once, when there is no room."""

    def __init__(self, tell: Callable[[], object]) -> None:
        self._count = 0
        self._freed = asyncio.Event()
        self._tell: Callable[[], object] | None = tell

    async def room(self) -> None:
        """Wait until there is room for one more message."""
        while self._count >= MOST_WAITING:
            if self._tell is not None:
                self._tell()
                self._tell = None
            self._freed.clear()
            await self._freed.wait()
        self._count += 1

    def taken(self) -> None:
        """Note that one message was taken out."""
        self._count = max(0, self._count - 1)
        self._freed.set()


class SocketLaunchers:
    """`Launchers` on a socket at `path`. Only its owner can connect, and `users` if there are any.

    With `vouch`, a Hello is accepted only from the process that it confirms. Such a launcher gets the
    descriptor of `lend`.
    """

    def __init__(
        self,
        path: Path,
        sink: Logger,
        vouch: Vouch | None = None,
        users: TaskUsers | None = None,
        lend: Lend | None = None,
    ) -> None:
        if len(os.fsencode(path)) > LONGEST_PATH_BYTES:
            raise UserError(f"{path} is too long for a socket: use a shorter `state_dir:`")
        self._path = path
        self._sink = sink
        self._vouch = vouch
        self._users = users
        self._lend = lend
        self._server: asyncio.Server | None = None
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._open: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.StreamWriter, int] = {}
        self._waiting: dict[str, _Waiting] = {}

    async def open(self, post: Post) -> None:
        """Listen. Raises Conflict if another agent answers there, Refused."""

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            uid = _UCRED.unpack(_peer_of(writer))[1]
            if self._users is not None and uid != os.geteuid() and not self._users.has(uid):
                writer.transport.abort()
                return
            self._make_room(writer, uid)
            task = asyncio.get_running_loop().create_task(self._serve(reader, writer, post))
            self._open.add(task)
            task.add_done_callback(self._ended)

        self._remove_stale()
        try:
            with effect("launchers.listen"):
                self._server = await asyncio.start_unix_server(
                    serve, self._path, limit=protocol.MAX_LINE_BYTES
                )
                # A connection of another user is ended by its uid, before anything is read from it.
                self._path.chmod(0o600 if self._users is None else 0o666)
        except OSError as error:
            raise Refused(f"cannot listen on {self._path}: {error.strerror}") from error

    def taken(self, launcher_id: str) -> None:
        """One of the launcher's messages was taken out of the inbox: the next one may be read."""
        waiting = self._waiting.get(launcher_id)
        if waiting is not None:
            waiting.taken()

    def send(self, launcher_id: str, message: object) -> None:
        """Queue a message; lost if the launcher is not connected, or has long read nothing."""
        writer = self._writers.get(launcher_id)
        if writer is None or writer.is_closing():
            return
        if writer.transport.get_write_buffer_size() > BACKLOG_BYTES:
            self._sink.warning("a launcher reads no messages; its connection is closed", launcher=launcher_id)
            writer.transport.abort()
            return
        try:
            line = protocol.encode(message)
        except protocol.ProtocolError as error:
            # Its launcher misses the answer, and ends by its deadline: nobody else does.
            self._sink.error(
                "a message to a launcher cannot be sent; the launcher will end",
                launcher=launcher_id,
                reason=str(error),
            )
            return
        writer.write(line)

    async def close(self) -> None:
        """End all connections and stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        with suppress(FileNotFoundError), effect("launchers.close"):
            self._path.unlink()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Log an unexpected error of a connection. It ends that connection alone."""
        self._open.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._sink.error("an unexpected error ended a launcher's connection", error=repr(error))

    def _make_room(self, writer: asyncio.StreamWriter, uid: int) -> None:
        """Close the oldest silent connection of the user with the most, so that no job can keep out another's
        launchers.
        """
        self._silent[writer] = uid
        if len(self._silent) > MOST_SILENT:
            most = Counter(self._silent.values()).most_common(1)[0][0]
            oldest = next(each for each, whose in self._silent.items() if whose == most)
            del self._silent[oldest]
            oldest.transport.abort()

    def _remove_stale(self) -> None:
        """Remove the socket of a dead agent, at which no process answers.

        The state file's lock is ours by now.
        """
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self._path))
            except FileNotFoundError:
                return
            except OSError:
                with effect("launchers.remove_stale"):
                    self._path.unlink(missing_ok=True)
                return
        raise Conflict(f"another agent answers at {self._path}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, post: Post) -> None:
        launcher_id = ""
        try:
            space = PidSpace(_UCRED.unpack(_peer_of(writer))[0])
            launcher_id = await self._greet(reader, writer, post, space)
            if not launcher_id:
                return
            tell = partial(self._sink.warning, "launcher says too much; it has to wait", launcher=launcher_id)
            waiting = self._waiting[launcher_id] = _Waiting(tell)
            while True:
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    break
                message = protocol.decode(line)
                if message is None:
                    continue
                await waiting.room()
                post(LauncherSaid(launcher_id, space.here(message)))
        except (
            OSError,
            ValueError,
            asyncio.LimitOverrunError,
            protocol.ProtocolError,
            TfSupervisorError,
            TimeoutError,
        ) as error:
            self._sink.warning(
                "a launcher's connection failed; it may connect again",
                launcher=launcher_id,
                reason=str(error),
            )
        finally:
            self._silent.pop(writer, None)
            writer.close()
            if launcher_id and self._writers.get(launcher_id) is writer:
                self._waiting.pop(launcher_id, None)
                del self._writers[launcher_id]
                post(LauncherLeft(launcher_id))

    def _lend_to(self, writer: asyncio.StreamWriter, launcher_id: str, who: Process) -> None:
        """Send the descriptor before any other byte, as buffered bytes must not come between."""
        lent = self._lend(who) if self._lend is not None else None
        if lent is None:
            return
        fd, message = lent
        connected: socket.socket = writer.get_extra_info("socket")
        try:
            with socket.socket(fileno=os.dup(connected.fileno())) as peer, effect("launchers.lend"):
                socket.send_fds(peer, [protocol.encode(message)], [fd])
        except OSError as error:
            self._sink.debug(
                "a file descriptor was not lent to a launcher", launcher=launcher_id, reason=str(error)
            )
        finally:
            os.close(fd)

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, post: Post, space: PidSpace
    ) -> str:
        async with asyncio.timeout(HELLO_S):
            line = await reader.readline()
        self._silent.pop(writer, None)
        hello = protocol.decode(line) if line else None
        if not isinstance(hello, protocol.Hello):
            return ""
        if hello.protocol != protocol.PROTOCOL:
            reason = f"this agent speaks protocol {protocol.PROTOCOL}, not {hello.protocol}"
            writer.write(protocol.encode(protocol.Refuse(reason)))
            return ""
        if self._vouch is not None:
            who = peer(space.pid)
            if who is None or not await self._vouch(hello.launcher_id, who):
                self._sink.warning(
                    "connection refused: this process is not the launcher that it names",
                    launcher=hello.launcher_id,
                    pid=space.pid,
                )
                writer.write(protocol.encode(protocol.Refuse("this process is not that launcher")))
                return ""
            self._lend_to(writer, hello.launcher_id, who)
        old = self._writers.get(hello.launcher_id)
        if old is not None:
            del self._writers[hello.launcher_id]
            post(LauncherLeft(hello.launcher_id))
            old.close()
        self._writers[hello.launcher_id] = writer
        post(LauncherSaid(hello.launcher_id, space.here(hello)))
        return hello.launcher_id
