"""Rule 11, the supervisor's side: what it may promise, and what it does not declare while it has."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.contract.boundaries import Clock
from supervisor.contract.errors import Conflict, Refused
from supervisor.contract.promise import OPEN, Promise, PromiseRequest, Taking, Word
from supervisor.contract.timing import FAST
from supervisor.control.decide.facts import promises
from supervisor.control.decide.facts.standing import ENDED_AFTER, Standing, standing
from supervisor.control.decide.jobs import admission
from supervisor.control.decide.plan import Action
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.decide.snapshot import BeatSeen, Snapshot
from supervisor.control.loop.daemon import ControlDaemon, ControlSettings, StateFiles
from supervisor.control.loop.promise_log import Promiser, Surroundings, Terms
from tests.control.world import World, waiting_for
from tests.support.builders import job_spec
from tests.support.sinks import ListSink

V = 20_000
NAME = job_spec().name
REQUEST = PromiseRequest(1, "n1", "i1", 1)
MOVE = Taking(NAME, ("n1",), ("an attempt",), 7, 11)


def raising(_job: str, error: Exception) -> None:
    """No error is expected."""
    raise error


class Bound(World):
    """A leader that has given its word on something."""

    word = Word("boot")

    def snapshot(self) -> Snapshot:
        """The snapshot, with that in it."""
        return replace(super().snapshot(), word=self.word)

    def promise(self, node: str, for_ms: int = V) -> None:
        """Record a promise of this supervisor that begins now."""
        life = self.agents[node].incarnation
        given = Promise(node, life, 1, self.now_ms + for_ms, self.now_ms)
        self.word = replace(self.word, promises={**self.word.promises, promises.life_of(node, life): given})


def lose(world: World, member: str) -> str:
    node = world.running()[member].node
    world.agents[node].acting = world.agents[node].beating = False
    return node


def decided(world: World) -> list[Action]:
    return [each for each in reconcile(world.snapshot()) if isinstance(each, Action)]


def wait(world: World, ms: int) -> None:
    end_ms = world.now_ms + ms
    while world.now_ms < end_ms:
        world.tick()


def consider(word: Word, request: PromiseRequest = REQUEST, **changed: object) -> tuple[Word, str]:
    marked, released = bool(changed.get("marked")), int(str(changed.get("released", 0)))
    return promises.consider(word, request, 1_000, V, marked=marked, released=released)


def test_a_promise_counts_from_its_receipt() -> None:
    word, refused = consider(Word("b"))
    assert (refused, word.promises) == ("", {"n1/i1": Promise("n1", "i1", 1, 1_000 + V, 1_000)})


@pytest.mark.parametrize(
    ("word", "marked", "released"),
    [
        (Word("b", blind=True), False, 0),
        (Word("b"), True, 0),
        (Word("b", takings=(MOVE,)), False, 0),
        (Word("b", takings=(replace(MOVE, since_ms=900),)), False, 0),
        (Word("b", promises={"n1/i1": Promise("n1", "i1", 1, 5_000, 0)}), False, 0),
        (Word("b"), False, 1),
    ],
    ids=["blind", "marked", "taking", "taking, just over", "late", "late, given up since"],
)
def test_what_is_refused(word: Word, marked: bool, released: int) -> None:
    after, refused = consider(word, marked=marked, released=released)
    assert refused
    assert after == word


def test_promises_that_are_off_are_refused() -> None:
    assert promises.consider(Word("b"), REQUEST, 1_000, 0, marked=False, released=0)[1]


def test_a_life_that_gives_its_promises_up_frees_its_node() -> None:
    word, _ = consider(Word("b"), replace(REQUEST, serial=3))
    assert promises.release(word, "n1", "i1", 2) == word
    assert not promises.release(word, "n1", "i1", 3).promises


def test_a_node_that_was_promised_is_not_marked_before_the_promise_is_over() -> None:
    world = Bound()
    world.start()
    node = lose(world, "ps.0")
    world.promise(node)
    began_ms = world.now_ms
    world.until(lambda: bool(world.store.select(f"lost/{node}")))
    assert world.now_ms - began_ms >= V


def test_another_node_is_marked_as_ever() -> None:
    world = Bound()
    world.start()
    node = lose(world, "ps.0")
    world.promise(next(each for each in world.agents if each != node))
    wait(world, 2 * FAST.suspect_ms)
    assert world.store.select(f"lost/{node}")


def test_on_a_mark_that_was_on_its_way_nothing_is_done_before_the_promise_is_over() -> None:
    world = Bound()
    world.start()
    node = lose(world, "ps.0")
    wait(world, 2 * FAST.suspect_ms)
    assert world.store.select(f"lost/{node}")
    world.promise(node)
    began_ms = world.now_ms
    wait(world, 2 * FAST.d_ms)
    snap = world.snapshot()
    plan = snap.jobs[NAME].plan_in_force
    assert plan is not None
    (placement,) = [each for each in plan.value.placements if each.member == "ps.0"]
    assert standing(snap, placement) is Standing.SUSPECTED
    world.until(lambda: world.switch().generation == 2)
    assert world.now_ms - began_ms >= V


def test_no_flip_takes_the_tasks_of_a_promised_node_away_though_it_beats() -> None:
    world = Bound()
    world.start()
    node = world.running()["worker.0"].node
    world.promise(node)
    world.end_task("ps.0", signal=9)
    wait(world, V // 2)
    assert world.switch().generation == 1
    snap = world.snapshot()
    assert "promise" in waiting_for(snap, snap.jobs[NAME])
    world.until(lambda: world.switch().generation == 2)


def test_a_flip_notes_whose_tasks_it_takes_away() -> None:
    world = World().start()
    world.end_task("ps.0", signal=9)
    taking = None
    for _ in range(1_000):
        world.tick(leader=False)
        taking = next((each.taking for each in decided(world) if each.kind == "flip"), None)
        if taking is not None:
            break
        world.decide()
    assert taking is not None
    alive = {attempt.node for member, attempt in world.running().items() if member != "ps.0"}
    assert set(taking.nodes) == alive


def test_a_supervisor_without_its_file_declares_nothing_for_v_and_d() -> None:
    word = promises.begin(None, "boot", 5_000, V + FAST.d_ms)
    assert (word.silent_until_ms, word.blind) == (5_000 + V + FAST.d_ms, True)


def test_after_a_boot_takings_are_known_and_promises_are_waited_out() -> None:
    old = Word("boot", 0, False, {"n1/i1": Promise("n1", "i1", 1, 99, 9)}, (replace(MOVE, since_ms=5),))
    word = promises.begin(old, "another", 50, V)
    assert word == Word("another", 50 + V, False, {}, (MOVE,))
    assert promises.begin(old, "boot", 50, V) == old


def test_promises_that_the_release_before_noted_hold() -> None:
    by_incarnation = {"i1": Promise("n1", "i1", 1, 99, 9), "i2": Promise("n2", "i2", 1, 99, 9)}
    word = promises.begin(Word("boot", promises=by_incarnation), "boot", 50, V)
    assert word.promises == {"n1/i1": by_incarnation["i1"], "n2/i2": by_incarnation["i2"]}


def test_of_two_promises_that_two_releases_noted_for_a_life_the_later_one_holds() -> None:
    early, late = Promise("n1", "i1", 1, 99, 9), Promise("n1", "i1", 2, 150, 60)
    for both in ({"n1/i1": early, "i1": late}, {"n1/i1": late, "i1": early}):
        word = promises.begin(Word("boot", promises=both), "boot", 50, V)
        assert word.promises == {"n1/i1": late}


def test_a_silent_supervisor_declares_what_an_agent_itself_sets_free() -> None:
    world = Bound()
    world.word = Word("boot", world.now_ms + V)
    snap = world.snapshot()
    life = world.agents["n1"].incarnation
    for free, held in ((False, True), (True, False)):
        world.view.beat("n1", life, BeatSeen(world.now_ms, free=free))
        assert bool(promises.held_ms(world.snapshot(), "n1")) is held
    assert promises.held_ms(snap, "n9") == V


def test_another_life_ends_a_promise_once_its_launchers_have_run_out() -> None:
    world = Bound()
    world.promise("n1")
    world.register("n1", "i9")
    wait(world, FAST.d_ms // 2)
    assert promises.held_ms(world.snapshot(), "n1")
    wait(world, FAST.d_ms)
    assert not promises.held_ms(world.snapshot(), "n1")


def test_a_life_that_was_known_before_does_not_end_the_promise_to_its_successor() -> None:
    world = Bound()
    world.start()
    world.now_ms += 1
    given = Promise("n1", "not seen yet", 1, world.now_ms + V, world.now_ms)
    world.word = replace(world.word, promises={promises.life_of("n1", given.incarnation): given})
    wait(world, 2 * FAST.d_ms)
    assert promises.held_ms(world.snapshot(), "n1") == V - 2 * FAST.d_ms


def test_a_job_whose_last_life_may_run_on_by_promises_is_not_begun_anew() -> None:
    world = Bound()
    world.start()
    wait(world, ENDED_AFTER * FAST.d_ms)
    admission.check_over(world.snapshot(), world.snapshot().jobs[NAME])
    world.promise(world.running()["ps.0"].node)
    with pytest.raises(Conflict, match="may still be running; submit again in 21 s"):
        admission.check_over(world.snapshot(), world.snapshot().jobs[NAME])


def test_a_taking_is_over_when_what_it_took_is_dead_or_can_be_no_more() -> None:
    world = World().start()
    switch = world.snapshot().jobs[NAME].switch
    (attempt,) = [str(each) for each in world.snapshot().jobs[NAME].attempts if each.task.member == "ps.0"]
    taking = Taking(NAME, ("n1",), (attempt,), world.token.create_revision, switch.mod_revision)
    word = Word("boot", takings=(taking,))
    assert promises.settle(world.snapshot(), word, raising) == word
    past = replace(taking, token=taking.token - 1)
    (settled,) = promises.settle(world.snapshot(), replace(word, takings=(past,)), raising).takings
    assert settled.since_ms == world.now_ms
    world.now_ms += promises.KEPT_D * FAST.d_ms
    assert not promises.settle(world.snapshot(), replace(word, takings=(settled,)), raising).takings


def test_a_node_that_was_promised_something_meanwhile_is_not_taken_from() -> None:
    world = Bound()
    snap = world.snapshot()
    word, _ = consider(Word("boot"), replace(REQUEST, node="n1", incarnation="i1"))
    assert promises.take(snap, word, MOVE, 2_000) is None
    assert promises.take(snap, Word("boot"), MOVE, 2_000) == Word("boot", takings=(MOVE,))
    assert MOVE.since_ms == OPEN


# On disk before it goes out.


class HandClock(Clock):
    """Stands still."""

    def now_ms(self) -> int:
        return 1_000

    def wall_ms(self) -> int:
        return 0


@dataclass
class SlowFile:
    """A disk that writes when it is told to."""

    stored: Word | None = None
    go: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False

    def boot_id(self) -> str:
        return "boot"

    def read(self) -> Word | None:
        return self.stored

    async def save(self, word: Word) -> None:
        await self.go.wait()
        if self.fails:
            raise Refused("no space")
        self.stored = word


def opened(file: SlowFile) -> Promiser:
    promiser = Promiser("s1", Terms(V, ("s1",)), FAST.d_ms, file, HandClock(), ListSink())
    promiser.open()
    promiser.first_of_all()
    return promiser


async def gone() -> bool:
    return False


async def there() -> bool:
    return True


ALONE = Surroundings(gone, lambda *_: False)


async def test_a_promise_is_on_disk_before_it_is_given() -> None:
    file = SlowFile()
    asked = asyncio.create_task(opened(file).answer(REQUEST, ALONE))
    done, _ = await asyncio.wait({asked}, timeout=0.05)
    assert not done
    file.go.set()
    assert (await asked).for_ms == V
    assert file.stored is not None
    assert "n1/i1" in file.stored.promises


async def test_a_disk_that_fails_promises_nothing_and_takes_nothing_away() -> None:
    file = SlowFile(fails=True)
    file.go.set()
    promiser = opened(file)
    assert (await promiser.answer(REQUEST, ALONE)).refused
    assert not await promiser.take(World().snapshot(), replace(MOVE, nodes=("n2",)))


async def test_while_a_promise_is_being_written_nothing_is_taken_away() -> None:
    file = SlowFile()
    promiser = opened(file)
    asked = asyncio.create_task(promiser.answer(REQUEST, ALONE))
    await asyncio.wait({asked}, timeout=0.05)
    assert not await promiser.take(World().snapshot(), MOVE)
    file.go.set()
    assert (await asked).for_ms == V


async def test_while_a_taking_is_being_written_nothing_is_promised() -> None:
    file = SlowFile()
    promiser = opened(file)
    taken = asyncio.create_task(promiser.take(World().snapshot(), MOVE))
    await asyncio.wait({taken}, timeout=0.05)
    assert (await promiser.answer(REQUEST, ALONE)).refused
    file.go.set()
    assert await taken
    assert file.stored is not None
    assert file.stored.takings == (MOVE,)


async def test_before_etcd_was_seen_nothing_is_taken_for_past() -> None:
    file = SlowFile(Word("boot", 5, True, takings=(MOVE,)))
    store = MemoryStore()
    daemon = ControlDaemon(
        ControlSettings("s1", "c", "unix:/s1", 1, FAST, Terms(V, ("s1",))),
        MemoryCoordination(store),
        lambda _uri: MemoryCheckpointStore(),
        HandClock(),
        ListSink(),
        lambda: "id",
        StateFiles(file),
    )
    daemon._promiser.open()
    # The mirror has its first list, which is still in the inbox.
    await daemon._mirror._relist()
    daemon._settle_promises()
    assert daemon._promiser.word == file.stored
    daemon._fold(await daemon._next_batch())
    daemon._settle_promises()
    assert daemon._promiser.word == Word("boot", 5)


async def test_an_error_about_a_taking_keeps_it_and_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(_snap: Snapshot, _taking: Taking) -> Taking | None:
        raise ValueError("odd")

    monkeypatch.setattr(promises, "_settled", raises)
    file, sink = SlowFile(Word("boot", takings=(MOVE,))), ListSink()
    daemon = ControlDaemon(
        ControlSettings("s1", "c", "unix:/s1", 1, FAST, Terms(V, ("s1",))),
        MemoryCoordination(MemoryStore()),
        lambda _uri: MemoryCheckpointStore(),
        HandClock(),
        sink,
        lambda: "id",
        StateFiles(file),
    )
    daemon._promiser.open()
    daemon._view.revision = 1
    for _ in range(3):
        daemon._settle_promises()
    assert daemon._promiser.word.takings == (MOVE,)
    ((level, _, fields),) = [line for line in sink.lines if "error" in line[2]]
    assert (level, fields["job"]) == ("error", NAME)
    assert str(fields["error"]).startswith("ValueError: odd")


async def test_a_supervisor_that_etcd_answers_promises_nothing() -> None:
    answer = await opened(SlowFile()).answer(REQUEST, replace(ALONE, etcd_answers=there))
    assert "etcd answers" in answer.refused
