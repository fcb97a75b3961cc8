"""The log lines about work that is tried again."""

from __future__ import annotations

from supervisor.adapters.backoff import SAY_AGAIN_MS, Retries
from supervisor.contract.errors import CoordinationUnreachable
from tests.support.clocks import ManualClock
from tests.support.sinks import ListSink


def test_a_reason_is_logged_once_a_minute_and_a_new_one_at_once() -> None:
    clock, sink = ManualClock(), ListSink()
    retries = Retries(clock, sink)

    def logged(*reasons: str) -> list[object]:
        """The log lines about these failures, a second apart."""
        sink.lines.clear()
        for each in reasons:
            retries.failed("cannot", CoordinationUnreachable(each))
            clock.ms += 1000
        return [fields["reason"] for _, _, fields in sink.lines]

    assert logged("a", "a", "b", "a", "b") == ["a", "b"]
    clock.ms += SAY_AGAIN_MS - 5000
    assert logged("a", "b") == ["a"]
    assert logged("b", "b") == ["b"]
    retries.over("can")
    retries.over("can")
    assert sink.lines[1:] == [("info", "can", {"after_ms": SAY_AGAIN_MS + 4000, "failures": 9})]
    assert logged("b") == ["b"]
