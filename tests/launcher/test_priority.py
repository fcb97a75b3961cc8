"""Running tasks have a lower priority than tasks that start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.inside import protocol
from agent.inside.processes import priority
from tests.launcher.harness import Agent, launcher, wait_for

AUTOGROUP = Path("/proc/self/autogroup")
FREEZERS = Path("/sys/fs/cgroup/freezer")
OWN = os.getpriority(os.PRIO_PROCESS, 0)
LOWER_THEN_HASTEN = """
import os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from agent.inside.processes import priority
os.setuid(int(sys.argv[2]))
child = subprocess.Popen(["sleep", "100"], start_new_session=True, stdout=2)
def seen():
    group = open(f"/proc/{child.pid}/autogroup").read().split()[-1] if len(sys.argv) > 3 else "-"
    return os.getpriority(os.PRIO_PROCESS, child.pid), group
def until(change, *values):
    deadline = time.monotonic() + 30
    change()
    while seen()[1] not in ("-", *values) and time.monotonic() < deadline:
        change()  # the kernel takes one such wish in a tenth of a second, whoever has it
    print(*seen())
until(lambda: priority.lower(child.pid, 7), "7")
until(lambda: priority.hasten(child.pid), "0", "-20")
child.kill()
"""

SHOW_PIPES = """
import os, stat
for fd in range(256):
    try:
        found = os.fstat(fd)
    except OSError:
        continue
    if stat.S_ISFIFO(found.st_mode):
        print(found.st_ino)
"""


def lowered_then_hastened(user: int) -> list[str]:
    """The nice value and the weight of a session, lowered and then hastened by this user."""
    argv = [sys.executable, "-I", "-S", "-c", LOWER_THEN_HASTEN, str(Path(__file__).parents[2]), str(user)]
    argv += ["weighed"] if AUTOGROUP.exists() else []
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group whose processes neither run nor die while it is frozen."""
    home = FREEZERS / f"priority-{os.getpid()}"
    try:
        home.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer here: {error}")
    try:
        yield home
    finally:
        (home / "freezer.state").write_text("THAWED")
        wait_for("an empty freezer", lambda: not (home / "cgroup.procs").read_text())
        home.rmdir()


def test_every_thread_of_the_session_is_settled() -> None:
    script = (
        "import sys, threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print(flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        ["python3", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        priority.lower(child.pid, 7)
        threads = [int(path.name) for path in Path(f"/proc/{child.pid}/task").iterdir()]
        assert len(threads) == 2
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {7}
        child.stdin.close()


def test_a_session_that_is_gone_is_no_error() -> None:
    child = subprocess.Popen(["true"], start_new_session=True)
    child.wait()
    priority.lower(child.pid, 7)


def test_a_launcher_yields_while_it_imports_and_no_longer(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text(
        "import pathlib\n"
        f"seen = pathlib.Path({str(AUTOGROUP)!r})\n"
        "pathlib.Path(__file__).with_name('seen').write_text(seen.read_text() if seen.exists() else '')\n"
    )
    env = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    with launcher(preload=["heavy"], task_nice=10, env=env) as rig, Agent(rig.socket_path) as agent:
        assert agent.expect(protocol.Warm).error is None
        during = (tmp_path / "seen").read_text()
        assert not during or during.endswith(" nice 5\n")
        own = Path(f"/proc/{rig.process.pid}/autogroup")

        def weighs_in_full() -> bool:
            return not during or own.read_text().endswith(" nice 0\n")

        wait_for("the launcher's full weight", weighs_in_full)
        assert os.getpriority(os.PRIO_PROCESS, rig.process.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        rig.run(agent, "cat", str(AUTOGROUP))
        assert not during or rig.log().endswith(b" nice 0\n")


def test_a_task_that_can_only_wait_leaves_the_processors_to_the_others() -> None:
    with launcher(task_nice=10) as rig, Agent(rig.socket_path) as agent:
        rig.run(agent, "nice", yields=True)
        assert rig.log() == b"5\n"


def test_a_task_starts_at_the_launchers_priority() -> None:
    with launcher(task_nice=10) as rig, Agent(rig.socket_path) as agent:
        rig.run(agent, "nice")
        assert int(rig.log()) == OWN


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_without_privilege_only_what_can_be_taken_back_is_lowered() -> None:
    before, after = lowered_then_hastened(65_534)
    assert before.split()[0] == after.split()[0] == (str(OWN) if priority.sessions_are_weighed() else "7")
    assert before.split()[1] in ("7", "-")
    assert after.split()[1] in ("0", "-")


@pytest.mark.parametrize(
    ("enabled", "groups", "counts"),
    [
        ("1\n", "3:memory:/x\n1:cpu,cpuacct:/\n0::/y\n", True),
        ("1\n", "1:cpu,cpuacct:/docker/c1\n0::/\n", False),
        ("1\n", "0::/\n", True),
        ("1\n", "0::/plain/deeper\n", True),
        ("1\n", "0::/weighed/deeper\n", False),
        ("0\n", "0::/\n", False),
        (None, "0::/\n", False),
    ],
)
def test_sessions_have_a_weight_outside_of_weighed_groups(
    tmp_path: Path, enabled: str | None, groups: str, *, counts: bool
) -> None:
    (tmp_path / "sys/kernel").mkdir(parents=True)
    if enabled is not None:
        (tmp_path / "sys/kernel/sched_autogroup_enabled").write_text(enabled)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(groups)
    (tmp_path / "cgroup/weighed").mkdir(parents=True)
    (tmp_path / "cgroup/weighed/cpu.weight").write_text("100\n")
    assert priority.sessions_are_weighed(str(tmp_path), str(tmp_path / "cgroup")) is counts


@pytest.mark.parametrize(
    ("limit", "uid", "foreign", "weighed", "lacks"),
    [
        (0, 0, False, True, ""),
        (40, 0, True, True, ""),
        (40, 65_534, False, True, ""),
        (20, 0, True, False, "not before other programs"),
        (20, 65_534, False, False, "not before other programs"),
        (0, 0, True, True, "not before other programs"),
        (0, 65_534, False, True, "not before other programs"),
        (0, 65_534, False, False, "like those that train"),
        (0, 0, True, False, "like those that train"),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
@pytest.mark.skipif(not priority.may_raise(), reason="this user may not raise a priority")
def test_what_a_kill_lacks_is_known(
    limit: int, uid: int, *, foreign: bool, weighed: bool, lacks: str
) -> None:
    source = (
        "import os, resource, sys; sys.path.insert(0, sys.argv[1]); "
        "from agent.inside.processes import priority; "
        f"resource.getrlimit = lambda _: ({limit}, {limit}); os.setuid({uid}); "
        f"priority.sessions_are_weighed = lambda: {weighed}; print(priority.shortfall(foreign={foreign}))"
    )
    argv = [sys.executable, "-I", "-S", "-c", source, str(Path(__file__).parents[2])]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    assert said.endswith(lacks)
    assert bool(said) is bool(lacks)


@pytest.mark.skipif(not priority.may_raise(), reason="this user may not raise a priority")
def test_with_privilege_what_dies_comes_before_everything() -> None:
    before, after = lowered_then_hastened(os.geteuid())
    assert before in ("7 7", "7 -")
    assert after in ("-20 -20", "-20 -")


@pytest.mark.skipif(not priority.may_raise(), reason="this user may not raise a priority")
def test_an_attempt_that_its_launcher_kills_comes_before_everything(freezer: Path) -> None:
    with launcher(task_nice=10, settle_ms=0) as rig, Agent(rig.socket_path) as agent:
        name = rig.start(agent, "sleep", "1000")
        pid = agent.expect(protocol.Started).pid

        def nice() -> int:
            return os.getpriority(os.PRIO_PROCESS, pid)

        wait_for("the priority of what trains", lambda: nice() == 10)
        (freezer / "cgroup.procs").write_text(str(pid))
        (freezer / "freezer.state").write_text("FROZEN")
        wait_for("the frost", lambda: (freezer / "freezer.state").read_text() == "FROZEN\n")
        agent.send(protocol.Kill(name, "test"))
        wait_for("the first turn for what dies", lambda: nice() == -20)
        (freezer / "freezer.state").write_text("THAWED")
        assert agent.expect(protocol.Exited, lambda each: each.attempt == name).signal == signal.SIGKILL


@pytest.mark.parametrize("by", ["its agent's word", "its deadline"])
def test_a_container_weighs_most_while_its_launcher_kills(by: str) -> None:
    """Its agent, which alone could set that weight, is gone in one case."""
    reader, writer = os.pipe()
    agent_grants = 60_000 if by == "its agent's word" else 400
    with launcher() as rig, Agent(rig.socket_path, grant_ms=agent_grants) as agent:
        agent.expect(protocol.Warm)
        peer = wait_for("connection", lambda: agent._peer)
        assert peer is not None
        socket.send_fds(peer, [protocol.encode(protocol.Weight(first=9_000, usual=80))], [writer])
        os.close(writer)
        name = rig.start(agent, "sleep", "1000")
        agent.expect(protocol.Started)
        held = [each.readlink() for each in Path(f"/proc/{rig.process.pid}/fd").iterdir()]
        assert Path(f"/proc/self/fd/{reader}").readlink() in held
        if by == "its agent's word":
            agent.send(protocol.Kill(name, "test"))
            agent.expect(protocol.Exited)
        else:
            agent.close()
        said = b""
        while not said.endswith(b"80"):
            said += os.read(reader, 100)
        assert said.startswith(b"9000")
    os.close(reader)


def test_a_program_does_not_get_the_descriptor_of_the_weight() -> None:
    reader, writer = os.pipe()
    with launcher() as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        peer = wait_for("connection", lambda: agent._peer)
        assert peer is not None
        socket.send_fds(peer, [protocol.encode(protocol.Weight(first=9, usual=8))], [writer])
        inode = os.fstat(writer).st_ino
        os.close(writer)
        script = rig.write("show.py", SHOW_PIPES)
        for warm in (True, False):
            rig.run(agent, sys.executable, str(script), warm=warm)
            shown = rig.log().split()
            assert shown, "its output is a pipe, too"
            assert str(inode).encode() not in shown
    os.close(reader)


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="a kernel without autogroups")
def test_the_weight_of_a_session_stays_where_only_a_member_of_it_is_killed() -> None:
    before = AUTOGROUP.read_text()
    child = subprocess.Popen(["sleep", "100"])
    child.kill()
    priority.hasten(child.pid)
    child.wait()
    child = subprocess.Popen(["sleep", "100"])
    priority.lower(child.pid, 7)
    priority.weigh_session(child.pid, 7)
    child.kill()
    child.wait()
    assert AUTOGROUP.read_text() == before
