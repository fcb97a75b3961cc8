"""The names of tasks and attempts, and the one check of allowed spellings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from supervisor.contract.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_KEPT = 4096
"""Number of ids in the cache: rules ask records for their ids repeatedly."""
_ATTEMPT = re.compile(r"(?P<task>[^@]+)@(?P<generation>[0-9]{1,9})\.(?P<number>[0-9]{1,9})")


def check_name(what: str, name: str) -> str:
    """Return `name`, or raise UserError that lists the characters of a name."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{what} {name!r} is not a valid name: use 1 to 63 letters, digits, '_', '.' or '-', "
            "beginning with a letter or digit"
        )
    return name


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One member of a job's role, written `JOB/ROLE:INDEX`."""

    job: str
    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}/{self.role}:{self.index}"

    @property
    def member(self) -> str:
        """`ROLE.INDEX`, the spelling used in keys and file names."""
        return f"{self.role}.{self.index}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read `JOB/ROLE:INDEX`; raises UserError with the expected form."""
        job, slash, rest = text.partition("/")
        role, colon, index = rest.rpartition(":")
        if not (slash and colon and index.isascii() and index.isdigit() and len(index) <= 6):
            raise UserError(f"{text!r} is not a task: write JOB/ROLE:INDEX, for example digits/worker:0")
        return cls(check_name("job", job), check_name("role", role), int(index))

    @classmethod
    def from_member(cls, job: str, member: str) -> TaskId:
        """The inverse of `member`."""
        role, _, index = member.rpartition(".")
        return cls(job, role, int(index))


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """One start of a task: the `number`-th (from 1) within its generation."""

    task: TaskId
    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.task}@{self.generation}.{self.number}"

    @property
    def dirname(self) -> str:
        """A file-system name that is unique within a job: `ROLE.INDEX-gGENERATION.NUMBER`."""
        return f"{self.task.member}-g{self.generation}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> AttemptId:
        """The inverse of `str`; raises UserError."""
        match = _ATTEMPT.fullmatch(text)
        if match is None:
            raise UserError(f"{text!r} is not an attempt: write JOB/ROLE:INDEX@GENERATION.NUMBER")
        return cls(TaskId.parse(match["task"]), int(match["generation"]), int(match["number"]))


@lru_cache(_KEPT)
def task_id(job: str, role: str, index: int) -> TaskId:
    """The task of these names, from a cache."""
    return TaskId(job, role, index)


@lru_cache(_KEPT)
def attempt_id(job: str, role: str, index: int, generation: int, number: int) -> AttemptId:
    """The attempt of these names, from a cache."""
    return AttemptId(task_id(job, role, index), generation, number)
