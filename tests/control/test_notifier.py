"""Targets are told at least once, in order, over changes of leader, and none holds up another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from recovery.stores.memory import MemoryCheckpointStore
from supervisor import main
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.adapters.fence_devices import FenceDevices
from supervisor.adapters.secret_sources import SecretSources
from supervisor.adapters.service import reloading
from supervisor.contract import keys
from supervisor.contract.desired import ClusterRecord
from supervisor.contract.errors import Refused, UserError
from supervisor.contract.incident import Event, Notified, Topic
from supervisor.contract.job.spec import JobSpec
from supervisor.contract.timing import FAST
from supervisor.contract.views.jobs import SubmitRequest
from supervisor.control.decide.notifications import message, topic_of
from supervisor.control.decide.plan import Action
from supervisor.control.decide.snapshot import BrakeSettings
from supervisor.control.loop.daemon import ControlDaemon, ControlSettings
from supervisor.control.loop.notifier import Notifier, Notifiers, Target
from supervisor.wire.gate import Policy
from tests.control.leader import Leader, other_job
from tests.control.world import Telling, World
from tests.support.etcd_server import EtcdServer
from tests.support.sinks import ListSink
from tests.support.waiting import until

ALL = frozenset(Topic)


@dataclass(eq=False)
class Inbox:
    """A target that keeps what it was told. `fails`: so many tries it does not take."""

    got: list[dict[str, object]] = field(default_factory=list)
    fails: int = 0
    hangs: bool = False
    tries: int = 0
    taken: Callable[[], Awaitable[None]] | None = None
    """Called when it has taken a message, before the notifier hears of that."""

    async def send(self, message: bytes, identity: str) -> None:
        self.tries += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            self.fails -= 1
            raise Refused("it answers with status 500")
        told = json.loads(message)
        assert told["id"] == identity
        self.got.append(told)
        if self.taken is not None:
            await self.taken()

    @property
    def texts(self) -> list[object]:
        return [each["text"] for each in self.got]


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@dataclass
class Cluster:
    """Supervisors that lead one after the other, on a real etcd."""

    etcd: EtcdServer
    name: str
    lives: int = 0
    sink: ListSink = field(default_factory=ListSink)

    @asynccontextmanager
    async def led(
        self, *targets: Target, tries_s: tuple[float, ...] = (0.01,) * 3
    ) -> AsyncIterator[ControlDaemon]:
        """Another supervisor leads, with a notifier for each target."""
        self.lives += 1
        coordination = EtcdCoordination(
            [self.etcd.endpoint], self.name, rpc_deadline_ms=FAST.rpc_deadline_ms, silence_ms=FAST.d_ms // 2
        )
        daemon = ControlDaemon(
            ControlSettings(f"s{self.lives}", self.name, "unix:/s", 1, FAST),
            coordination,
            lambda _uri: MemoryCheckpointStore(),
            BootClock(),
            self.sink,
            lambda: "c" * 32,
        )
        service = daemon.job_service
        work: list[asyncio.Task[None]] = [asyncio.create_task(daemon.run())]
        for each in targets:
            told, tell = service.snapshot, service.tell
            notifier = Notifier(each, coordination, told, tell, self.sink, tries_s, look_s=0.01)
            work.append(asyncio.create_task(notifier.run()))
        try:
            await until(lambda: service.snapshot() is not None)
            await until(lambda: all(begun(daemon, each) for each in targets))
            yield daemon
        finally:
            # As a supervisor does: a daemon that still runs could win again what it hands over.
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await daemon.hand_over()
            await coordination.close()


def begun(daemon: ControlDaemon, target: Target) -> bool:
    """Whether it is noted how far the target has been told: it is told of all that comes from then on."""
    return daemon._view.get(Notified, keys.notified(target.name)) is not None


@pytest.fixture
def cluster(etcd: EtcdServer, request: pytest.FixtureRequest) -> Cluster:
    return Cluster(etcd, f"c{abs(hash(request.node.name)) % 10**9}")


async def happen(daemon: ControlDaemon, *texts: str) -> None:
    for text in texts:
        await daemon.job_service.tell(Action("gpu_quarantined", "", text, (), ()))


async def for_ever() -> None:
    await asyncio.Event().wait()


def events(daemon: ControlDaemon, kind: str) -> list[Event]:
    snap = daemon.job_service.snapshot()
    return [held.value for held in snap.events if held.value.kind == kind] if snap is not None else []


async def test_the_next_leader_goes_on_where_the_last_one_came_to(cluster: Cluster) -> None:
    inbox = Inbox()
    target = Target("pager", ALL, inbox)
    async with cluster.led() as daemon:
        await happen(daemon, "before the target was configured")
    # So many tries that the message is not given up before the leader changes.
    async with cluster.led(target, tries_s=(0.01,) * 100_000) as daemon:
        await happen(daemon, "one", "two")
        await until(lambda: inbox.texts == ["one", "two"])
        inbox.fails = 1_000_000
        await happen(daemon, "three")
        await until(lambda: inbox.tries > 2)
    inbox.fails = 0
    async with cluster.led(target) as daemon:
        await happen(daemon, "four")
        await until(lambda: inbox.texts[-2:] == ["three", "four"])
    assert inbox.texts == ["one", "two", "three", "four"]
    assert len({each["id"] for each in inbox.got}) == 4


async def test_a_message_that_was_sent_and_not_noted_comes_again_under_its_id(cluster: Cluster) -> None:
    inbox = Inbox()
    target = Target("pager", ALL, inbox)
    async with cluster.led(target) as daemon:
        await happen(daemon, "one")
        await until(lambda: inbox.texts == ["one"])
        # The leader ends before the notifier hears that the message was taken.
        inbox.taken = for_ever
        await happen(daemon, "two")
        await until(lambda: inbox.texts == ["one", "two"])
    inbox.taken = None
    async with cluster.led(target):
        await until(lambda: len(inbox.got) == 3)
    assert inbox.got[1] == inbox.got[2]


async def test_a_target_that_hangs_holds_up_no_other_and_no_leader(cluster: Cluster) -> None:
    hangs, well = Inbox(hangs=True), Inbox()
    async with cluster.led(Target("hangs", ALL, hangs), Target("well", ALL, well)) as daemon:
        await happen(daemon, *map(str, range(5)))
        await until(lambda: len(well.got) == 5)
        assert hangs.tries == 1


async def test_targets_that_are_read_again_go_on_where_the_former_ones_came_to(cluster: Cluster) -> None:
    former, newer, other = Inbox(), Inbox(), Inbox()
    async with cluster.led() as daemon:
        service = daemon.job_service
        notifiers = Notifiers(
            lambda each: Notifier(
                each, daemon._coordination, service.snapshot, service.tell, cluster.sink, (30.0,), 0.01
            )
        )
        notifiers.load([Target("pager", ALL, former)])
        running = asyncio.create_task(notifiers.run())
        await until(lambda: begun(daemon, Target("pager", ALL, former)))
        await happen(daemon, "one")
        await until(lambda: former.texts == ["one"])
        former.fails = 1_000_000
        await happen(daemon, "two")
        await until(lambda: former.tries == 2)
        notifiers.load([Target("pager", ALL, newer), Target("chat", ALL, other)])
        await until(lambda: newer.texts == ["two"] and begun(daemon, Target("chat", ALL, other)))
        notifiers.load([Target("chat", ALL, other)])
        await happen(daemon, "three")
        await until(lambda: other.texts == ["three"])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (former.texts, former.tries, newer.texts) == (["one"], 2, ["two"])


async def test_a_target_that_is_read_again_as_it_was_goes_on_with_its_try(cluster: Cluster) -> None:
    hangs, first, second = Inbox(hangs=True), Inbox(), Inbox()
    made: list[str] = []
    async with cluster.led() as daemon:
        service = daemon.job_service

        def make(each: Target) -> Notifier:
            made.append(each.name)
            told, tell = service.snapshot, service.tell
            return Notifier(each, daemon._coordination, told, tell, cluster.sink, (30.0,), 0.01)

        notifiers = Notifiers(make)
        notifiers.load([Target("hangs", ALL, hangs), Target("changes", ALL, first)])
        running = asyncio.create_task(notifiers.run())
        await until(lambda: all(begun(daemon, Target(each, ALL, hangs)) for each in ("hangs", "changes")))
        await happen(daemon, "one")
        await until(lambda: hangs.tries == 1 and first.texts == ["one"])
        notifiers.load([Target("changes", ALL, second), Target("hangs", ALL, hangs)])
        await happen(daemon, "two")
        await until(lambda: second.texts[-1:] == ["two"])
        assert (hangs.tries, sorted(made)) == (1, ["changes", "changes", "hangs"])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_cannot_be_delivered_is_told_in_an_event_and_the_next_message_comes(
    cluster: Cluster,
) -> None:
    inbox = Inbox(fails=4)
    async with cluster.led(Target("pager", ALL, inbox)) as daemon:
        await happen(daemon, "lost", "there")
        await until(lambda: inbox.texts == ["there"])
        (event,) = events(daemon, "notify_failed")
    assert "pager was not told of event" in event.text
    assert "status 500, in 4 tries" in event.text
    assert event.fields["target"] == "pager"


async def test_a_target_is_told_of_its_topics_alone(cluster: Cluster) -> None:
    inbox = Inbox()
    async with cluster.led(Target("pager", frozenset({Topic.AUTOMATION}), inbox)) as daemon:
        await happen(daemon, "GPU 1")
        await daemon.job_service.pauses.pause("new switches")
        await until(lambda: inbox.texts == ["all jobs are paused: new switches"])


def test_a_target_of_named_jobs_is_told_of_those_whose_file_names_it() -> None:
    target = Target("team", ALL, Inbox(), named_only=True)
    failed = Event(0, "job_failed", "digits", "job failed: NaN")
    for notify, expected in (((), False), (("other", "team"), True)):
        spec: JobSpec = replace(World().spec, notify=notify)
        assert target.wants(World(spec).snapshot(), failed) is expected
    assert target.wants(World().snapshot(), Event(0, "gpu_quarantined", "", "GPU 1")), "it is about no job"


def test_no_message_has_what_a_jobs_environment_holds() -> None:
    spec, secret = World().spec, "hunter2"
    roles = tuple(replace(role, env={"TOKEN": secret}) for role in spec.roles)
    world = Telling(replace(spec, roles=roles)).start()
    world.end_task("worker.0", signal=9)
    world.switch_off(world.node_of("ps.0"))
    world.until(lambda: world.switch().generation == 2)
    record = ClusterRecord("c", FAST.profile, FAST.d_ms, uuid="c1")
    sent = [message(record, held) for held in world.snapshot().events if topic_of(held.value) is not None]
    assert {json.loads(each)["topic"] for each in sent} >= {"incident", "node_lost"}
    assert [each for each in sent if secret.encode() in each] == []


async def test_a_supervisor_takes_its_targets_and_its_brake_from_a_file_that_is_read_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "s0.yaml"

    def write(**more: object) -> None:
        body = {"id": "s0", "cluster": "c", "listen": "unix:/s", "state_dir": str(tmp_path)}
        path.write_text(json.dumps(body | {"etcd": {"endpoints": ["unix:/none"]}} | more))

    write()
    async with cluster.led() as daemon:
        notifiers = Notifiers(lambda _: pytest.fail("nothing runs them"))
        take = partial(main._take, Policy(), SecretSources(), FenceDevices(), daemon, notifiers)
        reload = reloading(main.load(path), partial(main.load, path), take, cluster.sink)
        pager = {"targets": {"pager": {"command": ["true"]}}}
        write(notify=pager, brake={"lost_fraction": 0.8, "window": "1m"})
        reload()
        write(notify={"targets": {"other": {"command": ["no-such-program"]}}}, brake={"lost_fraction": 0.1})
        reload()
        assert daemon._view.brake == BrakeSettings(0.8, 60_000)
        assert daemon.job_service.submissions.targets == {"pager"}
        assert [each.name for each in notifiers._targets] == ["pager"]


async def test_a_job_names_only_targets_that_are_configured() -> None:
    leader = Leader()
    leader.job_service.submissions.targets = frozenset({"team"})
    with pytest.raises(UserError, match=r"no target 'http://10\.0\.0\.1'.*known: team") as caught:
        await leader.job_service.submissions.submit(
            SubmitRequest(replace(other_job(), notify=("http://10.0.0.1",)))
        )
    assert caught.value.field == ("notify",)
    await leader.job_service.submissions.submit(SubmitRequest(replace(other_job(), notify=("team",))))
