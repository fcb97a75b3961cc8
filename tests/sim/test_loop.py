"""The virtual loop: time, and processes that are frozen or dead."""

import asyncio

import pytest

from chaos.sim.cluster.loop import Deadlock, SimProcess, TooManySteps, VirtualLoop


async def count(log: list[float | str]) -> None:
    loop = asyncio.get_running_loop()
    try:
        while True:
            await asyncio.sleep(1.0)
            log.append(loop.time())
    finally:
        log.append("cleaned up")


def run_counter(after_s: float, action: str) -> list[float | str]:
    loop, process = VirtualLoop(), SimProcess("counter")
    log: list[float | str] = []

    async def story() -> None:
        loop.begin(process, count(log))
        await asyncio.sleep(after_s)
        if action == "kill":
            loop.kill(process)
        else:
            loop.freeze(process)
        await asyncio.sleep(3.2)
        log.append("thaw")
        loop.thaw(process)
        await asyncio.sleep(1.5)

    loop.run_until_complete(story())
    seen = list(log)
    loop.close()
    return seen


def test_a_frozen_process_does_nothing_until_it_thaws_and_then_what_was_due() -> None:
    assert run_counter(2.5, "freeze") == [1.0, 2.0, "thaw", pytest.approx(5.7), pytest.approx(6.7)]


def test_a_dead_process_never_runs_again_not_even_its_finally() -> None:
    assert run_counter(2.5, "kill") == [1.0, 2.0, "thaw"]


def test_what_others_do_for_a_frozen_process_is_seen_when_it_thaws() -> None:
    loop, process = VirtualLoop(), SimProcess("reader")
    seen: list[float] = []

    async def read(answer: asyncio.Future[str]) -> None:
        await answer
        seen.append(loop.time())

    async def story() -> None:
        answer: asyncio.Future[str] = loop.create_future()
        loop.begin(process, read(answer))
        await asyncio.sleep(0.1)
        loop.freeze(process)
        answer.set_result("early")
        await asyncio.sleep(5.0)
        loop.thaw(process)
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)

    loop.run_until_complete(story())
    loop.close()
    assert seen == [pytest.approx(5.1)]


def test_a_timeout_is_virtual() -> None:
    loop = VirtualLoop()

    async def story() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return loop.time()

    assert loop.run_until_complete(story()) == 3600.0
    loop.close()


def test_nothing_left_to_do_is_a_deadlock() -> None:
    loop = VirtualLoop()
    with pytest.raises(Deadlock):
        loop.run_until_complete(asyncio.Event().wait())
    loop.close()


def test_spinning_ends_the_run() -> None:
    loop = VirtualLoop(max_steps=1000)

    def spin() -> None:
        loop.call_soon(spin)

    spin()
    with pytest.raises(TooManySteps):
        loop.run_until_complete(asyncio.Event().wait())
    loop.close()


def test_an_exception_that_nobody_awaits_is_reported() -> None:
    loop = VirtualLoop()

    async def fail() -> None:
        raise KeyError("forgotten")

    async def story() -> None:
        loop.begin(SimProcess("failing"), fail())
        await asyncio.sleep(1)

    loop.run_until_complete(story())
    assert "forgotten" in loop.failures[0]
    loop.close()


@pytest.mark.parametrize(
    ("times_s", "then", "told"),
    [
        ((2.0, 0.0), "nothing", ["2.0 done", "2.0 heard"]),
        ((0.0, 2.0), "nothing", ["0.0 done", "2.0 heard"]),
        ((2.0, 0.0), "cancel", ["2.0 done"]),
        ((0.0, 2.0), "cancel", ["0.0 done"]),
        ((2.0, 0.0), "kill", []),
        ((2.0, 0.0), "freeze", ["3.0 done", "3.0 heard"]),
    ],
)
def test_work_in_a_thread_is_done_whether_or_not_somebody_waits(
    times_s: tuple[float, float], then: str, told: list[str]
) -> None:
    loop, process = VirtualLoop(), SimProcess("worker")
    loop.threads = lambda: times_s
    log: list[str] = []

    def say(what: str) -> None:
        log.append(f"{loop.time()} {what}")

    async def caller() -> None:
        await asyncio.to_thread(say, "done")
        say("heard")

    async def story() -> None:
        task = loop.spawn(process, caller())
        await asyncio.sleep(1.0)
        if then == "cancel":
            task.cancel()
        elif then == "kill":
            loop.kill(process)
        elif then == "freeze":
            loop.freeze(process)
        await asyncio.sleep(2.0)
        loop.thaw(process)
        await asyncio.sleep(1.0)

    loop.run_until_complete(story())
    seen = list(log)
    loop.close()
    assert seen == told
