"""The parameter servers of an asynchronous job come back together, and its chief and its workers run on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery.policy.hangs import LEAST_ACT_MS
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.job.spec import PsRecovery, RestartPolicy, Scope, Strategy
from supervisor.contract.observed import STAYS, AttemptReport, Saves, TaskBeat
from supervisor.contract.timing import FAST
from supervisor.control.decide.assess.assess import assess
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.assess.servers import (
    IN_FLIGHT_MS,
    LEAST_BOUND_MS,
    MOST,
    UNKNOWN_BOUND_MS,
    bound_ms,
    spoilt,
)
from supervisor.control.decide.checkpoints.cadence import cadence_of
from supervisor.control.decide.plan import put
from tests.control.world import World
from tests.support.builders import job_spec

RECOVERS = Saves(inside=1, watched=True, recovers=True)


class Recovering(World):
    """Each start is cold, and its programs recover from the loss of a parameter server, or are `stuck`."""

    def __init__(
        self,
        servers: int = 2,
        *,
        preload: tuple[str, ...] = (),
        scope: Scope | None = None,
        recovery: PsRecovery = PsRecovery.FULL,
        stays: str = STAYS,
    ) -> None:
        restart = RestartPolicy(scope={"ps": scope} if scope is not None else {}, ps_recovery=recovery)
        spec = job_spec({"chief": 1, "ps": servers, "worker": 2}, Strategy.ASYNC)
        super().__init__(replace(spec, preload=preload, restart=restart))
        self.stuck = False
        self.stays = stays
        self.lost_ms = -1
        self.start()
        self.say(RECOVERS)
        self.commit(1, 5)
        self.tick()

    def say(self, saves: Saves, *members: str) -> None:
        """Let these trainers, or all of them, tell this of their saves from now on."""
        for member, report in self.running().items():
            if not member.startswith("ps") and (not members or member in members):
                self.agents[report.node].tells[str(report.attempt)] = lambda beat: self._told(beat, saves)

    def late(self, member: str) -> None:
        """This trainer makes no step until further notice, though others do."""
        report, since_ms = self.running()[member], self.now_ms
        self.agents[report.node].tells[str(report.attempt)] = lambda beat: replace(
            beat, saves=RECOVERS, step_age_ms=self.now_ms - since_ms
        )

    def _told(self, beat: TaskBeat, saves: Saves) -> TaskBeat:
        """A trainer makes no step while a parameter server is away."""
        away = len([each for each in self.running() if each.startswith("ps")]) < self.spec.role("ps").count
        if away or self.stuck:
            self.lost_ms = self.now_ms if self.lost_ms < 0 else self.lost_ms
            return replace(beat, saves=saves, step_age_ms=self.now_ms - self.lost_ms + 5)
        self.lost_ms = -1
        return replace(beat, saves=saves)

    def others(self) -> dict[str, AttemptReport]:
        return {member: each for member, each in self.running().items() if not member.startswith("ps")}

    def failures(self) -> list[Incident]:
        return [each for each in self.incidents().values() if each.cause is not Cause.SUBMITTED]

    def failure(self) -> Incident:
        """Its only one, once there is one."""
        self.until(self.failures)
        (found,) = self.failures()
        return found


def until_restored(world: Recovering) -> None:
    world.until(lambda: "restored" in world.failure().phases_ms)


def until_recovered(world: Recovering) -> Incident:
    world.until(lambda: [each.outcome for each in world.failures()] == [Outcome.RECOVERED])
    return world.failure()


def kill(world: World, member: str = "ps.0") -> None:
    world.end_task(member, signal=9)
    world.tick()


def needed(world: World) -> Need | None:
    """The restart that the leader finds needed now."""
    return assess(world.snapshot(), world.job()).need


def test_the_only_parameter_server_comes_back_alone() -> None:
    world = Recovering(1)
    before = world.others()
    kill(world)
    incident = until_recovered(world)
    assert (incident.scope, incident.rule, incident.cause) == (Scope.TASK, "async.ps.together", Cause.KILLED)
    assert world.others() == before
    assert world.switch().generation == 1
    assert world.switch().ledger.infrastructure == 1
    assert {"restored", "first_step"} <= incident.phases_ms.keys()


def test_no_server_starts_before_all_of_them_are_confirmed_dead() -> None:
    world = Recovering(2)
    before = world.others()
    other = world.running()["ps.1"]
    world.agents[other.node].obedient = False
    kill(world)
    world.until(lambda: "servers_end" in world.done)
    for _ in range(10):
        world.tick()
    assert "restart_in_place" not in world.done, "ps:1 is not dead yet"
    world.agents[other.node].obedient = True
    incident = until_recovered(world)
    assert (incident.member, incident.attempt) == ("ps.0", 2)
    assert {member: each.number for member, each in world.running().items() if "ps" in member} == {
        "ps.0": 2,
        "ps.1": 2,
    }
    assert world.others() == before
    assert world.done.count("restart_in_place") == 1
    assert world.switch().ledger.infrastructure == 1


def test_a_server_that_does_not_end_takes_all_with_it() -> None:
    world = Recovering(2)
    world.agents[world.running()["ps.1"].node].obedient = False
    kill(world)
    world.until(lambda: "servers_end" in world.done)
    took = world.until(lambda: "prepare" in world.done[world.done.index("servers_end") :])
    assert took >= FAST.d_ms
    world.until(lambda: world.switch().generation == 2)
    assert "digits/ps:1 does not end" in world.failures()[0].rule


def test_another_leader_goes_on_from_servers_that_are_being_ended() -> None:
    world = Recovering(2)
    kill(world)
    world.until(lambda: "servers_end" in world.done)
    world.new_leader()
    until_recovered(world)
    assert world.switch().generation == 1


def test_servers_that_have_served_do_not_accuse_their_node() -> None:
    world = Recovering(1)
    for number in range(2, 6):
        kill(world)
        world.until(lambda: all(each.outcome is Outcome.RECOVERED for each in world.failures()))
        assert world.running()["ps.0"].number == number
    assert {(each.rule, each.stepped) for each in world.failures()} == {("async.ps.together", True)}


def test_another_leader_which_has_not_seen_the_start_waits_longer() -> None:
    world = Recovering(1)
    assert bound_ms(world.snapshot(), world.job()) == LEAST_BOUND_MS
    world.tick()
    world.new_leader()
    world.tick()
    assert bound_ms(world.snapshot(), world.job()) == UNKNOWN_BOUND_MS


def test_the_loss_of_servers_counts_for_how_often_a_save_pays() -> None:
    world = Recovering(1)

    def failures() -> float:
        job = world.job()
        assert job.plan_in_force is not None
        told = cadence_of(world.snapshot(), job, job.plan_in_force.value)
        assert told is not None
        return told.failures

    before = failures()
    kill(world)
    until_recovered(world)
    assert failures() == before + 1


@pytest.mark.parametrize(("step", "is_local", "lost"), [(14, False, 0), (7, True, -1)])
def test_steps_given_up_are_never_negative_nor_counted_by_a_trainers_own(
    step: int, is_local: bool, lost: int
) -> None:
    world = Recovering(1)
    world.stuck = True
    kill(world)
    until_restored(world)
    for report in world.others().values():
        world.agents[report.node].tells[str(report.attempt)] = lambda beat: replace(beat, is_local=is_local)
        world.steps[report.role] = step
    assert until_recovered(world).lost_steps == lost


def test_the_time_without_servers_is_no_hang_of_a_trainer_that_steps_later_than_others() -> None:
    world = Recovering(1)
    world.stuck = True
    world.late("worker.1")
    killed_ms = world.now_ms
    kill(world)
    until_restored(world)
    while world.now_ms < killed_ms + 8_000:
        world.tick()
    world.stuck = False
    until_recovered(world)
    while world.now_ms < killed_ms + LEAST_ACT_MS + 4_000:
        world.tick()
    assert "worker.1" in world.running()
    assert world.running()["worker.1"].number == 1
    world.until(lambda: Cause.HANG in {each.cause for each in world.failures()})


def test_the_incident_is_open_until_a_step_is_made_and_tells_of_the_steps_given_up() -> None:
    world = Recovering(1)
    world.stuck = True
    kill(world)
    until_restored(world)
    for _ in range(20):
        world.tick()
    assert world.failure().outcome is Outcome.OPEN
    world.steps.update(chief=6, worker=6)
    world.stuck = False
    incident = until_recovered(world)
    assert (incident.from_step, incident.to_step, incident.lost_steps) == (10, 6, 4)


def test_a_step_that_was_answered_before_the_loss_is_not_the_first_one_after_it() -> None:
    world = Recovering(1)
    kill(world)
    incident = until_recovered(world)
    assert incident.phases_ms["restored"] + incident.phases_ms["first_step"] >= IN_FLIGHT_MS


def test_without_a_step_within_the_bound_all_restart_and_the_next_loss_restarts_all_at_once() -> None:
    world = Recovering(1)
    world.stuck = True
    kill(world)
    until_restored(world)
    took = world.until(lambda: world.switch().generation == 2)
    assert took >= LEAST_BOUND_MS
    world.stuck = False
    incident = until_recovered(world)
    assert incident.scope is Scope.ALL
    assert "but no task has made a step within" in incident.rule
    assert world.switch().ledger.infrastructure == 1, "one failure is charged once"
    world.say(RECOVERS)
    world.commit(2, 50)
    kill(world)
    world.until(lambda: world.switch().generation == 3)
    rules = [each.rule for each in world.incidents().values()]
    assert "async.ps.all, as its program did not recover by itself before" in rules


def test_a_trainer_that_ends_of_it_restarts_all_for_the_same_incident() -> None:
    world = Recovering(1)
    world.stuck = True
    kill(world)
    until_restored(world)
    world.end_task("chief.0", code=1, tail="tensorflow.python.framework.errors_impl.UnavailableError: x\n")
    world.until(lambda: world.switch().generation == 2)
    assert world.failure().member == "ps.0"


def test_training_that_went_back_before_a_commit_restarts_all_from_that_commit() -> None:
    world = Recovering(1)
    world.commit(1, 9, CheckpointRef(1, 5))
    world.tick()
    world.stuck = True
    kill(world)
    until_restored(world)
    world.commit(1, 10, CheckpointRef(1, 9))
    world.steps.update(chief=2, worker=2)
    world.stuck = False
    world.until(lambda: world.switch().generation == 2)
    assert world.failure().rule == "async.ps.together, but training went back to step 2, too far"
    assert world.switch().base == CheckpointRef(1, 9), "what was saved since is set aside"
    world.steps.update(chief=12, worker=12)
    assert until_recovered(world).to_step == 5


def test_a_save_that_was_finished_before_the_saver_itself_restarted_is_not_set_aside() -> None:
    world = Recovering(1)
    world.stuck = True
    kill(world)
    until_restored(world)
    world.commit(1, 10, CheckpointRef(1, 5))
    (held,) = [each for each in world.job().incidents.values() if each.value.cause is Cause.KILLED]
    made = spoilt(world.job(), replace(held, value=replace(held.value, to_step=2)))
    assert made is not None
    assert made.base == CheckpointRef(1, 10)
    report = world.running()["chief.0"]
    world.write(Delete(keys.attempt(report.attempt)))
    later = replace(report, number=2)
    world.write(put(keys.attempt(later.attempt), later))
    assert spoilt(world.job(), replace(held, value=replace(held.value, to_step=2))) is None


def test_a_widened_recovery_whose_plan_is_gone_is_begun_again() -> None:
    world = Recovering(1)
    world.stuck = True
    kill(world)
    until_restored(world)
    world.until(lambda: world.failure().scope is Scope.ALL)
    world.stuck = False
    job = world.job()
    assert job.next_plan is not None
    world.write(Delete(job.next_plan.key))
    world.write(put(keys.switch("digits"), replace(world.switch(), closing=None)))
    world.until(lambda: world.switch().generation > 1)


def test_the_restart_of_a_worker_does_not_end_the_bound() -> None:
    world = Recovering(1)
    world.stuck = True
    kill(world)
    until_restored(world)
    ended = world.running()["worker.1"]
    world.agents[ended.node].omits.add(str(replace(ended.attempt, number=2)))
    kill(world, "worker.1")
    world.until(lambda: any(each.number == 2 for each in world.others().values()))
    assert world.incidents()["g1-ps.0-a1"].outcome is Outcome.OPEN
    world.until(lambda: (need := needed(world)) and "no task has made a step" in need.rule)


def test_a_worker_that_waits_for_a_place_does_not_end_the_bound() -> None:
    world = Recovering(1, stays="")
    world.stuck = True
    kill(world)
    until_restored(world)
    for agent in world.agents.values():
        agent.blocked = "its disk is full"
    world.lose("worker.0")
    world.until(lambda: (need := needed(world)) and "no task has made a step" in need.rule)


def test_with_a_trainer_on_a_silent_node_all_restart() -> None:
    world = Recovering(1, stays="")
    away = world.lose("worker.0")
    world.until(lambda: bool(world.snapshot().nodes[away].marks))
    world.end_task("ps.0", signal=9)
    world.tick(leader=False)
    need = needed(world)
    assert need is not None
    assert need.rule == "async.ps.all, as the node of digits/worker:0 is suspected"


def test_after_a_task_has_moved_or_ended_all_restart() -> None:
    world = Recovering(1)
    world.write(put(keys.switch("digits"), replace(world.switch(), edition=1)))
    world.tick()
    kill(world)
    world.until(lambda: world.switch().generation == 2)
    assert "a task has moved, joined or left" in world.failure().rule
    other = Recovering(1)
    other.end_task("worker.1", code=0)
    other.tick()
    kill(other)
    other.until(lambda: other.switch().generation == 2)
    assert "digits/worker:1 does not run" in other.failure().rule


@pytest.mark.parametrize("silent", ["chief.0", "worker.1"])
def test_without_word_that_a_program_recovers_all_restart_and_the_incident_says_why(silent: str) -> None:
    world = Recovering(2)
    world.say(Saves(watched=True), silent)
    world.tick()
    kill(world)
    world.until(lambda: world.switch().generation == 2)
    task = silent.replace(".", ":")
    assert world.failure().rule == (
        f"async.ps.all, as nothing tells that the program of digits/{task} recovers by itself"
    )


def test_without_a_commit_of_this_generation_all_restart() -> None:
    world = Recovering(1)
    world.write(Delete(keys.commit("digits", CheckpointRef(1, 5))))
    kill(world)
    world.until(lambda: world.switch().generation == 2)
    assert "no checkpoint of this generation is committed" in world.failure().rule


def test_where_another_task_than_the_chief_saves_all_restart() -> None:
    world = Recovering(1)
    world.write(put(keys.switch("digits"), replace(world.switch(), saver="worker.1")))
    kill(world)
    world.until(lambda: world.switch().generation == 2)
    assert "digits/worker:1 saves" in world.failure().rule


def test_a_job_whose_tasks_start_warm_restarts_all_which_takes_less_time() -> None:
    world = Recovering(1, preload=("tensorflow",))
    kill(world)
    world.until(lambda: world.switch().generation == 2)
    assert world.failure().rule == "async.ps.all"


def test_a_job_may_say_that_all_restart() -> None:
    world = Recovering(1, scope=Scope.ALL)
    kill(world)
    world.until(lambda: world.switch().generation == 2)
    assert world.failure().rule == "async.ps.all.job"


def test_a_job_that_answers_for_its_program_has_its_servers_restarted_together() -> None:
    world = Recovering(2, preload=("tensorflow",), scope=Scope.TASK)
    world.say(Saves())
    kill(world, "ps.1")
    incident = until_recovered(world)
    assert world.switch().generation == 1
    assert (incident.member, incident.scope) == ("ps.1", Scope.TASK)
    assert world.running()["ps.0"].number == 2


def test_an_operators_restart_of_one_of_several_servers_restarts_all() -> None:
    world = Recovering(2, scope=Scope.TASK)
    world.intend(serial=1, member="ps.0")
    world.until(lambda: world.switch().generation == 2)


def test_a_server_on_a_node_that_starts_nothing_restarts_all() -> None:
    world = Recovering(2)
    world.agents[world.running()["ps.1"].node].blocked = "its disk is full"
    world.tick()
    kill(world)
    world.until(lambda: world.switch().generation == 2)
    assert "digits/ps:1 cannot restart on" in world.failure().rule


def test_more_servers_than_one_transaction_restarts_take_a_new_generation() -> None:
    world = Recovering(MOST + 1)
    kill(world)
    world.until(lambda: world.switch().generation == 2)
    assert "do not restart at once" in world.failure().rule


@pytest.mark.parametrize("preload", [(), ("tensorflow",)])
def test_one_that_is_restored_by_itself_comes_back_while_all_others_run_on(preload: tuple[str, ...]) -> None:
    world = Recovering(3, preload=preload, recovery=PsRecovery.PARTIAL)
    assert all(held.value.partial_ps for held in world.job().assignments.values())
    before = world.running()
    kill(world, "ps.1")
    incident = until_recovered(world)
    assert (incident.member, incident.scope, incident.rule) == ("ps.1", Scope.TASK, "async.ps.in_place.job")
    assert {name for name, each in world.running().items() if each != before[name]} == {"ps.1"}
    assert world.switch().generation == 1


def test_of_two_that_are_restored_by_themselves_each_has_an_incident() -> None:
    world = Recovering(3, recovery=PsRecovery.PARTIAL)
    world.end_task("ps.2", signal=9)
    world.end_task("ps.1", signal=9)
    world.until(lambda: world.running().keys() == world.others().keys() | {"ps.0", "ps.1", "ps.2"})
    world.until(lambda: all(each.outcome is not Outcome.OPEN for each in world.failures()))
    assert {each.member for each in world.failures()} == {"ps.1", "ps.2"}
    assert {name: each.number for name, each in world.running().items() if "ps" in name} == {
        "ps.0": 1,
        "ps.1": 2,
        "ps.2": 2,
    }


def test_where_nothing_is_restored_within_the_bound_all_restart() -> None:
    world = Recovering(2, recovery=PsRecovery.PARTIAL)
    world.stuck = True
    kill(world)
    until_restored(world)
    assert world.until(lambda: world.switch().generation == 2) >= LEAST_BOUND_MS
    assert world.failure().rule.startswith("async.ps.in_place.job, but no task has made a step within")
