"""A launcher and a program take new addresses, without TensorFlow."""

from __future__ import annotations

import json
import os
import socket
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from agent.inside import protocol
from agent.inside.child import adding, joining, peers
from agent.inside.launcher import peers as ends
from tests.launcher.harness import Agent, launcher, of, wait_for

AT = {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2", "127.0.0.1:3"]}


@dataclass(eq=False)
class Handler:
    """TensorFlow's handler of lost workers, as far as it is used."""

    _server_def: types.SimpleNamespace
    _should_preemption_thread_run: bool = True
    _cluster_due_for_update_or_finish: threading.Event = field(default_factory=threading.Event)


def _server_def(cluster: dict[str, list[str]]) -> types.SimpleNamespace:
    jobs = [types.SimpleNamespace(name=role, tasks=dict(enumerate(each))) for role, each in cluster.items()]
    return types.SimpleNamespace(cluster=types.SimpleNamespace(job=jobs))


class Program:
    """A program's end of the socket, and the launcher's."""

    def __init__(self, fd: int, found: peers._Peers) -> None:
        self.ends = ends.Peers(fd)
        self.fd = fd
        self.peers = found
        self.handler = Handler(_server_def(AT))
        found.watch(self.handler)

    def take(self, cluster: dict[str, list[str]]) -> str:
        """The program's answer."""
        os.set_blocking(self.fd, True)
        assert self.ends.tell(cluster, 0) == ""
        return self.ends.heard()


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": AT, "task": {"type": "chief", "index": 0}}))
    ours, theirs = ends.pair()
    found = Program(ours, peers._Peers(theirs))
    yield found
    found.ends.close()
    wait_for("end of the thread", lambda: all(each.name != "tfsup-peers" for each in threading.enumerate()))
    found.peers._socket.close()


@pytest.fixture
def listening() -> Iterator[tuple[socket.socket, str]]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found, f"127.0.0.1:{found.getsockname()[1]}"


def test_a_moved_worker_is_taken_once(program: Program, listening: tuple[socket.socket, str]) -> None:
    moved = {**AT, "worker": ["127.0.0.1:2", listening[1]]}
    before = program.handler._server_def
    assert program.take(AT) == ""
    assert program.handler._server_def is before, "nothing differs"
    assert not program.handler._cluster_due_for_update_or_finish.is_set()
    assert program.take(moved) == ""
    assert program.handler._server_def.cluster.job[1].tasks == {0: "127.0.0.1:2", 1: listening[1]}
    assert program.handler._cluster_due_for_update_or_finish.is_set()
    assert json.loads(os.environ["TF_CONFIG"])["cluster"] == moved
    taken = program.handler._server_def
    assert program.take(moved) == ""
    assert program.handler._server_def is taken


@pytest.mark.parametrize(
    ("cluster", "named"),
    [({**AT, "ps": ["127.0.0.1:9"]}, "ps:0"), ({**AT, "ps": []}, "ps:0"), ({**AT, "worker": []}, "worker:0")],
)
def test_only_workers_move_or_leave_and_not_all_of_them(
    program: Program, cluster: dict[str, list[str]], named: str
) -> None:
    assert f"{named} is not at" in program.take(cluster)
    assert json.loads(os.environ["TF_CONFIG"])["cluster"] == AT


class Added:
    """A worker of a coordinator."""

    def __init__(self, index: int, name: str, cluster: object) -> None:
        self.worker_index, self.device_name, self.cluster = index, name, cluster
        self._resource_tracking_lock = threading.Lock()
        self._resource_remote_value_refs: list[object] = []


class Values:
    """Values of which each worker has its own."""

    def __init__(self, *values: object) -> None:
        self._values = values


class Made:
    """A value, and whatever closure makes it."""

    def __init__(self, closure: object) -> None:
        self._closure = closure


@dataclass(eq=False)
class Closure:
    """A closure that makes a value, and remembers where it did."""

    _args: tuple[object, ...] = ()
    _kwargs: dict[str, object] = field(default_factory=dict)
    _output_remote_value_ref: object = "made before"
    tag: int = 0
    ran_on: list[tuple[int, int]] = field(default_factory=list)

    def build_output_remote_value(self) -> Made:
        assert self._output_remote_value_ref is None
        return Made(self)

    def execute_on(self, worker: Added) -> None:
        self.ran_on.append((self.tag, worker.worker_index))


def test_a_coordinator_gets_the_workers_that_are_new_once_they_listen(
    program: Program, listening: tuple[socket.socket, str]
) -> None:
    cluster = types.SimpleNamespace(workers=[Added(0, "", None)])
    vars(program.handler)["_cluster"] = cluster
    assert program.take({**AT, "worker": [listening[1]] * 2}) == ""
    assert program.take({**AT, "worker": [listening[1]] * 3}) == ""
    assert program.handler._server_def.cluster.job[1].tasks == dict.fromkeys(range(3), listening[1])
    assert json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"] == [listening[1]] * 3
    assert len(cluster.workers) == 1, "its view of the cluster does not have them yet"
    program.peers.renew(program.handler._server_def, lambda _: None, lambda _: True)
    assert [(each.worker_index, each.device_name) for each in cluster.workers[1:]] == [
        (1, "/job:worker/replica:0/task:1"),
        (2, "/job:worker/replica:0/task:2"),
    ]
    program.peers.renew(program.handler._server_def, lambda _: None, lambda _: True)
    assert len(cluster.workers) == 3


def test_a_worker_that_leaves_is_kept_aside_until_another_comes_in_its_place(
    program: Program, listening: tuple[socket.socket, str]
) -> None:
    all_three = [Added(index, "", None) for index in range(3)]
    cluster = types.SimpleNamespace(workers=list(all_three))
    vars(program.handler)["_cluster"] = cluster

    def renewed(workers: int) -> list[bool]:
        """Which workers wait, once the coordinator has so many."""
        assert program.take({**AT, "worker": [listening[1]] * workers}) == ""
        program.peers.renew(program.handler._server_def, lambda _: None, lambda _: True)
        assert program.handler._server_def.cluster.job[1].tasks == dict.fromkeys(range(workers), listening[1])
        assert cluster.workers == all_three[:workers]
        return [program.peers.is_moving(f"/job:worker/replica:0/task:{index}") for index in range(3)]

    assert renewed(3) == [False, False, False]
    assert renewed(1) == [False, True, True]
    assert json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"] == [listening[1]]
    assert renewed(2) == [False, False, True]
    assert renewed(3) == [False, False, False]


def test_what_each_worker_has_of_its_own_is_made_on_a_new_one_when_it_is_needed_there() -> None:
    module = types.ModuleType("coordinator")
    vars(module).update(
        PerWorkerValues=Values, nest=types.SimpleNamespace(flatten=lambda each: [*each[0], *each[1].values()])
    )
    fill = adding.filling(module, Closure.execute_on)
    first = Closure()
    values = Values(Made(first))
    needs, late, early = Closure((values, "a word")), Added(2, "", None), Added(1, "", None)
    fill(needs, Added(0, "", None))
    assert first.ran_on == []
    for worker in (late, late, early):
        fill(needs, worker)
    assert first.ran_on == [(2, 2), (1, 1)], "once each, whoever comes first"
    assert [isinstance(each, Made) for each in values._values] == [True] * 3
    assert [len(each._resource_remote_value_refs) for each in (late, early)] == [1, 1]
    adding.filling(types.ModuleType("unknown"), Closure.execute_on)(needs, Added(3, "", None))
    assert len(values._values) == 3


def test_the_view_is_renewed_when_all_workers_listen_and_with_the_newest_addresses(
    program: Program, listening: tuple[socket.socket, str]
) -> None:
    given: list[object] = []
    former = program.handler._server_def

    def renew() -> None:
        program.peers.renew(former, given.append, lambda _: True)

    thread = threading.Thread(target=renew)
    thread.start()
    assert program.take({**AT, "worker": ["127.0.0.1:2", listening[1]]}) == ""
    assert program.peers.is_moving("/job:worker/replica:0/task:1")
    assert not program.peers.is_moving("/job:worker/replica:0/task:0")
    assert given == []
    assert program.take({**AT, "worker": [listening[1], listening[1]]}) == ""
    thread.join(10)
    assert given == [program.handler._server_def]
    assert not program.peers.is_moving("/job:worker/replica:0/task:1")


def test_a_view_that_was_replaced_meanwhile_is_not_asked_for(
    program: Program, listening: tuple[socket.socket, str]
) -> None:
    given: list[object] = []
    former = program.handler._server_def
    assert program.take({**AT, "worker": [listening[1], listening[1]]}) == ""
    program.peers.renew(former, given.append, lambda _: True)
    assert given == [program.handler._server_def] != [former]


def test_a_view_that_becomes_due_before_tensorflow_notes_the_last_one_is_asked_for_too(
    program: Program, listening: tuple[socket.socket, str]
) -> None:
    """As when a worker leaves right after another has come: all would wait for ever."""
    due = program.handler._cluster_due_for_update_or_finish

    def renew() -> None:
        program.peers.renew(program.handler._server_def, lambda _: None, lambda _: True)

    assert program.take({**AT, "worker": [listening[1], listening[1]]}) == ""
    renew()
    assert program.take({**AT, "worker": [listening[1]]}) == ""
    due.clear()
    assert due.is_set(), "what TensorFlow has renewed is not the newest"
    renew()
    due.clear()
    assert not due.is_set()


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_failure_that_tensorflow_does_not_recover_from_is_told(
    program: Program, listening: tuple[socket.socket, str], *, is_lost: bool
) -> None:
    assert program.take({**AT, "worker": [listening[1], listening[1]]}) == ""

    def fails(_: object) -> None:
        raise RuntimeError("no context")

    with pytest.raises(RuntimeError):
        program.peers.renew(program.handler._server_def, fails, lambda _: is_lost)
    os.set_blocking(program.fd, False)
    assert program.ends.heard() == (
        "" if is_lost else "its view of the cluster cannot be renewed: no context"
    )


def test_a_call_that_waits_for_a_former_address_is_told(
    program: Program, listening: tuple[socket.socket, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_UPDATE_S", 0.2)
    assert program.take({**AT, "worker": [listening[1], listening[1]]}) == ""
    began, ends_ = threading.Event(), threading.Event()

    def hangs(_: object) -> None:
        began.set()
        ends_.wait(10)

    thread = threading.Thread(
        target=program.peers.renew, args=(program.handler._server_def, hangs, lambda _: True)
    )
    thread.start()
    assert began.wait(10)
    assert "waits for a former address" in program.take(AT)
    ends_.set()
    thread.join(10)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_connections_to_a_former_address_break(
    listening: tuple[socket.socket, str], family: socket.AddressFamily
) -> None:
    server, address = listening
    name = server.getsockname()
    with socket.socket(family) as sock, socket.create_connection(name) as other:
        sock.connect(name if family == socket.AF_INET else (f"::ffff:{name[0]}", name[1]))
        sock.settimeout(10)
        other.setblocking(False)
        peers.sever(["127.0.0.1:1", "no.such.host.invalid:1", ""])
        with pytest.raises(BlockingIOError):
            other.recv(1)
        peers.sever([address])
        assert sock.recv(1) == b""
        assert other.recv(1) == b""


def test_modules_that_are_not_known_are_left_alone_or_refused() -> None:
    unknown = types.ModuleType("unknown")
    for change in peers.changes().values():
        change(unknown)
    assert vars(unknown) == vars(types.ModuleType("unknown"))
    for change in joining.changes().values():
        with pytest.raises(ValueError, match="TensorFlow are not known"):
            change(unknown)


def test_a_program_that_does_not_answer_is_told_of_in_time() -> None:
    ours, theirs = ends.pair()
    end = ends.Peers(ours)
    assert end.tell(AT, 100) == ""
    assert end.heard() == ""
    assert end.overdue(100 + ends.ANSWER_MS - 1) == ""
    assert "no coordinator" in end.overdue(100 + ends.ANSWER_MS)
    assert end.overdue(100 + 2 * ends.ANSWER_MS) == "", "once"
    os.write(theirs, b"nonsense")
    assert "no answer of ours" in end.heard()
    assert end.tell(AT, 200) == ""
    os.close(theirs)
    assert "closed the socket" in end.heard()
    assert end.fd == -1
    assert "closed the socket" in end.tell(AT, 300)


def test_a_program_that_was_started_cold_neither_takes_addresses_nor_joins() -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        assert agent.expect(protocol.Hello).joins
        agent.expect(protocol.Warm)
        attempt = rig.start(agent, "sleep", "60")
        agent.expect(protocol.Started, of(attempt))
        agent.send(protocol.Peers(attempt, AT))
        assert "started cold" in agent.expect(protocol.PeersFailed).reason
        agent.send(protocol.Kill(attempt))
        agent.expect(protocol.Exited, of(attempt))
        agent.send(protocol.AckExit(attempt))
        attempt = rig.start(agent, "sleep", "60", joins=True)
        assert "cold" in agent.expect(protocol.StartFailed).reason


def test_a_program_that_ends_or_takes_no_addresses_does_no_harm() -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        rig.write(
            "prog.py", "import os, time\nos.closerange(3, 5000)\nprint('up', flush=True)\ntime.sleep(60)"
        )
        attempt = rig.start(agent, "python", "prog.py")
        rig.logged("up")
        agent.send(protocol.Peers(attempt, AT))
        assert "closed the socket" in agent.expect(protocol.PeersFailed).reason
        agent.send(protocol.Kill(attempt))
        assert agent.expect(protocol.Exited, of(attempt)).confirmed_dead
        agent.send(protocol.AckExit(attempt))
        assert rig.run(agent, "python", "-c", "print(1)").code == 0
