"""The audit log's lines of each request: caller, origin, subject and result.

A request has a line when it is received and one when it is completed, or a single one if it is refused.
Frequent requests between daemons have lines only if they are refused. A read that a caller repeats has a line
once a minute. A line names things. It holds no job file, no argument of a command and no data.
docs/security.md shows the lines.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType

from supervisor.adapters.audit import AuditLog
from supervisor.contract.access import FREQUENT, READS, TABLE, Caller, Kind, Right
from supervisor.contract.errors import Refused, TfSupervisorError
from supervisor.contract.views.jobs import ExecRequest, SubmitRequest

LONGEST = 200
"""Most characters of one value."""
AGAIN_S = 60.0
"""Seconds for which a repeated read of a caller has no further line. The same holds for a repeated refusal
between daemons, or of a caller without a role."""
MOST_REFUSALS, MOST_READERS = 1_000, 1_000
MOST_READS = 100
"""Most different reads of one caller that have lines in AGAIN_S."""
_NAMED = (
    *("job", "task", "node", "gpu", "member", "ref", "from_ref", "refs", "path", "step", "digest", "index"),
    *("pool", "mode", "number", "by", "save", "hold", "drain", "pinned", "dry_run", "follow"),
)
"""Fields of requests that a line may hold."""


def subject_of(request: object) -> dict[str, str]:
    """The subject of a request, by name: only fields that are known to hold no secret."""
    found = {name: _text(getattr(request, name, None)) for name in _NAMED}
    if isinstance(request, SubmitRequest):
        found["job"] = _text(request.spec.name)
    if isinstance(request, ExecRequest):
        # Its arguments may hold what nobody else should read.
        found["program"] = _text(request.argv[0] if request.argv else "")
    return {name: value for name, value in found.items() if value}


def _text(value: object) -> str:
    if value is None or value is False:
        return ""
    if isinstance(value, tuple):
        return ",".join(_text(each) for each in value[:10])[:LONGEST]
    return str(value.value if isinstance(value, Enum) else value)[:LONGEST]


@dataclass(slots=True)
class _Reads:
    """The reads of one caller since a moment, and how many of them were not noted."""

    since: float
    seen: set[str] = field(default_factory=set)
    left_out: int = 0


@dataclass(slots=True)
class Auditor:
    """Writes the requests to one server to its audit log, if it has one.

    `daemon`: the writer, as `supervisor:NAME`.
    """

    daemon: str = ""
    log: AuditLog | None = None
    _refused: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    _reads: dict[str, _Reads] = field(default_factory=dict)

    def request(self, method: str, peer: str) -> Entry:
        """Begin the entry of a request."""
        return Entry(self, method, peer)

    def repeated(self, method: str, who: str) -> int | None:
        """The number of equal refusals without a line since the last line; None if this one gets no line
        either.
        """
        key, now = (method, who), time.monotonic()
        last, left_out = self._refused.pop(key, (float("-inf"), 0))
        due = now - last >= AGAIN_S
        self._refused[key] = (now, 0) if due else (last, left_out + 1)
        if len(self._refused) > MOST_REFUSALS:
            del self._refused[next(iter(self._refused))]
        return left_out if due else None

    def read(self, who: str, what: str) -> int | None:
        """The number of reads of this caller without a line since the last line; None if this one gets no
        line either.

        Otherwise a caller with the right to read could fill the disk, and so suppress the lines of changes.
        """
        now, reads = time.monotonic(), self._reads.pop(who, None)
        if reads is None:
            reads = _Reads(now)
        elif now - reads.since >= AGAIN_S:
            reads = _Reads(now, left_out=reads.left_out)
        self._reads[who] = reads
        if len(self._reads) > MOST_READERS:
            del self._reads[next(iter(self._reads))]
        if what in reads.seen or len(reads.seen) >= MOST_READS:
            reads.left_out += 1
            return None
        reads.seen.add(what)
        left_out, reads.left_out = reads.left_out, 0
        return left_out


class Entry:
    """One request. As a context it spans the work: at its end the request is completed."""

    def __init__(self, auditor: Auditor, method: str, peer: str) -> None:
        self.caller: Caller | None = None
        self._auditor = auditor
        self.method = method
        self._peer = peer
        self._id = secrets.token_hex(8)
        self._begun = time.monotonic()
        self._quiet = method in FREQUENT
        self._about: dict[str, str] = {}

    async def received(self, request: object) -> None:
        """Note that the caller may do this, before it is done.

        Raises Refused if the line is required and cannot be written.
        """
        if self._auditor.log is None or self._quiet:
            return
        self._about = subject_of(request)
        if TABLE.get(self.method) is not Right.SUPERVISORS:
            self._about.pop("by", None)  # a supervisor's word counts; others can write anything there
        if self.method not in READS:
            await self._auditor.log.must_note(self._line("received"))
            return
        what = json.dumps([self.method, self._about, self._peer.rpartition(":")[0]])
        repeated = self._auditor.read(str(self.caller), what)
        if repeated is None:
            self._quiet = True
        else:
            self._auditor.log.note(self._line("received", {"repeated": repeated} if repeated else {}))

    def refused(self, error: TfSupervisorError) -> None:
        """Note a refusal: the caller may not do this, asks the wrong supervisor, or its request cannot be
        read.
        """
        if self._auditor.log is None:
            return
        more: dict[str, object] = {"result": type(error).__name__}
        if isinstance(error, Refused):
            # Other errors may quote what was asked.
            more["reason"] = str(error)[:LONGEST]
        if self._quiet or self._is_outsider():
            who = str(self.caller) if self.caller is not None else self._peer.rpartition(":")[0]
            repeated = self._auditor.repeated(self.method, who)
            if repeated is None:
                return
            more |= {"repeated": repeated} if repeated else {}
        self._auditor.log.note(self._line("refused", more))

    def _is_outsider(self) -> bool:
        """Whether the caller is not a user with a role.

        Such a caller has few rights, but may send many requests.
        """
        caller = self.caller
        return caller is None or (caller.kind is not Kind.LOCAL and caller.standing.role is None)

    def gone(self, error: asyncio.CancelledError) -> None:
        """Note that the caller disconnected before its request was served."""
        self.__exit__(type(error), error, None)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._auditor.log is None or self._quiet:
            return
        ms = round((time.monotonic() - self._begun) * 1000)
        result = "ok" if kind is None else kind.__name__
        if kind is not None and issubclass(kind, asyncio.CancelledError | GeneratorExit):
            result = "cancelled"
        self._auditor.log.note(self._line("completed", {"result": result, "ms": ms}))

    def _line(self, stage: str, more: Mapping[str, object] = {}) -> bytes:
        caller = self.caller
        role = caller.standing.role if caller is not None else None
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "stage": stage,
            "id": self._id,
            "daemon": self._auditor.daemon,
            "by": str(caller) if caller is not None else "",
            **({"role": role.value} if role is not None else {}),
            "from": self._peer[:LONGEST],
            "method": self.method,
            "on": self._about,
            **more,
        }
        return json.dumps(line).encode()
