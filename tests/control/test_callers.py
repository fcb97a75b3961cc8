"""A change names who asked for it, a job knows its owner, and a node speaks for its own incarnation alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from recovery.stores.allowed import AllowedStores
from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.caller import CALLER
from supervisor.contract import codec, keys
from supervisor.contract.access import Caller, Kind, Role, Standing
from supervisor.contract.boundaries import Op
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import UserError
from supervisor.contract.job.spec import JobRecord, JobSpec
from supervisor.contract.observed import LINK_PROTOCOL, Appeal, Beat, TaskBeat
from supervisor.contract.promise import Promise, PromiseRequest, Word
from supervisor.contract.secret import Source
from supervisor.contract.views.jobs import SubmitMode, SubmitRequest
from supervisor.contract.views.nodes import CordonRequest
from supervisor.control.decide.facts import promises
from supervisor.control.decide.facts.history import job_step
from supervisor.control.decide.facts.promises import MOST_LIVES
from supervisor.control.decide.plan import Action, put
from supervisor.control.decide.snapshot import BeatSeen
from supervisor.control.decide.view import MAX_BEATS, MAX_LIVES
from supervisor.control.loop.promise_log import MAX_NODES
from tests.control.leader import Leader, other_job
from tests.control.supervisor import Supervisor
from tests.control.world import World

ALICE = Caller(Kind.USER, "alice", Standing(Role.SUBMITTER, "vision"))
OLGA = Caller(Kind.USER, "olga", Standing(Role.OPERATOR))
VICTIM, LIFE = "n1", "life-of-n1"
MINE = promises.life_of(VICTIM, LIFE)


class Noted(Leader):
    """An leader that keeps what would be told in events."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Action] = []
        self.job_service._context._event = self._note

    def _note(self, action: Action) -> tuple[Op, ...]:
        self.told.append(action)
        return ()


async def test_the_owner_of_a_job_submitted_it_and_keeps_it_when_an_operator_submits_it_again() -> None:
    leader = Leader()
    CALLER.set(ALICE)
    await leader.job_service.submissions.submit(SubmitRequest(other_job()))
    record = leader.record("other")
    assert record is not None
    assert (record.owner, record.group) == ("user:alice", "vision")
    leader = Leader()
    CALLER.set(OLGA)
    leader.end()
    await leader.job_service.submissions.submit(SubmitRequest(leader.world.spec, SubmitMode.RESUME))
    taken = leader.record("digits")
    assert taken is not None
    assert taken.owner == "user:olga", "nobody owned it"
    leader.end()
    CALLER.set(ALICE)
    await leader.job_service.submissions.submit(SubmitRequest(leader.world.spec, SubmitMode.RESUME))
    kept = leader.record("digits")
    assert kept is not None
    assert kept.owner == "user:olga"


async def test_a_job_is_submitted_into_its_owners_place_alone() -> None:
    leader = Leader()
    leader.job_service.submissions._allowed = AllowedStores(("file:///data/{owner}",))
    for uri, who, why in (
        ("file:///data/olga", ALICE, r"in no store .*\(file:///data/alice\)"),
        ("file:///data/alice", Caller(Kind.LOCAL, "uid:0"), "uid:0 is no user"),
    ):
        CALLER.set(who)
        for asked in (leader.job_service.submissions.submit, leader.job_service.submissions.validate):
            with pytest.raises(UserError, match=why):
                await asked(SubmitRequest(other_job(uri)))
    CALLER.set(ALICE)
    await leader.job_service.submissions.submit(SubmitRequest(other_job("file:///data/alice/a")))
    record = leader.record("other")
    assert record is not None
    assert record.owner == "user:alice"


async def test_a_job_in_hdfs_is_reached_as_its_owner() -> None:
    leader, opened = Leader(), list[str]()
    leader.job_service.submissions._allowed = AllowedStores(proxy_users=True)

    def open_store(uri: str) -> MemoryCheckpointStore:
        opened.append(uri)
        return leader.store

    leader.job_service.submissions._open_store = open_store
    spec = other_job("hdfs://nn:1/a")
    mounted = replace(spec, checkpoint=replace(spec.checkpoint, mode="mounted"))
    for who, job, why, field in (
        (Caller(Kind.LOCAL, "uid:0"), spec, "uid:0 is no user there", "uri"),
        (ALICE, mounted, r"proxy_users.* mounted", "mode"),
    ):
        CALLER.set(who)
        for asked in (leader.job_service.submissions.submit, leader.job_service.submissions.validate):
            with pytest.raises(UserError, match=why) as caught:
                await asked(SubmitRequest(job))
            assert caught.value.field == ("checkpoint", field)
    assert not opened
    CALLER.set(ALICE)
    await leader.job_service.submissions.submit(SubmitRequest(spec))
    record = leader.record("other")
    assert record is not None
    assert (record.hdfs_user, record.store_uri) == ("alice", "hdfs://alice@nn:1/a")
    assert set(opened) == {record.store_uri}
    assert record.spec.checkpoint.uri == "hdfs://nn:1/a", "what people are shown"


async def test_a_job_reads_data_that_its_owner_may_use_and_as_that_owner() -> None:
    leader = Leader()
    leader.job_service.submissions._allowed = AllowedStores(
        ("file:", "hdfs://nn:1/data/{owner}"), proxy_users=True
    )
    CALLER.set(ALICE)
    for uri, why in (
        ("hdfs://nn:1/data/olga", r"data\.train hdfs://nn:1/data/olga is in no store"),
        ("s3://a/b", r"data\.train 's3://a/b': its scheme is not understood"),
    ):
        for asked in (leader.job_service.submissions.submit, leader.job_service.submissions.validate):
            with pytest.raises(UserError, match=why) as caught:
                await asked(SubmitRequest(replace(other_job(), data={"train": uri})))
            assert caught.value.field == ("data", "train")
    spec = replace(other_job(), data={"train": "hdfs://nn:1/data/alice", "here": "file:///x"})
    assert leader.job_service.submissions._store_user(spec, "user:alice") == "alice"
    with pytest.raises(UserError, match=r"can never run here.* cannot mount"):
        await leader.job_service.submissions.submit(SubmitRequest(spec))


async def test_a_job_names_secrets_that_its_owner_may_use_and_who_submits_it() -> None:
    leader = Leader()
    leader.job_service.submissions.secrets.sources = {
        "alices": Source(frozenset({"user:alice"}), file="/x"),
        "visions": Source(frozenset({"group:vision"}), file="/x"),
        "all": Source(frozenset({"*"}), file="/x"),
    }
    carol = Caller(Kind.USER, "carol", Standing(Role.SUBMITTER, "vision"))

    async def tried(who: Caller, secret: str, spec: JobSpec, mode: SubmitMode = SubmitMode.NEW) -> str:
        CALLER.set(who)
        spec = replace(spec, roles=(replace(spec.roles[0], secrets={"T": secret}), *spec.roles[1:]))
        found = set()
        for asked in (leader.job_service.submissions.validate, leader.job_service.submissions.submit):
            try:
                await asked(SubmitRequest(spec, mode))
                found.add("")
            except UserError as error:
                found.add(f"{'.'.join(error.field)}: {error}")
        (text,) = found
        return text

    job = other_job()
    field = f"roles.{job.roles[0].name}.env.T"
    assert await tried(ALICE, "none", job) == (
        f"{field}: there is no secret 'none'; an operator adds it to `secrets` in the supervisors' files"
    )
    assert f"{field}: jobs of user:olga may not use the secret 'alices'" in await tried(OLGA, "alices", job)
    assert await tried(ALICE, "alices", job) == ""
    record = leader.record("other")
    assert record is not None
    assert record.spec.roles[0].secrets == {"T": "alices"}
    leader.world.write(
        put(keys.switch("other"), replace(leader.world.switch(), job="other", phase=JobPhase.STOPPED))
    )
    again = SubmitMode.RESUME
    assert "jobs of user:carol may not use the secret 'alices'" in await tried(carol, "alices", job, again)
    assert "jobs of user:olga may not use the secret 'visions'" in await tried(OLGA, "visions", job, again)
    assert await tried(carol, "visions", job, again) == ""


async def test_the_event_of_a_change_names_its_caller() -> None:
    leader = Noted()
    leader.world.start()
    CALLER.set(OLGA)
    await leader.job_service.stop("digits")
    await leader.job_service.nodes.cordon(CordonRequest("n1", "new fans"))
    assert [action.text for action in leader.told] == [
        "a stop is asked for (by user:olga)",
        "node n1 is cordoned: new fans (by user:olga)",
    ]
    assert {action.fields["by"] for action in leader.told} == {"user:olga"}


async def test_a_certificate_that_ends_is_an_event_of_nobody() -> None:
    leader = Noted()
    await leader.job_service.tell_of_certificate("agent:n1", "expires at 2026-03-11 12:00 UTC")
    (told,) = leader.told
    assert told.text.startswith(
        "the certificate of agent:n1 expires at 2026-03-11 12:00 UTC; replace its files"
    )
    assert told.fields == {"holder": "agent:n1", "state": "expires at 2026-03-11 12:00 UTC"}


def test_another_nodes_incarnation_is_not_heard_of_by_an_agents_beat() -> None:
    world = World().start()
    victim = world.agents[VICTIM]
    before = world.snapshot().nodes[VICTIM].beat
    assert before is not None
    world.view.beat("n2", victim.incarnation, BeatSeen(world.now_ms + 60_000, blocked="forged"))
    world.write(put(keys.appeal(VICTIM, "another"), Appeal(VICTIM, "another")))
    assert world.snapshot().nodes[VICTIM].beat == before, "also where its state is made again"


def test_made_up_incarnations_of_one_node_crowd_out_no_other_nodes_beats() -> None:
    world = World().start()
    before = world.snapshot().nodes[VICTIM].beat
    assert before is not None
    for number in range(MAX_BEATS + 1):
        world.view.beat("n2", f"made-up-{number}", BeatSeen(world.now_ms))
    assert world.snapshot().nodes[VICTIM].beat == before
    assert len(world.view._beats["n2"]) == MAX_LIVES


def test_an_agent_tells_the_steps_of_tasks_on_its_own_node_alone() -> None:
    world = World().start()
    report = world.running()["worker.1"]
    attempt, node = str(report.attempt), report.node
    before = world.snapshot().nodes[node].beat
    assert before is not None
    step = job_step(world.snapshot(), world.job())
    far = TaskBeat(attempt, step=999_999, first_step=0)
    liar = world.running()["worker.0"].node  # which is asked about a task of its own
    seen = world.snapshot().nodes[liar].beat
    assert seen is not None
    assert liar != node
    forged = replace(seen, tasks={**seen.tasks, attempt: far})
    world.view.beat(liar, world.agents[liar].incarnation, forged)
    assert job_step(world.snapshot(), world.job()) == step
    true = replace(before, tasks={**before.tasks, attempt: far})
    world.view.beat(node, world.agents[node].incarnation, true)
    assert job_step(world.snapshot(), world.job()) == 999_999


def asked(word: Word, node: str, life: str, serial: int = 9) -> tuple[Word, str]:
    request = PromiseRequest(LINK_PROTOCOL, node, life, serial)
    return promises.consider(word, request, 1_000, 9_000, marked=False, released=0)


def test_another_nodes_promise_is_neither_given_up_nor_taken() -> None:
    given = Promise(VICTIM, LIFE, 3, 5_000, 0)
    word = Word("boot", promises={promises.life_of(VICTIM, LIFE): given})
    assert promises.release(word, "n2", LIFE, 9) == word
    after, _ = asked(word, "n2", LIFE)
    assert given in after.promises.values()
    assert not promises.release(word, VICTIM, LIFE, 3).promises


def test_an_agent_that_asks_with_another_nodes_incarnation_first_keeps_no_promise_from_that() -> None:
    word, refused = asked(Word("boot"), "n2", LIFE)
    assert not refused
    word, refused = asked(word, VICTIM, LIFE, serial=1)
    assert not refused
    assert {each.node for each in word.promises.values()} == {"n2", VICTIM}


def test_an_agent_cannot_have_promises_for_any_number_of_incarnations() -> None:
    word, refused = Word("boot"), ""
    for number in range(MOST_LIVES + 5):
        word, refused = asked(word, "n2", f"made-up-{number}")
    assert "hold a promise already" in refused
    assert len(word.promises) == MOST_LIVES
    assert not asked(word, "n2", "made-up-0", serial=10)[1], "one that has one may renew it"
    word, refused = asked(word, VICTIM, LIFE)
    assert not refused
    assert asked(word, VICTIM, "x" * 1_000)[1]


async def test_made_up_incarnations_crowd_out_no_other_nodes_release() -> None:
    promiser = Supervisor().daemon()._promiser
    promiser.released(VICTIM, LIFE, 9, 9)
    for number in range(MAX_NODES + 1):
        promiser.released("n2", f"made-up-{number}", 9, 9)
    assert promiser._released[VICTIM] == {LIFE: 9}


async def test_a_forged_beat_gives_up_no_promise_of_another_node() -> None:
    daemon = Supervisor().daemon()
    daemon._promiser._word = Word("boot", promises={MINE: Promise(VICTIM, LIFE, 3, 10**9, 0)})
    daemon.on_beat(Beat(LINK_PROTOCOL, "n2", LIFE, 1, asked=9, released=9))
    daemon._fold(await daemon._next_batch())
    assert MINE in daemon._promiser.word.promises
    daemon.on_beat(Beat(LINK_PROTOCOL, VICTIM, LIFE, 1, asked=9, released=9))
    daemon._fold(await daemon._next_batch())
    assert MINE not in daemon._promiser.word.promises


def test_a_job_of_a_release_without_owners_is_nobodys() -> None:
    record = Leader().record("digits")
    assert record is not None
    body = json.loads(codec.encode(replace(record, owner="user:alice", group="vision")))
    del body["owner"], body["group"]
    assert codec.decode(JobRecord, json.dumps(body).encode()) == record
    assert (record.owner, record.group) == ("", "")
