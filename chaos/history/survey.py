"""The leftovers of a job that is over, and the places where secrets leak."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chaos.history.etcd_client import EtcdAccess, NoAnswer, ask, now_ms, number, parts
from chaos.history.formats import Leak, Left
from chaos.history.processes import marker_of
from chaos.history.store_recorder import CHECKPOINT

MAX_FILE = 64 << 20
_LISTENS = "0A"
_KEPT_IN_STORE = frozenset({".jobs", ".logs", ".tfsup-store"})
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Site:
    """A node as a survey sees it.

    Attributes:
        pid: its first process, in whose network its ports are.
        pids: all of its processes.
        files: its own disk.
        ports: the range, inclusive, that its tasks get ports from.
    """

    name: str
    pid: int
    pids: Callable[[], list[int]]
    files: Path
    ports: tuple[int, int] = (1, 0)


def leftovers(sites: Iterable[Site], store: Path | None, job_uuid: str) -> Iterator[Left]:
    """The remains of a job's tasks on any node, and of unfinished uploads in its store.

    Checkpoints and logs stay.
    """
    for site in sites:
        at_ms = now_ms()
        for pid in site.pids():
            marker = marker_of(pid)
            if marker:
                yield Left(at_ms, "process", f"{pid}, {marker}", site.name)
        for port in _listening(site):
            yield Left(at_ms, "port", str(port), site.name)
        for lock in _locked(site.files / "locks"):
            yield Left(at_ms, "port lock", lock.name, site.name)
        if job_uuid and (site.files / "tasks" / job_uuid).exists():
            yield Left(at_ms, "directory", f"tasks/{job_uuid}", site.name)
    for path in sorted(store.iterdir()) if store is not None and store.is_dir() else ():
        empty = path.is_dir() and not any(path.iterdir())
        if not (empty or path.name in _KEPT_IN_STORE or CHECKPOINT.fullmatch(path.name)):
            yield Left(now_ms(), "directory", str(path))


def _listening(site: Site) -> Iterator[int]:
    low, high = site.ports
    for name in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/{site.pid}/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            _, local, _, state, *_ = row.split()
            port = int(local.rpartition(":")[2], 16)
            if state == _LISTENS and low <= port <= high:
                yield port


def _locked(directory: Path) -> Iterator[Path]:
    """Files there that somebody holds a lock on: ports that are taken."""
    for path in sorted(directory.glob("*")) if directory.is_dir() else ():
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield path
        finally:
            os.close(fd)


def idle_leases(access: EtcdAccess, endpoint: str) -> Iterator[Left]:
    """Leases without a key: nobody keeps them, and they run out. Raises NoAnswer."""
    for lease in parts(ask(access, endpoint, "lease/leases", {}, 2.0), "leases"):
        body = {"ID": str(number(lease, "ID")), "keys": True}
        told = ask(access, endpoint, "lease/timetolive", body, 2.0)
        if not told.get("keys") and number(told, "TTL") > 0:
            yield Left(now_ms(), "lease", f"{number(lease, 'ID'):x}, {number(told, 'TTL')} s to go")


# Secrets.


def leaks_in_commands(secrets: dict[str, str], pids: Iterable[int]) -> Iterator[Leak]:
    """Every user of a machine may read command lines."""
    for pid in pids:
        try:
            raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        for which, secret in secrets.items():
            if secret.encode() in raw:
                yield Leak(which, f"the command line of process {pid}")


def leaks_in_logs(secrets: dict[str, str], roots: Iterable[Path]) -> Iterator[Leak]:
    """Logs, wherever they are; and any file below `roots` that other users may read."""
    for root in roots:
        for directory, _, names in os.walk(root):
            for name in names:
                path = Path(directory, name)
                if _told_to_others(path, Path(root)):
                    yield from _leaks_in(path, secrets)


def _told_to_others(path: Path, root: Path) -> bool:
    try:
        stat = path.lstat()
    except OSError:
        return False
    if not path.is_file() or path.is_symlink() or stat.st_size > MAX_FILE:
        return False
    return path.suffix == ".log" or _open_to_others(path, root)


def _open_to_others(path: Path, root: Path) -> bool:
    """Whether the file, and each directory from `root` on, is open to other users than its owner.

    Those above `root` are not a node's: chaos keeps its disks in a directory that is shut.
    """
    try:
        above = [each for each in path.parents if each.is_relative_to(root)]
        modes = [each.stat().st_mode for each in (path, *above)]
    except OSError:
        return False
    return bool(modes[0] & 0o044) and all(mode & 0o011 for mode in modes[1:])


def _leaks_in(path: Path, secrets: dict[str, str]) -> Iterator[Leak]:
    try:
        raw = path.read_bytes()
    except OSError:
        return
    for which, secret in secrets.items():
        if secret.encode() in raw:
            yield Leak(which, str(path))


def leaks_in_etcd(secrets: dict[str, str], written: Iterable[tuple[str, str]]) -> Iterator[Leak]:
    """Secrets in records that operators see: events, incidents and reports.

    A job's record has its environment by design.
    """
    for key, value in written:
        if key.startswith(("events/", "incidents/", "attempts/", "nodes/", "lost/", "leader")):
            for which, secret in secrets.items():
                if secret in value:
                    yield Leak(which, f"etcd: {key}")


def first_answer(access: EtcdAccess, look: Callable[[EtcdAccess, str], Iterator[Left]]) -> list[Left]:
    """The findings of the first member that answers; empty if none does."""
    for endpoint in access.endpoints:
        try:
            return list(look(access, endpoint))
        except NoAnswer:
            continue
    return []
