"""Errors across the API: a `Failure` record in the trailing metadata beside gRPC's own status (docs/cli.md).

The status code is for foreign clients and proxies; our client reads only the record.
"""

from __future__ import annotations

import grpc

from supervisor.contract import codec, errors
from supervisor.contract.errors import IncompatibleRecord, TfSupervisorError, Unreachable
from supervisor.contract.views.jobs import API_PROTOCOL, Failure

FAILURE_KEY = "tfsup-failure-bin"
PROTOCOL_KEY = "tfsup-protocol"
GUARD_KEY = "tfsup-token"
MAX_MESSAGE = 6_000
"""Most bytes of an error's text; gRPC bounds all metadata of a reply to 8 KiB."""

_CLASSES: dict[str, type[TfSupervisorError]] = {
    cls.__name__: cls
    for cls in (
        errors.UserError,
        errors.FitsNowhere,
        errors.NotFound,
        errors.Conflict,
        errors.Unreachable,
        errors.CoordinationUnreachable,
        errors.CoordinationFull,
        errors.Refused,
        errors.Fenced,
        errors.StoreUnreachable,
        errors.BadCheckpoint,
        errors.IncompatibleRecord,
        errors.TfSupervisorError,
    )
}
_STATUS = {
    "UserError": grpc.StatusCode.INVALID_ARGUMENT,
    "FitsNowhere": grpc.StatusCode.INVALID_ARGUMENT,
    "NotFound": grpc.StatusCode.NOT_FOUND,
    "Conflict": grpc.StatusCode.ALREADY_EXISTS,
    "Refused": grpc.StatusCode.PERMISSION_DENIED,
    "IncompatibleRecord": grpc.StatusCode.FAILED_PRECONDITION,
    "Fenced": grpc.StatusCode.ABORTED,
    "CoordinationFull": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "Unreachable": grpc.StatusCode.UNAVAILABLE,
    "CoordinationUnreachable": grpc.StatusCode.UNAVAILABLE,
    "StoreUnreachable": grpc.StatusCode.UNAVAILABLE,
}


class NotLeading(Unreachable):
    """This supervisor does not lead; `leader` is the address of the one that does, empty when unknown.

    `instead`: its present work, for people.
    """

    def __init__(self, leader: str, instead: str = "") -> None:
        what = "this supervisor does not lead" if leader else "no supervisor leads at the moment"
        super().__init__(f"{what}; {instead}" if instead else what)
        self.leader = leader


def to_failure(error: TfSupervisorError) -> Failure:
    """The record of an error; a class that the client does not know becomes its nearest parent."""
    if isinstance(error, NotLeading):
        return Failure("Unreachable", str(error), error.leader)
    name = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _CLASSES)
    text = str(error)
    if len(text.encode()) > MAX_MESSAGE:
        text = text.encode()[:MAX_MESSAGE].decode(errors="ignore") + " ..."
    return Failure(name, text, field=error.field)


def from_failure(failure: Failure) -> TfSupervisorError:
    """The error of a record; an unknown class becomes the root of the tree."""
    return _CLASSES.get(failure.error, TfSupervisorError)(failure.message).about(*failure.field)


def status_of(failure: Failure) -> grpc.StatusCode:
    """The nearest code of gRPC."""
    return _STATUS.get(failure.error, grpc.StatusCode.UNKNOWN)


def read_failure(error: grpc.aio.AioRpcError) -> Failure | None:
    """The record in a failed call; None if the server sent none (connection, deadline)."""
    for key, value in error.trailing_metadata() or ():
        if key == FAILURE_KEY and isinstance(value, bytes):
            return codec.decode(Failure, value)
    return None


def check_protocol(version: str) -> None:
    """Raise IncompatibleRecord unless the peer has our major version."""
    if version != str(API_PROTOCOL):
        raise IncompatibleRecord(
            f"the client speaks API protocol {version or 'unknown'}, this supervisor {API_PROTOCOL}; "
            "use a supervisorctl of the same release as the supervisors"
        )
