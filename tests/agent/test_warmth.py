"""Warm or cold start of an attempt, by the ends of its task's earlier attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from agent.attempt_reports import lost_a_peer
from agent.core.desired import recipe_of
from agent.core.events import Event, Joined, LauncherSaid, Observed, Reported, SpecRead
from agent.core.instructions import Instruction, Launch, Say
from agent.core.state import AgentState, Launcher, ReportLevel
from agent.core.step import step
from agent.core.warmth import EARLY_MS
from agent.inside import protocol
from supervisor.contract.desired import Assignment, ClusterSpec, JobPhase, JobSwitch, RoleAddresses
from supervisor.contract.observed import Exit, ExitReason
from supervisor.contract.timing import FAST
from tests.agent.core import ME, ORDER, SETTINGS


@dataclass
class Task:
    """A task of one node under an etcd that always vouches for it. Its attempts live for `lives_ms`."""

    now_ms: int = 100_000
    order: Assignment = ORDER
    state: AgentState = field(default_factory=lambda: AgentState(SETTINGS, "life1", "boot", FAST.d_ms))
    blameless: bool = False
    started: list[Launch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state.launchers["L"] = Launcher(
            "L", recipe_of(ORDER, "process"), self.now_ms, "worker.0", pid=5, start_ticks=5
        )
        hello = protocol.Hello(protocol.PROTOCOL, "L", "job", 5, 5, "boot", warm=True, joins=True)
        self.take(Joined(ME, self.now_ms, adopt=True, d_ms=FAST.d_ms))
        self.take(LauncherSaid("L", hello))

    def take(self, event: Event) -> None:
        """The core and a launcher and an etcd that do at once what they are told."""
        todo: list[Event] = [event]
        while todo:
            lives = replace(self.state.launchers["L"], heard_ms=self.now_ms)
            self.state = replace(
                self.state,
                deadline_ms=self.now_ms + FAST.d_ms,
                heard_ms=self.now_ms,
                launchers={"L": lives},
            )
            self.state, done = step(self.state, [todo.pop(0)], self.now_ms)
            todo += [answer for each in done if (answer := self.answer(each)) is not None]

    def answer(self, done: Instruction) -> Event | None:
        match done:
            case Say(message=protocol.Reserve() as asked):
                return LauncherSaid("L", protocol.Reserved(asked.reservation, 20001))
            case Launch():
                self.started.append(done)
                name = str(done.assignment.attempt_id)
                return LauncherSaid("L", protocol.Started(name, 6, 6, self.now_ms, warm=done.warm))
            case _:
                return None

    def run(
        self,
        *,
        generation: int,
        attempt: int = 1,
        blameless: bool = False,
        cold: bool = False,
        joins: bool = False,
    ) -> bool:
        """Let the leader want this attempt; whether it started warm."""
        plan = f"p{generation}"
        self.order = replace(ORDER, generation=generation, attempt=attempt, plan_id=plan, joins=joins)
        switch = JobSwitch("job", "u", JobPhase.RUNNING, generation, plan, blameless=blameless, cold=cold)
        spec = ClusterSpec("job", generation, plan, (RoleAddresses("worker", ("h:20001",)),))
        self.take(Observed((self.order,), (switch,), self.now_ms))
        self.take(SpecRead(plan, spec))
        assert self.started, "it has not started"
        assert self.started[-1].assignment == self.order
        return self.started[-1].warm

    def end(self, code: int = 1, *, lives_ms: int = 5_000, step: int = -1, peer_lost: bool = False) -> None:
        """The attempt in force ends, and etcd has its report."""
        self.now_ms += lives_ms
        name = str(self.order.attempt_id)
        self.take(
            LauncherSaid("L", protocol.Exited(name, code, None, self.now_ms, "exit", confirmed_dead=True))
        )
        for serial in (ReportLevel.DEAD, ReportLevel.DRAINED):
            self.take(Reported(self.order.attempt_id, int(serial), True, step >= 0, peer_lost))


def test_a_fault_of_its_own_before_the_first_step_is_followed_by_a_cold_start() -> None:
    task = Task()
    assert task.run(generation=1)
    task.end()
    assert not task.run(generation=1, attempt=2)


def test_one_that_joins_a_running_cluster_can_do_so_only_warm() -> None:
    task = Task()
    assert task.run(generation=1)
    task.end()
    assert task.run(generation=1, attempt=2, joins=True)


GOOD_RUNS: dict[str, Callable[[Task], None]] = {
    "a step": lambda task: task.end(step=7),
    "a long life": lambda task: task.end(lives_ms=EARLY_MS),
    "a good end": lambda task: task.end(code=0),
}


@pytest.mark.parametrize("how", [*GOOD_RUNS.values(), lambda task: task.end(peer_lost=True)])
def test_other_ends_say_nothing_against_the_warm_start(how: Callable[[Task], None]) -> None:
    task = Task()
    task.run(generation=1)
    how(task)
    assert task.run(generation=1, attempt=2)


def test_what_falls_over_as_a_peer_is_killed_stays_warm_whatever_it_says() -> None:
    task = Task()
    task.run(generation=1)
    task.end()
    assert task.run(generation=2, blameless=True)
    task.end(peer_lost=True)
    assert task.run(generation=2, attempt=2), "nothing is remembered of the first"


def test_a_peers_death_does_not_excuse_an_older_fault() -> None:
    task = Task()
    task.run(generation=1)
    task.end()
    assert not task.run(generation=2)
    task.end(peer_lost=True)
    assert not task.run(generation=3, blameless=True)


def test_a_leader_of_an_earlier_release_excuses_nothing() -> None:
    task = Task()
    task.run(generation=1)
    task.end()
    assert not task.run(generation=2)


@pytest.mark.parametrize("how", GOOD_RUNS.values(), ids=GOOD_RUNS)
def test_after_a_good_run_it_is_warm_again_and_a_second_fall_is_believed(
    how: Callable[[Task], None],
) -> None:
    task = Task()
    task.run(generation=1)
    task.end()
    assert not task.run(generation=1, attempt=2)
    how(task)
    assert task.run(generation=2)
    task.end()
    assert not task.run(generation=3)
    how(task)
    assert not task.run(generation=4)


def test_what_is_known_of_a_task_ends_with_its_job() -> None:
    task = Task()
    task.run(generation=1)
    task.end()
    assert task.state.cold
    task.take(Observed((), (JobSwitch("job", "u", JobPhase.FAILED, 1, "p1"),), task.now_ms))
    assert not task.state.cold


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        ("tensorflow.python.framework.errors_impl.UnavailableError: Socket closed", True),
        ("ValueError: Socket closed", False),
    ],
)
def test_the_last_words_of_an_attempt_say_whether_a_peer_was_lost(error: str, *, lost: bool) -> None:
    tail = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n{error}\n'
    end = Exit(ExitReason.EXIT, 1, None, 0, confirmed_dead=True, tail=tail)
    assert lost_a_peer(end) is lost


def test_the_leader_may_want_a_generation_to_start_cold() -> None:
    task = Task()
    assert not task.run(generation=1, cold=True)
    task.end()
    assert task.run(generation=1, attempt=2, cold=True), "nothing warm has failed"
    task.end(step=7)
    assert task.run(generation=2)
