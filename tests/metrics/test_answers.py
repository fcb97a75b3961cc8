"""The answer to whoever asks for metrics: its text, and what an answer that fails or hangs does to others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from supervisor.adapters.metrics import daemon as metrics_module
from supervisor.adapters.metrics.daemon import COLLECTOR_FAILURES, Fill, Metrics, reason_of
from supervisor.adapters.metrics.samples import Rows, counter, gauge, histogram
from supervisor.contract.errors import (
    CoordinationFull,
    CoordinationUnreachable,
    StoreUnreachable,
    Unreachable,
    UserError,
)
from tests.support.sinks import ListSink
from tests.support.waiting import until

LEVEL = gauge("tfsup_test_level", "A level.", "name")
COUNT = counter("tfsup_test_total", "A count.")
TIME = histogram("tfsup_test_seconds", "A time.", buckets=(0.1, 1.0))


class Daemon:
    """Metrics with a log."""

    def __init__(self) -> None:
        self.sink = ListSink()
        self.threads = ThreadPoolExecutor(1)
        self.metrics = Metrics("supervisor", "1.2", self.threads, self.sink)

    async def samples(self) -> dict[str, float]:
        """The samples of an answer, as `NAME{LABELS}`."""
        text = (await self.metrics.answer()).decode()
        found = [each for family in text_string_to_metric_families(text) for each in family.samples]
        return {f"{each.name}{sorted(each.labels.items())}": each.value for each in found}


async def test_values_counts_and_times_are_told_as_prometheus_reads_them() -> None:
    daemon = Daemon()

    def fill(rows: Rows) -> None:
        rows.put(LEVEL, 1.5, 'a "quoted"\nname')
        rows.add(COUNT, 2)
        rows.add(COUNT, 3)
        for seconds in (0.1, 0.5, 7):
            rows.observe(TIME, seconds)

    daemon.metrics.add(lambda: fill)
    found = await daemon.samples()
    assert found["tfsup_build_info[('daemon', 'supervisor'), ('version', '1.2')]"] == 1
    assert found["tfsup_test_level[('name', 'a \"quoted\"\\nname')]"] == 1.5
    assert found["tfsup_test_total[]"] == 5
    assert found["tfsup_test_seconds_bucket[('le', '0.1')]"] == 1
    assert found["tfsup_test_seconds_bucket[('le', '1.0')]"] == 2
    assert found["tfsup_test_seconds_bucket[('le', '+Inf')]"] == 3
    assert found["tfsup_test_seconds_count[]"] == 3
    assert found["tfsup_test_seconds_sum[]"] == pytest.approx(7.6)
    assert found["process_cpu_seconds_total[]"] > 0
    assert not any("_created" in name for name in found)


def test_a_value_has_the_labels_of_its_metric() -> None:
    with pytest.raises(AssertionError, match=r"tfsup_test_level has the labels \('name',\)"):
        Rows().put(LEVEL, 1)
    with pytest.raises(AssertionError, match="tfsup_test_seconds has the labels"):
        Rows().observe(TIME, 1, "more")


async def test_a_part_that_fails_is_left_out_and_counted_and_told_once() -> None:
    daemon = Daemon()

    def broken(rows: Rows) -> None:
        rows.put(LEVEL, 1, "before")
        raise ValueError("of this program")

    daemon.metrics.add(lambda: broken)
    daemon.metrics.add(lambda: lambda rows: rows.put(COUNT, 4))
    await daemon.samples()
    found = await daemon.samples()
    assert found["tfsup_test_total[]"] == 4
    assert daemon.metrics.kept.get(COLLECTOR_FAILURES) == 2
    assert [level for level, _, _ in daemon.sink.lines] == ["error"]


async def test_a_part_that_fails_before_it_is_begun_is_left_out_too() -> None:
    daemon = Daemon()

    def broken() -> Fill:
        raise ValueError("of this program")

    daemon.metrics.add(broken)
    daemon.metrics.add(lambda: lambda rows: rows.put(COUNT, 4))
    assert (await daemon.samples())["tfsup_test_total[]"] == 4
    assert daemon.metrics.kept.get(COLLECTOR_FAILURES) == 1


async def test_who_asks_at_the_same_time_gets_the_same_answer() -> None:
    daemon, made = Daemon(), list[int]()
    daemon.metrics.add(lambda: lambda _: made.append(1))
    answers = await asyncio.gather(*(daemon.metrics.answer() for _ in range(20)))
    assert len(set(answers)) == 1
    assert len(made) == 1


async def test_an_answer_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "ANSWER_S", 0.05)
    daemon, going_on, turns = Daemon(), threading.Event(), list[int]()
    # It ends by itself, so that a loop that it holds up fails the test and does not hang it.

    def hang(_rows: Rows) -> None:
        going_on.wait(2.0)

    daemon.metrics.add(lambda: hang)

    async def loop() -> None:
        while not going_on.is_set():
            turns.append(1)
            await asyncio.sleep(0)

    beside = asyncio.create_task(loop())
    try:
        for _ in range(2):
            with pytest.raises(Unreachable, match=r"not ready after 0\.05 s"):
                await daemon.metrics.answer()
        assert len(turns) > 10
    finally:
        going_on.set()
        await beside
    await until(lambda: daemon.metrics._answer is not None and daemon.metrics._answer.done())
    assert b"tfsup_build_info" in await daemon.metrics.answer()


async def test_requests_are_timed_and_failed_ones_counted() -> None:
    daemon = Daemon()

    async def fails() -> None:
        raise StoreUnreachable("away")

    async def works() -> str:
        return "read"

    assert await daemon.metrics.store.wait("read", works()) == "read"
    with pytest.raises(StoreUnreachable):
        await daemon.metrics.store.wait("list", fails())
    found = await daemon.samples()
    assert found["tfsup_store_request_duration_seconds_count[('operation', 'read')]"] == 1
    assert found["tfsup_store_request_duration_seconds_count[('operation', 'list')]"] == 1
    name = "tfsup_store_request_failures_total"
    assert {key: value for key, value in found.items() if key.startswith(name)} == {
        f"{name}[('operation', 'list'), ('reason', 'unreachable')]": 1
    }


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CoordinationUnreachable("secret"), "unreachable"),
        (CoordinationFull("secret"), "full"),
        (UserError("secret"), "other"),
    ],
)
def test_a_failure_is_named_by_its_kind_alone(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


def test_the_client_library_is_loaded_when_somebody_asks() -> None:
    loaded = "import sys, supervisor.main, agent.main; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
