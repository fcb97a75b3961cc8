"""The error tree. Retryability is a property of the class; foreign errors are mapped at the adapter.

An exception that is not in this tree is a bug of ours. Raised while one job, launcher, node or checkpoint is
processed, it parks that one alone (`contract.containment`). Raised anywhere else, it crashes the daemon, and
the service manager restarts it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

NAMED = 8
"""Most names that `nothing_named` gives."""


class TfSupervisorError(Exception):
    """Root of every error that this project raises on purpose.

    Attributes:
        field: the path of the wrong field in the job, such as `("roles", "worker", "resources")`; empty for
            none.
    """

    retryable = False
    exit_code = 1
    field: tuple[str, ...] = ()

    def about(self, *field: str) -> Self:
        """Set the field that the error is about, so that the reader of the job file can name its line;
        returns the error.
        """
        self.field = field
        return self


class UserError(TfSupervisorError):
    """The input is wrong. The message names the file, line or field, and what to do."""

    exit_code = 2


class FitsNowhere(UserError):
    """No node that is there now could take the job, all of them empty. With other nodes it may fit."""


class NotFound(TfSupervisorError):
    """The requested job, task, node or file does not exist."""

    exit_code = 3


def nothing_named(kind: str, name: str, known: Iterable[str]) -> NotFound:
    """The error about a job or node that there is none of. It names the first of those that there are."""
    names = sorted(known)
    shown = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    return NotFound(f"no {kind} {name!r}; {kind}s here: {shown or 'none yet'}")


class Conflict(TfSupervisorError):
    """Something of this name, directory or identity exists already and is in use."""

    exit_code = 4


class Unreachable(TfSupervisorError):
    """A peer did not answer in time. For a write this means *unknown*: it may have happened."""

    retryable = True
    exit_code = 5


class CoordinationUnreachable(Unreachable):
    """etcd did not answer within the deadline."""


class CoordinationFull(TfSupervisorError):
    """etcd refuses writes: its space quota is used up (NOSPACE), or one request is too large."""

    retryable = True
    exit_code = 5


class Compacted(TfSupervisorError):
    """A watch asked for a revision that is gone: list again, then watch from there."""

    retryable = True

    def __init__(self, revision: int) -> None:
        super().__init__(f"revisions before {revision} are compacted")
        self.revision = revision


class Refused(TfSupervisorError):
    """The peer refused: wrong credentials, or no right to do this."""

    exit_code = 6


class OutOfSpace(Refused):
    """The peer has no space, or no quota, left."""


class NoRoom(OutOfSpace):
    """This machine's own disk has no space, or no quota, left."""


class Fenced(TfSupervisorError):
    """A transaction found another leader or another incarnation: this process must stop acting."""

    exit_code = 7


class Dismissed(TfSupervisorError):
    """The cluster does without this agent from now on: it must end, and not begin again."""

    exit_code = 8


class StoreUnreachable(Unreachable):
    """The checkpoint store could not be read or written; the checkpoints in it may be good."""


class BadCheckpoint(TfSupervisorError):
    """A size or checksum is wrong, or a file is missing while the store is healthy."""

    exit_code = 14


class BadArchive(Refused):
    """An archive of code can be unpacked nowhere: it is damaged, too large, or holds what it must not."""


class IncompatibleRecord(TfSupervisorError):
    """A record or a peer has a version that this release does not know."""


class NewerRelease(IncompatibleRecord):
    """A record of a later release: this daemon must be updated; the record is right."""


class InvalidTransition(TfSupervisorError):
    """A state machine was asked for a transition that its table does not have.

    Attributes:
        story: how it stood, and what was tried.
    """

    def __init__(self, message: str, story: tuple[str, ...] = ()) -> None:
        super().__init__("\n  ".join((message, *story)))
        self.story = story


class InvariantBroken(TfSupervisorError):
    """A safety invariant does not hold. The daemon stops, so that it does not act on wrong state."""


def first_of(group: BaseExceptionGroup[TfSupervisorError]) -> TfSupervisorError:
    """The error to show when several of the daemon's tasks failed together."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TfSupervisorError)
    return error
