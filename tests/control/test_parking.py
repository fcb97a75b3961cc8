"""An error met while one job or node is dealt with parks that one alone; a record that is none, too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.sim.trouble import flaws
from chaos.sim.trouble.flaws import Flaw
from supervisor.api.nodes import node_list
from supervisor.api.views import explanation, shown_jobs
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete, Put
from supervisor.contract.containment import contained, described, place_of
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.errors import IncompatibleRecord, NewerRelease
from supervisor.contract.incident import Event
from supervisor.contract.job.spec import JobIntent, JobRecord, Resources, Wanted
from supervisor.contract.timing import FAST
from supervisor.control.decide import parking
from supervisor.control.decide.assess.assess import Assessments
from supervisor.control.decide.assess.stacks import to_dump
from supervisor.control.decide.checkpoints import notices
from supervisor.control.decide.facts import standing
from supervisor.control.decide.facts.claims import all_claims
from supervisor.control.decide.jobs import lifecycle
from supervisor.control.decide.nodes import node_loss
from supervisor.control.decide.plan import Action, put
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.decide.set_aside import Left
from supervisor.control.decide.snapshot import JobState, NodeState, Snapshot
from tests.control.world import World
from tests.support.builders import job_spec

OTHER = "letters"
FEW = 4
"""One in so many of the rules is tried each time, all of them by `make test-all`."""
ENDING = (
    JobPhase.STOPPING,
    JobPhase.SUCCEEDED,
    JobPhase.FAILED,
    JobPhase.STOPPED,
)

RULES = tuple(
    pytest.param(rule, marks=() if index % FEW == 0 else pytest.mark.slow)
    for index, rule in enumerate(sorted(flaws.rules()))
)


@pytest.fixture
def world() -> World:
    """Two jobs that run."""
    made = World()
    made.form_cluster()
    made.start()
    spec = replace(job_spec(), name=OTHER, checkpoint=replace(job_spec().checkpoint, uri="file:///other"))
    made.write(
        put(keys.job_record(OTHER), JobRecord(spec, "other", 0)),
        put(keys.switch(OTHER), JobSwitch(OTHER, "other", JobPhase.WAITING, 0)),
        put(keys.intent(OTHER), JobIntent()),
    )
    made.until(lambda: switch(made, OTHER).phase is JobPhase.RUNNING)
    made.until(lambda: all(each.beat is not None for each in made.snapshot().nodes.values()))
    made.parks = True
    return made


def switch(world: World, name: str = "digits") -> JobSwitch:
    return world.snapshot().jobs[name].switch.value


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_raises_for_one_job_harms_no_other(rule: str, world: World) -> None:
    """Its first call for the job and all later ones, also when the job is parked already."""
    before = switch(world, OTHER)
    flaw = Flaw(rule, "digits", lasts=True)
    undo = flaws.install(flaw)
    try:
        for _ in range(4):
            world.tick()
        snap = world.snapshot()
        # What nodes and operators ask for is answered, of both jobs.
        shown = {job.name: job.phase for job in shown_jobs(snap)}
        about: list[str] = []
        to_dump(Assessments(snap), snap.jobs, "n0", lambda job, _error: about.append(job))
        explanation(snap, "digits")
    finally:
        undo()
    assert switch(world, OTHER) == before
    assert shown[OTHER] is JobPhase.RUNNING
    assert set(about) <= {"digits"}
    assert (switch(world).parked is not None) == ("job_parked" in world.done)


def test_a_parked_job_says_where_and_ends_its_tasks(world: World) -> None:
    undo = flaws.install(Flaw("completion.judge_completion", "digits"))
    world.tick()
    undo()
    parked = switch(world)
    assert (parked.phase, parked.shown_phase) == (JobPhase.FAILED, JobPhase.PARKED)
    assert parked.parked is not None
    assert parked.parked.phase is JobPhase.RUNNING
    assert parked.parked.error == "Flawed: completion.judge_completion for digits, call 1"
    assert parked.parked.place.startswith("supervisor/control/decide/assess/assess.py:")
    world.until(lambda: all(held.value.confirmed_dead for held in world.job().attempts.values()))
    view = next(job for job in shown_jobs(world.snapshot()) if job.name == "digits")
    assert view.phase is JobPhase.PARKED
    assert "supervisorctl release digits" in view.reason


@pytest.mark.parametrize("rule", ["lifecycle.tidy", "incidents.follow_up", "invariants.check_job"])
def test_no_rule_looks_at_a_parked_job(rule: str, world: World) -> None:
    counts = Flaw(rule, "digits", at=10**9)
    undo = flaws.install(counts)
    world.tick()
    looked = counts.hits
    assert looked
    world.run(parking.park(world.job(), ValueError("odd")))
    world.tick()
    undo()
    assert counts.hits == looked


@pytest.mark.parametrize("phase", [JobPhase.RUNNING, JobPhase.FINISHING])
def test_a_released_job_begins_again_from_its_newest_checkpoint(phase: JobPhase, world: World) -> None:
    ref = world.commit(1, 100)
    world.write(put(keys.switch("digits"), replace(switch(world), phase=phase)))
    world.now_ms += 1
    world.run(parking.park(world.job(), ValueError("odd")))
    world.tick()
    world.run(parking.release(world.job()))
    world.parks = False
    world.until(lambda: switch(world).phase is JobPhase.RUNNING and switch(world).generation == 2)
    assert switch(world).base == ref
    assert switch(world).parked is None


@pytest.mark.parametrize("phase", ENDING)
def test_a_job_that_was_ending_goes_on_with_that_when_released(phase: JobPhase, world: World) -> None:
    world.write(put(keys.switch("digits"), replace(switch(world), phase=phase)))
    assert world.run(parking.park(world.job(), ValueError("odd")))
    assert world.run(parking.release(world.job()))
    assert switch(world).phase is phase


def test_a_decision_to_park_is_refused_when_the_job_has_changed(world: World) -> None:
    action = parking.park(world.job(), ValueError("odd"))
    world.write(put(keys.switch("digits"), replace(switch(world), saver="worker.1")))
    assert not world.run(action)
    assert switch(world).parked is None


def test_a_wish_from_before_does_not_start_a_released_job_twice(world: World) -> None:
    intent = world.job().intent
    world.write(put(intent.key, replace(intent.value, restart_serial=5)))
    world.run(parking.park(world.job(), ValueError("odd")))
    assert switch(world).restart_serial == 5


def test_a_node_whose_rules_raise_is_cordoned_and_all_else_is_decided(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = node_loss._suspicion

    def faulty(snap: Snapshot, picture: NodeState) -> str:
        if picture.node == "n1":
            raise ZeroDivisionError
        return rule(snap, picture)

    monkeypatch.setattr(node_loss, "_suspicion", faulty)
    world.agents["n0"].beating = False
    world.until(lambda: "node_suspected" in world.done)
    cordon = world.snapshot().nodes["n1"].cordon
    assert cordon is not None
    assert cordon.value.by_operator
    assert "ZeroDivisionError" in cordon.value.reason
    assert cordon.value.place
    assert "node_parked" in world.done


def test_an_error_that_is_about_no_job_ends_the_supervisor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_given: object) -> list[object]:
        raise ZeroDivisionError

    monkeypatch.setattr("supervisor.control.decide.jobs.incidents.forget_events", faulty)
    with pytest.raises(ZeroDivisionError):
        reconcile(world.snapshot())


@pytest.mark.parametrize("key", ["jobs/digits", "switches/digits", "intents/digits", "heads/digits"])
def test_a_job_whose_record_cannot_be_read_is_left_alone_and_said(key: str, world: World) -> None:
    before = switch(world, OTHER)
    world.write(Put(key, b"{"))
    world.decide()
    snap = world.snapshot()
    assert key in snap.aside["digits"].why
    assert switch(world, OTHER) == before
    assert "digits" not in snap.jobs
    shown = {job.name: job for job in shown_jobs(snap)}
    assert shown["digits"].phase is JobPhase.PARKED
    assert key in shown["digits"].reason
    assert explanation(snap, "digits").job.phase is JobPhase.PARKED


@pytest.mark.parametrize(
    "key",
    ["jobs/a/b", "jobs/", "switches/digits/", "events/x", "events/\u00b2", "attempts/digits", "lost/n0"],
)
def test_a_key_that_nobody_writes_is_left_alone_and_harms_nobody(key: str, world: World) -> None:
    before = world.snapshot()
    world.write(Put(key, b"{"))
    world.decide()
    after = world.snapshot()
    assert not after.aside
    assert not after.nodes_aside
    assert after.jobs.keys() == before.jobs.keys()
    assert world.view.last_event_serial() >= 0
    assert "no key of tf-supervisor's" in world.view.unreadable[key]
    world.write(Delete(key))
    world.decide()
    assert not world.view.unreadable


def test_a_record_under_the_key_of_another_job_is_no_record_of_that_job(world: World) -> None:
    other = world.snapshot().jobs[OTHER].record.value
    world.write(put(keys.job_record("digits"), other))
    snap = world.snapshot()
    assert snap.aside.keys() == {"digits"}
    assert snap.jobs[OTHER].record.key == keys.job_record(OTHER)


@pytest.mark.parametrize("key", [keys.node("n1"), keys.lost("n1", "i1"), keys.gpus("n1"), keys.cordon("n1")])
def test_nothing_is_decided_about_a_node_whose_record_cannot_be_read(key: str, world: World) -> None:
    before = {name: switch(world, name) for name in ("digits", OTHER)}
    world.write(Put(key, b"{"))
    world.switch_off("n1")
    until_ms = world.now_ms + 3 * FAST.d_ms
    world.until(lambda: world.now_ms > until_ms)
    snap = world.snapshot()
    assert {name: switch(world, name) for name in before} == before
    assert not snap.usable(snap.nodes["n1"])
    assert not snap.nodes["n1"].marks
    assert "node_parked" in world.done
    assert "node_suspected" not in world.done
    (view,) = [node for node in node_list(snap).nodes if node.node == "n1"]
    assert view.state == "aside"
    assert key in view.reason


def test_a_record_that_can_be_read_again_ends_that(world: World) -> None:
    good = next(entry for entry in world.store.read(keys.switch("digits")))
    world.write(Put(good.key, b"[]"))
    world.decide()
    world.write(Put(good.key, good.value))
    world.parks = False
    world.tick()
    assert not world.snapshot().aside
    assert switch(world).phase is JobPhase.RUNNING


def test_records_of_a_later_release_and_of_the_cluster_itself_end_the_supervisor(world: World) -> None:
    world.write(Put(keys.switch("digits"), b'{"v": 2, "record": "JobSwitch"}'))
    with pytest.raises(NewerRelease, match="upgrade this daemon"):
        world.snapshot()
    fresh = World()
    fresh.write(Put(keys.CLUSTER, b"{}"))
    with pytest.raises(IncompatibleRecord):
        fresh.snapshot()


NEWER = b'{"v": 2, "record": "Odd"}'
WRITTEN_BY_AGENTS = [each for each in keys.FAMILIES if each.shape and each.writer is not keys.Writer.LEADER]
A_KEY = {"node": "n1", "incarnation": "i1", "job": OTHER, "plan": "p", "member": "ps.0", "checkpoint": "1.1"}


@pytest.mark.parametrize("family", WRITTEN_BY_AGENTS, ids=lambda family: family.prefix)
def test_a_record_of_an_agents_later_release_ends_no_supervisor(family: keys.Family, world: World) -> None:
    """A node's puts that node aside, a job's that job; all others go on."""
    key = family.prefix + "/".join(A_KEY.get(part, part) for part in family.shape.split("/"))
    before = switch(world)
    world.write(Put(key, NEWER))
    for _ in range(3):
        world.decide()
    snap = world.snapshot()
    assert (set(snap.nodes_aside), set(snap.aside)) in (({"n1"}, set()), (set(), {OTHER}))
    assert switch(world) == before
    assert ("node_parked" if snap.nodes_aside else "job_parked") in world.done
    assert key in world.view.unreadable


def test_what_is_contained_is_told_with_its_place() -> None:
    found: list[Exception] = []
    with contained(found.append):
        put("jobs/x", object())
    assert place_of(found[0]).startswith("supervisor/control/decide/plan.py:")
    assert described(ValueError("a\nb " + 400 * "x")).startswith("ValueError: a b xxx")
    assert len(described(ValueError(400 * "x"))) == 300
    with pytest.raises(MemoryError), contained(found.append):
        raise MemoryError


@pytest.mark.parametrize("times", [1, 3])
def test_an_error_that_two_jobs_meet_parks_neither(
    times: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is in something that they share: the traceback only names the job whose turn it was."""
    rule = notices.tell

    def faulty(snap: Snapshot, job: JobState) -> list[Action]:
        broken_of_the_leader(snap)
        return rule(snap, job)

    before = {name: switch(world, name) for name in ("digits", OTHER)}
    running = set(world.snapshot().jobs["digits"].attempts)
    monkeypatch.setattr(notices, "tell", faulty)
    for _ in range(times):
        world.tick()
        assert {name: switch(world, name) for name in before} == before
    snap = world.snapshot()
    assert set(snap.jobs["digits"].attempts) == running
    assert not any(held.value.confirmed_dead for held in snap.jobs["digits"].attempts.values())
    # Level-triggered: without the error all goes on.
    monkeypatch.setattr(notices, "tell", rule)
    world.agents["n0"].beating = False
    world.until(lambda: "node_suspected" in world.done)
    assert "job_parked" not in world.done[-3:]


def broken_of_the_leader(snap: Snapshot) -> None:
    assert snap.timing is None, "odd"


def test_an_error_that_several_jobs_meet_is_told_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "tell", lambda snap, _job: broken_of_the_leader(snap))
    actions = [each for each in reconcile(world.snapshot()) if isinstance(each, Action)]
    (told,) = [each for each in actions if "parked" in each.kind]
    assert (told.job, told.ops) == ("", ())
    assert "2 jobs (digits, letters)" in told.text
    assert "the supervisor itself is taken to be wrong" in told.text


def test_a_job_that_meets_an_error_at_the_place_of_a_parked_one_is_not_parked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that all would meet, each at its own time, takes one job at most."""
    undo = flaws.install(Flaw("completion.judge_completion", "digits"))
    world.tick()
    undo()
    first, before = switch(world).parked, switch(world, OTHER)
    assert first is not None
    undo = flaws.install(Flaw("completion.judge_completion", OTHER, lasts=True))
    world.tick()
    undo()
    assert switch(world, OTHER) == before
    undo = flaws.install(Flaw("failures.find_need", OTHER))
    world.tick()
    undo()
    second = switch(world, OTHER).parked
    assert second is not None
    assert second.place != first.place


def test_a_job_that_raises_although_it_is_parked_keeps_no_other_from_being_parked(world: World) -> None:
    world.run(parking.park(world.job(), ValueError("odd")))
    undo = [flaws.install(Flaw("node_loss._placements", "digits", lasts=True))]
    undo.append(flaws.install(Flaw("failures.find_need", OTHER)))
    world.tick()
    for each in undo:
        each()
    assert switch(world, OTHER).parked is not None


def test_what_a_job_that_is_left_aside_has_is_given_to_nobody() -> None:
    spec = job_spec()
    asks = Resources(cpus=1, memory_bytes=1 << 30)
    spec = replace(spec, roles=tuple(replace(role, resources=asks) for role in spec.roles))
    world = World(spec).start()
    own = all_claims(world.snapshot())
    assert own
    left = all_claims(parking.without(world.snapshot(), world.job(), Left("odd", "a.py:1 in b")))
    assert sorted(map(str, left)) == sorted(map(str, own))
    # So is what a job has whose head alone cannot be read.
    world.write(Put(keys.head("digits"), b"{"))
    assert sorted(map(str, all_claims(world.snapshot()))) == sorted(map(str, own))


def test_an_error_that_two_nodes_meet_cordons_neither(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(snap: Snapshot, picture: NodeState) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(node_loss, "_suspicion", faulty)
    for _ in range(3):
        world.tick()
    assert not any(node.cordon is not None for node in world.snapshot().nodes.values())


def test_a_node_that_meets_an_error_at_the_place_of_a_cordoned_one_is_not_cordoned(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = node_loss._suspicion
    faulty_node = ["n1"]

    def faulty(snap: Snapshot, picture: NodeState) -> str:
        if picture.node in faulty_node:
            put("jobs/x", object())
        return rule(snap, picture)

    monkeypatch.setattr(node_loss, "_suspicion", faulty)
    world.tick()
    assert world.snapshot().nodes["n1"].cordon is not None
    faulty_node.append("n2")
    world.tick()
    assert world.snapshot().nodes["n2"].cordon is None


def test_a_switch_without_room_for_the_reason_ends_nobody(world: World) -> None:
    """A record of 71 KB that somebody else has written: the leader writes none of more than 64 KB."""
    huge = replace(switch(world, "digits"), plan_id="a" * 70_000)
    world.write(Put(keys.switch("digits"), codec.encode(huge)))
    decisions = reconcile(world.snapshot())
    assert "digits" not in [each.job for each in decisions if isinstance(each, Action) and each.places]
    world.tick()
    assert switch(world, OTHER).phase is JobPhase.RUNNING


def test_what_is_left_aside_is_told_once_for_each_place(world: World) -> None:
    """An error that tells an address says something else in each look."""
    snap, serial = world.snapshot(), 0

    def told(why: str, place: str) -> list[Action]:
        return parking.tell(parking.without(world.snapshot(), snap.jobs["digits"], Left(why, place)))

    for index in range(3):
        for action in told(f"<Odd object at {id(index):#x}>", "a.py:1 in b"):
            serial += 1
            event = Event(0, action.kind, action.job, action.text, action.fields)
            world.write(put(keys.event(serial), event))
    assert serial == 1
    assert told("odd", "a.py:2 in b")


def test_errors_at_ever_new_places_do_not_flood_the_events(world: World) -> None:
    snap, serial = world.snapshot(), 0
    for index in range(3 * parking.MOST_TOLD):
        left = parking.without(world.snapshot(), snap.jobs["digits"], Left("odd", f"a.py:{index} in b"))
        for action in parking.tell(left):
            serial += 1
            world.write(
                put(keys.event(serial), Event(0, action.kind, action.job, action.text, action.fields))
            )
    assert serial == parking.MOST_TOLD
    world.now_ms += parking.TOLD_MS
    assert parking.tell(parking.without(world.snapshot(), snap.jobs["digits"], Left("odd", "b.py:1 in b")))


def test_a_job_that_ends_just_after_its_flip_keeps_its_claims_until_no_task_can_begin() -> None:
    """Its agents may begin tasks until they see the end, and what they report comes later still."""
    spec = job_spec()
    asks = Resources(cpus=1)
    world = World(replace(spec, roles=tuple(replace(role, resources=asks) for role in spec.roles)))
    world.parks = True
    for agent in world.agents.values():
        agent.starts = False
    world.until(lambda: switch(world).phase is JobPhase.RUNNING)
    before = all_claims(world.snapshot())
    assert before
    world.run(parking.park(world.job(), ValueError("odd")))
    assert sorted(map(str, all_claims(world.snapshot()))) == sorted(map(str, before))
    world.now_ms += standing.ENDED_AFTER * FAST.d_ms
    assert not all_claims(world.snapshot())


def test_an_illegal_transition_parks_that_job_alone_and_tells_its_story(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A leader with a bug: it answers the wish to stop with a start.
    monkeypatch.setattr(lifecycle, "stop", lifecycle.begin_again)
    before = switch(world, OTHER)
    world.intend(Wanted.STOP)
    world.tick()
    parked = switch(world)
    assert parked.parked is not None
    told = "illegal transition `start` of job digits, generation 1, from `running` to `waiting`"
    assert parked.parked.error.startswith(f"InvalidTransition: {told}")
    assert told in parked.reason
    assert "started" not in world.done
    assert switch(world, OTHER) == before
