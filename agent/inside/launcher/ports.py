"""Claiming a TCP port for a TensorFlow server before the server exists (docs/design.md, "The warm start").

A claim is three things: an exclusive flock on the port's lock file, which all agents and clusters of the
machine share and every process of the attempt inherits; a probe bind that only succeeds when nobody listens;
and a holder socket that keeps the port until TensorFlow binds it beside the holder with SO_REUSEPORT. A
program that need not know that option (outside the ClusterSpec, or of style `plain`) binds alone: the holder
makes room for it while it runs, and the lock still keeps every other task away.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import stat
from dataclasses import dataclass
from typing import Optional

SPOILT = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""Errors that another user of the directory can cause at a name. Then only this name is skipped."""


_LISTENS = "0A"


class PortUnavailable(Exception):
    """No port of the range, or not the requested one, can be claimed now."""


@dataclass
class Claim:
    """A held port. The lock lasts until every copy of `lock_fd` is closed, here and in the attempt."""

    port: int
    lock_fd: int
    holder: Optional[socket.socket]

    def make_room(self) -> None:
        """Let a program bind the port alone. The lock still keeps every other task away."""
        if self.holder is not None:
            self.holder.close()
            self.holder = None

    def hold_again(self) -> None:
        """Hold the port after the program's death, unless another program took it: then the next start
        fails.
        """
        if self.holder is None:
            try:
                self.holder = _bind(self.port, socket.SO_REUSEPORT)
            except OSError:
                pass

    def close(self) -> None:
        """Release this process's part of the claim."""
        # Never LOCK_UN: that would also take the lock from an attempt that still lives.
        self.make_room()
        os.close(self.lock_fd)


def claim(low: int, high: int, lock_dir: str, avoid: tuple[int, ...] = (), reuse: int | None = None) -> Claim:
    """Claim a port of low..high, the least recently claimed first, or exactly `reuse`.

    Raises PortUnavailable, OSError when `lock_dir` cannot be used.
    """
    if reuse is not None:
        return _claim_one(reuse, lock_dir)
    if not 0 < low <= high <= 65535:
        raise PortUnavailable(f"{low}-{high} is not a range of ports")
    count = high - low + 1
    first = _read_cursor(lock_dir, low, high)
    refused = ""
    for offset in range(count):
        port = low + (first - low + offset) % count
        if port in avoid:
            continue
        try:
            found = _claim_one(port, lock_dir)
        except PortUnavailable as error:
            refused = str(error)
            continue
        _write_cursor(lock_dir, low, high, port + 1 if port < high else low)
        return found
    raise PortUnavailable(f"no free port in {low}-{high} ({refused or 'all are to be avoided'})")


def _claim_one(port: int, lock_dir: str) -> Claim:
    try:
        lock_fd = open_shared(os.path.join(lock_dir, f"port-{port}.lock"))
    except OSError as error:
        if error.errno not in SPOILT:
            raise
        raise PortUnavailable(f"the lock of port {port} cannot be opened: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PortUnavailable(f"port {port} is held by another task of this machine") from error
        try:
            _bind(port, socket.SO_REUSEADDR).close()
            # Without SO_REUSEADDR the holder keeps out every server that does not share its user and
            # SO_REUSEPORT, even before TensorFlow listens.
            holder = _bind(port, socket.SO_REUSEPORT)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise PortUnavailable(f"port {port} is in use by another process: {error.strerror}") from error
    except BaseException:
        os.close(lock_fd)
        raise
    return Claim(port, lock_fd, holder)


def _bind(port: int, option: int) -> socket.socket:
    """Bind like TensorFlow does: all addresses, both families where the kernel has both."""
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        address = "::"
    except OSError:
        sock, address = socket.socket(socket.AF_INET, socket.SOCK_STREAM), "0.0.0.0"
    try:
        sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRNOTAVAIL and address == "::":
            return _bind_v4(port, option)
        raise
    return sock


def _bind_v4(port: int, option: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.bind(("0.0.0.0", port))
    except OSError:
        sock.close()
        raise
    return sock


def listener_on(port: int) -> str:
    """Who listens on a port of this network, for people; empty if nobody does."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port:
                return _owner_of(row[9]) or f"a process of uid {row[7]}"
    return ""


def _owner_of(inode: str) -> str:
    """The process that has this socket; empty if we may not look into it."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fds = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            if f"socket:[{inode}]" in fds:
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    return f"{file.read().strip()} (pid {pid})"
        except OSError:
            continue  # gone, or not ours
    return ""


def open_shared(path: str) -> int:
    """Open a file that every user of the machine may lock, without following a planted symlink."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        # Not O_CREAT at once: the kernel refuses that on another user's file in a sticky directory.
        fd = os.open(path, flags)
    except FileNotFoundError:
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(fd, 0o666)
        except FileExistsError:
            fd = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PermissionError(errno.EPERM, "not a regular file", path)
    return fd


def _read_cursor(lock_dir: str, low: int, high: int) -> int:
    try:
        fd = open_shared(_cursor_path(lock_dir, low, high))
    except OSError as error:
        if error.errno not in SPOILT:
            raise
        return random.randint(low, high)
    try:
        text = os.pread(fd, 16, 0).strip()
    finally:
        os.close(fd)
    if text.isdigit() and low <= int(text) <= high:
        return int(text)
    return random.randint(low, high)


def _write_cursor(lock_dir: str, low: int, high: int, port: int) -> None:
    # Two claimers may overwrite each other here: the locks decide who has a port, the cursor only spreads.
    try:
        fd = open_shared(_cursor_path(lock_dir, low, high))
    except OSError:
        return  # the next claim begins anywhere
    try:
        os.pwrite(fd, b"%-15d\n" % port, 0)
    finally:
        os.close(fd)


def _cursor_path(lock_dir: str, low: int, high: int) -> str:
    return os.path.join(lock_dir, f"cursor-{low}-{high}")
