"""A change names who asked for it, a job knows its owner, and a node speaks for its own incarnation alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from recovery.stores.allowed import AllowedStores
from supervisor.adapters.caller import CALLER
from supervisor.contract import codec
from supervisor.contract.access import Caller, Kind, Role, Standing
from supervisor.contract.boundaries import Op
from supervisor.contract.errors import UserError
from supervisor.contract.job import JobRecord
from supervisor.contract.node_views import CordonRequest
from supervisor.contract.observed import LINK_PROTOCOL, Beat
from supervisor.contract.promise import Promise, PromiseRequest, Word
from supervisor.contract.views import SubmitMode, SubmitRequest
from supervisor.control import promises
from supervisor.control.plan import Action
from supervisor.control.snapshot import BeatSeen
from tests.control.world import World
from tests.guarantees.test_daemons import Supervisor
from tests.guarantees.test_desk import Office, other

ALICE = Caller(Kind.USER, "alice", Standing(Role.SUBMITTER, "vision"))
OLGA = Caller(Kind.USER, "olga", Standing(Role.OPERATOR))
VICTIM, LIFE = "n1", "life-of-n1"


class Noted(Office):
    """An office that keeps what would be told in events."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Action] = []
        self.desk._event = self._note

    def _note(self, action: Action) -> tuple[Op, ...]:
        self.told.append(action)
        return ()


@pytest.fixture(autouse=True)
def nobody_calls_afterwards() -> Iterator[None]:
    yield
    CALLER.set(None)


async def test_the_owner_of_a_job_submitted_it_and_keeps_it_when_an_operator_submits_it_again() -> None:
    office = Office()
    CALLER.set(ALICE)
    await office.desk.submit(SubmitRequest(other()))
    record = office.record("other")
    assert record is not None
    assert (record.owner, record.group) == ("user:alice", "vision")
    office = Office()
    CALLER.set(OLGA)
    office.end()
    await office.desk.submit(SubmitRequest(office.world.spec, SubmitMode.RESUME))
    taken = office.record("digits")
    assert taken is not None
    assert taken.owner == "user:olga", "nobody owned it"
    office.end()
    CALLER.set(ALICE)
    await office.desk.submit(SubmitRequest(office.world.spec, SubmitMode.RESUME))
    kept = office.record("digits")
    assert kept is not None
    assert kept.owner == "user:olga"


async def test_a_job_is_submitted_into_its_owners_place_alone() -> None:
    office = Office()
    office.desk._allowed = AllowedStores(("file:///data/{owner}",))
    for uri, who, why in (
        ("file:///data/olga", ALICE, r"in no store .*\(file:///data/alice\)"),
        ("file:///data/alice", Caller(Kind.LOCAL, "uid:0"), "uid:0 is no user"),
    ):
        CALLER.set(who)
        for asked in (office.desk.submit, office.desk.validate):
            with pytest.raises(UserError, match=why):
                await asked(SubmitRequest(other(uri)))
    CALLER.set(ALICE)
    await office.desk.submit(SubmitRequest(other("file:///data/alice/a")))
    record = office.record("other")
    assert record is not None
    assert record.owner == "user:alice"


async def test_the_event_of_a_change_names_its_caller() -> None:
    office = Noted()
    office.world.start()
    CALLER.set(OLGA)
    await office.desk.stop("digits")
    await office.desk.nodes.cordon(CordonRequest("n1", "new fans"))
    assert [action.text for action in office.told] == [
        "a stop is asked for (by user:olga)",
        "node n1 is cordoned: new fans (by user:olga)",
    ]
    assert {action.fields["by"] for action in office.told} == {"user:olga"}


def test_another_nodes_incarnation_is_not_heard_of_by_an_agents_beat() -> None:
    world = World().start()
    victim = world.agents[VICTIM]
    before = world.snapshot().nodes[VICTIM].beat
    assert before is not None
    world.view.beat("n2", victim.incarnation, BeatSeen(world.now_ms + 60_000, blocked="forged"))
    assert world.snapshot().nodes[VICTIM].beat == before


def test_another_nodes_promise_is_neither_given_up_nor_taken() -> None:
    given = Promise(VICTIM, LIFE, 3, 5_000, 0)
    word = Word("boot", promises={LIFE: given})
    assert promises.release(word, "n2", LIFE, 9) == word
    request = PromiseRequest(LINK_PROTOCOL, "n2", LIFE, 9)
    after, refused = promises.consider(word, request, 1_000, 9_000, marked=False, released=0)
    assert refused == f"that incarnation is of node {VICTIM}"
    assert after == word
    assert not promises.release(word, VICTIM, LIFE, 3).promises


async def test_a_forged_beat_gives_up_no_promise_of_another_node() -> None:
    daemon = Supervisor().daemon()
    daemon._promiser._word = Word("boot", promises={LIFE: Promise(VICTIM, LIFE, 3, 10**9, 0)})
    daemon.on_beat(Beat(LINK_PROTOCOL, "n2", LIFE, 1, asked=9, released=9))
    daemon._fold(await daemon._next_batch())
    assert LIFE in daemon._promiser.word.promises
    daemon.on_beat(Beat(LINK_PROTOCOL, VICTIM, LIFE, 1, asked=9, released=9))
    daemon._fold(await daemon._next_batch())
    assert LIFE not in daemon._promiser.word.promises


def test_a_job_of_a_release_without_owners_is_nobodys() -> None:
    record = Office().record("digits")
    assert record is not None
    body = json.loads(codec.encode(replace(record, owner="user:alice", group="vision")))
    del body["owner"], body["group"]
    assert codec.decode(JobRecord, json.dumps(body).encode()) == record
    assert (record.owner, record.group) == ("", "")
