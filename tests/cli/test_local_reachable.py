"""An embedded cluster that other machines reach: over TLS alone, and again where it has moved to."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.api.client import ControlClient
from supervisor.cli.local import layout
from supervisor.cli.local.cluster import LocalCluster, _free_ports
from supervisor.cli.local.keeper import Keeper
from supervisor.cli.local.layout import Layout, LocalSettings
from supervisor.cli.local.lives import STOP_S, Life, Lives
from supervisor.cli.local.reachable import ETCD, Reachable
from supervisor.cli.options import Globals
from supervisor.cli.pool import tokens
from supervisor.cli.pool.order import shared_file
from supervisor.cli.pool.tokens import Token
from supervisor.contract import keys
from supervisor.contract.errors import Conflict, TfSupervisorError, UserError
from supervisor.wire.rpc import Guard
from tests.cli.shell import environment
from tests.engines.certified import run
from tests.support.waiting import wait_until

POOL = "p"


def cluster_at(address: str, directory: Path) -> LocalCluster:
    found = LocalCluster(directory / "state", nodes=0, supervisors=2)
    found.advertise, found.scratch = address, os.path.realpath(directory / "machine")
    return found


@contextmanager
def running(directory: Path) -> Iterator[LocalCluster]:
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="tfsup-m-") as scratch:
        (directory / "machine").symlink_to(scratch)
        with cluster_at("127.0.0.2", directory) as found:
            yield found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The tests of it end with the one that has it killed."""
    with running(tmp_path_factory.mktemp("reachable")) as found:
        yield found


def life_of_the_agent(cluster: LocalCluster) -> str:
    """The incarnation of the pool's agent, once it is ready."""

    async def ask() -> str:
        async with cluster.client(2.0) as client:
            nodes = (await client.nodes()).nodes
        assert {node.node for node in nodes} <= {f"{POOL}.n1"}
        return next((node.incarnation for node in nodes if node.state == "ready"), "")

    try:
        return asyncio.run(ask())
    except TfSupervisorError:
        return ""


async def answer(addresses: list[str], files: TlsFiles | None) -> str:
    async with ControlClient(addresses, Guard(files), deadline_s=2.0) as client:
        try:
            return (await client.status()).supervisors[0].supervisor
        except TfSupervisorError as error:
            return type(error).__name__


@contextmanager
def agent(cluster: LocalCluster, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An agent of a pool, as an engine starts it on a machine that shares the cluster's directory."""
    given = Globals(cluster.layout.state)
    file, _ = shared_file(given, POOL, None)
    token = file.parent / f"{POOL}.token"
    tokens.obtain(given, POOL, Token(token, "1h"))
    words = {"pool": POOL, "place": "n1", "id": "1", "agent-config": file, "token": token}
    words["state"] = cluster.layout.state
    options = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    with (directory / "agent.log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "supervisor.engines.keeper", *options],
            env=environment(),
            stdout=log,
            stderr=log,
        )
    try:
        yield keeper
    finally:
        keeper.send_signal(signal.SIGTERM)
        keeper.wait(60)


@pytest.mark.slow
def test_agents_of_other_machines_join_and_find_it_again_where_it_has_moved(tmp_path: Path) -> None:
    with running(tmp_path) as cluster, agent(cluster, tmp_path):
        wait_until(lambda: bool(life_of_the_agent(cluster)), "the agent joins")
        first = life_of_the_agent(cluster)
        # A client that keeps the certificate of this start.
        shutil.copytree(cluster.layout.state / "tls", tmp_path / "kept")
        kept = TlsFiles(
            *(tmp_path / "kept" / name for name in ("ca.pem", "1/user-owner.pem", "1/user-owner.key"))
        )
        cluster.down()
        moved = cluster_at("127.0.0.3", tmp_path)
        moved.up()
        wait_until(lambda: life_of_the_agent(moved) not in ("", first), "it has followed")
        settings = moved.layout.read()
        supervisors = [f"127.0.0.3:{settings.doors[each]}" for each in moved.layout.supervisors(settings)]
        assert (moved.layout.state / "tls/2/user-owner.pem").read_bytes() != kept.cert.read_bytes()
        assert asyncio.run(answer(supervisors, kept)).startswith("supervisor-")
        assert [each.name for each in (moved.layout.state / "tls").iterdir() if each.is_dir()] == ["2"]

        # At the same address again, with certificates made anew; its agent goes on without a new start.
        second = life_of_the_agent(moved)
        moved.down()
        moved.up()
        assert moved.layout.read().doors == settings.doors
        wait_until(lambda: life_of_the_agent(moved) == second, "it has come back")
        assert asyncio.run(answer(supervisors, kept)).startswith("supervisor-")
    assert "supervisors or etcd have moved (127.0.0.3:" in (tmp_path / "agent.log").read_text()


@pytest.mark.slow
def test_a_cluster_goes_on_from_a_copy_where_another_machine_told_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as cluster:
        given = Globals(cluster.layout.state)
        tokens.obtain(given, POOL, Token(tmp_path / "token", "1h"))
        status, lives = cluster.status(), Lives(cluster.layout.lives)
        os.kill(status.keeper_pid, signal.SIGKILL)
        pids = [member.pid for member in status.members]
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "nothing is left")
        wait_until(lambda: not cluster.status().running, "its lock is free")
        life = lives.newest()
        assert life is not None
        lives.write(replace(life, boot="there", host="n7"))
        assert cluster.status().elsewhere == "n7"

        monkeypatch.setattr(Lives.claim, "__defaults__", (0.0,))
        cluster.up()
        assert [each.name for each in (cluster.layout.state / "etcd").iterdir()] == ["data-2"]
        assert [view.pool for view in tokens.known(given, POOL)] == [POOL]


def test_nobody_is_let_in_without_a_certificate_of_its_own(cluster: LocalCluster, tmp_path: Path) -> None:
    client = json.loads(cluster.layout.client_config.read_text().partition("\n")[2])
    own = TlsFiles(*(Path(client["tls"][each]) for each in ("ca", "cert", "key")))
    supervisors = client["supervisors"]
    assert all(each.startswith("127.0.0.2:") for each in supervisors)
    assert asyncio.run(answer(supervisors, own)).startswith("supervisor-")
    assert asyncio.run(answer(supervisors, None)) == "Unreachable"
    run("certs", "issue", str(tmp_path / "tls"), "user:owner")
    stranger = replace(own, cert=tmp_path / "tls/user-owner.pem", key=tmp_path / "tls/user-owner.key")
    assert asyncio.run(answer(supervisors, stranger)) == "Unreachable"

    private = list((cluster.layout.state / "tls").rglob("*.key"))
    assert len(private) > 4
    assert {each.stat().st_mode & 0o777 for each in private} == {0o600}
    assert (cluster.layout.state / "tls").stat().st_mode & 0o777 == 0o700

    assert asyncio.run(read_of_etcd(cluster, "supervisor-supervisor-0")) == "there"
    assert asyncio.run(read_of_etcd(cluster, "etcd-etcd")) == "Refused"
    assert asyncio.run(read_of_etcd(cluster, "user-owner")) == "CoordinationUnreachable"


def test_a_late_start_of_another_machine_changes_nothing_for_long(cluster: LocalCluster) -> None:
    """It stood still after its last look, and writes its files over those of its successor."""
    found, settings = cluster.layout, cluster.layout.read()
    files = [found.settings, *found.settings.parent.glob("config/*.yaml")]
    before = {each: each.read_text() for each in files}
    assert len(before) == 5
    late = replace(settings, life=0, advertise="127.0.0.9", doors=dict.fromkeys(settings.doors, 1))
    found.reachable(late).certify(found.supervisors(late))
    found.write(late)
    wait_until(lambda: {each: each.read_text() for each in files} == before, "its keeper writes them again")
    # Members that start again find their own certificates.
    for name in (ETCD, *found.supervisors(settings)):
        cluster.kill_member(name)
    client = json.loads(found.client_config.read_text().partition("\n")[2])
    own = TlsFiles(*(Path(client["tls"][each]) for each in ("ca", "cert", "key")))
    supervisors = client["supervisors"]
    wait_until(lambda: asyncio.run(answer(supervisors, own)).startswith("supervisor-"), "one leads again")


async def read_of_etcd(cluster: LocalCluster, holder: str) -> str:
    """The outcome of a read of the leader's record in etcd, by this certificate of the cluster."""
    reach = cluster.layout.reachable(cluster.layout.read())
    files = TlsFiles(*map(Path, reach.holder(holder).values()))
    etcd = EtcdCoordination(
        [reach.address(ETCD)], "local", rpc_deadline_ms=2_000, silence_ms=2_000, tls=files
    )
    try:
        return "there" if await etcd.get(keys.LEADER) else "nothing"
    except TfSupervisorError as error:
        return type(error).__name__
    finally:
        await etcd.close()


def test_a_cluster_that_another_machine_has_begun_is_killed(cluster: LocalCluster) -> None:
    pids = [member.pid for member in cluster.status().members]
    assert cluster.status().elsewhere == ""
    newest = Lives(cluster.layout.lives).newest()
    assert newest is not None
    later = replace(newest, number=newest.number + 1, host="n7", boot="another")
    Lives(cluster.layout.lives).write(later)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "everything is killed")
    log = cluster.layout.log("keeper")
    wait_until(lambda: "another machine has begun there" in log.read_text(), "its keeper has ended")
    assert cluster.status().elsewhere == "n7"
    with pytest.raises(Conflict, match="runs on n7: end it there"):
        cluster.down()
    Lives(cluster.layout.lives).write(replace(later, ended=True))

    # Its etcd has users: without an address it could not be opened.
    with pytest.raises(UserError, match="was made with --advertise, and stays so"):
        LocalCluster(cluster.layout.state, nodes=1).up()


def kept_by(cluster: LocalCluster, pid: int) -> int:
    """Hold the lock of a cluster's directory, as a keeper that does not answer; returns the file."""
    cluster.layout.make()
    settings = LocalSettings(
        cluster="local", nodes=0, supervisors=2, profile="default", advertise="127.0.0.2"
    )
    cluster.layout.write(replace(settings, doors={ETCD: 1, "supervisor-0": 2, "supervisor-1": 3}))
    lock = os.open(cluster.layout.lock(settings), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, f"{pid}\n".encode())
    return lock


def test_a_cluster_of_another_machine_is_not_ended_by_a_number_of_its_keeper(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "state")
    innocent = subprocess.Popen(["sleep", "60"])
    lock = kept_by(cluster, innocent.pid)
    try:
        host = Lives(cluster.layout.lives, "there").claim().life.host
        with pytest.raises(Conflict, match=f"runs on {host}: end it there"):
            cluster.down()
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()
        os.close(lock)


def test_machines_do_not_wait_for_the_lock_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path / "state")
    lock = kept_by(cluster, 1)
    assert cluster.status().running
    monkeypatch.setattr(layout, "boot_id", lambda: "there")
    assert not cluster.status().running
    os.close(lock)


def test_a_keeper_has_its_own_life_or_none(tmp_path: Path) -> None:
    found = Layout.of(tmp_path / "state")
    found.make()
    settings = LocalSettings(
        cluster="local",
        nodes=0,
        supervisors=1,
        profile="default",
        advertise="127.0.0.2",
        doors={ETCD: 1},
        life=1,
    )
    lives = Lives(found.lives)
    claim = lives.claim()
    Keeper(found, settings, 1, claim.since_s)
    with pytest.raises(Conflict, match="another machine has just started"):
        Keeper(found, replace(settings, life=2), 1, claim.since_s)
    with pytest.raises(Conflict, match="too slow"):
        Keeper(found, settings, 1, claim.since_s - STOP_S)
    replace(lives, boot="there").claim(0.0)
    for read in (settings, replace(settings, life=2)):
        with pytest.raises(Conflict, match="another machine has just started"):
            Keeper(found, read, 1, claim.since_s)
    with pytest.raises(Conflict, match="another machine has just started"):
        Keeper(found, replace(settings, life=2), 2, claim.since_s)


def written(state: Path) -> Layout:
    """The files of a cluster of one supervisor that other machines reach."""
    found = Layout.of(state)
    found.make()
    doors = {ETCD: 1, "supervisor-0": 2}
    settings = LocalSettings(
        cluster="local",
        nodes=0,
        supervisors=1,
        profile="default",
        advertise="127.0.0.2",
        doors=doors,
        life=3,
    )
    found.write(settings)
    return found


def test_a_cluster_whose_lives_are_gone_does_not_begin_anew(tmp_path: Path) -> None:
    found = written(tmp_path / "state")
    cluster = LocalCluster(found.state, nodes=0, supervisors=1)
    cluster.advertise = "127.0.0.2"
    with pytest.raises(UserError, match="lives is empty, but a cluster was here"):
        cluster.up()


INSIDE = ("a directory",)
FILES = {
    "cluster.json": ("", "{", '# \n{"nodes": "x"}', *INSIDE),
    "lives": ("",),
    "lives/3": (
        "",
        "{",
        "[]",
        '{"number": "3"}',
        '{"number": "3", "host": "h", "boot": "b", "data": "data"}',
        '{"number": 4, "host": "h", "boot": "b", "data": "data"}',
        *INSIDE,
    ),
    "http.token": INSIDE,
    "config": ("",),
    "config/client.yaml": INSIDE,
    "logs/keeper.log": INSIDE,
    "etcd": ("",),
    "tls": ("",),
    "tls/ca.pem": ("", "-----BEGIN CERTIFICATE-----\n", *INSIDE),
    "tls/ca.key": ("", "-----BEGIN PRIVATE KEY-----\n", None, *INSIDE),
    "tls/pool-ca.key": (None,),
}
"""A file of the state directory, and what is there in its place; None: nothing."""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> LocalCluster:
    """A cluster whose files are there, and whose third life has said that it has ended."""
    cluster = cluster_at("127.0.0.2", tmp_path_factory.mktemp("stopped"))
    found, ports = cluster.layout, {ETCD: 1, "supervisor-0": 2, "supervisor-1": 3}
    found.make()
    settings = LocalSettings(
        cluster="local", nodes=0, supervisors=2, profile="default", advertise="127.0.0.2", doors=ports, life=3
    )
    found.reachable(settings).certify(found.supervisors(settings))
    found.write(settings)
    found.lives.mkdir()
    Lives(found.lives).write(Life(number=3, host="h", boot="b", data="data", ready=True, ended=True))
    return cluster


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in FILES.items() for text in texts])
def test_a_file_that_cannot_be_used_is_named_and_the_others_stay(
    stopped: LocalCluster, tmp_path: Path, name: str, text: str | None
) -> None:
    state = tmp_path / "state"
    shutil.copytree(stopped.layout.state, state)
    path = state / name
    if path.is_dir():
        path.rename(tmp_path / "away")
    else:
        path.unlink(missing_ok=True)
    if text == "a directory":
        (path / "inside").mkdir(parents=True)
    elif text is not None:
        path.write_text(text)
    before = {each: each.read_bytes() for each in (state / "tls").rglob("*ca*") if each.is_file()}
    cluster = cluster_at("127.0.0.2", tmp_path)
    with pytest.raises(TfSupervisorError, match=re.escape(str(path))):
        # A start writes a damaged file of options anew.
        cluster.status() if name == "cluster.json" and path.is_file() else cluster.up()
    if name == "cluster.json" or name.startswith("lives"):
        for act in (cluster.status, cluster.down):
            with pytest.raises(TfSupervisorError, match=re.escape(str(path))):
                act()
    assert {each: each.read_bytes() for each in before} == before
    assert text != "a directory" or (path / "inside").is_dir()


def test_a_damaged_file_of_options_does_not_change_the_kind_of_a_cluster(tmp_path: Path) -> None:
    found = Layout.of(tmp_path / "state")
    found.make()
    found.settings.write_text("")
    (found.state / "etcd" / "data").mkdir()
    cluster = LocalCluster(found.state, nodes=0, supervisors=1)
    cluster.advertise = "127.0.0.2"
    with pytest.raises(UserError, match="was made without --advertise"):
        cluster.up()
    found.lives.mkdir()
    with pytest.raises(UserError, match="was made with --advertise"):
        LocalCluster(found.state, nodes=1).up()
    with pytest.raises(UserError, match="lives is empty, but a cluster was here"):
        cluster.up()


def test_an_empty_token_of_the_page_is_written_anew(tmp_path: Path) -> None:
    found = Layout.of(tmp_path / "state")
    found.make()
    found.http_token.touch()
    settings = LocalSettings(
        cluster="local", nodes=1, supervisors=1, profile="default", http={"supervisor-0": 1}
    )
    found.write(settings)
    page = found.page(settings, "supervisor-0")
    assert len(page.partition("=")[2]) == 64
    found.write(settings)
    assert found.page(settings, "supervisor-0") == page


@pytest.mark.parametrize(
    ("host", "listen"),
    [("n1", "0.0.0.0:7601"), ("10.0.0.1", "0.0.0.0:7601"), ("fd00::1", "[::]:7601"), ("::1", "[::1]:7601")],
)
def test_agents_listen_on_the_kind_of_address_that_the_cluster_has(
    tmp_path: Path, host: str, listen: str
) -> None:
    reach = Reachable(tls=tmp_path, host=host, ports={ETCD: 1}, scratch=tmp_path, mark="m", life=1)
    assert reach.agents()["listen"] == listen


def test_locks_of_other_boots_are_removed_once_they_are_old(tmp_path: Path) -> None:
    found = Layout.of(tmp_path / "state")
    found.make()
    settings = LocalSettings(
        cluster="local", nodes=0, supervisors=1, profile="default", advertise="127.0.0.2"
    )
    own = found.lock(settings)
    others = [found.state / f"lock.{name}" for name in ("old", "new")]
    for each in (own, *others):
        each.touch()
    os.utime(others[0], (0, 0))
    found.forget_locks(settings)
    assert sorted(found.state.glob("lock.*")) == sorted((own, others[1]))


@pytest.mark.parametrize(
    ("host", "why"), [("n" * 64, "the address"), ("nobody.invalid", "knows no IPv4 address of it")]
)
def test_a_name_that_nobody_can_reach_begins_no_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, why: str
) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    cluster = LocalCluster(tmp_path / "state", nodes=0)
    cluster.advertise = host
    with pytest.raises(UserError, match=why):
        cluster.up()
    assert not cluster.layout.lives.exists()


def test_a_pool_is_let_into_etcd_whichever_option_names_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = written(tmp_path / "state")
    admitted: list[str] = []
    monkeypatch.setattr(Reachable, "admit", lambda *words: admitted.extend(words[2]))
    elsewhere = tmp_path / "client.yaml"
    elsewhere.write_text(found.client_config.read_text())
    for given in (Globals(found.state), Globals(config=found.client_config), Globals(config=elsewhere)):
        tokens._admit(given, POOL)
    assert admitted == [f"pool:{POOL}"] * 2


def test_a_port_with_connections_that_have_ended_is_free() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.2", port)) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""
    assert _free_ports(("etcd",), "127.0.0.2", {"etcd": port}) == {"etcd": port}


def test_agents_of_its_own_are_refused(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "state", nodes=1)
    cluster.advertise = "127.0.0.2"
    with pytest.raises(UserError, match="leave out --nodes, --separate and --runtime"):
        cluster.up()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_in_the_foreground_it_ends_with_its_command(
    tmp_path: Path, request: pytest.FixtureRequest, number: int, code: int
) -> None:
    state = tmp_path / "state"
    words = ("local", "up", "--foreground", "--nodes", "1", "--supervisors", "1")
    with (tmp_path / "log").open("wb") as log:
        command = subprocess.Popen(
            [sys.executable, "-m", "supervisor.cli.main", "--state", str(state), *words],
            env=environment(),
            stdout=log,
            stderr=log,
        )
    # Its cluster ends with it.
    request.addfinalizer(command.kill)
    wait_until(lambda: "page: " in (tmp_path / "log").read_text(), "it is up")
    status = LocalCluster(state).status()
    assert [member.state for member in status.members] == ["running"] * 3
    assert status.page not in (tmp_path / "log").read_text()
    assert f"(its token is in {state / 'http.token'})" in (tmp_path / "log").read_text()
    # A fault of the file system that is over soon does not end it.
    lock = state / "lock"
    lock.rename(state / "away")
    lock.mkdir()
    with pytest.raises(subprocess.TimeoutExpired):
        command.wait(0.5)
    lock.rmdir()
    (state / "away").rename(lock)
    command.send_signal(number)
    assert command.wait(60) == code
    pids = [status.keeper_pid, *(member.pid for member in status.members)]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "nothing is left")
    assert not LocalCluster(state).status().running
