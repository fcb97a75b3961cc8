"""Rule 4 on real processes: until when an attempt runs, by the kernel's truth, and who may extend it."""

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent.inside import protocol
from agent.inside.clock import now_ms
from agent.inside.processes import fence
from tests.launcher.harness import Agent, Rig, launcher, wait_for
from tests.support.steady import on_a_steady_machine

# What a kill may take here, on a machine that has much else to do. What must not save an attempt would do so
# for longer.
KILL_TIME_MS = 4_000


class Death:
    """The time of a process's death, seen through a pidfd by a thread of its own."""

    def __init__(self, pid: int) -> None:
        self.at_ms = 0
        self._fd = os.pidfd_open(pid)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        select.select([self._fd], [], [], 30)
        self.at_ms = now_ms()
        os.close(self._fd)

    def wait_ms(self) -> int:
        return wait_for("death", lambda: self.at_ms, 20)


@contextmanager
def sleeping(
    linger_ms: int = 30_000, grant_ms: int = 600, first_ms: int = 60_000
) -> Iterator[tuple[Rig, Agent, str, Death]]:
    """A launcher whose attempt sleeps, under an agent that grants 600 ms at a time once it runs."""
    with launcher(linger_ms=linger_ms) as rig, Agent(rig.socket_path, grant_ms=first_ms) as agent:
        attempt = rig.start(agent, "sleep", "1000")
        death = Death(agent.expect(protocol.Started).pid)
        agent.grant_ms = grant_ms
        agent.expect(protocol.Pull, lambda pull: pull.stamp_ms + grant_ms in agent.deadlines_ms)
        yield rig, agent, attempt, death


def assert_died_in_time(agent: Agent, died_ms: int) -> None:
    """At the deadline of the last answer; of the one before, where the last came too late to count."""
    before, last = agent.deadlines_ms[-2:]
    assert min(before, last) <= died_ms <= last + KILL_TIME_MS


def test_while_pulls_are_answered_it_runs_on() -> None:
    with sleeping(grant_ms=2_000) as (_, agent, attempt, death):
        first = agent.deadlines_ms[-1]
        agent.grant_ms = 60_000
        agent.expect(protocol.Pull, lambda pull: pull.attempt == attempt and pull.stamp_ms > first + 500)
        assert death.at_ms == 0


def test_an_agent_that_falls_silent_costs_the_attempt_at_its_deadline() -> None:
    with sleeping() as (_, agent, attempt, death):
        agent.grant_ms = None
        died = death.wait_ms()
        assert_died_in_time(agent, died)
        pulls = [pull for pull in agent.all(protocol.Pull) if pull.attempt == attempt]
        # The last pull was not answered, and no other was sent while it was in flight.
        assert pulls[-1].stamp_ms + 600 not in agent.deadlines_ms
        assert pulls[-2].stamp_ms + 600 in agent.deadlines_ms
        exited = agent.expect(protocol.Exited)
        assert (exited.reason, exited.signal, exited.confirmed_dead) == ("deadline", signal.SIGKILL, True)


def test_an_agent_that_dies_costs_the_attempt_at_its_deadline() -> None:
    with sleeping() as (rig, agent, _attempt, death):
        agent.close()
        assert_died_in_time(agent, death.wait_ms())
        (record,) = wait_for("exit record", lambda: list((rig.root / "state" / "exits").glob("*.json")))
        assert b'"deadline"' in record.read_bytes()


@on_a_steady_machine
def test_a_late_answer_gives_what_an_early_one_had_given() -> None:
    with sleeping() as (_, agent, _attempt, death):
        agent.grant_ms = None
        wait_for("silence", lambda: now_ms() - agent.all(protocol.Pull)[-1].stamp_ms > 300)
        stamp = agent.all(protocol.Pull)[-1].stamp_ms
        agent.send(protocol.Grant(stamp, 600, agent.name))
        died = death.wait_ms()
        assert stamp + 600 <= died <= stamp + 600 + KILL_TIME_MS


@on_a_steady_machine
def test_answers_to_other_stamps_and_of_other_incarnations_count_for_nothing() -> None:
    with sleeping() as (_, agent, _attempt, death):
        agent.grant_ms = None
        wait_for("silence", lambda: now_ms() - agent.all(protocol.Pull)[-1].stamp_ms > 150)
        pulls = agent.all(protocol.Pull)
        for stamp, name in (
            (pulls[-2].stamp_ms, agent.name),
            (now_ms(), agent.name),
            (pulls[-1].stamp_ms, "x"),
        ):
            agent.send(protocol.Grant(stamp, 60_000, name))
        assert death.wait_ms() <= pulls[-1].stamp_ms + 600 + KILL_TIME_MS


def test_a_grant_of_nothing_kills_at_once() -> None:
    with sleeping(grant_ms=60_000) as (_, agent, _attempt, death):
        agent.grant_ms = 0
        asked = now_ms()
        assert death.wait_ms() - asked < 50 + KILL_TIME_MS


def test_nothing_starts_without_a_grant() -> None:
    with launcher() as rig, Agent(rig.socket_path, grant_ms=None) as agent:
        attempt = rig.start(agent, "sleep", "1000")
        agent.expect(protocol.Pull)
        agent.send(protocol.Kill(attempt))
        assert agent.expect(protocol.StartFailed).reason == "killed before it was started"
        assert not agent.all(protocol.Started)
    with launcher() as rig, Agent(rig.socket_path, grant_ms=-5) as agent:
        rig.start(agent, "sleep", "1000")
        assert agent.expect(protocol.StartFailed).reason == "the agent grants no time"


@on_a_steady_machine
def test_a_launcher_frozen_past_its_deadline_kills_as_soon_as_it_thaws() -> None:
    with sleeping() as (rig, agent, _attempt, death):
        agent.grant_ms = None
        wait_for("silence", lambda: now_ms() - agent.all(protocol.Pull)[-1].stamp_ms > 150)
        rig.process.send_signal(signal.SIGSTOP)
        stamp = agent.all(protocol.Pull)[-1].stamp_ms
        wait_for("passing of the deadline", lambda: now_ms() > stamp + 900)
        # A generous answer waits in the socket when it thaws; it must not save the attempt.
        agent.send(protocol.Grant(stamp, 60_000, agent.name))
        assert death.at_ms == 0
        thawed = now_ms()
        rig.process.send_signal(signal.SIGCONT)
        assert death.wait_ms() - thawed <= KILL_TIME_MS
        assert agent.expect(protocol.Exited).reason == "deadline"


def test_a_successor_finds_the_attempt_running_and_extends_it() -> None:
    with sleeping(grant_ms=4_000) as (rig, agent, attempt, death):
        started = agent.expect(protocol.Started)
        agent.close()
        with Agent(rig.socket_path, name="inc2") as successor:
            hello = successor.expect(protocol.Hello)
            assert hello.attempt == protocol.RunningAttempt(
                attempt, started.pid, started.start_ticks, None, "inc1", takes_addresses=started.warm
            )
            process = fence.read_process(started.pid)
            assert process is not None
            assert process.start_ticks == started.start_ticks
            later = agent.deadlines_ms[-1] + 100
            pull = successor.expect(protocol.Pull, lambda pull: pull.stamp_ms > later)
            assert (pull.attempt, pull.incarnation) == (attempt, "inc1")
            assert death.at_ms == 0


def test_exits_that_nobody_acknowledged_are_in_every_hello() -> None:
    with launcher() as rig:
        with Agent(rig.socket_path) as agent:
            rig.start(agent, "false")
            exited = agent.expect(protocol.Exited)
        with Agent(rig.socket_path, name="inc2") as second:
            assert second.expect(protocol.Hello).exits == (exited,)
            second.send(protocol.AckExit(exited.attempt))
            assert rig.run(second, "true").code == 0
        with Agent(rig.socket_path, name="inc3") as third:
            assert third.expect(protocol.Hello).exits == ()


def test_a_start_dies_with_the_connection_that_brought_it() -> None:
    with launcher() as rig:
        with Agent(rig.socket_path, grant_ms=None) as agent:
            rig.start(agent, "true")
            agent.expect(protocol.Pull)
        with Agent(rig.socket_path, name="inc2") as second:
            assert second.expect(protocol.Hello).attempt is None
            wait_for("grants", lambda: len(second.all(protocol.Pull)) >= 3)
            assert rig.run(second, "true").code == 0
            assert len(second.all(protocol.Started)) == 1


def test_a_refused_launcher_goes_on_until_its_deadline() -> None:
    with sleeping() as (rig, agent, _attempt, death):
        agent.close()
        with Agent(rig.socket_path, name="inc2", refuse=True) as stranger:
            assert_died_in_time(agent, death.wait_ms())
            assert not stranger.all(protocol.Pull)


@on_a_steady_machine
def test_a_launcher_that_nobody_wants_leaves_after_linger() -> None:
    # It stays for the linger after the longest time that it was granted.
    with sleeping(linger_ms=1_500, first_ms=600) as (rig, agent, _attempt, death):
        agent.close()
        died = death.wait_ms()
        assert rig.process.wait(20) == 0
        assert 1_000 <= now_ms() - died <= 1_500 + KILL_TIME_MS


@on_a_steady_machine
def test_an_idle_launcher_stays_while_it_is_granted_time_and_leaves_when_not() -> None:
    with launcher(linger_ms=1_000) as rig:
        with Agent(rig.socket_path, grant_ms=500) as agent:
            first = agent.expect(protocol.Pull).stamp_ms
            agent.expect(protocol.Pull, lambda pull: pull.stamp_ms > first + 2_000)
            assert rig.process.poll() is None
        assert rig.process.wait(20) == 0
        assert now_ms() - agent.deadlines_ms[-2] >= 990


@pytest.mark.parametrize("garbage", [b"nonsense\n", b"x" * (protocol.MAX_LINE_BYTES + 2)])
def test_an_agent_that_talks_nonsense_is_left_and_looked_for_again(garbage: bytes) -> None:
    with sleeping(grant_ms=60_000) as (_rig, agent, _attempt, death):
        hellos = len(agent.all(protocol.Hello))
        assert agent._peer is not None
        with suppress(OSError):  # it may be left before the last of it is sent
            agent._peer.sendall(garbage)
        wait_for("new hello", lambda: len(agent.all(protocol.Hello)) > hellos)
        assert agent.all(protocol.Hello)[-1].attempt is not None
        assert death.at_ms == 0


def test_a_socket_with_a_long_path_is_reached(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 200)
    directory.mkdir()
    fd = os.open(directory, os.O_PATH)
    try:
        with (
            Agent(Path(f"/proc/self/fd/{fd}/agent.sock")) as agent,
            launcher(socket=str(directory / "agent.sock")) as rig,
        ):
            assert rig.run(agent, "true").code == 0
    finally:
        os.close(fd)
