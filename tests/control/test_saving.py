"""Events about saves that do not become commits as they should."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.api.views import explanation, job_view
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.checkpoint import CheckpointRef, CommitState
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Event
from supervisor.contract.job.spec import JobSpec, Wanted
from supervisor.contract.observed import Exit, ExitReason, SaverBeat, UnusableSave
from supervisor.control.decide.checkpoints import saving
from supervisor.control.decide.plan import put
from tests.control.world import Agent, Telling, waiting_for
from tests.support.builders import job_spec

FINE = SaverBeat("digits", 0)
TROUBLE = "checkpoints cannot be committed: the quota of /jobs is used up"


class Saving(Telling):
    """The saver's node beats of commits."""

    def __init__(self, spec: JobSpec | None = None) -> None:
        self.beat: SaverBeat | None = None
        self.drains = True
        super().__init__(spec)

    def _beat(self, agent: Agent) -> None:
        super()._beat(agent)
        seen = self.snapshot().nodes[agent.node].beat
        assert seen is not None
        if self.beat is not None:
            self.view.beat(agent.node, agent.incarnation, replace(seen, savers={self.beat.job: self.beat}))

    def _kill_unwanted(self, agent: Agent) -> None:
        if self.drains or self.switch().phase is JobPhase.RUNNING:
            super()._kill_unwanted(agent)
            return
        for report in self.running().values():
            if report.node == agent.node:
                self._exited(report, Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=True))

    def says(self, beat: SaverBeat) -> None:
        """From now on the saver's node says so, of the generation in force."""
        self.beat = replace(beat, generation=self.switch().generation)

    def told(self) -> list[str]:
        """The events about saving, oldest first."""
        events = [codec.decode(Event, entry.value) for entry in self.store.select("events/")]
        return [event.kind for event in events if event.kind.startswith(("commits_", "saves_"))]


@pytest.fixture
def world() -> Saving:
    made = Saving()
    made.start()
    return made


def test_trouble_that_lasts_is_told_once_and_its_end_once(world: Saving) -> None:
    world.says(replace(FINE, trouble=TROUBLE, trouble_ms=saving.TELL_MS - 1))
    world.tick()
    assert world.told() == []
    for age_ms in (3_000, 9_000, 99_000):
        world.says(replace(FINE, trouble=TROUBLE, trouble_ms=age_ms, waiting_ms=age_ms))
        world.tick()
    assert world.told() == ["commits_failing"]
    assert job_view(world.snapshot(), world.job()).commit_trouble == TROUBLE
    world.new_leader()
    world.tick()
    assert world.told() == ["commits_failing"], "a new leader reads what was told"
    world.says(FINE)
    world.tick()
    assert world.told() == ["commits_failing"], "nothing was tried yet"
    world.commit(1, 50)
    world.tick()
    world.tick()
    assert world.told() == ["commits_failing", "commits_work_again"]
    assert job_view(world.snapshot(), world.job()).commit_trouble == ""


def test_what_was_told_of_a_deleted_job_of_this_name_is_not_about_this_one(world: Saving) -> None:
    world.says(replace(FINE, trouble=TROUBLE, trouble_ms=saving.TELL_MS))
    world.tick()
    record = world.job().record
    world.write(Delete(record.key))
    world.write(put(record.key, record.value))
    assert world.job().events == ()
    world.tick()
    assert world.told() == ["commits_failing", "commits_failing"]


def test_a_commit_that_does_not_move_is_trouble_before_it_fails(world: Saving) -> None:
    world.says(replace(FINE, pending=CheckpointRef(1, 30), still_ms=saving.STUCK_MS - 1))
    world.tick()
    assert world.told() == []
    world.says(replace(FINE, pending=CheckpointRef(1, 30), still_ms=saving.STUCK_MS))
    world.tick()
    assert world.told() == ["commits_failing"]
    assert "does not move" in job_view(world.snapshot(), world.job()).commit_trouble


def test_a_save_that_waits_for_longer_than_the_bound_is_told(world: Saving) -> None:
    bound_ms = world.spec.checkpoint.lag_bound_ms
    assert bound_ms is not None
    world.says(replace(FINE, waiting_ms=bound_ms - 1))
    world.tick()
    assert world.told() == []
    world.says(replace(FINE, waiting_ms=bound_ms))
    world.tick()
    world.tick()
    assert world.told() == ["commits_lagging"]
    world.commit(1, 50)
    world.tick()
    assert world.told() == ["commits_lagging"], "a newer one waits for too long as well"
    world.says(replace(FINE, waiting_ms=100))
    world.tick()
    world.tick()
    assert world.told() == ["commits_lagging", "commits_caught_up"]


def test_a_program_that_seldom_saves_does_not_lag(world: Saving) -> None:
    world.commit(1, 50)
    world.says(FINE)
    for _ in range(5):
        world.tick(100_000)
    assert world.told() == []


def test_training_that_never_commits_anything_is_told_once_in_a_generation(world: Saving) -> None:
    bound_ms = world.spec.checkpoint.lag_bound_ms
    assert bound_ms is not None
    world.says(FINE)
    world.tick(bound_ms // 2)
    assert world.told() == []
    for _ in range(4):
        world.tick(bound_ms // 2)
    assert world.told() == ["commits_missing"]
    trouble = job_view(world.snapshot(), world.job()).commit_trouble
    assert trouble.startswith("nothing has been committed for 1")
    assert "no finished save" in trouble
    world.commit(1, 50)
    world.tick()
    assert job_view(world.snapshot(), world.job()).commit_trouble == ""


def test_nothing_committed_is_reported_although_no_node_speaks_of_saves(world: Saving) -> None:
    world.commit(1, 50)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    for _ in range(3):
        world.tick(world.spec.checkpoint.lag_bound_ms or 0)
    assert world.told() == ["commits_missing"]
    assert (
        "chief:0, which ought to save, says nothing" in job_view(world.snapshot(), world.job()).commit_trouble
    )


def test_a_pause_between_commits_is_reported_when_it_is_unusual(world: Saving) -> None:
    for step, wall_ms in ((50, 0), (60, 900_000)):
        ref = world.commit(1, step)
        held = world.job().commits[ref]
        world.write(put(held.key, replace(held.value, wall_ms=wall_ms)))
    world.says(FINE)
    world.tick(saving.USUAL * 900_000 - 1_000)
    assert world.told() == []
    world.tick(2_000)
    world.tick()
    assert world.told() == ["commits_missing"]


def test_a_mounted_job_that_never_commits_anything_is_told_like_any_other() -> None:
    spec = job_spec()
    world = Saving(replace(spec, checkpoint=replace(spec.checkpoint, mode="mounted")))
    world.start()
    world.says(FINE)
    for _ in range(3):
        world.tick(spec.checkpoint.lag_bound_ms or 0)
    assert world.told() == ["commits_missing"]


def test_what_cannot_be_committed_is_told_once_and_shown_as_long_as_it_is_so(world: Saving) -> None:
    bad = UnusableSave("best/ckpt-3", "data files are missing")
    world.says(replace(FINE, unusable=(replace(bad, path="best/ckpt-2"), bad)))
    world.tick()
    world.tick()
    world.new_leader()
    world.tick()
    assert world.told() == ["saves_unusable"]
    events = [codec.decode(Event, entry.value) for entry in world.store.select("events/")]
    assert "best/ckpt-3: data files are missing" in events[-1].text
    assert job_view(world.snapshot(), world.job()).advice == (
        "a save cannot be committed: best/ckpt-3: data files are missing",
    )
    world.says(replace(FINE, unusable=(bad, UnusableSave("link", "a symbolic link"))))
    world.tick()
    assert world.told() == ["saves_unusable"] * 2
    world.says(FINE)
    world.tick()
    assert job_view(world.snapshot(), world.job()).advice == ()


def test_an_agent_of_the_release_before_says_nothing_of_unusable_saves() -> None:
    raw = codec.encode(FINE)
    assert b"unusable" in raw
    old = codec.decode(SaverBeat, raw.replace(b',"unusable":[]', b""))
    assert old == FINE


def test_no_bound_no_event() -> None:
    spec = job_spec()
    world = Saving(replace(spec, checkpoint=replace(spec.checkpoint, lag_bound_ms=None)))
    world.start()
    world.says(replace(FINE, waiting_ms=10**9))
    world.tick()
    assert world.told() == []


def test_skipped_saves_are_told_of_when_there_are_twice_as_many(world: Saving) -> None:
    for skipped in range(1, 18):
        world.says(replace(FINE, skipped=skipped, last_skipped=CheckpointRef(1, skipped)))
        world.tick()
    assert world.told() == ["saves_skipped"] * 5
    events = [codec.decode(Event, entry.value) for entry in world.store.select("events/")]
    assert [event.fields["skipped"] for event in events if event.kind == "saves_skipped"] == [
        "1",
        "2",
        "4",
        "8",
        "16",
    ]
    assert job_view(world.snapshot(), world.job()).saves_skipped == 17


def test_a_silent_node_and_one_that_does_not_save_say_nothing(world: Saving) -> None:
    world.says(replace(FINE, trouble=TROUBLE, trouble_ms=9_000))
    assert world.beat is not None
    world.beat = replace(world.beat, generation=7)
    world.tick()
    world.says(replace(FINE, trouble=TROUBLE, trouble_ms=9_000))
    for agent in world.agents.values():
        agent.beating = False
    world.tick(leader=False)
    assert saving.saver_beat(world.snapshot(), world.job()) is None
    assert world.told() == []


def test_the_lag_is_the_age_of_the_newest_commit_as_this_leader_saw_it(world: Saving) -> None:
    began = saving.lag_ms(world.snapshot(), world.job())
    world.tick(1_000)
    assert saving.lag_ms(world.snapshot(), world.job()) == began + 1_000
    world.commit(1, 50)
    assert saving.lag_ms(world.snapshot(), world.job()) == 0
    world.tick(700)
    view = job_view(world.snapshot(), world.job())
    assert view.commit_lag_ms == 700
    assert view.newest_commit == CheckpointRef(1, 50)
    key = keys.commit("digits", world.commit(1, 60))
    bad = replace(world.job().commits[CheckpointRef(1, 60)].value, state=CommitState.QUARANTINED)
    world.write(put(key, bad))
    view = job_view(world.snapshot(), world.job())
    assert view.commit_lag_ms == 700, "one that cannot be restored is none"
    assert view.newest_commit == CheckpointRef(1, 50)
    world.intend(Wanted.STOP)
    world.tick()
    assert saving.lag_ms(world.snapshot(), world.job()) == -1


@pytest.mark.parametrize("moves", [True, False])
def test_at_the_end_the_last_commit_gets_time_while_it_moves(world: Saving, moves: bool) -> None:
    last = CheckpointRef(1, 90)
    world.says(replace(FINE, pending=last, still_ms=100 if moves else -1))
    report = world.running()["chief.0"]
    world.drains = False
    world.intend(Wanted.STOP)
    world.tick()
    for _ in range(40):
        world.tick(1_000)
        if world.switch().phase.ended:
            break
    assert (world.switch().phase is JobPhase.STOPPING) is moves
    assert (str(last) in waiting_for(world.snapshot(), world.job())) is moves
    if not moves:
        node = report.node
        told = f"warning: {last} (a copy stays on {node}) is not committed"
        assert told in world.switch().reason


def test_what_a_restart_gave_up_is_counted_from_its_base(world: Saving) -> None:
    world.commit(1, 60)
    world.steps["worker"] = 97
    world.tick()
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    (incident,) = [each for each in world.incidents().values() if each.from_step >= 0]
    assert incident.lost_steps == 37
    assert incident.to_base == CheckpointRef(1, 60)
    (told,) = [each for each in explanation(world.snapshot(), "digits").incidents if each.id == incident.id]
    assert (told.base, told.from_scratch) == (CheckpointRef(1, 60), False)
