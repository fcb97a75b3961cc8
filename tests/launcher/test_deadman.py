"""Rule 4's arithmetic: no sequence of events lets an attempt run past stamp + grant."""

from hypothesis import given
from hypothesis import strategies as st

from agent.inside.launcher.deadman import DeadMan

_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["pull", "answer", "late", "disconnect"]),
        st.integers(0, 500),
        st.integers(-200, 3_000),
        st.integers(0, 50),
    ),
    max_size=60,
)


@given(_EVENTS)
def test_the_deadline_is_always_a_sent_stamp_plus_its_own_grant(
    events: list[tuple[str, int, int, int]],
) -> None:
    deadman, now_ms = DeadMan(), 1_000
    stamps: list[int] = []
    allowed: set[int] = set()
    for what, passes_ms, remaining_ms, back in events:
        now_ms += passes_ms
        due = deadman.next_pull_ms(100)
        if what == "pull" and due is not None and now_ms >= due:
            deadman = deadman.pulled(now_ms)
            assert now_ms not in stamps
            stamps.append(now_ms)
        elif what == "answer" and deadman.in_flight_ms is not None:
            allowed.add(deadman.in_flight_ms + remaining_ms)
            deadman = deadman.granted(deadman.in_flight_ms, remaining_ms)
        elif what == "late" and stamps:
            stamp = stamps[-1 - back % len(stamps)]
            if stamp != deadman.in_flight_ms:
                assert deadman.granted(stamp, remaining_ms) == deadman
        elif what == "disconnect":
            deadman = deadman.disconnected(running=True)
        assert deadman.deadline_ms is None or deadman.deadline_ms in allowed
        assert deadman.expired(now_ms) == (deadman.deadline_ms is None or now_ms >= deadman.deadline_ms)


def test_one_pull_in_flight_and_the_next_after_the_answer() -> None:
    asked = DeadMan().pulled(1_000)
    assert asked.next_pull_ms(250) is None
    assert asked.granted(1_000, 900).next_pull_ms(250) == 1_250
    assert asked.disconnected(running=True).next_pull_ms(250) == 1_250


def test_a_late_answer_gives_no_more_than_an_early_one() -> None:
    deadman = DeadMan().pulled(1_000).granted(1_000, 900)
    assert deadman.deadline_ms == 1_900
    assert not deadman.expired(1_899)
    assert deadman.expired(1_900)


def test_without_any_grant_nothing_may_run() -> None:
    assert DeadMan().expired(0)
    assert DeadMan().pulled(5).expired(5)


def test_an_agent_that_leaves_takes_the_idle_grant_with_it() -> None:
    held = DeadMan().pulled(1_000).granted(1_000, 900)
    assert held.disconnected(running=False).expired(1_001)
    assert not held.disconnected(running=True).expired(1_001)


def test_a_shorter_grant_shortens() -> None:
    held = DeadMan().pulled(1_000).granted(1_000, 900).pulled(1_100).granted(1_100, -1)
    assert held.expired(1_100)
