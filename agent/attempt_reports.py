"""Reports on attempts, completed from the attempts' files and written to etcd."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from functools import partial

from agent.boundaries import Outside, Post, Process
from agent.core.events import Reported
from agent.core.instructions import Report
from agent.host.oom import with_oom
from agent.membership import Membership
from recovery.policy.causes import signal_name
from recovery.policy.logs import bounded, last_words, with_beginning
from supervisor.adapters.failpoints import effect
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Get, KeyValue, Put, as_read
from supervisor.contract.containment import contained, told
from supervisor.contract.errors import CoordinationUnreachable, TfSupervisorError
from supervisor.contract.incident import Cause, Raised
from supervisor.contract.observed import AttemptReport, Exit, ExitReason

AGAIN_S = 0.1
"""Seconds after which the core hears of a write that failed. It then asks for another."""

SIGNAL_EXPLAINS_MS = 60_000
STORE_EXPLAINS_MS = 60_000


class AttemptReports:
    """The reports of one agent."""

    def __init__(self, outside: Outside, post: Post, membership: Membership) -> None:
        self._out = outside
        self._post = post
        self._membership = membership

    async def send(self, report: Report) -> None:
        """Write a report, and tell the core whether it is written.

        An older report on the same attempt never replaces a newer one.
        """
        record = report.record
        full = self._filled_if_possible(report)
        stepped = full.stepped
        key = keys.attempt(record.attempt)
        ok = peer_lost = False
        try:
            order = keys.assignment(record.node, record.attempt.task, record.plan_id)
            read = await self._out.coordination.txn((), [Get(order), Get(key)])
            wanted, found = (next(iter(each), None) for each in read.reads)
            # A report whose answer was lost could still arrive after its successor, or after the leader has
            # moved on to the next attempt and removed both.
            compares = [self._membership.fence, as_read(order, wanted), as_read(key, found)]
            full = _as_told_whole(full, found)
            with effect("agent.report", CoordinationUnreachable):
                result = await self._out.coordination.txn(compares, [Put(key, codec.encode(full))])
            ok, peer_lost = result.succeeded, full.exit is not None and lost_a_peer(full.exit)
        except TfSupervisorError as error:
            self._out.sink.warning(
                "cannot report an attempt to etcd yet; trying again",
                attempt=str(record.attempt),
                reason=str(error),
            )
        if not ok:
            await asyncio.sleep(AGAIN_S)
        self._post(Reported(record.attempt, report.serial, ok, stepped, peer_lost))

    def _say_unread(self, report: Report, error: Exception) -> None:
        attempt = str(report.record.attempt)
        self._out.sink.error(
            "the files of an attempt cannot be read: its report lacks them",
            attempt=attempt,
            error=told(error),
        )

    def _filled_if_possible(self, report: Report) -> AttemptReport:
        """The report completed from the attempt's files; unchanged if reading them fails unexpectedly."""
        with contained(partial(self._say_unread, report)):
            return self._filled(report)
        return report.record

    def _filled(self, report: Report) -> AttemptReport:
        files, attempt = self._out.files, report.record.attempt
        record = replace(
            report.record,
            last_step=files.last_step(attempt),
            stepped=files.has_stepped(attempt),
            saves=files.saves(attempt),
        )
        if record.exit is None:
            return record
        age_ms = max(0, self._out.clock.now_ms() - report.ended_ms)
        stack = self._out.secrets.masked(str(attempt), files.stack(attempt))
        aborted = record.warm and record.exit.signal is not None
        found = files.raised(attempt, aborted=aborted)
        raised = bounded(self._masked(str(attempt), each) for each in found)
        tail = with_beginning(files.tail(attempt), raised)
        sent = files.signalled(attempt)
        end = record.exit if sent is None else _explained(record.exit, *sent, report.ended_ms)
        if end.reason is ExitReason.EXIT and end.code != 0:
            process, runtime = Process(record.pid, record.start_ticks), self._out.runtime
            killed = end.signal == signal.SIGKILL and runtime.oom_killed(process)
            end = with_oom(end, killed=killed, beside=runtime.oom_beside(process))
            met = runtime.limit_met(process)
            end = replace(end, detail="; ".join(filter(None, (end.detail, met))))
            end = self._with_store(end, report)
        # One that hung was killed by us, and is what its user wants to look at.
        failed = bool(stack) if end.reason is ExitReason.KILLED else end.code != 0
        if report.hold_ms and failed:
            kept = f"{files.hold(record.attempt, report.hold_ms)} is kept for {report.hold_ms / 1000:g} s"
            end = replace(end, detail=f"{end.detail}; {kept}" if end.detail else kept)
        return replace(record, exit=replace(end, age_ms=age_ms, tail=tail, stack=stack, raised=raised))

    def _masked(self, attempt: str, error: Raised) -> Raised:
        """The error as it may be shown: unlike its output, its own note may hold a secret."""
        return replace(error, text=self._out.secrets.masked(attempt, error.text))

    def _with_store(self, end: Exit, report: Report) -> Exit:
        """The end with `store_lost`, if the attempt ended shortly after its store had failed it."""
        generation = report.record.generation
        saved = self._out.checkpoints.store_failed_ms(report.job_uuid, generation)
        failed_ms, what = max((saved, "the store behind its checkpoint directory"), self._data_failed(report))
        before_ms = report.ended_ms - failed_ms
        if failed_ms < 0 or before_ms > STORE_EXPLAINS_MS:
            return end
        said = f"{what} failed it {max(0, before_ms) / 1000:.1f} s before"
        detail = f"{end.detail}; {said}" if end.detail else said
        return replace(end, detail=detail, store_lost=True)

    def _data_failed(self, report: Report) -> tuple[int, str]:
        failed_ms, uri = self._out.data.failed(report.job_uuid)
        return failed_ms, f"the store of its data {uri}"


def _as_told_whole(report: AttemptReport, found: KeyValue | None) -> AttemptReport:
    """The report with the end from an earlier complete report of this attempt, if there is one."""
    before = codec.decode(AttemptReport, found.value) if found is not None else None
    if before is None or before.exit is None or report.exit is None or not before.drained:
        return report
    end = replace(before.exit, age_ms=report.exit.age_ms)
    steps = replace(report, last_step=before.last_step, stepped=before.stepped)
    return replace(steps, exit=end, saves=before.saves)


def lost_a_peer(end: Exit) -> bool:
    """Whether the last lines of a program name the loss of another task."""
    found = last_words(end.tail, end.raised)
    return found is not None and found.cause is Cause.PEER_LOST


def _explained(end: Exit, number: int, sent_ms: int, ended_ms: int) -> Exit:
    """The end, with an operator's signal that may have caused it."""
    before_ms = ended_ms - sent_ms
    if end.signal != number and not 0 <= before_ms <= SIGNAL_EXPLAINS_MS:
        return end
    said = f"an operator sent {signal_name(number)} {max(0, before_ms)} ms before"
    return replace(end, detail=f"{end.detail}; {said}" if end.detail else said)
