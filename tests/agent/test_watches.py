"""An agent follows the switches of jobs that it has something of, and of no others."""

from __future__ import annotations

from agent.daemon import AgentDaemon
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.desired import Assignment, JobPhase, JobSwitch
from supervisor.contract.ids import TaskId
from supervisor.control.decide.plan import put
from tests.agent.daemon import RECORD, Agent, Disk, NoCheckpoints, registered
from tests.support.waiting import until


def write_switch(agent: Agent, job: str, phase: JobPhase = JobPhase.WAITING, generation: int = 0) -> None:
    switch = JobSwitch(job, f"uuid-{job}", phase, generation)
    assert agent.store.commit([], [put(keys.switch(job), switch)], []).succeeded


def assign(agent: Agent, job: str) -> None:
    order = Assignment(job, f"uuid-{job}", "worker", 0, 1, "p", "n1", "life1", 1, ("x",), "/")
    key = keys.assignment("n1", TaskId(job, "worker", 0), "p")
    assert agent.store.commit([], [put(key, order)], []).succeeded


def unassign(agent: Agent, job: str) -> None:
    key = keys.assignment("n1", TaskId(job, "worker", 0), "p")
    assert agent.store.commit([], [Delete(key)], []).succeeded


def seen(daemon: AgentDaemon) -> dict[str, JobSwitch]:
    view = daemon.state.view
    return {each.job: each for each in view.switches} if view is not None else {}


def assigned(daemon: AgentDaemon) -> set[str]:
    view = daemon.state.view
    return {each.job for each in view.assignments} if view is not None else set()


async def test_the_switch_of_an_assigned_job_is_seen_and_that_of_others_is_not() -> None:
    agent = Agent()
    for job in ("a", "ab", "b"):
        write_switch(agent, job)
    async with registered(agent) as daemon:
        await until(lambda: daemon.state.view is not None)
        assert seen(daemon) == {}
        assign(agent, "a")
        await until(lambda: "a" in seen(daemon))
        write_switch(agent, "a", JobPhase.RUNNING, 1)
        await until(lambda: seen(daemon)["a"].phase is JobPhase.RUNNING)
        assert seen(daemon).keys() == {"a"}


async def test_no_assignment_is_seen_before_its_switch_is() -> None:
    agent = Agent()
    write_switch(agent, "a")
    async with registered(agent) as daemon:
        await until(lambda: daemon.state.view is not None)
        assign(agent, "a")
        await until(lambda: assigned(daemon) == {"a"})
        assert seen(daemon).keys() == {"a"}


async def test_a_switch_is_followed_until_nothing_of_its_job_is_left() -> None:
    agent = Agent()
    write_switch(agent, "a")
    async with registered(agent) as daemon:
        assign(agent, "a")
        await until(lambda: bool(daemon.state.launchers))
        unassign(agent, "a")
        assign(agent, "b")
        write_switch(agent, "b")
        await until(lambda: assigned(daemon) == {"b"})
        assert "a" in seen(daemon), "its launcher is still here"


async def test_the_switch_of_an_attempt_of_an_earlier_life_is_seen_first() -> None:
    agent = Agent(Disk(RECORD))
    switch = JobSwitch("job", "u", JobPhase.RUNNING, 1, "p")
    assert agent.store.commit([], [put(keys.switch("job"), switch)], []).succeeded
    async with registered(agent) as daemon:
        await until(lambda: daemon.state.view is not None)
        assert seen(daemon) == {"job": switch}


async def test_files_of_an_earlier_life_are_cleaned_with_their_job() -> None:
    cleaned: list[tuple[str, str, bool]] = []

    class Left(NoCheckpoints):
        async def found(self) -> frozenset[str]:
            return frozenset({"uuid-a"})

        async def clean(self, job: str, job_uuid: str, generation: int, *, ended: bool) -> None:
            cleaned.append((job, job_uuid, ended))

    agent = Agent(checkpoints=Left())
    write_switch(agent, "a", JobPhase.RUNNING, 3)
    write_switch(agent, "b")
    async with registered(agent) as daemon:
        await until(lambda: "a" in seen(daemon))
        assert seen(daemon).keys() == {"a"}
        assert not cleaned
        write_switch(agent, "a", JobPhase.SUCCEEDED, 3)
        await until(lambda: cleaned == [("a", "uuid-a", True)])
