"""What an agent notes of a task's outputs on its own disk: where they go, and what has been sent of them."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from recovery.io import files
from recovery.outputs.index import OutputFile, directory_of
from recovery.outputs.scan import Seen
from supervisor.adapters.failpoints import effect
from supervisor.contract import codec
from supervisor.contract.errors import IncompatibleRecord

_SAVING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Sent:
    """A file of the index, and the local file as it was then.

    `head`, `tail`: checksums of its first and last bytes, which tell whether it has only grown since.
    `whole`: its pieces were read from one state of the file.
    """

    file: OutputFile
    size: int
    modified_ns: int
    inode: int
    head: int = 0
    tail: int = 0
    whole: bool = True

    def shows(self, seen: Seen) -> bool:
        """Whether the local file has not been touched since."""
        return (self.size, self.modified_ns, self.inode) == (seen.size, seen.modified_ns, seen.inode)


@dataclass(frozen=True, slots=True)
class OutputState:
    """What an agent must find again of a task's outputs: where they go, and what has been sent of them.

    Attributes:
        generation, attempt: the last attempt of the task on this node.
        sent: by path.
        late: paths of which a later attempt, elsewhere, had written another state before this one was sent.
        left_out: path -> why it is not sent; at most some hundred.
        over: the attempt has ended; `done`: everything has been sent since.
        ended: the job has ended.
        follow: the task reads the outputs of others.
        removing: the directory is being removed, as all is in the store.
    """

    job: str
    job_uuid: str
    member: str
    uri: str
    node: str
    generation: int
    attempt: int
    budget_bytes: int
    keep_ms: int = 0
    sent: dict[str, Sent] = field(default_factory=dict)
    late: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    over: bool = False
    done: bool = False
    ended: bool = False
    follow: bool = False
    removing: bool = False

    @property
    def base(self) -> str:
        """Where it goes, below the root of the store."""
        return directory_of(self.job_uuid, self.member)


def state_path(home: Path, member: str) -> Path:
    """Where an agent notes what it has sent of a task's outputs."""
    return home / f"{member}.json"


def save_state(home: Path, state: OutputState) -> None:
    """Replace the note. Blocking; raises OSError. What a crash loses of it is sent again."""
    part = home / f"{state.member}.json.part"
    with _SAVING, effect("outputs.note"):
        home.mkdir(parents=True, exist_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            files.write_all(fd, codec.encode(state))
            os.fsync(fd)
        finally:
            os.close(fd)
        part.replace(state_path(home, state.member))


def saves_are_over() -> None:
    """Wait until no thread writes a note, also one that nobody waits for any more. Blocking."""
    with _SAVING:
        pass


def load_state(path: Path) -> OutputState | None:
    """Read a note; None where there is none that can be read. Blocking."""
    with suppress(OSError, IncompatibleRecord):
        return codec.decode(OutputState, files.read_small(path, 64 << 20))
    return None
