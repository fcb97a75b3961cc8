"""The agent's note on a task's outputs, on its own disk: their place in the store, and the files sent so
far.
"""

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
from supervisor.contract.job.serving import Exports

_SAVING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Sent:
    """A file of the index, and the local file at that time.

    `head`, `tail`: checksums of its first and last bytes, by which a file is known to have only grown since.
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
        """Whether the local file is unchanged since."""
        return (self.size, self.modified_ns, self.inode) == (seen.size, seen.modified_ns, seen.inode)


@dataclass(frozen=True, slots=True)
class OutputState:
    """The note on a task's outputs that survives a restart of the agent.

    Attributes:
        generation, attempt: the last attempt of the task on this node.
        sent: path -> the file that was sent.
        late: paths for which a later attempt on another node wrote another state before this one was sent.
        left_out: path -> reason; at most some hundred.
        over: the attempt has ended; `done`: everything has been sent since.
        ended: the job has ended.
        follow: the task reads the outputs of others.
        removing: the directory is being removed, as all is in the store.
        exports: the models in it that are published.
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
    exports: Exports | None = None

    @property
    def base(self) -> str:
        """The task's directory below the root of the store."""
        return directory_of(self.job_uuid, self.member)


def state_path(home: Path, member: str) -> Path:
    """The path of an agent's note on a task's outputs."""
    return home / f"{member}.json"


def save_state(home: Path, state: OutputState) -> None:
    """Replace the note. Blocking; raises OSError. Files whose note a crash loses are sent again."""
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
    """Wait until no thread writes a note, including threads whose caller was cancelled. Blocking."""
    with _SAVING:
        pass


def load_state(path: Path) -> OutputState | None:
    """Read a note; None if there is no readable one. Blocking."""
    with suppress(OSError, IncompatibleRecord):
        return codec.decode(OutputState, files.read_small(path, 64 << 20))
    return None
