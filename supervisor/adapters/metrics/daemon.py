"""The metrics of one daemon in Prometheus' text format (docs/metrics.md).

Most metrics are read from the daemon's state when somebody asks, so that they cost nothing otherwise. What
takes time is measured where it happens. The text is made in another thread than the daemon's loop, from
values that do not change. `exposition` writes it. It is loaded, and Prometheus' client library with
it, when somebody asks for the first time.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from supervisor.adapters.certificates.x509 import Validity
from supervisor.adapters.metrics.samples import LONG, SHORT, Metric, Rows, counter, gauge, histogram
from supervisor.contract.boundaries import Logger
from supervisor.contract.containment import contained, told
from supervisor.contract.errors import (
    BadCheckpoint,
    Compacted,
    Conflict,
    CoordinationFull,
    Fenced,
    NotFound,
    OutOfSpace,
    Refused,
    TfSupervisorError,
    Unreachable,
)

T = TypeVar("T")

ANSWER_S = 5.0
"""The longest wait for an answer, which is less than Prometheus waits."""


BUILD = gauge("tfsup_build_info", "1, with the release of the daemon.", "version", "daemon")
ETCD_SECONDS = histogram(
    "tfsup_etcd_request_duration_seconds",
    "Time of each request to etcd, failed ones included.",
    "operation",
    buckets=SHORT,
)
ETCD_FAILURES = counter(
    "tfsup_etcd_request_failures_total",
    "Requests to etcd that failed, by the kind of failure; `unreachable`: the outcome is unknown.",
    "operation",
    "reason",
)
ETCD_REFUSED = counter(
    "tfsup_etcd_transactions_refused_total",
    "Transactions without effect, because a record that they compare had changed: the leader's token, an "
    "incarnation, or what the decision was based on.",
)
STORE_SECONDS = histogram(
    "tfsup_store_request_duration_seconds",
    "Time of each request to a checkpoint store, failed ones included.",
    "operation",
    buckets=LONG,
)
STORE_FAILURES = counter(
    "tfsup_store_request_failures_total",
    "Requests to a checkpoint store that failed, by the kind of failure.",
    "operation",
    "reason",
)
CERTIFICATE_ENDS = gauge(
    "tfsup_certificate_expiry_timestamp_seconds",
    "When a certificate of this daemon ends, by its use.",
    "use",
)
CERTIFICATE_DUE = gauge(
    "tfsup_certificate_renewal_timestamp_seconds",
    "When a certificate of this daemon should be renewed: a fifth of its life is left then.",
    "use",
)
COLLECTOR_FAILURES = counter(
    "tfsup_collector_failures_total",
    "Parts of the metrics that were left out of an answer, because of an error of this program.",
)

_REASONS: tuple[tuple[type[TfSupervisorError], str], ...] = (
    (Unreachable, "unreachable"),
    (CoordinationFull, "full"),
    (OutOfSpace, "full"),
    (Refused, "refused"),
    (NotFound, "not_found"),
    (Conflict, "conflict"),
    (Compacted, "compacted"),
    (Fenced, "fenced"),
    (BadCheckpoint, "bad"),
)


def reason_of(error: BaseException) -> str:
    """The kind of a failure, one of a few words."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "other")


Fill = Callable[[Rows], None]
"""Adds samples to an answer. It runs outside the loop, so that it reads nothing that may change."""
Source = Callable[[], Fill]
"""Called on the loop at each answer: takes what the samples are made of."""


class Metrics:
    """The metrics of one daemon.

    Args:
        daemon: `supervisor` or `agent`.
        version: its release.
        threads: where answers are made; one thread is enough.
        sink: the daemon's log.

    Attributes:
        kept: what is measured and counted where it happens, on the daemon's loop.
    """

    def __init__(self, daemon: str, version: str, threads: Executor, sink: Logger) -> None:
        self._threads = threads
        self._sink = sink
        self._sources: list[Source] = []
        self._answer: asyncio.Task[bytes] | None = None
        self._said = ""
        self.kept = Rows()
        self.kept.put(BUILD, 1, version, daemon)
        for metric in (COLLECTOR_FAILURES, ETCD_REFUSED):
            self.kept.put(metric, 0)
        self.etcd = Measured(self.kept, ETCD_SECONDS, ETCD_FAILURES)
        self.store = Measured(self.kept, STORE_SECONDS, STORE_FAILURES)
        self.add(self._kept)

    def add(self, source: Source) -> None:
        """Ask `source` at each answer."""
        self._sources.append(source)

    def add_certificates(self, ends: Callable[[], Mapping[str, Validity]]) -> None:
        """Tell when the daemon's certificates end. `ends`: use -> validity."""

        def fill(rows: Rows) -> None:
            for use, validity in ends().items():
                rows.put(CERTIFICATE_ENDS, validity.ends.timestamp(), use)
                rows.put(CERTIFICATE_DUE, validity.due.timestamp(), use)

        self.add(lambda: fill)

    async def answer(self) -> bytes:
        """All metrics as text. Whoever asks while an answer is made gets the same one. Raises Unreachable."""
        if self._answer is None or self._answer.done():
            self._answer = asyncio.create_task(self._make())
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(self._answer)
        except TimeoutError:
            raise Unreachable(f"the metrics are not ready after {ANSWER_S:g} s; ask again") from None

    def _kept(self) -> Fill:
        now = Rows()
        now.take(self.kept)
        return lambda rows: rows.take(now)

    async def _make(self) -> bytes:
        errors: list[Exception] = []
        fills: list[Fill] = []
        for source in self._sources:
            with contained(errors.append):
                fills.append(source())
        made = asyncio.get_running_loop().run_in_executor(self._threads, partial(_render, fills, errors))
        try:
            return await made
        finally:
            for error in errors:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.kept.add(COLLECTOR_FAILURES, 1)
        why = told(error)
        if why != self._said:
            self._said = why
            self._sink.error("an unexpected error while metrics were collected; some are missing", error=why)


def _render(fills: Sequence[Fill], errors: list[Exception]) -> bytes:
    rows = Rows()
    for fill in fills:
        with contained(errors.append):
            fill(rows)
    text: bytes = importlib.import_module("supervisor.adapters.metrics.exposition").render(rows)
    return text


class Measured:
    """The durations and failures of one kind of request, by operation."""

    def __init__(self, kept: Rows, seconds: Metric, failures: Metric) -> None:
        self._kept = kept
        self._seconds = seconds
        self._failures = failures

    @contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Measure the block."""
        began_s = time.perf_counter()
        try:
            yield
        except TfSupervisorError as error:
            self.failed(operation, error)
            raise
        finally:
            self._kept.observe(self._seconds, time.perf_counter() - began_s, operation)

    async def wait(self, operation: str, work: Awaitable[T]) -> T:
        """Measure a call."""
        with self.timed(operation):
            return await work

    def failed(self, operation: str, error: TfSupervisorError) -> None:
        """Count a failure."""
        self._kept.add(self._failures, 1, operation, reason_of(error))
