"""The places of tasks' output directories on a node, and of the agent's own notes. Every function blocks.

A job's directory may be mounted into containers of the agent's own user, whose programs can put links at
every name in it. So each output directory lies directly below it, and is opened without following links.
Notes, and files in transfer, are elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agent.host.task_users import TaskUsers, User
from recovery.commit.outbox import generation_directory
from recovery.formats.paths import OUTPUTS_PREFIX
from recovery.io import files
from recovery.io.trees import remove_tree
from recovery.outputs.bring import remove_file
from recovery.outputs.note import OutputState, load_state, state_path
from recovery.outputs.scan import scan
from supervisor.adapters.failpoints import effect
from supervisor.contract.job.serving import link_of

OWN, COPIES, OWNER, ASIDE = OUTPUTS_PREFIX, "all-outputs-", ".outputs-", "kept-"
"""Prefixes of names in a job's directory: a task's outputs, copies for its readers, the owner's mark of a
task's directory, and files put aside."""

MOST_NOTES = 10_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class OutputFiles:
    """The directories of one node.

    Attributes:
        parent: holds the jobs' directories, `parent/JOB_UUID`; agents of one machine may share it.
        home: this agent's own directory; no task of another user can write to it, and no container mounts it.
        users: the users of tasks, if they are others than the agent's.
    """

    node: str
    parent: Path
    home: Path
    users: TaskUsers | None = None

    def own(self, job_uuid: str, member: str) -> Path:
        """A task's output directory: the same path on every node."""
        return self.parent / job_uuid / f"{OWN}{member}"

    def copies(self, job_uuid: str) -> Path:
        """The copies of all tasks' outputs, for the job's tasks here."""
        return self.parent / job_uuid / f"{COPIES}{self.node}"

    def notes(self, job_uuid: str) -> Path:
        """The notes on a job's outputs here, and files in transfer."""
        return self.home / job_uuid

    def user(self, job_uuid: str) -> User | None:
        """The user of a job's tasks, as `TaskUsers.of`; None if that is the agent's own."""
        return self.users.of(job_uuid) if self.users is not None else None

    def make(self, state: OutputState) -> None:
        """Make a task's directory and mark its owner. Raises OSError, even for a link in its place."""
        job, own = self.parent / state.job_uuid, self.own(state.job_uuid, state.member)
        user = self.user(state.job_uuid)
        with effect("outputs.make"):
            job.mkdir(parents=True, exist_ok=True)
            if self.users is not None:
                job.chmod(self.users.mode)
            with suppress(FileExistsError):
                own.mkdir()
            fd = os.open(own, _DIRECTORY)
            try:
                if user is not None and os.geteuid() == 0:
                    os.fchown(fd, *user)
            finally:
                os.close(fd)
            for each in (self.home, self.notes(state.job_uuid)):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
        if state.follow:
            self.make_copies(state.job_uuid)

    def link_exports(self, state: OutputState) -> None:
        """Let the directory of exports in $CHECKPOINT_DIR lead to that in the output directory, if asked.

        What is there already stays, as it may be of the generation's base. Raises OSError then, too.
        """
        name = link_of(state.exports.serving.export) if state.exports is not None else ""
        if not name:
            return
        own, user = self.own(state.job_uuid, state.member), self.user(state.job_uuid)
        generation = generation_directory(self.parent / state.job_uuid, state.generation)
        with _opened(own) as outputs, _opened(generation) as checkpoints, effect("outputs.link"):
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=outputs)
                if user is not None and os.geteuid() == 0:
                    os.chown(name, *user, dir_fd=outputs, follow_symlinks=False)
            target = f"../{own.name}/{name}"
            try:
                os.symlink(target, name, dir_fd=checkpoints)
            except FileExistsError:
                if os.readlink(name, dir_fd=checkpoints) != target:
                    raise

    def make_copies(self, job_uuid: str, *, empty: bool = False) -> None:
        """Make the directory of copies. Tasks of another user can read it, at any umask of the agent.

        Raises OSError, even for a link in its place. `empty`: remove its content.
        """
        copies = self.copies(job_uuid)
        with effect("outputs.make_copies"):
            copies.mkdir(parents=True, exist_ok=True)
            fd = os.open(copies, _DIRECTORY)
            try:
                if self.users is not None:
                    os.fchmod(fd, 0o755)
                if empty:
                    with os.scandir(fd) as entries:
                        names = [entry.name for entry in entries]
                    for name in names:
                        _remove(name, fd)
            finally:
                os.close(fd)

    def mark(self, state: OutputState) -> None:
        """Mark that this attempt owns the task's directory now."""
        path = self._mark(state)
        part = path.with_name(f"{path.name}.part")
        with effect("outputs.mark"):
            part.unlink(missing_ok=True)
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                files.write_all(fd, _text(state.node, state.generation, state.attempt))
            finally:
                os.close(fd)
            part.replace(path)

    def is_of(self, job_uuid: str, member: str, node: str, generation: int, attempt: int) -> bool:
        """Whether the directory here belongs to this attempt: another node of this machine may have made
        it.
        """
        path = self.parent / job_uuid / f"{OWNER}{member}"
        with suppress(OSError):
            return files.read_small(path, 256) == _text(node, generation, attempt)
        return False

    def _is_mine(self, state: OutputState) -> bool:
        return self.is_of(state.job_uuid, state.member, state.node, state.generation, state.attempt)

    def put_aside(self, state: OutputState) -> str:
        """Move the unsent files of a directory aside; returns the new name, empty if all were sent."""
        own = self.own(state.job_uuid, state.member)
        if not self._is_mine(state):
            return ""
        found = scan(own)
        sent = found.files.keys() & state.sent.keys() - set(state.late)
        if found.complete and sent == found.files.keys():
            return ""
        for path in sent:
            remove_file(own, path)
        name = f"{ASIDE}outputs-{state.member}-g{state.generation}.{state.attempt}"
        with effect("outputs.keep"):
            own.rename(own.with_name(name))
        return name

    def remove(self, state: OutputState) -> None:
        """Remove a task's directory and its note."""
        job = self.parent / state.job_uuid
        with effect("outputs.remove_sent"):
            if self._is_mine(state):
                remove_tree(self.own(state.job_uuid, state.member))
                self._mark(state).unlink(missing_ok=True)
            remove_tree(self.copies(state.job_uuid))
            state_path(self.notes(state.job_uuid), state.member).unlink(missing_ok=True)
            for directory in (self.notes(state.job_uuid), job):
                with suppress(OSError):
                    directory.rmdir()

    def states(self) -> list[OutputState]:
        """The notes of earlier lives of this agent, without unreadable ones."""
        found = []
        with suppress(OSError):
            for path in sorted(self.home.glob("*/*.json"))[:MOST_NOTES]:
                state = load_state(path)
                if state is not None and path == state_path(self.notes(state.job_uuid), state.member):
                    found.append(state)
        return found

    def _mark(self, state: OutputState) -> Path:
        return self.parent / state.job_uuid / f"{OWNER}{state.member}"


def _remove(name: str, fd: int) -> None:
    try:
        remove_tree(name, dir_fd=fd)
    except NotADirectoryError:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=fd)


def _text(node: str, generation: int, attempt: int) -> bytes:
    return f"{node} {generation} {attempt}\n".encode()


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, _DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)
