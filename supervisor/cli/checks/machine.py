"""Checks of the machine for an agent: directories, ports, locks, FUSE, clock."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from agent.main import nft_firewall
from supervisor.adapters.files.config.docker import range_of
from supervisor.cli import render
from supervisor.cli.checks.model import Check, Scene, Told, fail, ok, warn
from supervisor.contract.errors import Refused

ENOUGH_BYTES = 10 << 30
LEAST_BYTES = 1 << 30
LEAST_PORTS = 16
FUSE = Path("/dev/fuse")
_TCP_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_SETTINGS = Path("/proc/sys/net/ipv4")
_LISTEN = "0A"
_UNSYNCHRONISED = 0x40


def state_dir(scene: Scene) -> Told:
    """Whether the agent can write to its state directory."""
    return _writable(Path(scene.agent.state_dir))


def checkpoint_parent(scene: Scene) -> Told:
    """Whether checkpoints can be written below the checkpoint parent."""
    return _writable(Path(scene.agent.checkpoint_parent))


def task_user(scene: Scene) -> Told:
    """Whether tasks that are plain processes have fewer rights than the agent."""
    config = scene.agent
    span = range_of(config.task_user or "")
    if span is not None:
        return _range(span)
    if config.task_user is None or int(config.task_user.split(":")[0]) == os.geteuid():
        return warn("tasks run as the agent's own user: for the jobs of one user only")
    return ok(
        f"tasks run as {config.task_user}; those of two jobs can reach each other's files and processes"
    )


def docker_user(scene: Scene) -> Told:
    """Whether no other account of the machine has the uids of containers."""
    user = scene.agent.docker.user or ""
    span = range_of(user)
    return _range(span) if span is not None else ok(f"containers run as {user or 'the default user'}")


def firewall(scene: Scene) -> Told:
    """Whether the agent can keep tasks from the ports of other jobs' tasks."""
    kept = nft_firewall(scene.agent)
    assert kept is not None, "it is configured"
    kept.check()
    return ok(f"nftables, table inet {kept.table}")


def _range(span: tuple[int, int]) -> Told:
    """The finding on a range of uids. The reader of the configuration has checked its owners."""
    return ok(f"each job's tasks run as a user of their own, of {span[0] + 1}-{span[1]}")


def state_space(scene: Scene) -> Told:
    """The space for logs, code and the state itself."""
    return space(Path(scene.agent.state_dir))


def checkpoint_space(scene: Scene) -> Told:
    """The space for checkpoints."""
    return space(Path(scene.agent.checkpoint_parent))


def space(directory: Path) -> Told:
    """The free space on a directory's disk."""
    try:
        free = shutil.disk_usage(_existing(directory)).free
    except OSError as error:
        return fail(f"{directory}: {error.strerror}")
    detail = f"{render.size(free)} free for {directory}"
    return fail(detail) if free < LEAST_BYTES else warn(detail) if free < ENOUGH_BYTES else ok(detail)


def lock_dir(scene: Scene) -> Told:
    """Whether port locks work in their directory: some network file systems lack them."""
    directory = Path(scene.agent.lock_dir)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return fail(f"{directory}: {error.strerror}")
    return ok(f"{directory}: files can be locked")


def ports(scene: Scene) -> Told:
    """Whether the range has enough free ports, and the kernel does not assign them to other programs."""
    low, high = scene.agent.port_low, scene.agent.port_high
    taken = sum(low <= port <= high for port in listening())
    free = high - low + 1 - taken
    detail = f"{low} to {high}, {taken} in use"
    if free < LEAST_PORTS:
        return fail(f"{detail}, {free} left", "give a larger range, or end what listens there")
    first, last = (int(word) for word in (_SETTINGS / "ip_local_port_range").read_text().split())
    shared = set(range(max(low, first), min(high, last) + 1))
    if shared - _reserved((_SETTINGS / "ip_local_reserved_ports").read_text()):
        return warn(f"{detail}; outgoing connections take ports from {first} to {last}")
    return ok(detail)


def _reserved(text: str) -> set[int]:
    """The ports in the kernel's list, `8080,9000-9100`."""
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def listening() -> set[int]:
    """The TCP ports with a listener."""
    found = set()
    for table in _TCP_TABLES:
        with suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTEN:
                    found.add(int(words[1].rpartition(":")[2], 16))
    return found


def fuse(scene: Scene) -> Told:
    """Whether jobs with `checkpoint.mode: mounted` can run."""
    del scene
    missing = []
    try:
        os.close(os.open(FUSE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        missing.append(f"{FUSE} ({error.strerror})")
    if ctypes.util.find_library("fuse3") is None:
        missing.append("libfuse 3")
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        missing.append("fusermount3")
    return warn(f"not here: {', '.join(missing)}") if missing else ok("directories can be mounted")


def clock(scene: Scene) -> Told | None:
    """Whether the wall clock is synchronised. Only people read it; intervals use another clock."""
    del scene
    status = _clock_status()
    if status is None:
        return None
    if status & _UNSYNCHRONISED:
        return warn("nobody sets this machine's clock: the times in events and manifests may be wrong")
    return ok("synchronised")


def _clock_status() -> int | None:
    """`status` of adjtimex(2), which can be read without privileges; None if the kernel does not report
    it.
    """
    timex = (ctypes.c_long * 32)()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        return None
    # struct timex: unsigned modes, padding, long offset, freq, maxerror, esterror, then int status.
    return int(timex[5]) & 0xFFFFFFFF


def _writable(directory: Path) -> Told:
    """Whether files can be created in a directory, or in its nearest existing parent."""
    there = _existing(directory)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"tfsup")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno == errno.ENOTDIR:
            return fail(f"{there} is no directory")
        return fail(f"{there} cannot be written: {error.strerror}")
    return ok(str(directory) if there == directory else f"{directory} can be made in {there}")


def _existing(directory: Path) -> Path:
    for each in (directory, *directory.parents):
        if each.exists():
            return each
    raise Refused(f"{directory}: not even its root is there")


CHECKS = (
    Check("state_dir", state_dir, "let the agent's user write there, or name another directory"),
    Check(
        "task_user",
        task_user,
        "before others submit jobs: let the agent be root with `task_user: LOW-HIGH`, uids that nobody has, "
        "or use containers",
        lambda scene: scene.config is not None and scene.config.runtime == "process",
    ),
    Check(
        "docker.user",
        docker_user,
        "take uids that nobody has",
        lambda scene: scene.config is not None and scene.config.runtime == "docker",
    ),
    Check(
        "firewall",
        firewall,
        "run deploy/get-nft.sh, or take `firewall` out of the agent's file",
        lambda scene: scene.config is not None and scene.config.firewall,
    ),
    Check("state_dir space", state_space, "make room, or put state_dir on a larger disk"),
    Check(
        "checkpoint_parent",
        checkpoint_parent,
        "let the agent's user write there, or name another directory, the same on every machine",
    ),
    Check("checkpoint space", checkpoint_space, "make room, or limit checkpoint_budget"),
    Check("lock_dir", lock_dir, "name a directory on a local disk that every agent's user can write"),
    Check(
        "ports",
        ports,
        "let port_low and port_high be outside net.ipv4.ip_local_port_range, or reserve them in "
        "net.ipv4.ip_local_reserved_ports",
    ),
    Check("fuse", fuse, "only for `checkpoint.mode: mounted`: run deploy/get-fuse.sh", lambda _: True),
    Check("clock", clock, "install chrony or systemd-timesyncd", lambda _: True),
)
