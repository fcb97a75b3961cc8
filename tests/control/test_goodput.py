"""The goodput ledger: each moment of a job is in one category, whoever leads, and they add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.api.views import job_view
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Outcome
from supervisor.contract.job.goodput import Category, Goodput
from supervisor.contract.job.pause import Pause
from supervisor.contract.job.spec import RestartPolicy, Strategy, Wanted
from supervisor.contract.observed import Pace, Saves, StageFailure
from supervisor.contract.timing import FAST
from supervisor.contract.views.jobs import GoodputView
from supervisor.control.decide.plan import put
from tests.control import world as told_world
from tests.control.world import STEP_MS, World, says_of_saves
from tests.support.builders import job_spec

NEAR_MS = 2 * STEP_MS
"""Two looks: agents and the leader act once a look."""


class Clocked(World):
    """The wall clock goes with the leader's. The job's ledger begins with its submission."""

    pace = 0
    """Steps a second that the job makes."""

    def submit(self) -> None:
        super().submit()
        self.began_ms, self.wall_ms = self.now_ms, self.now_ms
        name = self.spec.name
        first = Goodput(job=name, job_uuid="uuid", since_wall_ms=self.wall_ms, wall_ms=self.wall_ms)
        self.write(put(keys.goodput_of(name), first))

    def start(self) -> Clocked:
        super().start()
        return self

    def tick(self, ms: int = STEP_MS, *, leader: bool = True) -> None:
        self.wall_ms += ms
        for role in self.steps:
            self.steps[role] += ms * self.pace // 1000
        super().tick(ms, leader=leader)

    def told(self) -> GoodputView:
        snap = self.snapshot()
        found = job_view(snap, snap.jobs[self.spec.name]).goodput
        assert found is not None
        return found

    def spent(self, *categories: Category) -> int:
        return sum(self.told().spent_ms.get(each.value, 0) for each in categories)

    def kept(self) -> Goodput:
        (held,) = self.store.read(keys.goodput_of(self.spec.name))
        return codec.decode(Goodput, held.value)

    def check(self) -> None:
        """No category is negative, and together they are the time that has passed."""
        told = self.told()
        assert min(told.spent_ms.values(), default=0) >= 0, told
        assert told.elapsed_ms == self.now_ms - self.began_ms == sum(told.spent_ms.values())
        assert 0 <= told.share <= 1

    def lasts(self, ms: int) -> None:
        """So long nothing happens."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.tick(min(STEP_MS, end_ms - self.now_ms))

    def recover(self, incident: str) -> None:
        self.until(lambda: self.incidents()[incident].outcome is Outcome.RECOVERED)
        self.lasts(500)


class Telling(Clocked, told_world.Telling):
    """Its events are in etcd, too."""


def test_a_job_starts_and_is_productive_from_its_first_step() -> None:
    world = Clocked().start()
    world.lasts(10_000)
    world.check()
    assert set(world.told().spent_ms) == {"starting", "productive"}
    first = min(
        beat.received_ms - beat.tasks[name].first_step_age_ms
        for node in world.snapshot().nodes.values()
        if (beat := node.beat) is not None
        for name in beat.tasks
        if beat.tasks[name].first_step_age_ms >= 0
    )
    assert world.spent(Category.STARTING) == first - world.began_ms
    assert world.told().now == "productive"


def test_nothing_is_written_while_nothing_changes() -> None:
    world = Clocked().start()
    world.lasts(1_000)
    before = world.kept()
    world.lasts(60_000)
    assert world.kept() == before
    assert world.spent(Category.PRODUCTIVE) > 60_000


def test_the_phases_of_a_recovery_are_those_of_its_incident() -> None:
    world = Clocked(nodes=4).start()
    world.commit(1, 5)
    world.lasts(5_000)
    world.end_task("ps.0", signal=9, age_ms=400)
    world.until(lambda: "g1-ps.0-a1" in world.incidents())
    world.recover("g1-ps.0-a1")
    world.check()
    incident, told = world.incidents()["g1-ps.0-a1"], world.told().spent_ms
    phases = incident.phases_ms
    ready = told.get("recovering_prepare", 0) + told.get("recovering_fence", 0)
    assert abs(told.get("recovering_detect", 0) - phases["detected"]) <= NEAR_MS
    assert abs(ready - phases["ready"]) <= NEAR_MS
    assert abs(told.get("restoring", 0) - phases["switched"]) <= NEAR_MS
    begun = told.get("recovering_start", 0) + told.get("recovering_first_step", 0)
    assert abs(begun - phases["restored"] - phases["first_step"]) <= NEAR_MS
    recovering = sum(ms for name, ms in told.items() if name.startswith("recovering") or name == "restoring")
    assert abs(recovering - incident.to_first_step_ms) <= NEAR_MS


def test_the_fence_of_a_lost_node_is_waited_for_when_all_is_prepared() -> None:
    world = Clocked(job_spec({"worker": 2}, Strategy.MULTIWORKER), nodes=3).start()
    world.lasts(5_000)
    world.lose("worker.0")
    world.until(lambda: world.told().now == "recovering_fence")
    world.until(lambda: world.switch().generation == 2)
    world.lasts(3_000)
    world.check()
    (incident,) = (each for name, each in world.incidents().items() if "node" in name)
    assert world.spent(Category.FENCE) > FAST.d_ms - FAST.suspect_ms - 1_000
    ready_ms = world.spent(Category.FENCE, Category.PREPARE)
    assert abs(ready_ms - incident.phases_ms["ready"]) <= NEAR_MS
    assert abs(world.spent(Category.DETECT) - incident.phases_ms["detected"]) <= NEAR_MS


def test_a_silence_that_ends_again_costs_nothing() -> None:
    world = Clocked().start()
    world.lasts(2_000)
    node = world.lose("ps.0")
    world.until(lambda: world.told().now.startswith("recovering"))
    world.come_back(node)
    world.check()
    assert set(world.told().spent_ms) == {"starting", "productive"}


def test_one_of_many_workers_that_restarts_in_place_costs_no_productive_time() -> None:
    world = Clocked().start()
    world.lasts(2_000)
    world.end_task("worker.1", signal=9)
    world.until(lambda: "g1-worker.1-a1" in world.incidents())
    assert world.told().now == "productive"
    world.recover("g1-worker.1-a1")
    world.check()
    assert set(world.told().spent_ms) == {"starting", "productive"}


def test_the_only_worker_of_a_coordinator_is_waited_for() -> None:
    world = Clocked(job_spec({"chief": 1, "ps": 1, "worker": 1}, Strategy.COORDINATOR)).start()
    world.lasts(2_000)
    late = world.agents[world.running()["worker.0"].node]
    late.starts = False
    world.end_task("worker.0", signal=9)
    world.lasts(4_000)
    world.check()
    assert world.told().now == "recovering_start"
    assert abs(world.spent(Category.START) - 4_000) <= NEAR_MS
    late.starts = True
    world.lasts(2_000)
    assert world.told().now == "productive"


def goes_back(world: Clocked, reached: int, base: int) -> None:
    """The job was at one step, and begins again from a checkpoint of another."""
    for role in ("chief", "worker"):
        world.steps[role] = reached
    world.commit(1, base)
    world.lasts(500)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    for role in ("chief", "worker"):
        world.steps[role] = base + 1
    world.until(lambda: world.told().now == "redoing")


def test_lost_steps_are_made_again_until_the_step_before_the_failure() -> None:
    world = Clocked(nodes=4).start()
    goes_back(world, reached=500, base=100)
    began_ms = world.now_ms
    world.pace = 100
    world.until(lambda: world.told().now == "productive")
    assert abs(world.now_ms - began_ms - 4_000) <= NEAR_MS
    world.lasts(3_000)
    world.check()
    assert abs(world.spent(Category.REDOING) - 4_000) <= NEAR_MS


def test_a_restart_that_loses_no_step_makes_none_again() -> None:
    world = Clocked(nodes=4).start()
    for role in ("chief", "worker"):
        world.steps[role] = 100
    world.commit(1, 100)
    world.lasts(500)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    world.recover("g1-ps.0-a1")
    world.check()
    assert "redoing" not in world.told().spent_ms


def test_another_failure_while_lost_steps_are_made_again_forgets_none_of_them() -> None:
    world = Clocked(nodes=4).start()
    goes_back(world, reached=500, base=100)
    for role in ("chief", "worker"):
        world.steps[role] = 300
    world.lasts(1_000)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 3)
    world.lasts(3_000)
    assert world.told().now == "redoing"
    assert world.kept().reached == 500


def test_a_program_without_steps_is_productive_while_it_runs() -> None:
    world = Clocked()
    for agent in world.agents.values():
        agent.steps = False
    world.start()
    world.until(lambda: world.incidents()["submit"].outcome is Outcome.RECOVERED)
    world.lasts(10_000)
    world.check()
    assert world.spent(Category.STARTING) < 2_000
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    world.recover("g1-ps.0-a1")
    world.check()
    assert world.told().now == "productive"
    assert world.spent(Category.FIRST_STEP) <= NEAR_MS


def test_saves_that_held_training_up_are_no_productive_time() -> None:
    world = Clocked(job_spec(strategy=Strategy.SYNC), nodes=4).start()
    says_of_saves(world, "chief.0", Saves(inside=4, watched=True, pace=Pace(every_ms=2_000, cost_ms=250)))
    world.lasts(10_000)
    world.check()
    assert world.spent(Category.SAVING) == 1_000
    world.commit(1, 10)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    world.recover("g1-ps.0-a1")
    world.check()
    assert world.spent(Category.SAVING) == 1_000


def test_a_save_of_one_task_does_not_hold_up_the_asynchronous_others() -> None:
    world = Clocked(nodes=4).start()
    says_of_saves(world, "chief.0", Saves(inside=4, watched=True, pace=Pace(every_ms=2_000, cost_ms=250)))
    world.lasts(10_000)
    world.check()
    assert world.spent(Category.SAVING) == 0


def test_a_job_without_room_waits_for_it() -> None:
    world = Clocked(nodes=0)
    world.lasts(5_000)
    world.check()
    assert world.told().now == "waiting_room"
    for index in range(3):
        world.register(f"n{index}", f"i{index}")
    world.start()
    world.check()
    assert abs(world.spent(Category.WAITING_ROOM) - 5_000) <= 3 * NEAR_MS


def test_a_failure_under_a_pause_is_stopped_time_until_its_end() -> None:
    world = Telling(nodes=4).start()
    world.commit(1, 5)
    world.write(put(keys.PAUSE, Pause(by="user:olga")))
    world.lasts(2_000)
    assert world.told().now == "productive"
    world.end_task("ps.0", signal=9)
    world.lasts(7_000)
    world.check()
    assert world.told().now == "stopped"
    world.write(put(keys.PAUSE, Pause(by="user:olga", in_force=False)))
    world.until(lambda: world.switch().generation == 2)
    world.recover("g1-ps.0-a1")
    world.check()
    assert abs(world.spent(Category.STOPPED) - 7_000) <= NEAR_MS
    assert world.spent(Category.DECIDE) <= NEAR_MS


def test_a_base_that_cannot_be_read_is_waited_for() -> None:
    world = Clocked(nodes=4).start()
    world.commit(1, 5)
    world.staging(StageFailure.UNKNOWN)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.told().now == "waiting_store")
    world.lasts(4_000)
    world.staging(None)
    world.until(lambda: world.switch().generation == 2)
    world.recover("g1-ps.0-a1")
    world.check()
    assert abs(world.spent(Category.WAITING_STORE) - 4_000) <= 2 * NEAR_MS


def test_what_an_operator_stops_is_stopped_and_counts_on() -> None:
    world = Clocked().start()
    world.intend(Wanted.STOP)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    world.lasts(20_000)
    world.check()
    assert world.told().now == "stopped"
    productive_ms = world.spent(Category.PRODUCTIVE)
    world.intend(Wanted.RUN, serial=1)
    world.until(lambda: world.told().now == "starting")
    world.check()
    assert world.spent(Category.PRODUCTIVE) == productive_ms
    assert world.spent(Category.STOPPED) >= 20_000


def test_the_time_of_a_job_that_has_succeeded_stands_still() -> None:
    world = Clocked().start()
    for member in ("chief.0", "worker.0", "worker.1"):
        world.end_task(member, code=0)
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    world.lasts(500)
    before = world.told()
    world.lasts(60_000)
    world.new_leader()
    world.lasts(60_000)
    assert replace(world.told(), wall_ms=before.wall_ms) == before
    assert before.now == ""


def test_a_leader_that_finds_no_ledger_counts_from_then_on() -> None:
    world = Clocked().start()
    world.lasts(10_000)
    world.write(Delete(keys.goodput_of(world.spec.name)))
    world.began_ms = world.now_ms + STEP_MS
    world.lasts(5_000)
    world.check()
    assert world.told().since_wall_ms == world.began_ms
    assert set(world.told().spent_ms) == {"productive"}


def test_the_ledger_of_an_earlier_job_of_that_name_is_not_taken_over() -> None:
    world = Clocked().start()
    world.write(put(keys.goodput_of(world.spec.name), replace(world.kept(), job_uuid="another")))
    world.began_ms = world.now_ms + STEP_MS
    world.lasts(5_000)
    world.check()
    assert world.kept().job_uuid == "uuid"


def test_a_new_leader_goes_on_with_what_runs() -> None:
    world = Clocked().start()
    world.lasts(2_000)
    before = world.told().spent_ms
    world.now_ms += 30_000  # nobody leads
    world.wall_ms += 30_000
    world.new_leader()
    world.lasts(2_000)
    world.check()
    assert world.told().spent_ms == {**before, "productive": before["productive"] + 32_000}


def test_a_change_of_leader_amid_a_recovery_leaves_each_moment_in_one_category() -> None:
    for at in range(0, 600, 50):
        world = Clocked(nodes=4).start()
        world.commit(1, 5)
        world.lasts(1_000)
        world.end_task("ps.0", signal=9)
        world.lasts(at)
        world.new_leader()
        world.until(lambda world=world: world.told().now in ("productive", "redoing"))
        world.lasts(500)
        world.check()


def test_a_clock_that_was_set_back_takes_nothing_away() -> None:
    world = Clocked().start()
    world.lasts(2_000)
    world.wall_ms -= 3_600_000
    world.new_leader()
    world.lasts(2_000)
    told = world.told()
    assert min(told.spent_ms.values()) >= 0
    assert 2_000 <= told.elapsed_ms <= world.now_ms - world.began_ms


def kill(member: str) -> Callable[[Clocked], None]:
    def strike(world: Clocked) -> None:
        if member in world.running():
            world.end_task(member, signal=9)

    return strike


def lose(world: Clocked) -> None:
    if "ps.0" in world.running():
        world.lose("ps.0")


def come_back(world: Clocked) -> None:
    for node, agent in world.agents.items():
        if not agent.acting:
            agent.acting = agent.beating = True
            world.register(node, f"{agent.incarnation}+")


def save(world: Clocked) -> None:
    generation = world.switch().generation
    if world.running():
        known = [ref.step for ref in world.job().commits if ref.generation == generation]
        world.commit(generation, max(known, default=0) + 5)


def order(wanted: Wanted) -> Callable[[Clocked], None]:
    def give(world: Clocked) -> None:
        world.intend(wanted, serial=world.job().intent.value.restart_serial + (wanted is Wanted.RUN))

    return give


def prepare_nothing(world: Clocked) -> None:
    for agent in world.agents.values():
        agent.delay = "" if agent.delay else "its disk is full"


def read_nothing(world: Clocked) -> None:
    for agent in world.agents.values():
        agent.staging = None if agent.staging else StageFailure.UNKNOWN


def step(world: Clocked) -> None:
    for role in ("chief", "worker"):
        world.steps[role] = world.steps.get(role, 10) + 70


def tell_no_steps(world: Clocked) -> None:
    for agent in world.agents.values():
        agent.steps = not agent.steps


EVENTS: tuple[Callable[[Clocked], None], ...] = (
    *(kill("ps.0"), kill("worker.1"), lose, come_back, World.new_leader, save, order(Wanted.STOP)),
    *(order(Wanted.RUN), prepare_nothing, read_nothing, step, tell_no_steps),
)


@settings(max_examples=25)
@given(story=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 30)), min_size=3, max_size=10))
def test_whatever_happens_each_moment_is_in_one_category(
    story: list[tuple[Callable[[Clocked], None], int]],
) -> None:
    world = Clocked(job_spec(restart=RestartPolicy(max_restarts=50, max_in_window=50)), nodes=4)
    for event, looks in story:
        event(world)
        for _ in range(looks):
            world.tick(137)
            world.check()
    kept = world.kept()
    assert kept.at_ms <= world.now_ms
    assert min(kept.spent_ms.values(), default=0) >= 0
