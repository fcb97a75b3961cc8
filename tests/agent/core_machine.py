"""An agent's core as a state machine of Hypothesis: events in any order, launchers that obey the protocol."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent.core.events import (
    BeatSeen,
    Drained,
    Event,
    Evicted,
    Fenced,
    Joined,
    LauncherGone,
    LauncherLeft,
    LauncherSaid,
    MemoryFree,
    Observed,
    Reported,
    Spawned,
    SpecRead,
    StageDone,
    Tick,
    Written,
)
from agent.core.instructions import (
    Cleared,
    Drain,
    Fence,
    Instruction,
    Launch,
    ReadSpec,
    Report,
    Say,
    Spawn,
    Stage,
    Write,
)
from agent.core.pool import SPARE_BYTES
from agent.core.saved import adopt
from agent.core.state import AgentState, ReportLevel
from agent.core.step import step
from agent.inside import protocol
from supervisor.contract.desired import Assignment, ClusterSpec, JobPhase, JobSwitch, RoleAddresses, Spare
from supervisor.contract.observed import AttemptState, Incarnation, NodeResources
from supervisor.contract.timing import FAST
from tests.agent.core import SETTINGS

ROLES = (("worker", 0), ("ps", 0))
HOLD_MS = 1_000


@dataclass
class Launched:
    """A launcher as the protocol defines it."""

    launcher_id: str
    pid: int
    connected: bool = False
    welcomed: str = ""
    attempt: str | None = None
    attempt_pid: int = 0
    deadline_ms: int = -1
    pulled_ms: int = -1
    held: dict[str, int] = field(default_factory=dict)
    exits: dict[str, protocol.Exited] = field(default_factory=dict)
    inbox: deque[object] = field(default_factory=deque)


class CoreMachine(RuleBasedStateMachine):
    """Truth (what runs) is kept here; the core sees only events."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.lives = 0
        self.pids = 100
        self.ports = 20000
        self.rule3_ms = 0
        self.launchers: dict[str, Launched] = {}
        self.effects: list[Instruction] = []
        self.events: deque[Event] = deque()
        self.reports: dict[str, AttemptState] = {}
        self.assignments: dict[tuple[str, str], Assignment] = {}
        self.switch = JobSwitch("job", "u", JobPhase.WAITING, 0)
        self.planned = 0
        self.spare = False
        self.failed = False
        self.started: set[str] = set()
        self.lost = False
        self.state = self.restart_from(None)
        self.join(adopt=False)

    @initialize(rounds=st.integers(0, 5))
    def begin(self, rounds: int) -> None:
        self.plan()
        self.plan()
        self.settle(rounds)
        self.flip(tidy=False)
        self.settle(rounds)

    # The agent.

    def restart_from(self, old: AgentState | None) -> AgentState:
        self.lives += 1
        record = adopt.record_of(old) if old is not None else None
        alive = {(each.pid, 1) for each in self.launchers.values()}
        return adopt.restore(record, SETTINGS, f"life{self.lives}", "boot", self.now_ms, alive)

    def join(self, *, adopt: bool) -> None:
        succeeds = self.state.predecessors if adopt else ()
        me = Incarnation(
            "n1", self.state.life, "boot", FAST.d_ms, "h", "h:1", 1, 2, 1, NodeResources(1.0, 1), succeeds
        )
        self.lost = False
        self.feed(Joined(me, self.now_ms, adopt, FAST.d_ms))
        self.rule3_ms = self.now_ms + FAST.d_ms
        self.observe()

    def feed(self, *events: Event) -> None:
        self.state, out = step(self.state, events, self.now_ms)
        for each in out:
            if isinstance(each, Say | Launch):
                self.tell(each)
            else:
                self.effects.append(each)

    def tell(self, each: Say | Launch) -> None:
        launcher = self.launchers.get(each.launcher_id)
        if launcher is None or not launcher.connected:
            return
        if isinstance(each, Say):
            launcher.inbox.append(each.message)
            if isinstance(each.message, protocol.Grant):
                granted = each.message.stamp_ms + each.message.remaining_ms
                assert granted + FAST.reserve_ms <= self.rule3_ms, "a grant beyond the deadline"
            return
        assignment = each.assignment
        assert (assignment.plan_id, assignment.generation) == (self.switch.plan_id, self.switch.generation)
        assert self.switch.phase is JobPhase.RUNNING
        alive = [one.attempt for one in self.launchers.values() if one.attempt is not None]
        same = f"{assignment.task}@{assignment.generation}."
        others = [one for one in alive if one.startswith(same) and one != str(assignment.attempt_id)]
        assert not others, f"{assignment.attempt_id} ordered while {others} may live"
        launcher.inbox.append(
            protocol.Start(
                str(assignment.attempt_id), self.state.life, (), "/", "/d", reservation=each.reservation
            )
        )

    def observe(self) -> None:
        spares = (Spare("job", "u", "n1", "/", "x", ("json",)),) if self.spare else ()
        self.feed(Observed(tuple(self.assignments.values()), (self.switch,), self.now_ms, spares))

    # Effects.

    @precondition(lambda self: self.effects)
    @rule(pick=st.integers(0, 1000), ok=st.integers(0, 3))
    def carry_out(self, pick: int, ok: int) -> None:
        effect = self.effects.pop(pick % len(self.effects))
        match effect:
            case Spawn():
                self.pids += 1
                self.launchers[effect.launcher_id] = Launched(effect.launcher_id, self.pids)
                self.events.append(Spawned(effect.launcher_id, self.pids, 1))
            case Fence():
                self.launchers.pop(effect.launcher_id, None)
                self.events.append(Fenced(effect.launcher_id, 0))
            case ReadSpec():
                self.events.append(SpecRead(effect.plan_id, self.spec() if ok else None))
            case Write():
                self.events.append(Written(effect.tag, ok=bool(ok)))
            case Report():
                self.on_report(effect, ok=bool(ok))
            case Stage():
                self.events.append(StageDone(effect.job, effect.plan_id, effect.base))
            case Drain():
                self.events.append(Drained(effect.attempt, effect.look))
            case Cleared() if self.lost:
                self.state = replace(self.state, life=f"{self.state.life}x")
                self.join(adopt=False)
            case _:
                pass

    def on_report(self, report: Report, *, ok: bool) -> None:
        name = str(report.record.attempt)
        if ok:
            self.reports[name] = report.record.state
            if report.serial >= ReportLevel.DEAD:
                assert all(each.attempt != name for each in self.launchers.values()), "told dead, but runs"
        self.events.append(Reported(report.record.attempt, report.serial, ok))

    def spec(self) -> ClusterSpec:
        roles = tuple(RoleAddresses(role, ("h:20050",)) for role, _ in ROLES)
        return ClusterSpec("job", self.switch.generation, self.switch.plan_id, roles)

    # Launchers.

    @precondition(lambda self: self.launchers)
    @rule(pick=st.integers(0, 1000), what=st.integers(0, 11))
    def launcher_acts(self, pick: int, what: int) -> None:
        launcher = list(self.launchers.values())[pick % len(self.launchers)]
        if not launcher.connected:
            self.hello(launcher)
        elif what == 0:
            self.leave(launcher)
        elif what == 1:
            self.launchers.pop(launcher.launcher_id)
            self.events.append(LauncherLeft(launcher.launcher_id))
            self.events.append(LauncherGone(launcher.launcher_id))
        elif what == 2 and launcher.attempt is not None:
            self.end(launcher, "exit")
        elif what <= 4 and launcher.welcomed and launcher.pulled_ms < 0:
            launcher.pulled_ms = self.now_ms
            self.say(launcher, protocol.Pull(self.now_ms, launcher.welcomed, launcher.attempt))
        elif launcher.inbox:
            self.hear(launcher, launcher.inbox.popleft())

    def say(self, launcher: Launched, message: object) -> None:
        if launcher.connected:
            self.events.append(LauncherSaid(launcher.launcher_id, message))

    def leave(self, launcher: Launched) -> None:
        launcher.connected, launcher.welcomed, launcher.pulled_ms = False, "", -1
        launcher.inbox.clear()
        self.events.append(LauncherLeft(launcher.launcher_id))

    def hello(self, launcher: Launched) -> None:
        launcher.connected = True
        running = None
        if launcher.attempt is not None:
            running = protocol.RunningAttempt(launcher.attempt, launcher.attempt_pid, 1, None, "")
        held = tuple(protocol.HeldPort(name, port) for name, port in launcher.held.items())
        exits = tuple(launcher.exits.values())
        hello = protocol.Hello(
            1, launcher.launcher_id, "job", launcher.pid, 1, "boot", True, held, running, exits
        )
        self.say(launcher, hello)

    def end(self, launcher: Launched, reason: str) -> None:
        assert launcher.attempt is not None
        exited = protocol.Exited(launcher.attempt, 1, None, self.now_ms, reason, True)
        launcher.exits[launcher.attempt] = exited
        launcher.attempt = None
        self.say(launcher, exited)

    def hear(self, launcher: Launched, message: object) -> None:
        match message:
            case protocol.Welcome():
                launcher.welcomed = message.incarnation
            case protocol.Grant() if message.stamp_ms == launcher.pulled_ms:
                launcher.deadline_ms, launcher.pulled_ms = message.stamp_ms + message.remaining_ms, -1
            case protocol.Reserve():
                if message.reservation not in launcher.held:
                    self.ports += 1
                    launcher.held[message.reservation] = message.reuse or self.ports
                self.say(launcher, protocol.Reserved(message.reservation, launcher.held[message.reservation]))
            case protocol.Release():
                launcher.held.pop(message.reservation, None)
            case protocol.Start():
                self.start(launcher, message)
            case protocol.Kill():
                if launcher.attempt == message.attempt:
                    self.end(launcher, "killed")
                elif message.attempt in launcher.exits:
                    self.say(launcher, launcher.exits[message.attempt])
            case protocol.AckExit():
                launcher.exits.pop(message.attempt, None)
            case protocol.Shutdown():
                self.launchers.pop(launcher.launcher_id)
                self.events.append(LauncherLeft(launcher.launcher_id))
                self.events.append(LauncherGone(launcher.launcher_id))
            case _:
                pass

    def start(self, launcher: Launched, message: protocol.Start) -> None:
        if launcher.attempt == message.attempt:
            return
        if message.attempt in launcher.exits:
            self.say(launcher, launcher.exits[message.attempt])
            return
        refused = launcher.attempt is not None or message.incarnation != launcher.welcomed
        if refused or message.reservation not in launcher.held or launcher.deadline_ms <= self.now_ms:
            self.say(launcher, protocol.StartFailed(message.attempt, "not now"))
            return
        assert message.attempt not in self.started, "an attempt was started twice"
        self.started.add(message.attempt)
        self.pids += 1
        launcher.attempt, launcher.attempt_pid = message.attempt, self.pids
        self.say(launcher, protocol.Started(message.attempt, self.pids, 1, self.now_ms, True))

    # Time, etcd and the leader.

    @rule(count=st.integers(1, 30), together=st.integers(1, 10))
    def deliver(self, count: int, together: int = 1) -> None:
        """So many, in steps of some."""
        waiting = [self.events.popleft() for _ in range(min(count, len(self.events)))]
        for first in range(0, len(waiting), together):
            self.feed(*waiting[first : first + together])

    @rule(ms=st.sampled_from((1, 20, 100, 300, 2000)))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        for launcher in self.launchers.values():
            if launcher.attempt is not None and launcher.deadline_ms <= self.now_ms:
                self.end(launcher, "deadline")
        self.feed(Tick())

    @rule(age=st.integers(0, 500))
    def beat(self, age: int) -> None:
        sent_ms = self.now_ms - age
        if self.state.me is not None:
            self.rule3_ms = max(self.rule3_ms, sent_ms + FAST.d_ms)
            self.feed(BeatSeen(sent_ms))

    @rule(rounds=st.integers(1, 6))
    def settle(self, rounds: int) -> None:
        """Much happens, in good order: without it random orders rarely get as far as a running task."""
        for _ in range(rounds):
            self.beat(0)
            while self.effects:
                self.carry_out(0, 1)
            for launcher in list(self.launchers.values()):
                self.launcher_acts(list(self.launchers.values()).index(launcher), 4)
                while launcher.inbox and launcher.launcher_id in self.launchers:
                    self.hear(launcher, launcher.inbox.popleft())
            self.deliver(1000)
            self.wait(20)

    @rule()
    def see(self) -> None:
        self.observe()

    @precondition(lambda self: self.planned < 6)
    @rule()
    def plan(self) -> None:
        self.planned += 1
        generation = self.switch.generation + 1
        for role, index in ROLES:
            plan_id = f"p{self.planned}"
            self.assignments[plan_id, role] = Assignment(
                *("job", "u", role, index, generation, plan_id, "n1", self.state.life, 1, ("x",), "/"),
                hold_on_failure_ms=HOLD_MS,
            )
        self.observe()

    @precondition(lambda self: any(p != self.switch.plan_id for p, _ in self.assignments))
    @rule(tidy=st.booleans())
    def flip(self, tidy: bool = True) -> None:
        """To the newest plan; those that it overtook may lie about for a while."""
        plan_id = max(plan_id for plan_id, _ in self.assignments)
        generation = self.assignments[plan_id, "ps"].generation
        self.switch = JobSwitch("job", "u", JobPhase.RUNNING, generation, plan_id)
        if tidy:
            self.assignments = {key: each for key, each in self.assignments.items() if key[0] == plan_id}
        self.observe()

    @rule(role=st.sampled_from(("worker", "ps")))
    def restart_in_place(self, role: str) -> None:
        found = self.assignments.get((self.switch.plan_id, role))
        if found is not None:
            # Also a leader that does not wait for the report: the order is the agent's to keep.
            self.assignments[self.switch.plan_id, role] = replace(found, attempt=found.attempt + 1)
            self.observe()

    @rule()
    def stop(self) -> None:
        if self.switch.phase is JobPhase.RUNNING:
            self.switch = replace(self.switch, phase=JobPhase.STOPPING)
            self.observe()

    @rule(kept=st.sampled_from(((), ("worker.0",), ("worker.0", "ps.0"))))
    def fail(self, kept: tuple[str, ...]) -> None:
        """The job fails, and some of it is kept for inspection; or what is kept is let go."""
        if self.switch.phase in (JobPhase.RUNNING, JobPhase.FAILED):
            self.switch = replace(self.switch, phase=JobPhase.FAILED, held=kept)
            self.failed = True
            self.observe()

    @rule(spare=st.booleans(), free=st.sampled_from((-1, 0, SPARE_BYTES)))
    def reserve(self, spare: bool, free: int) -> None:
        self.spare = spare
        self.feed(MemoryFree(free))
        self.observe()

    @rule(adopted=st.booleans())
    def agent_dies(self, adopted: bool) -> None:
        old = self.state
        self.effects.clear()
        self.events.clear()
        for launcher in self.launchers.values():
            launcher.connected, launcher.welcomed, launcher.pulled_ms = False, "", -1
            launcher.inbox.clear()
        self.state = self.restart_from(old)
        if adopted:
            self.join(adopt=True)
        else:
            self.lost = True
            self.feed(Evicted("test"))

    # Promises.

    @invariant()
    def one_attempt_of_a_task_in_a_generation(self) -> None:
        alive = [each.attempt for each in self.launchers.values() if each.attempt is not None]
        tasks = [each.rpartition(".")[0] for each in alive]
        assert len(tasks) == len(set(tasks)), alive

    def teardown(self) -> None:
        event(f"{len(self.started)} attempts started")

    @invariant()
    def only_what_is_kept_is_stopped_where_it_is(self) -> None:
        for launcher in self.launchers.values():
            asked = [each for each in launcher.inbox if isinstance(each, protocol.Suspend)]
            assert not asked or self.failed

    @invariant()
    def nothing_runs_past_the_deadline(self) -> None:
        for launcher in self.launchers.values():
            if launcher.attempt is not None:
                assert self.now_ms <= self.rule3_ms


CoreMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=80)
