"""Rule 11, the agent's side: a deadline that rests on promises, and how it is given up."""

from __future__ import annotations

from agent.core.events import BeatSeen, Evicted, Heard, Promised, TermsSeen, Tick
from agent.core.instructions import AskPromises, Instruction
from supervisor.contract.timing import FAST
from tests.agent.core import ORDER, Core, kills

V = 20_000
NAMES = ("s1", "s2", "s3")
DRIFT_MS = FAST.drift_ms * V // FAST.d_ms


def asked(out: list[Instruction]) -> list[AskPromises]:
    return [each for each in out if isinstance(each, AskPromises)]


def cut_off() -> tuple[Core, AskPromises]:
    """An agent with a running task that etcd answers no more, when it asks for the first time."""
    core = Core().running()
    core.feed(TermsSeen(NAMES, V))
    for _ in range(100):
        found = asked(core.later(100, Tick()))
        if found:
            return core, found[0]
    raise AssertionError("it never asks")


def answer(core: Core, ask: AskPromises, *names: str) -> list[Instruction]:
    return core.feed(*(Promised(name, ask.serial, ask.sent_ms, V) for name in names))


def test_nobody_is_asked_where_promises_are_off() -> None:
    core = Core().running()
    out = [each for _ in range(100) for each in core.later(100, Tick())]
    assert asked(out) == []


def test_it_asks_in_time_and_again() -> None:
    core, first = cut_off()
    deadline_ms = core.state.deadline_ms
    assert deadline_ms is not None
    assert core.now_ms < deadline_ms - FAST.reserve_ms - FAST.rpc_deadline_ms
    again = [each for _ in range(12) for each in asked(core.later(100, Tick()))]
    assert [each.serial for each in again] == [first.serial + 1, first.serial + 2]


def test_only_with_all_promises_tasks_run_on() -> None:
    core, ask = cut_off()
    answer(core, ask, "s1", "s2")
    assert kills(core.later(FAST.d_ms, Tick())) == [str(ORDER.attempt_id)]


def test_with_all_of_them_tasks_run_on_from_when_it_was_asked() -> None:
    core, ask = cut_off()
    core.now_ms += 300
    answer(core, ask, *NAMES)
    assert core.state.runs_until_ms == ask.sent_ms + V - DRIFT_MS
    assert not kills(core.later(FAST.d_ms, Tick()))
    core.now_ms = ask.sent_ms + V - DRIFT_MS - FAST.reserve_ms
    assert kills(core.feed(Tick())) == [str(ORDER.attempt_id)]


def test_the_oldest_promise_counts() -> None:
    core, ask = cut_off()
    answer(core, ask, "s1", "s2")
    (later,) = [each for _ in range(5) for each in asked(core.later(100, Tick()))]
    answer(core, later, "s3")
    assert core.state.runs_until_ms == ask.sent_ms + V - DRIFT_MS


def test_promises_revive_nothing() -> None:
    core, ask = cut_off()
    core.later(FAST.d_ms, Tick())
    answer(core, ask, *NAMES)
    assert core.state.promises.until_ms < 0


def test_a_launcher_is_granted_d_at_most() -> None:
    core, ask = cut_off()
    answer(core, ask, *NAMES)
    assert core.granted_ms(5) == FAST.d_ms - FAST.reserve_ms


def test_promises_are_given_up_at_the_second_read_that_counts() -> None:
    core, ask = cut_off()
    answer(core, ask, *NAMES)
    core.later(1_000, Heard(core.now_ms + 1_000), BeatSeen(core.now_ms + 900))
    book = core.state.promises
    assert (book.until_ms, book.released) == (-1, 0)
    assert core.state.runs_until_ms == core.state.deadline_ms
    core.feed(BeatSeen(core.now_ms - 50))
    assert core.state.promises.released == 0
    core.later(250, BeatSeen(core.now_ms + 250))
    assert core.state.promises.released == core.state.promises.asked


def test_an_answer_to_what_was_given_up_counts_no_more() -> None:
    core, ask = cut_off()
    core.later(100, Heard(core.now_ms + 100), BeatSeen(core.now_ms + 100))
    answer(core, ask, *NAMES)
    assert core.state.promises.until_ms < 0


def test_another_life_has_no_promises() -> None:
    core, ask = cut_off()
    answer(core, ask, *NAMES)
    core.feed(Evicted("marked lost for good"))
    assert core.state.promises.until_ms < 0
    assert core.state.promises.supervisors == NAMES


def test_a_refusal_is_told_once() -> None:
    core, ask = cut_off()
    refusal = Promised("s1", ask.serial, ask.sent_ms, 0, "it knows of a lost mark")
    assert [len(core.feed(refusal)) for _ in range(2)] == [1, 0]
