"""Etcd away for long, on promises, with every other trouble around it; in calm runs no task may end."""

from __future__ import annotations

import re

import pytest

from tests.sim.command import simulate

BATCH = 4
ALL_BATCHES = 80


def run_batch(number: int) -> None:
    first = 1 + number * BATCH
    done = simulate("--outage", "--seeds", f"{first}..{first + BATCH - 1}", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    told = {what: int(count) for count, what in re.findall(r"(\d+) ([a-zA-Z ]+)", done.stdout)}
    # It bit: every outage was long enough for agents to ask.
    assert told["promises given"] > 12 * BATCH


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ALL_BATCHES))
def test_training_goes_on_without_etcd_and_no_two_generations_take_effect(number: int) -> None:
    run_batch(number)
