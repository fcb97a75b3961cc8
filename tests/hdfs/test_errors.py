"""Meanings of the client library's exceptions. The texts are from a real HDFS and a real KDC."""

from __future__ import annotations

import pytest

from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.hdfs_errors import Meaning, panics_as_errors, read_failure
from supervisor.contract.errors import Conflict, NotFound, Refused, StoreUnreachable, UserError

TRACE = "\\n\\tat org.apache.hadoop.hdfs.server.namenode.FSNamesystem.x(FSNamesystem.java:1)"
GSS = (
    'GSSAPIError(GssMajorCodes { raw: "0x000d0000", calling_error: "none", routine_error: "GSS_S_FAILURE", '
    'supplementary_info: "0x0000" }, 2529638944, "Unspecified GSS failure.  Minor code: %s")'
)


def rpc(java: str, message: str) -> RuntimeError:
    return RuntimeError(f'RPCError("{java}", "{message}{TRACE}")')


@pytest.mark.parametrize(
    ("error", "meaning", "kind"),
    [
        (FileNotFoundError("/a"), Meaning.NOT_FOUND, NotFound),
        (FileNotFoundError("Path is not a file: /a\n\tat org.x"), Meaning.PATH, UserError),
        (FileExistsError("/a already exists"), Meaning.CONFLICT, Conflict),
        (OSError("Connection refused (os error 111)"), Meaning.LATER, StoreUnreachable),
        (OSError("early eof"), Meaning.UNKNOWN, StoreUnreachable),
        (RuntimeError("ChecksumError"), Meaning.UNKNOWN, StoreUnreachable),
        (
            rpc("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "x"),
            Meaning.LATER,
            StoreUnreachable,
        ),
        (rpc("org.apache.hadoop.ipc.StandbyException", "x"), Meaning.LATER, StoreUnreachable),
        (rpc("org.apache.hadoop.ipc.RetriableException", "x"), Meaning.LATER, StoreUnreachable),
        (rpc("org.apache.hadoop.security.AccessControlException", "denied"), Meaning.NO_RIGHT, Refused),
        (
            rpc("org.apache.hadoop.security.AccessControlException", "/a/f (is not a directory)"),
            Meaning.NOT_A_DIRECTORY,
            NotFound,
        ),
        (rpc("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "x"), Meaning.QUOTA, Refused),
        (rpc("org.apache.hadoop.hdfs.protocol.NSQuotaExceededException", "x"), Meaning.QUOTA, Refused),
        (
            rpc(
                "org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException",
                "too long",
            ),
            Meaning.PATH,
            UserError,
        ),
        (
            rpc("java.io.IOException", "File /a could only be written to 0 of the 1 minReplication nodes."),
            Meaning.LATER,
            StoreUnreachable,
        ),
        (
            rpc("java.io.IOException", "Source /a and destination /b must both be directories"),
            Meaning.CONFLICT,
            Conflict,
        ),
        (RuntimeError(GSS % "Ticket expired"), Meaning.CREDENTIALS, Refused),
        (RuntimeError(GSS % "Cannot contact any KDC for realm"), Meaning.LATER, StoreUnreachable),
    ],
)
def test_each_error_has_a_meaning_and_a_type(
    error: Exception, meaning: Meaning, kind: type[Exception]
) -> None:
    failure = read_failure(error)
    assert failure.meaning is meaning
    assert "\n" not in failure.text
    assert "org.apache" not in failure.text
    assert "GssMajorCodes" not in failure.text
    raised = HdfsClient("127.0.0.1:1").error(failure, "write /a")
    assert isinstance(raised, kind)
    assert "cannot write /a" in str(raised)
    assert "127.0.0.1:1" in str(raised)


def test_a_flood_of_text_is_cut_and_made_printable() -> None:
    failure = read_failure(rpc("java.io.IOException", "\x1b[31m" + "x" * 10_000))
    assert len(failure.text) < 400
    assert failure.text.isprintable()


def test_a_panic_of_the_library_is_an_error_that_except_exception_sees() -> None:
    class PanicException(BaseException):
        pass

    with pytest.raises(RuntimeError, match="panicked: no reactor"), panics_as_errors():
        raise PanicException("no reactor")
    with pytest.raises(KeyboardInterrupt), panics_as_errors():
        raise KeyboardInterrupt
