"""Marks: a variable in the environment of a launcher, and so of all its processes, that names their owner.

It is `LAUNCHER_ID#OWNER#CODE`. Agents of several nodes and clusters may share a machine and a user, so the
owner is an agent by its cluster, its node and the directory that its launchers have. The code is made of the
launcher's id and a key that the agent keeps: a task knows the mark of its own launcher, and can make no
other.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agent.boundaries import Process
from agent.host.host_pids import peer
from agent.inside.processes import fence
from supervisor.adapters.failpoints import effect
from supervisor.contract.errors import Refused

KEY_FILE = "marks.key"
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Key:
    """An agent's key, with which the codes of its marks are made.

    Attributes:
        secret: known only to the agent.
        fresh: made just now, so that running processes have marks of an earlier key or of a release without
            keys.
    """

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    fresh: bool = True


def load_key(directory: Path) -> Key:
    """The key of the agent with this state directory; made at its first start. Raises Refused."""
    path = directory / KEY_FILE
    try:
        key = _known(path) or _make(path)
    except OSError as error:
        raise Refused(f"cannot keep the key of this agent's marks, {path}: {error.strerror}") from error
    if len(key.secret) != KEY_BYTES:
        raise Refused(f"{path} is damaged: end what runs on this node, remove the file, and start the agent")
    return key


def _known(path: Path) -> Key | None:
    with suppress(FileNotFoundError):
        return Key(path.read_bytes(), fresh=False)
    return None


def _make(path: Path) -> Key:
    """Make the key, whole or not at all. Two agents that start on one directory get the same."""
    made, own = Key(), path.with_name(f"{KEY_FILE}.{os.getpid()}")
    with effect("marks.make_key"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(made.secret)
            file.flush()
            os.fsync(fd)
        try:
            path.hardlink_to(own)
        except FileExistsError:
            made = Key(path.read_bytes(), fresh=False)
        own.unlink()
    return made


def owner(agent: str, directory: Path) -> str:
    """The owner for the agent `CLUSTER/NODE` with this directory of launchers."""
    return f"{agent}@{os.path.realpath(directory)}"


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one agent's launchers. `owner`: the result of the function of this name."""

    owner: str
    key: Key = field(default_factory=Key)

    def of(self, launcher_id: str) -> str:
        """A launcher's mark. By it the launcher can be fenced even before its Hello."""
        code = hmac.digest(self.key.secret, launcher_id.encode(), "sha256").hex()
        return f"{launcher_id}#{self.owner}#{code}"

    def launcher_of(self, pid: int) -> str:
        """The launcher that has started this process; empty if it is not this agent's.

        Processes of the agent's own user need no code, as they could read the key. While the key is fresh
        none needs one.
        """
        marker = fence.marker_of(pid)
        launcher_id = marker.partition("#")[0]
        if not f"{marker}#".startswith(f"{launcher_id}#{self.owner}#"):
            return ""
        if hmac.compare_digest(os.fsencode(marker), os.fsencode(self.of(launcher_id))):
            return launcher_id
        return launcher_id if self.key.fresh or fence.user_of(pid) == os.geteuid() else ""


def living(marks: Marks, believes: Callable[[int], bool]) -> dict[str, tuple[Process, ...]]:
    """Launcher id -> living processes whose mark `believes` accepts.

    Blocks: it reads all processes of this machine.
    """
    found: dict[str, list[Process]] = {}
    for pid in fence.pids():
        process = peer(pid)
        launcher_id = marks.launcher_of(pid)
        # It is still the process that was looked at.
        if launcher_id and process is not None and peer(pid) == process and believes(pid):
            found.setdefault(launcher_id, []).append(process)
    return {launcher_id: tuple(processes) for launcher_id, processes in found.items()}
