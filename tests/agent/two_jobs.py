"""An agent's core with two jobs of one task each, and what answers it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from agent.core.events import (
    BeatSeen,
    Drained,
    Event,
    Fenced,
    Heard,
    LauncherSaid,
    Observed,
    OutputsReady,
    Reported,
    Spawned,
    SpecRead,
    Tick,
    Written,
)
from agent.core.instructions import (
    Drain,
    Fence,
    Instruction,
    Launch,
    PrepareOutputs,
    ReadSpec,
    Report,
    Say,
    Spawn,
    Write,
)
from agent.inside import protocol
from supervisor.contract.desired import Assignment, ClusterSpec, JobSwitch, RoleAddresses
from supervisor.contract.observed import AttemptReport, Prepared
from tests.agent.core import ORDER, RUNNING, SPEC, Core

PORTS = {"p1": 20_000, "p2": 20_001, "p3": 20_002}
OTHER = replace(ORDER, job="other", job_uuid="v", plan_id="p2")


class TwoJobs(Core):
    """An agent with two jobs of one task each, around which all do what they are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: dict[str, AttemptReport] = {}
        self.words: dict[str, Prepared] = {}
        self.seen = 0

    def see_both(self, base: JobSwitch) -> TwoJobs:
        """Show the agent the assignments and switches of both jobs, and answer it for a while."""
        plans = {each.plan_id: each.plan_id if base is RUNNING else "" for each in (ORDER, OTHER)}
        switches = [
            replace(base, job=each.job, job_uuid=each.job_uuid, plan_id=plans[each.plan_id])
            for each in (ORDER, OTHER)
        ]
        self.feed(Observed((ORDER, OTHER), tuple(switches), self.now_ms))
        return self.live()

    def live(self, rounds: int = 15) -> TwoJobs:
        """Answer whatever is asked, for a while."""
        for _ in range(rounds):
            self.now_ms += 200
            self.feed(BeatSeen(self.now_ms), Heard(self.now_ms), Tick())
            for launcher in list(self.state.launchers.values()):
                if launcher.connected:
                    pull = protocol.Pull(self.now_ms, self.state.life, None)
                    self.feed(LauncherSaid(launcher.launcher_id, pull))
            asked, self.seen = self.said[self.seen :], len(self.said)
            for instruction in asked:
                self.feed(*self.answers(instruction))
        return self

    def answers(self, asked: Instruction) -> Iterator[Event]:
        match asked:
            case Spawn():
                yield Spawned(asked.launcher_id, 100, 1)
                hello = protocol.Hello(1, asked.launcher_id, asked.recipe.job, 100, 1, "boot", True)
                yield LauncherSaid(asked.launcher_id, hello)
            case Fence():
                yield Fenced(asked.launcher_id, 0)
            case ReadSpec():
                yield SpecRead(asked.plan_id, spec_of(asked.plan_id))
            case PrepareOutputs():
                yield OutputsReady(asked.attempt)
            case Drain():
                yield Drained(asked.attempt, asked.look)
            case Report():
                self.reports[asked.record.job] = asked.record
                yield Reported(asked.record.attempt, asked.serial, ok=True)
            case Write():
                if isinstance(asked.record, Prepared):
                    self.words[asked.record.job] = asked.record
                yield Written(asked.tag, ok=True)
            case Launch():
                started = protocol.Started(str(asked.assignment.attempt_id), 101, 1, self.now_ms, True)
                yield LauncherSaid(asked.launcher_id, started)
            case Say(launcher_id, protocol.Reserve() as reserve):
                port = PORTS[reserve.reservation.partition(".")[0]]
                yield LauncherSaid(launcher_id, protocol.Reserved(reserve.reservation, port))
            case _:
                pass

    def runs(self, order: Assignment) -> bool:
        attempt = self.state.attempts.get(order.attempt_id)
        return attempt is not None and attempt.pid > 0 and attempt.end is None


def spec_of(plan_id: str) -> ClusterSpec:
    job = OTHER.job if plan_id == OTHER.plan_id else ORDER.job
    return replace(SPEC, job=job, plan_id=plan_id, roles=(RoleAddresses("worker", (f"h:{PORTS[plan_id]}",)),))
