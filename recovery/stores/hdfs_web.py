"""`concat` over a NameNode's own WebHDFS: the one call that the client library lacks.

All functions block. No content of a file is sent this way, and no redirect is followed.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from urllib.parse import quote, urlencode

from recovery.stores.hdfs_errors import Failure, Meaning, read_answer

MAX_ANSWER_BYTES = 64 << 10


class WebFailed(Exception):
    """A NameNode refused, or did not answer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class WebNameNode:
    """One NameNode at `HOST:PORT`, of a cluster that trusts the name in `user`."""

    def __init__(self, address: str, user: str) -> None:
        self.address = address
        self._user = user

    def status(self, path: str, timeout_s: float) -> tuple[int, int]:
        """Size and time of the last change (wall clock, ms) of a file. Raises WebFailed."""
        answer = self._ask("GET", path, {"op": "GETFILESTATUS"}, timeout_s)
        try:
            found = json.loads(answer)["FileStatus"]
            return int(found["length"]), int(found["modificationTime"])
        except (ValueError, KeyError, TypeError) as error:
            raise WebFailed(Failure(Meaning.UNKNOWN, f"{self.address} speaks no WebHDFS")) from error

    def concat(self, target: str, sources: Sequence[str], timeout_s: float) -> None:
        """Move the blocks of `sources`, in this order, to the end of `target`. Raises WebFailed.

        The sources are gone then. All lie in the directory of `target`, and no path has a comma.
        """
        self._ask("POST", target, {"op": "CONCAT", "sources": ",".join(sources)}, timeout_s)

    def _ask(self, method: str, path: str, query: dict[str, str], timeout_s: float) -> bytes:
        url = f"/webhdfs/v1{quote(path)}?{urlencode({**query, 'user.name': self._user})}"
        try:
            connection = http.client.HTTPConnection(self.address, timeout=timeout_s)
            try:
                connection.request(method, url)
                answer = connection.getresponse()
                body = answer.read(MAX_ANSWER_BYTES)
            finally:
                connection.close()
        except ConnectionRefusedError as error:
            raise WebFailed(Failure(Meaning.LATER, f"{self.address} refuses connections")) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise WebFailed(Failure(Meaning.UNKNOWN, f"{self.address} does not answer: {error!r}")) from error
        if answer.status != http.client.OK:
            raise WebFailed(_failure(self.address, answer.status, body))
        return body


def _failure(address: str, status: int, body: bytes) -> Failure:
    try:
        told = json.loads(body)["RemoteException"]
        return read_answer(str(told["exception"]), str(told["message"]))
    except (ValueError, KeyError, TypeError):
        return Failure(Meaning.UNKNOWN, f"{address} answers with HTTP status {status}")
