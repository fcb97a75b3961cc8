"""The inequality of docs/design.md ("Time") that rule 3 rests on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.contract.errors import UserError
from supervisor.contract.timing import DEFAULT, FAST, PROFILES, Timing

PARTS = (
    "beat_ms",
    "pull_ms",
    "rpc_deadline_ms",
    "etcd_failover_ms",
    "agent_restart_ms",
    "kill_time_ms",
    "drift_ms",
)


@pytest.mark.parametrize("timing", PROFILES.values(), ids=PROFILES)
def test_the_profiles_hold(timing: Timing) -> None:
    assert timing.check() is timing
    assert timing.suspect_ms > 2 * timing.beat_ms
    assert timing.reserve_ms < timing.d_ms


def test_the_profiles_keep_what_the_design_promises() -> None:
    assert (FAST.d_ms, FAST.suspect_ms, FAST.leader_lease_s) == (4_000, 800, 1)
    assert (DEFAULT.d_ms, DEFAULT.suspect_ms) == (12_000, 3_000)


@given(values=st.tuples(*(st.integers(0, 10_000) for _ in PARTS)), d_ms=st.integers(0, 60_000))
def test_check_is_the_inequality_of_the_design(values: tuple[int, ...], d_ms: int) -> None:
    beat, pull, rpc, failover, restart, kill, drift = values
    timing = replace(
        FAST,
        d_ms=d_ms,
        beat_ms=beat,
        pull_ms=pull,
        rpc_deadline_ms=rpc,
        etcd_failover_ms=failover,
        agent_restart_ms=restart,
        kill_time_ms=kill,
        drift_ms=drift,
    )
    holds = beat + pull + max(2 * rpc + failover, restart + rpc) + kill + drift <= d_ms
    if holds:
        assert timing.check() is timing
        return
    with pytest.raises(UserError, match=f"{timing.worst_case_ms} ms is more than D = {d_ms} ms"):
        timing.check()


@pytest.mark.parametrize("part", PARTS)
def test_no_part_may_grow_past_the_slack(part: str) -> None:
    slack_ms = FAST.d_ms - FAST.worst_case_ms
    grown = replace(FAST, **{part: getattr(FAST, part) + slack_ms + 2 * FAST.rpc_deadline_ms + 2_000})
    with pytest.raises(UserError, match="raise D"):
        grown.check()
