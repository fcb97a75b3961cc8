"""The configuration of an agent of a pool, made from the one that all share."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.adapters.files.config.agent import load_agent
from supervisor.contract.errors import NotFound, Refused, UserError
from supervisor.engines import agent_file
from supervisor.engines.agent_file import Addresses, Own
from supervisor.engines.keeper import Claims, Order, prepare

SHARED = """
cluster: training
node: any
host: "{host}"
supervisors: ["127.0.0.1:7600"]
etcd: {endpoints: ["127.0.0.1:2379"]}
listen: "127.0.0.1:7601"
http: {listen: "127.0.0.1:7701"}
token_file: token
state_dir: agents
lock_dir: locks
checkpoint_parent: tasks
log: {file: agent.log, level: debug}
labels: {row: 07, name: "is {node}"}
task_user: "%d:%d"
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text("x" * 64)
    path = tmp_path / "pool.yaml"
    path.write_text(SHARED % (os.geteuid(), os.getegid()))
    return path


def order(shared: Path, pool: str = "digits", place: str = "n1") -> Order:
    return Order(
        pool=pool,
        place=place,
        id="41_0",
        file=shared,
        client=(),
        cpus=2,
        memory=1 << 30,
        gpus=("3",),
        labels=("machine=m=1", "pool=another"),
    )


def test_an_agent_has_directories_and_addresses_of_its_own(shared: Path, tmp_path: Path) -> None:
    claims = Claims()
    node, file = prepare(order(shared), claims)
    assert node == "digits.n1"
    made = load_agent(file)
    assert made.node == "digits.n1"
    assert made.host == socket.gethostname()
    assert made.state_dir == str(tmp_path / "agents" / "digits.n1")
    assert file.parent == Path(made.state_dir)
    assert file.stat().st_mode & 0o777 == 0o600
    assert made.lock_dir == str(tmp_path / "locks")
    assert made.token_file == str(tmp_path / "token")
    assert made.labels == {
        "row": "07",
        "name": "is digits.n1",
        "pool": "digits",
        "place": "n1",
        "agent": "41_0",
        "machine": "m=1",
    }
    assert made.gpus.only == ["3"]
    assert (made.cpus, made.memory) == (2, 1 << 30)
    assert (made.log.file, made.log.level) == (None, "debug")
    claims.release()


def test_agents_of_one_machine_do_not_meet(shared: Path) -> None:
    claims = [Claims() for _ in range(4)]
    places = (("digits", "n1"), ("digits", "n1"), ("digits", "n2"), ("digits-2", "n1"))
    made = [
        load_agent(prepare(order(shared, *place), each)[1])
        for place, each in zip(places, claims, strict=True)
    ]
    assert [each.node for each in made] == ["digits.n1", "digits.n1.2", "digits.n2", "digits-2.n1"]
    assert [each.listen for each in made] == [f"127.0.0.1:{port}" for port in range(7601, 7605)]
    assert [each.http and each.http.listen for each in made] == [
        f"127.0.0.1:{port}" for port in range(7701, 7705)
    ]
    assert len({each.socket_dir for each in made}) == 4
    claims[0].release()
    again = Claims()
    assert prepare(order(shared), again)[0] == "digits.n1"
    for each in (again, *claims):
        each.release()


def test_any_user_may_take_a_port_again_that_another_has_let_go(shared: Path, tmp_path: Path) -> None:
    """The lock of an agent's port stays as a file, which must not be its last user's for good."""
    before = os.umask(0o077)
    claims = Claims()
    try:
        prepare(order(shared), claims)
    finally:
        os.umask(before)
    lock = tmp_path / "locks" / "agent-7601.lock"
    assert lock.stat().st_mode & 0o777 == 0o666
    claims.release()
    # A file that another user has put there instead is skipped.
    lock.unlink()
    lock.symlink_to("/etc/passwd")
    assert load_agent(prepare(order(shared), claims)[1]).listen == "127.0.0.1:7602"
    claims.release()


def test_a_mistake_in_the_shared_file_has_its_line(shared: Path) -> None:
    agent_file.check(shared, "digits")
    shared.write_text(shared.read_text() + "ports: 5\n")
    with pytest.raises(UserError, match=r"pool\.yaml:16: ports: unknown key"):
        agent_file.check(shared, "digits")
    with pytest.raises(UserError, match=r"pool\.yaml:16: ports: unknown key"):
        agent_file.write(shared, Own(node="digits.n1"))
    with pytest.raises(NotFound):
        agent_file.check(shared.with_name("none.yaml"), "digits")


def test_a_socket_is_in_the_agents_own_directory(shared: Path, tmp_path: Path) -> None:
    text = shared.read_text().replace('listen: "127.0.0.1:7601"', "listen: unix:/run/agent.sock", 1)
    shared.write_text(
        text.replace("token_file: token\n", "").replace('http: {listen: "127.0.0.1:7701"}\n', "")
    )
    claims = Claims()
    made = load_agent(prepare(order(shared), claims)[1])
    assert made.listen == f"unix:{made.socket_dir}/api.sock"
    assert Path(made.socket_dir).parent == tmp_path / "agents"
    claims.release()


def test_a_place_that_is_no_name_is_refused(shared: Path) -> None:
    with pytest.raises(UserError, match="is not a valid name"):
        prepare(order(shared, place="../etc"), Claims())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories to another user")
def test_a_directory_that_another_user_has_made_is_refused(shared: Path, tmp_path: Path) -> None:
    """As any user can in /tmp, where an agent's state often is."""
    public = tmp_path / "tmp"
    public.mkdir()
    public.chmod(0o1777)
    shared.write_text(shared.read_text().replace("state_dir: agents", "state_dir: tmp/alice/agents"))
    (public / "alice").mkdir()
    os.chown(public / "alice", 65534, 65534)
    claims = Claims()
    with pytest.raises(Refused, match="tmp/alice belongs to another user"):
        prepare(order(shared), claims)
    claims.release()
    os.chown(public / "alice", 0, 0)
    (public / "alice").chmod(0o777)
    with pytest.raises(Refused, match="tmp/alice belongs to another user, or every user may write to it"):
        prepare(order(shared), claims)
    claims.release()
    (public / "alice").chmod(0o755)
    assert prepare(order(shared), claims)[0] == "digits.n1"
    claims.release()


def test_an_agent_follows_supervisors_and_etcd_and_nothing_else(shared: Path) -> None:
    _, file = prepare(order(shared), Claims())
    before = load_agent(file)
    former = agent_file.addresses(file)
    assert agent_file.follow(shared, file) is None
    text = shared.read_text()
    moved = (
        text.replace(":7600", ":8600").replace(":2379", ":3379").replace("state_dir: agents", "state_dir: b")
    )
    shared.write_text(moved)
    moved_to = agent_file.follow(shared, file)
    assert moved_to == Addresses(("127.0.0.1:8600",), ("127.0.0.1:3379",))
    assert moved_to.have_left(former)
    now = load_agent(file)
    assert (now.supervisors, now.etcd.endpoints) == (["127.0.0.1:8600"], ["127.0.0.1:3379"])
    assert now.model_copy(update={"supervisors": before.supervisors, "etcd": before.etcd}) == before
    assert file.stat().st_mode & 0o777 == 0o600
    assert agent_file.follow(shared, file) is None

    # A file that is wrong changes nothing.
    shared.write_text(text.replace("listen:", "listens:"))
    with pytest.raises(UserError, match="listens"):
        agent_file.follow(shared, file)
    assert load_agent(file) == now


def test_an_agent_stays_as_long_as_one_of_its_supervisors_and_of_its_etcd_does(shared: Path) -> None:
    _, file = prepare(order(shared), Claims())
    text = shared.read_text()
    shared.write_text(text.replace('"127.0.0.1:7600"', '"127.0.0.1:7600", "127.0.0.1:7700"'))
    both = agent_file.follow(shared, file)
    assert both is not None
    shared.write_text(text.replace('"127.0.0.1:7600"', '"127.0.0.1:7700", "127.0.0.1:7600"'))
    assert agent_file.follow(shared, file) is None
    one = replace(both, supervisors=both.supervisors[1:])
    other = replace(both, supervisors=both.supervisors[:1])
    moved = replace(both, etcd=("127.0.0.1:3379",))
    assert [each.have_left(one) for each in (one, both, other)] == [False, False, True]
    assert moved.have_left(both)
