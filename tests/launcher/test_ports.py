"""A port belongs to one attempt on this machine, from its claim until nothing of the attempt is left."""

import errno
import fcntl
import os
import resource
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.inside import protocol
from agent.inside.launcher import ports
from agent.inside.launcher.loop import Launcher
from agent.inside.processes import fence, spawn
from tests.launcher.harness import Agent, launcher, of, port_of, wait_for


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[list[ports.Claim]]:
    held: list[ports.Claim] = []
    yield held
    for claim in held:
        claim.close()


def listen(port: int, *options: int) -> socket.socket:
    sock = socket.socket()
    for option in options:
        sock.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        sock.bind(("0.0.0.0", port))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def test_claims_go_round_the_range_and_never_collide(
    tmp_path: Path, free: int, claims: list[ports.Claim]
) -> None:
    claims.extend(ports.claim(free, free + 2, str(tmp_path)) for _ in range(3))
    assert sorted(claim.port for claim in claims) == [free, free + 1, free + 2]
    with pytest.raises(ports.PortUnavailable, match=f"no free port in {free}-{free + 2} .*another task"):
        ports.claim(free, free + 2, str(tmp_path))
    oldest = claims.pop(0)
    oldest.close()
    claims.append(ports.claim(free, free + 2, str(tmp_path)))
    assert claims[-1].port == oldest.port


def test_a_released_port_comes_last(tmp_path: Path, free: int) -> None:
    seen = []
    for _ in range(4):
        claim = ports.claim(free, free + 3, str(tmp_path))
        seen.append(claim.port)
        claim.close()
    assert len(set(seen)) == 4


def test_ports_to_avoid_are_avoided(tmp_path: Path, free: int, claims: list[ports.Claim]) -> None:
    claims.append(ports.claim(free, free + 2, str(tmp_path), avoid=(free, free + 2)))
    assert claims[0].port == free + 1
    with pytest.raises(ports.PortUnavailable, match="to be avoided"):
        ports.claim(free, free, str(tmp_path), avoid=(free,))
    with pytest.raises(ports.PortUnavailable, match="not a range"):
        ports.claim(5, 4, str(tmp_path))


@pytest.mark.parametrize("options", [(), (socket.SO_REUSEADDR,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)])
def test_a_port_that_somebody_listens_on_is_refused(
    tmp_path: Path, free: int, options: tuple[int, ...]
) -> None:
    """Also one that shares its port as a zombie TensorFlow server does."""
    with (
        closing(listen(free, *options)),
        pytest.raises(ports.PortUnavailable, match="in use by another process"),
    ):
        ports.claim(free, free, str(tmp_path))
    with closing(socket.socket()) as local:
        local.bind(("127.0.0.1", free))
        local.listen()
        with pytest.raises(ports.PortUnavailable, match="in use"):
            ports.claim(free, free, str(tmp_path))


def test_the_holder_keeps_strangers_out_and_lets_the_task_in(
    tmp_path: Path, free: int, claims: list[ports.Claim]
) -> None:
    claims.append(ports.claim(free, free, str(tmp_path)))
    for options in ((), (socket.SO_REUSEADDR,)):
        with pytest.raises(OSError, match="in use"):
            listen(free, *options)
    with closing(listen(free, socket.SO_REUSEADDR, socket.SO_REUSEPORT)) as server:
        for _ in range(20):
            with closing(socket.create_connection(("127.0.0.1", free), timeout=60)):
                server.accept()[0].close()
    claims.pop().close()
    # Connections in TIME_WAIT do not stand in the way of a restart.
    claims.append(ports.claim(free, free, str(tmp_path), reuse=free))


def test_a_planted_symlink_is_not_followed(tmp_path: Path, free: int) -> None:
    (tmp_path / "victim").touch()
    (tmp_path / f"port-{free}.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(ports.PortUnavailable, match="symbolic"):
        ports.claim(free, free, str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_files_that_another_user_has_spoilt_cost_their_ports_alone() -> None:
    """A job could keep all others from starting, with one file that nobody else may open."""
    low, high = 40_001, 40_003
    program = f"from agent.inside.launcher import ports; print(ports.claim({low}, {high}, '.').port)"
    with tempfile.TemporaryDirectory() as locks:
        Path(locks).chmod(0o1777)
        for name in (f"cursor-{low}-{high}", f"port-{low}.lock"):
            (Path(locks) / name).touch(mode=0o600)
        (Path(locks) / f"port-{low + 1}.lock").mkdir()
        done = subprocess.run(
            ["/usr/bin/python3", "-c", program],
            cwd=locks,
            env={"PYTHONPATH": str(Path(ports.__file__).parents[3])},
            user=61_700,
            group=61_700,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == f"{high}\n"


def test_lock_files_are_for_everybody(tmp_path: Path, free: int, claims: list[ports.Claim]) -> None:
    before = os.umask(0o077)
    try:
        claims.append(ports.claim(free, free, str(tmp_path)))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o666}


# Through launchers.


def test_two_launchers_get_ports_of_their_own(tmp_path: Path, free: int) -> None:
    with (
        launcher() as one,
        launcher() as two,
        Agent(one.socket_path) as first,
        Agent(two.socket_path) as second,
    ):
        locks = str(tmp_path)
        got = [port_of(one.reserve(first, f"r{i}", free, free + 3, lock_dir=locks)) for i in range(2)]
        got += [port_of(two.reserve(second, f"r{i}", free, free + 3, lock_dir=locks)) for i in range(2)]
        assert sorted(got) == [free, free + 1, free + 2, free + 3]
        assert port_of(one.reserve(first, "r0", free, free + 3, lock_dir=locks)) == got[0]
        failed = two.reserve(second, "r2", free, free + 3, lock_dir=locks)
        assert isinstance(failed, protocol.ReserveFailed)
        assert "another task" in failed.reason
        first.send(protocol.Release("r0"))
        wait_for("release", lambda: _lockable(tmp_path / f"port-{got[0]}.lock"))
        assert port_of(two.reserve(second, "r2", free, free + 3, lock_dir=locks)) == got[0]


def _lockable(path: Path) -> bool:
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.mark.parametrize("warm", [True, False])
def test_a_port_is_not_reused_while_anything_of_the_attempt_lives(
    tmp_path: Path, free: int, warm: bool
) -> None:
    with launcher() as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        port = port_of(rig.reserve(agent, "r", free, free, lock_dir=str(tmp_path)))
        rig.write(
            "prog.py",
            "import os\nprint(os.environ['TF_GRPC_REUSE_PORT'])\nos.execlp('sleep', 'sleep', '1000')",
        )
        attempt = rig.start(agent, "python", "prog.py", reservation="r", warm=warm)
        rig.logged("true")
        assert agent.expect(protocol.Started).pid
        agent.send(protocol.Release("r"))
        failed = rig.reserve(agent, "s", free, free, lock_dir=str(tmp_path))
        assert isinstance(failed, protocol.ReserveFailed)
        agent.send(protocol.Kill(attempt))
        assert agent.expect(protocol.Exited).port == port
        assert port_of(rig.reserve(agent, "s", free, free, lock_dir=str(tmp_path))) == port


def test_orphans_of_a_killed_launcher_keep_their_port(tmp_path: Path, free: int) -> None:
    with launcher() as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        rig.reserve(agent, "r", free, free, lock_dir=str(tmp_path))
        source = "import os, time\nif os.fork() == 0:\n    os.setsid(); print('orphan')\ntime.sleep(1000)"
        rig.write("prog.py", source)
        rig.start(agent, "python", "prog.py", reservation="r")
        rig.logged("orphan")
        marker = agent.expect(protocol.Hello).marker
        rig.process.kill()
        rig.process.wait()
        with pytest.raises(ports.PortUnavailable):
            ports.claim(free, free, str(tmp_path))
        assert fence.fence(marker).confirmed_dead
        ports.claim(free, free, str(tmp_path)).close()


def test_an_attempt_is_restarted_in_place_on_its_port(tmp_path: Path, free: int) -> None:
    with launcher() as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        port = port_of(rig.reserve(agent, "g1", free, free + 5, lock_dir=str(tmp_path)))
        other = port_of(rig.reserve(agent, "g2", free, free + 5, lock_dir=str(tmp_path)))
        assert other != port
        for _ in range(2):
            attempt = rig.start(agent, "sleep", "1000", reservation="g1")
            agent.expect(protocol.Started, of(attempt))
            agent.send(protocol.Kill(attempt))
            exited = agent.expect(protocol.Exited, of(attempt))
            assert exited.port == port
        agent.close()
        with Agent(rig.socket_path, name="inc2") as successor:
            held = {each.reservation: each.port for each in successor.expect(protocol.Hello).reservations}
            assert held == {"g1": port, "g2": other}
            renamed = rig.reserve(successor, "g1-again", free, free + 5, lock_dir=str(tmp_path), reuse=port)
            assert port_of(renamed) == port


ALONE = """
import http.server
class Server(http.server.HTTPServer):
    allow_reuse_address = {reuse}
with Server(("0.0.0.0", {port}), http.server.SimpleHTTPRequestHandler) as server:
    print("listens", flush=True)
    server.serve_forever()
"""


@pytest.mark.parametrize("reuse", [True, False])
def test_a_program_that_does_not_share_its_port_binds_it(tmp_path: Path, free: int, reuse: bool) -> None:
    """Nobody else can claim the port meanwhile, and after the program's death it is held again."""
    with launcher() as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        port = port_of(rig.reserve(agent, "r", free, free, lock_dir=str(tmp_path)))
        rig.write("prog.py", ALONE.format(port=port, reuse=reuse))
        for _ in range(2):
            attempt = rig.start(agent, "python", "prog.py", reservation="r", alone=True)
            rig.logged("listens")
            socket.create_connection(("127.0.0.1", port), timeout=60).close()
            with pytest.raises(ports.PortUnavailable, match="another task"):
                ports.claim(port, port, str(tmp_path))
            agent.send(protocol.Kill(attempt))
            agent.expect(protocol.Exited, of(attempt))
            with pytest.raises(OSError, match="in use"):
                listen(port)


def test_the_end_of_a_program_names_who_has_taken_its_port(tmp_path: Path, free: int) -> None:
    with launcher() as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        rig.reserve(agent, "r", free, free, lock_dir=str(tmp_path))
        os.mkfifo(rig.root / "go")
        rig.write("prog.py", "open('go').read(); raise SystemExit(3)")
        attempt = rig.start(agent, "python", "prog.py", reservation="r", alone=True)
        agent.expect(protocol.Started, of(attempt))
        with closing(listen(free)), closing(listen(0)) as unrelated:
            (rig.root / "go").write_text("x")
            detail = agent.expect(protocol.Exited, of(attempt)).detail
            assert f"(pid {os.getpid()}) listens on its port {free}" in detail
            assert ports.listener_on(unrelated.getsockname()[1])
        assert not ports.listener_on(free)


def test_a_start_that_the_kernel_refuses_gives_nothing_away(
    tmp_path: Path, free: int, claims: list[ports.Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process_left() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    config = protocol.LauncherConfig(
        protocol=protocol.PROTOCOL, launcher_id="l1", job="digits", socket="none", state_dir=str(tmp_path)
    )
    one = Launcher(config, "l1#x")
    claims.append(ports.claim(free, free, str(tmp_path)))
    one._reservations.put("r", claims[0])
    start = protocol.Start(
        attempt="digits/worker:0@1.1",
        incarnation="inc1",
        argv=("true",),
        cwd=str(tmp_path),
        attempt_dir=str(tmp_path / "logs"),
        reservation="r",
        alone=True,
    )
    before = spawn.open_fds()
    monkeypatch.setattr(os, "fork", no_process_left)
    one._begin(start)
    assert spawn.open_fds() == before
    with pytest.raises(OSError, match="in use"):
        listen(free)


def test_a_launcher_without_a_descriptor_left_says_so_and_goes_on() -> None:
    with launcher() as rig, Agent(rig.socket_path) as agent:
        # It opens what it needs for itself after it has said that it is warm.
        exited = rig.run(agent, "true")
        assert exited.code == 0
        # It closes what the attempt had after it has told the exit, and before it pulls for no attempt.
        over_ms = agent.received_ms(exited)
        agent.expect(protocol.Pull, lambda each: each.attempt is None and each.stamp_ms > over_ms)
        used = len(list(Path(f"/proc/{rig.process.pid}/fd").iterdir()))
        limits = resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, (used + 1, limits[1]))
        attempt = rig.start(agent, "true")
        failed = agent.expect(protocol.StartFailed, lambda each: each.attempt == attempt)
        assert "Too many open files" in failed.reason
        resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, limits)
        assert rig.run(agent, "true").code == 0
