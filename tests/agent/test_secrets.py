"""Secrets in the agent: asked for before a start, never without them, masked in what commands print."""

from __future__ import annotations

import base64
import json
import os
import signal
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from agent.boundaries import LastWords
from agent.core import secrets
from agent.core.events import Event, LauncherGone, Observed, SecretsFetched, SpecRead, Tick, Written
from agent.core.instructions import Fence, FetchSecrets, Instruction, Launch, Write
from agent.core.saved.adopt import record_of, restore
from agent.core.saved.record import AgentRecord
from agent.core.state import AgentState, Attempt
from agent.effects import Effects
from agent.inside import protocol
from agent.inside.launcher import environ
from agent.inside.processes import fence
from agent.logs.task_logs import AttemptFiles
from agent.operate import Operator
from agent.runtimes.launcher_log import how_it_ended
from agent.secret_masks import TaskSecrets
from supervisor.adapters.clock import BootClock
from supervisor.contract import codec
from supervisor.contract.errors import NotFound, Refused
from supervisor.contract.observed import Prepared
from supervisor.contract.secret import SecretsAnswer, SecretsRequest
from supervisor.contract.timing import FAST
from supervisor.contract.views.jobs import ExecRequest
from tests.agent.core import NO_SPARES, ORDER, RUNNING, SPEC, Core, only
from tests.agent.daemon import Agent, Silence, registered
from tests.support.sinks import ListSink

TOKEN = "hf_Abcdef012345"
NEEDS = replace(ORDER, secrets={"TOKEN": "hf", "KEY": "key"})


class Waiting(Core):
    """A task whose launcher holds its port, and which is wanted to run."""

    def __init__(self, *, keeps_secrets: bool = True) -> None:
        super().__init__()
        self.prepared(NEEDS)
        self.feed(Written("prepared/p1.worker.0", ok=True))
        self.hear(
            protocol.Hello(
                1,
                self.launcher_id,
                "job",
                100,
                1,
                "boot",
                True,
                (protocol.HeldPort("p1.worker.0", 20000),),
                keeps_secrets=keeps_secrets,
            )
        )

    def wanted(self) -> list[Instruction]:
        return self.see(RUNNING, NEEDS) + self.feed(SpecRead("p1", SPEC))


def delays(said: list[Instruction]) -> list[str]:
    records = [each.record for each in only(Write, said)]
    return [each.delay for each in records if isinstance(each, Prepared)]


def test_an_attempt_starts_when_its_secrets_are_there_and_no_sooner() -> None:
    core = Waiting()
    out = core.wanted()
    assert only(FetchSecrets, out) == [
        FetchSecrets(NEEDS.attempt_id, "p1", (("KEY", "key"), ("TOKEN", "hf")))
    ]
    assert not only(Launch, core.later(100, Tick()))
    (launch,) = only(Launch, core.feed(SecretsFetched(NEEDS.attempt_id)))
    assert launch.assignment == NEEDS
    assert len(only(FetchSecrets, core.said)) == 1


def test_without_a_supervisor_it_waits_and_says_so_and_asks_again() -> None:
    core = Waiting()
    core.wanted()
    out = core.feed(SecretsFetched(NEEDS.attempt_id, delay="no supervisor that leads answers"))
    assert delays(out + core.later(1, Tick())) == ["no supervisor that leads answers"]
    assert not only(FetchSecrets, core.later(secrets.AGAIN_MS - 2, Tick()))
    core.see(RUNNING, NEEDS)
    assert len(only(FetchSecrets, core.later(1, Tick()))) == 1
    for tries in range(1, 20):
        core.feed(SecretsFetched(NEEDS.attempt_id, delay="no supervisor that leads answers"))
        wait_ms = min(secrets.AGAIN_MS << tries, secrets.MOST_AGAIN_MS)
        core.state = core.state.but(deadline_ms=core.now_ms + 10 * wait_ms)
        assert not only(FetchSecrets, core.later(wait_ms - 1, Tick()))
        assert len(only(FetchSecrets, core.later(1, Tick()))) == 1
    assert not only(Launch, core.said)
    assert only(Launch, core.feed(SecretsFetched(NEEDS.attempt_id)))


def test_a_secret_that_its_job_may_not_use_any_more_is_waited_for_without_an_attempt() -> None:
    core = Waiting()
    core.wanted()
    why = "it waits for its secrets: jobs of user:bob may not use the secret 'hf'"
    out = core.feed(SecretsFetched(NEEDS.attempt_id, delay=why)) + core.later(1, Tick())
    assert delays(out) == [why]
    assert not core.state.attempts
    core.later(secrets.AGAIN_MS, Tick())
    assert only(Launch, core.feed(SecretsFetched(NEEDS.attempt_id))), "an operator has allowed it again"


async def told_of(core: Core, code: int) -> str:
    """The reason that an agent in this state tells for the end of the launcher, which wrote a secret."""
    agent = Agent()
    agent.machine.left = LastWords(said=f"it wrote: {TOKEN}")
    daemon = agent.daemon()
    daemon._state = core.state
    return (await daemon._with_last_words(LauncherGone(core.launcher_id, how_it_ended(code), code))).reason


async def test_what_a_launcher_wrote_is_told_until_it_has_been_given_secrets() -> None:
    core = Waiting()
    core.wanted()
    assert await told_of(core, 1) == f"exit code 1; it wrote: {TOKEN}", "it cannot know any of its agent's"
    core.feed(SecretsFetched(NEEDS.attempt_id))
    assert await told_of(core, 1) == "exit code 1"
    launcher = core.state.launchers[core.launcher_id]
    alive = {(launcher.pid, launcher.start_ticks)}
    kept = record_of(core.state)
    core.state = restore(kept, NO_SPARES, "life2", "boot", core.now_ms, alive)
    assert await told_of(core, 1) == "exit code 1", "the next life of the agent knows that, too"
    core.state = restore(as_before(kept), NO_SPARES, "life2", "boot", core.now_ms, alive)
    assert await told_of(core, 1) == "exit code 1", "and takes it for so where its record does not say"


def as_before(record: AgentRecord) -> AgentRecord:
    """The record as an earlier release has written it."""
    plain = json.loads(codec.encode(record))
    for each in plain["launchers"]:
        each.pop("had_secrets", None)
    return codec.decode(AgentRecord, json.dumps(plain).encode())


@pytest.mark.parametrize("code", [0, -signal.SIGKILL])
async def test_what_a_launcher_wrote_is_no_reason_where_it_was_killed_or_has_left(code: int) -> None:
    """Warnings of its imports, which had nothing to do with it, were in every event about a lost launcher."""
    assert TOKEN not in await told_of(Waiting(), code)
    assert TOKEN in await told_of(Waiting(), 1)


def test_a_launcher_of_an_earlier_release_gives_way() -> None:
    core = Waiting(keeps_secrets=False)
    core.wanted()
    out = core.feed(SecretsFetched(NEEDS.attempt_id))
    assert not only(Launch, out)
    assert only(Fence, out)


def test_a_successor_that_has_to_repeat_a_start_asks_for_the_secrets_again() -> None:
    """The one before has asked the launcher, which does not know of the attempt."""
    core = Waiting()
    core.wanted()
    core.feed(SecretsFetched(NEEDS.attempt_id))
    assert core.attempt.asked
    core.state = core.state.but(secrets={})
    hello = protocol.Hello(1, core.launcher_id, "job", 100, 1, "boot", True, keeps_secrets=True)
    held = replace(hello, reservations=(protocol.HeldPort("p1.worker.0", 20000),))
    out = core.hear(held)
    assert not only(Launch, out)
    assert only(FetchSecrets, out)
    assert only(Launch, core.feed(SecretsFetched(NEEDS.attempt_id)))


def test_what_is_not_wanted_any_more_is_forgotten() -> None:
    core = Waiting()
    core.wanted()
    assert core.state.secrets
    core.see(RUNNING)
    assert not core.state.secrets


def test_no_text_of_a_start_or_its_answer_holds_a_value() -> None:
    start = protocol.Start("a@1.1", "i", ("x",), "/", "/d", secrets={"TOKEN": TOKEN})
    running = protocol.RunningAttempt("a@1.1", 1, 1, None, "i", secrets={"TOKEN": TOKEN})
    known = TaskSecrets()
    known.learn("a@1.1", {"TOKEN": TOKEN})
    for each in (start, running, known):
        assert TOKEN not in repr(each)
    assert protocol.decode(protocol.encode(start)) == start


def test_a_launcher_of_an_earlier_release_reads_a_start_with_secrets() -> None:
    """Readers skip fields that they do not know; and an agent reads a hello without ours."""
    assert not protocol.from_plain(
        protocol.Hello,
        {
            "protocol": 1,
            "launcher_id": "l",
            "job": "j",
            "pid": 1,
            "start_ticks": 1,
            "boot_id": "b",
            "warm": True,
        },
    ).keeps_secrets
    assert codec.decode(type(ORDER), codec.encode(ORDER)).secrets == {}


class Beside:
    """An operator's commands beside this very process, which stands for an attempt with a secret."""

    def __init__(self, root: Path) -> None:
        own = fence.read_process(os.getpid())
        assert own is not None
        name = NEEDS.attempt_id
        state = AgentState(NO_SPARES, "life", "boot", FAST.d_ms, view=Observed((NEEDS,), (RUNNING,), 1))
        state.attempts[name] = Attempt(
            name, "u", "p1", "l1", 1, "h:1", warm=True, pid=own.pid, start_ticks=own.start_ticks
        )
        (root / "l1").mkdir()
        environ.keep(str(root / "l1"), str(name), str(root), {"PATH": os.defpath})
        self.known, self.state = TaskSecrets(), state
        files = AttemptFiles(root, ListSink())
        self.operator = Operator(
            root, files, lambda: self.state, BootClock(), ListSink(), task_secrets=self.known
        )

    async def run(self, script: str) -> dict[str, bytes]:
        printed = {"out": b"", "err": b""}
        request = ExecRequest(str(NEEDS.task), ("sh", "-c", script), 20_000)
        async with aclosing(self.operator.run(request)) as chunks:
            async for chunk in chunks:
                if chunk.stream:
                    printed[chunk.stream] += base64.b64decode(chunk.data)
        return printed


async def test_secrets_are_masked_in_what_commands_print(tmp_path: Path) -> None:
    beside = Beside(tmp_path)
    beside.known.learn(str(NEEDS.attempt_id), {"TOKEN": TOKEN})
    script = f"printf hf_Abc; sleep 0.1; echo {TOKEN[6:]}; echo bad {TOKEN} >&2; printf hf_Abcd"
    assert await beside.run(script) == {"out": b"***\nhf_Abcd", "err": b"bad ***\n"}
    assert await beside.run("echo ${TOKEN-unset}") == {"out": b"unset\n", "err": b""}


async def test_no_command_runs_before_its_agent_knows_what_to_mask(tmp_path: Path) -> None:
    beside = Beside(tmp_path)
    with pytest.raises(NotFound, match="has not come to this agent yet; try again"):
        await beside.run("true")
    beside.state = AgentState(NO_SPARES, "life", "boot", FAST.d_ms, attempts=beside.state.attempts)
    with pytest.raises(NotFound, match="not known yet what a command"):
        await beside.run("true")


class Answering(Silence):
    """A supervisor that leads."""

    def __init__(self, answer: SecretsAnswer | Refused) -> None:
        self.answer = answer

    async def secrets(self, request: SecretsRequest) -> SecretsAnswer:
        if isinstance(self.answer, Refused):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "told", "known"),
    [
        (SecretsAnswer({"hf": TOKEN, "key": "Key-of-alice"}), SecretsFetched(NEEDS.attempt_id), 2),
        (
            Refused("not yours"),
            SecretsFetched(NEEDS.attempt_id, delay="it waits for its secrets: not yours"),
            0,
        ),
        *(
            (
                SecretsAnswer(values),
                SecretsFetched(
                    NEEDS.attempt_id, delay="it waits for its secrets: key is not among those that came"
                ),
                0,
            )
            for values in ({"hf": TOKEN}, {"hf": TOKEN, "key": ""})
        ),
    ],
)
async def test_what_comes_is_whole_or_waited_for(
    answer: SecretsAnswer | Refused, told: SecretsFetched, known: int
) -> None:
    agent = Agent()
    events: list[Event] = []
    async with registered(agent) as daemon:
        assert daemon._membership is not None
        outside = replace(agent.outside(), links=Answering(answer))
        effects = Effects(NO_SPARES, outside, events.append, daemon._membership)
        await effects._fetch_secrets(FetchSecrets(NEEDS.attempt_id, "p1", (("KEY", "key"), ("TOKEN", "hf"))))
    assert events == [told]
    assert len(outside.secrets.of(str(NEEDS.attempt_id))) == known
