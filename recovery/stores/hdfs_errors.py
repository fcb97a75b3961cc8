"""The meaning of HDFS errors. The client library has few types, and puts the Java class into the text.

All results are functions of the exception. `hdfs_client` retries failures that may pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

_ANSWER = re.compile(r'RPCError\("[\w.]*?\.?(?:\w+\$)?(\w*)", "(.*)"\)', re.DOTALL)
"""A NameNode's exception as the library shows it: the Java class, without its package, and the message."""

_GSS = re.compile(r'GSSAPIError\(.*, \d+, "(.*)"\)', re.DOTALL)
"""The message of the Kerberos library, after its codes."""

_SERVICE = re.compile(
    r"User: ([^\s/@]+)\S* is not allowed to impersonate|Unauthorized connection for super-user: ([^\s/@]+)"
)
"""Refusals of a NameNode to let a service be a user: at all, or from this machine."""

_MAX_TEXT = 300


class Meaning(Enum):
    """The classes of failures.

    Attributes:
        LATER: HDFS reports that it did nothing, and may be able to do it soon: safe mode, a standby, a lease.
        UNKNOWN: no answer came, so the call may have taken effect.
        LOST: a write or a read was broken off; the bytes written so far do not count.
    """

    NOT_FOUND = "not found"
    CONFLICT = "conflict"
    NOT_A_DIRECTORY = "not a directory"
    NO_RIGHT = "no right"
    QUOTA = "quota"
    CREDENTIALS = "credentials"
    PATH = "path"
    LATER = "later"
    UNKNOWN = "unknown"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt: its meaning, and one line of the text of HDFS."""

    meaning: Meaning
    text: str

    @property
    def may_pass(self) -> bool:
        """Whether a retry may soon succeed."""
        return self.meaning in {Meaning.LATER, Meaning.UNKNOWN}


_BY_CLASS = {
    "FileNotFoundException": Meaning.NOT_FOUND,
    "FileAlreadyExistsException": Meaning.CONFLICT,
    "AlreadyBeingCreatedException": Meaning.CONFLICT,
    "PathIsNotEmptyDirectoryException": Meaning.CONFLICT,
    "ParentNotDirectoryException": Meaning.NOT_A_DIRECTORY,
    "PathIsNotDirectoryException": Meaning.NOT_A_DIRECTORY,
    "AccessControlException": Meaning.NO_RIGHT,
    "AuthorizationException": Meaning.NO_RIGHT,
    "NSQuotaExceededException": Meaning.QUOTA,
    "DSQuotaExceededException": Meaning.QUOTA,
    "QuotaByStorageTypeExceededException": Meaning.QUOTA,
    "QuotaExceededException": Meaning.QUOTA,
    "InvalidPathException": Meaning.PATH,
    "HadoopIllegalArgumentException": Meaning.PATH,
    "IllegalArgumentException": Meaning.PATH,
    "PathComponentTooLongException": Meaning.PATH,
    "MaxDirectoryItemsExceededException": Meaning.QUOTA,
    "InvalidToken": Meaning.CREDENTIALS,
    "SaslException": Meaning.CREDENTIALS,
    "SafeModeException": Meaning.LATER,
    "StandbyException": Meaning.LATER,
    "ObserverRetryOnActiveException": Meaning.LATER,
    "RetriableException": Meaning.LATER,
    "RetryStartFileException": Meaning.LATER,
    "RecoveryInProgressException": Meaning.LATER,
    "NotReplicatedYetException": Meaning.LATER,
    "ServerTooBusyException": Meaning.LATER,
    "LeaseExpiredException": Meaning.LOST,
}
_BY_TEXT = {
    "Cannot contact any KDC": Meaning.LATER,
    "Cannot resolve network address for KDC": Meaning.LATER,
    "Path is not a file": Meaning.PATH,
    "(is not a directory)": Meaning.NOT_A_DIRECTORY,
    "must both be directories": Meaning.CONFLICT,
    "directory or file under source": Meaning.PATH,
    "SASL": Meaning.CREDENTIALS,
    "Connection refused": Meaning.LATER,
    "No route to host": Meaning.LATER,
    "Network is unreachable": Meaning.LATER,
    "failed to lookup address": Meaning.LATER,
}
_BY_TYPE = {
    FileNotFoundError: Meaning.NOT_FOUND,
    FileExistsError: Meaning.CONFLICT,
    IsADirectoryError: Meaning.PATH,
    PermissionError: Meaning.NO_RIGHT,
}


def read_failure(error: Exception) -> Failure:
    """The meaning of an exception of the client library. An unknown text gives UNKNOWN."""
    raw = str(error)
    answer = _ANSWER.search(raw)
    gss = _GSS.search(raw)
    text = _one_line(answer[2] if answer else gss[1] if gss else raw) or type(error).__name__
    for words, meaning in _BY_TEXT.items():
        if words in text:
            return Failure(meaning, text)
    for kind, meaning in _BY_TYPE.items():
        if isinstance(error, kind):
            return Failure(meaning, text)
    if gss is not None:
        return Failure(Meaning.CREDENTIALS, text)
    if answer is None:
        return Failure(Meaning.UNKNOWN, text)
    return read_answer(answer[1], text)


def read_answer(java_class: str, text: str) -> Failure:
    """The meaning of a NameNode's exception, by its Java class without the package."""
    # A NameNode that answers with an exception that is not in the table is there, and did nothing.
    return Failure(_BY_CLASS.get(java_class, Meaning.LATER), _one_line(text))


def not_as_user(uri: str, user: str, text: str) -> str:
    """The sentence of a NameNode that does not let a service be a user, and the property to set."""
    said = f"cannot reach {uri} as {user}: {_one_line(text)}"
    service = _SERVICE.search(text)
    if service is None:
        return said
    key = f"hadoop.proxyuser.{service[1] or service[2]}"
    return (
        f"{said}; name this machine in {key}.hosts, and the user in {key}.users or one of its groups in "
        f"{key}.groups, in the NameNodes' core-site.xml; then run "
        "`hdfs dfsadmin -refreshSuperUserGroupsConfiguration`"
    )


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic of the library, which `except Exception` would let through, into a RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise RuntimeError(f"the client library panicked: {error}") from error
        raise


def _one_line(text: str) -> str:
    """The first line of a text, printable and short: a NameNode sends whole stack traces."""
    lines = text.replace("\\n", "\n").replace('\\"', '"').strip().splitlines()
    first = lines[0] if lines else ""
    clean = "".join(letter if letter.isprintable() else " " for letter in first)
    return clean if len(clean) <= _MAX_TEXT else f"{clean[:_MAX_TEXT]}..."
