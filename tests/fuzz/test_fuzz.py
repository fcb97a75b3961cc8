"""Any bytes of a task, a client or a node: only declared errors, at once, and nothing is left behind."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings

from supervisor.contract import codec
from supervisor.contract.errors import UserError
from supervisor.contract.views.jobs import SubmitRequest
from tests.fuzz.mutate import json_mutated, mutated
from tests.fuzz.targets import TARGETS, Target, submitted
from tests.support.records import records

CASES, ALL_CASES = 10_000, 1_000_000
MOST_BYTES = 300_000
SHARES = sum(each.weight for each in TARGETS)


def named(target: Target) -> str:
    return target.name.replace(", ", "-").replace(" ", "_")


def run(target: Target, cases: int, directory: Path, first: int = 0) -> None:
    """Raises AssertionError that names the case; `data_of` makes its bytes again."""
    read(target, target.seeds()[0], directory, "its first seed")
    before = state(directory)
    for number in range(first, first + cases):
        data = data_of(target, number)
        read(target, data, directory, f"case {number}")
        if number % 500 == 0:
            assert state(directory) == before, f"{target.name}: something is left after case {number}"
    assert state(directory) == before, f"{target.name}: something is left"


def data_of(target: Target, number: int) -> bytes:
    choice = random.Random(f"{target.name} {number}")
    if target.is_json:
        return json_mutated(choice, target.seeds())
    return mutated(choice, target.seeds(), MOST_BYTES)


def read(target: Target, data: bytes, directory: Path, what: str) -> None:
    took_s = target.most_s
    for _ in range(3):  # the collector of garbage, or another thread, may have had its turn
        began_s = time.thread_time()
        try:
            target.read(data, directory)
        except target.says:
            pass
        except Exception as error:
            raise AssertionError(f"{target.name}, {what}: {error!r} for {data[:1500]!r}") from error
        took_s = min(took_s, time.thread_time() - began_s)
        if took_s < target.most_s:
            return
    raise AssertionError(f"{target.name}, {what} takes more than {target.most_s} s: {data[:1500]!r}")


def state(directory: Path) -> tuple[list[str], int, int]:
    """What a target may leave behind. Threads of earlier tests that have no more to do end meanwhile."""
    return (
        sorted(map(str, directory.iterdir())),
        len(list(Path("/proc/self/fd").iterdir())),
        sum(each.name not in {"code", "logs"} for each in threading.enumerate()),
    )


@pytest.mark.parametrize("target", TARGETS, ids=named)
def test_any_bytes(target: Target, tmp_path: Path) -> None:
    run(target, CASES * target.weight // SHARES, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", TARGETS, ids=named)
def test_a_million_times_any_bytes(target: Target, tmp_path: Path) -> None:
    run(target, ALL_CASES * target.weight // SHARES, tmp_path, first=CASES)


@settings(max_examples=40)
@given(records(SubmitRequest))
def test_any_job_is_refused_with_a_reason_or_decided_on(request: SubmitRequest) -> None:
    with suppress(UserError):
        submitted(codec.encode(request), Path())
