"""Starting, ending and killing attempts; nothing that one started outlives it."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from agent.inside import protocol
from agent.inside.child import stacks
from agent.inside.clock import now_ms
from agent.inside.launcher import pump
from agent.inside.processes import fence
from agent.runtimes.local import write_config
from tests.launcher.harness import INSIDE, Agent, Rig, launcher, of, wait_for

# Leaves a session leader's orphan behind and prints its pid.
DOUBLE_FORK = """
import os, sys, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"orphan %d\\n" % os.getpid())
        os.write(writer, b"x")
        time.sleep(1000)
    os._exit(0)
os.wait()
os.read(reader, 1)
{then}
"""


@pytest.fixture
def pair() -> Iterator[tuple[Rig, Agent]]:
    with launcher() as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        yield rig, agent


def alive(pid: int) -> bool:
    return fence.read_process(pid) is not None


def orphan_of(rig: Rig) -> int:
    line = rig.logged("orphan").partition(b"orphan ")[2]
    return int(line.split()[0])


def test_an_import_that_hangs_is_bounded_and_named() -> None:
    hangs = Path(__file__).parent / "hangs"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(hangs)}
    with (
        launcher(preload=("hangs_at_import",), preload_ms=200, env=env) as rig,
        Agent(rig.socket_path) as agent,
    ):
        error = agent.expect(protocol.Warm).error or ""
        assert "hangs_at_import: ImportHangs: not imported after 0.2 s (limits.startup), at" in error
        assert rig.run(agent, "true").code == 0


def test_hello_says_who_the_launcher_is(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    hello = agent.expect(protocol.Hello)
    assert (hello.protocol, hello.job, hello.pid) == (protocol.PROTOCOL, "digits", rig.process.pid)
    process = fence.read_process(hello.pid)
    assert process is not None
    assert process.start_ticks == hello.start_ticks
    assert fence.has_marker(hello.pid, hello.marker)
    assert fence.has_marker(hello.pid, f"{hello.launcher_id}#")
    assert not fence.has_marker(hello.pid, hello.launcher_id)


def test_a_launcher_that_no_agent_has_marked_does_not_start(tmp_path: Path) -> None:
    """Nobody could find what it starts."""
    config = protocol.LauncherConfig(
        protocol.PROTOCOL, "l1", "digits", str(tmp_path / "agent.sock"), str(tmp_path)
    )
    path = write_config(tmp_path, config)
    done = subprocess.run(
        [sys.executable, str(INSIDE), str(path)],
        env={fence.MARKER_VARIABLE: "l10#test"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "TFSUP_MARKER does not name l1: only agents start launchers\n",
    )


@pytest.mark.parametrize(
    ("script", "code", "number"), [("exit 0", 0, None), ("exit 5", 5, None), ("kill -TERM $$", None, 15)]
)
def test_a_shell_command_ends_with_its_code_or_signal(
    pair: tuple[Rig, Agent], script: str, code: int | None, number: int | None
) -> None:
    rig, agent = pair
    exited = rig.run(agent, "sh", "-c", f"echo $0 $GREETING; {script}", "zero", env={"GREETING": "hello"})
    assert (exited.code, exited.signal, exited.reason) == (code, number, "exit")
    assert rig.log() == b"zero hello\n"
    assert not agent.all(protocol.Started)[-1].warm


def test_what_cannot_run_says_why(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    exited = rig.run(agent, "nonesuch")
    assert (exited.reason, exited.code) == ("start_failed", 127)
    assert exited.detail == "cannot run 'nonesuch': No such file or directory"
    assert exited.detail.encode() in rig.log()
    assert rig.run(agent, "/etc/passwd").code == 126
    unspeakable = rig.run(agent, "sh", "\ud800")
    assert (unspeakable.reason, unspeakable.code) == ("start_failed", 127)
    assert "cannot change to directory" in rig.run(agent, "true", cwd="/nonesuch").detail
    attempt = rig.start(agent, "true", attempt_dir="/proc/nonesuch")
    assert "cannot start" in agent.expect(protocol.StartFailed, lambda each: each.attempt == attempt).reason
    assert rig.run(agent, "true").code == 0


def test_one_attempt_at_a_time(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    first = rig.start(agent, "sleep", "1000")
    agent.expect(protocol.Started)
    second = rig.start(agent, "true")
    failed = agent.expect(protocol.StartFailed)
    assert (failed.attempt, failed.reason) == (second, f"attempt {first} is not confirmed dead")


def test_only_the_serving_incarnation_starts(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    rig.start(agent, "true", incarnation="other")
    assert "incarnation other" in agent.expect(protocol.StartFailed).reason
    rig.start(agent, "true", reservation="r9")
    assert "no port is held" in agent.expect(protocol.StartFailed, lambda each: "port" in each.reason).reason


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("then", ["time.sleep(1000)", "sys.exit(4)"])
def test_a_double_forked_grandchild_dies_with_its_attempt(
    pair: tuple[Rig, Agent], then: str, warm: bool
) -> None:
    rig, agent = pair
    rig.write("prog.py", DOUBLE_FORK.format(then=then))
    attempt = rig.start(agent, "python", "prog.py", warm=warm)
    agent.expect(protocol.Started)
    orphan = orphan_of(rig)
    if "sleep" in then:
        assert alive(orphan)
        agent.send(protocol.Kill(attempt))
    exited = agent.expect(protocol.Exited)
    assert exited.confirmed_dead
    assert not alive(orphan)
    assert (exited.code, exited.reason) == ((None, "killed") if "sleep" in then else (4, "exit"))


@pytest.mark.parametrize("warm", [True, False])
def test_a_killed_launcher_takes_its_child_along_and_the_marker_finds_the_rest(
    pair: tuple[Rig, Agent], warm: bool
) -> None:
    rig, agent = pair
    marker = agent.expect(protocol.Hello).marker
    rig.write("prog.py", DOUBLE_FORK.format(then="time.sleep(1000)"))
    rig.start(agent, "python", "prog.py", warm=warm)
    child = agent.expect(protocol.Started).pid
    orphan = orphan_of(rig)
    rig.process.kill()
    rig.process.wait()
    wait_for("death of the child", lambda: not alive(child))
    assert [process.pid for process in fence.survivors(marker)] == [orphan]
    report = fence.fence(marker)
    assert report.confirmed_dead
    assert report.killed == 1
    assert not alive(orphan)


def test_a_fork_storm_is_ended(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    # Bounded, so that it ends where nobody is left to end it.
    rig.write(
        "prog.py",
        "import os, time\n"
        "print('go', flush=True)\n"
        "until = time.monotonic() + 60\n"
        "while time.monotonic() < until:\n"
        "    if os.fork():\n"
        "        time.sleep(0.02)\n"
        "        os._exit(0)\n",
    )
    rig.start(agent, "python", "prog.py")
    rig.logged("go")
    agent.expect(protocol.Exited, lambda exited: exited.confirmed_dead)
    assert not [p for p in fence.survivors(agent.expect(protocol.Hello).marker) if p.pid != rig.process.pid]


def test_killing_waits_for_nothing(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    attempt = rig.start(agent, "sleep", "1000")
    agent.expect(protocol.Started)
    asked = now_ms()
    agent.send(protocol.Kill(attempt))
    assert agent.expect(protocol.Exited).signal == signal.SIGKILL
    assert now_ms() - asked < 4_000


def test_a_kill_after_the_end_and_a_second_start_tell_the_exit_again(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    attempt = rig.start(agent, "true")
    exited = agent.expect(protocol.Exited)
    agent.send(protocol.Kill(attempt))
    wait_for("second report", lambda: len(agent.all(protocol.Exited)) == 2)
    rig.start(agent, "true", attempt=attempt)
    wait_for("third report", lambda: len(agent.all(protocol.Exited)) == 3)
    assert agent.all(protocol.Exited) == [exited] * 3
    assert len(agent.all(protocol.Started)) == 1


def test_exit_records_stay_on_disk_until_they_are_acknowledged(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    attempt = rig.start(agent, "false")
    exited = agent.expect(protocol.Exited)
    (record,) = (rig.root / "state" / "exits").iterdir()
    assert protocol.from_plain(protocol.Exited, json.loads(record.read_text())) == exited
    agent.send(protocol.AckExit(attempt))
    wait_for("removal", lambda: not record.exists())


def test_shutdown_kills_and_leaves(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    rig.start(agent, "sleep", "1000")
    child = agent.expect(protocol.Started).pid
    agent.send(protocol.Shutdown())
    assert rig.process.wait(20) == 0
    assert not alive(child)
    assert agent.expect(protocol.Exited).reason == "killed"


def test_sigterm_from_outside_is_a_loss_of_the_launcher(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    rig.start(agent, "sleep", "1000")
    agent.expect(protocol.Started)
    rig.process.terminate()
    assert rig.process.wait(20) == 0
    assert agent.expect(protocol.Exited).reason == "lost"


def test_children_find_a_clean_process(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    source = (
        f"import os, signal; signal.signal({int(stacks.SIGNAL)}, signal.SIG_DFL)  # dumps a warm program\n"
        "s = dict(l.split(':', 1) for l in open('/proc/self/status'))\n"
        "print(os.getsid(0) == os.getpid(), s['SigBlk'].strip(), s['SigIgn'].strip(), s['SigCgt'].strip())\n"
        "print(open('/proc/self/oom_score_adj').read().strip(), os.environ.get('OMP_NUM_THREADS'))\n"
        "print([os.readlink(f'/proc/self/fd/{n}').split(':')[0] for n in (0, 1, 2)])\n"
        "print(sorted(os.environ))\n"
    )
    rig.write("prog.py", source)
    rig.run(agent, "python", "prog.py", warm=True)
    # `peers` sets this one to gRPC's own default.
    warm = rig.log().replace(b"'GRPC_FAIL_FAST', ", b"")
    rig.run(agent, "python", "prog.py", warm=False, env={"PYTHONUNBUFFERED": "1"})
    assert rig.log().replace(b"'PYTHONUNBUFFERED', ", b"") == warm
    assert b"\n500 None\n" in warm


def test_a_launcher_whose_preload_fails_starts_cold() -> None:
    with launcher(preload=["nonesuch"]) as rig, Agent(rig.socket_path) as agent:
        assert (
            agent.expect(protocol.Warm).error == "nonesuch: ModuleNotFoundError: No module named 'nonesuch'"
        )
        rig.write("prog.py", "print('ran')")
        assert rig.run(agent, "python", "prog.py").code == 0
        assert not agent.all(protocol.Started)[-1].warm


def test_every_fork_has_randomness_of_its_own() -> None:
    with launcher(preload=["numpy.random", "random"]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        rig.write("prog.py", "import numpy, random; print(numpy.random.rand(), random.random())")
        drawn = set()
        for _ in range(3):
            rig.run(agent, "python", "prog.py")
            drawn.update(rig.log().split())
        assert len(drawn) == 6


# Output.


def test_output_is_bounded_by_rotation_and_keeps_whole_lines(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    rig.write("prog.py", "for i in range(100000): print('line', i)")
    exited = rig.run(agent, "python", "prog.py", log_max_bytes=100_000, log_files=3)
    files = sorted((rig.root / "logs" / "1").glob("output.log*"))
    assert [path.name for path in files] == ["output.log", "output.log.1", "output.log.2"]
    assert all(path.stat().st_size <= 100_000 for path in files)
    tail = b"".join(path.read_bytes() for path in reversed([files[0], *files[1:]]))
    whole = b"".join(b"line %d\n" % i for i in range(100_000))
    assert whole.endswith(tail)
    assert len(tail) > 200_000
    assert exited.total_bytes == len(whole)


def test_rotation_is_between_lines(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    output = pump.Pump(reader, str(tmp_path), max_bytes=4096, files=10)
    for length in (3000, 1000, 96, 1, 4096, 5, 4090, 2, 9000):
        os.write(writer, b"x" * (length - 1) + b"\n")
        output.read_some(1 << 20)
    os.close(writer)
    assert output.read_some(1 << 20)
    output.close()
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("output.log*"))]
    assert sizes == [810, 4096, 4096, 4095, 4096, 1, 4096]


def test_escape_sequences_and_rubbish_are_kept_as_they_are(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    rubbish = bytes(range(256)) * 3 + b"\x1b[2J\x1b]0;title\x07\xff\xfe\r\n" + "\u2603".encode()
    rig.write("prog.py", f"import sys; sys.stdout.buffer.write({rubbish!r})")
    rig.run(agent, "python", "prog.py")
    assert rig.log() == rubbish


def test_a_flood_of_output_is_fast_and_starves_no_pull(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    rig.write(
        "prog.py",
        "import os, sys\nb = os.urandom(1 << 20)\nfor _ in range(100): sys.stdout.buffer.write(b)\n",
    )
    began = now_ms()
    exited = rig.run(agent, "python", "prog.py", log_max_bytes=8 << 20, log_files=2, timeout_s=30)
    took = now_ms() - began
    assert exited.total_bytes >= 100 << 20
    stamps = [pull.stamp_ms for pull in agent.all(protocol.Pull) if pull.stamp_ms >= began]
    gaps = [after - before for before, after in pairwise(stamps)]
    assert took < 20_000
    assert max(gaps, default=0) < 5_000
    assert len(agent.all(protocol.Output)) <= took / 20 + 2


def test_a_full_disk_drops_output_and_not_the_task(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        with launcher() as rig, Agent(rig.socket_path) as agent:
            source = "import os, sys\nfor _ in range(64): os.write(1, b'x' * 65535 + b'\\n')\nsys.exit(6)"
            rig.write("prog.py", source)
            exited = rig.run(agent, "python", "prog.py", attempt_dir=str(small / "logs"))
            assert exited.code == 6
            assert exited.total_bytes == 4 << 20
            assert "bytes of output lost (ENOSPC" in exited.detail
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_lines_arrive_as_they_are_printed(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    rig.write("prog.py", "import time; print('step 1'); time.sleep(1000)")
    rig.start(agent, "python", "prog.py")
    rig.logged("step 1\n")
    agent.expect(protocol.Output, lambda told: told.total_bytes == 7)


def test_the_hook_reports_steps_without_output(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    hook = Path(protocol.__file__).parent / "trainer_hook.py"
    (rig.root / "hook.py").write_bytes(hook.read_bytes())
    rig.write("prog.py", "import hook\nfor n in (5, 70, 123456): hook.step(n)")
    rig.run(agent, "python", "prog.py")
    assert (rig.root / "logs" / "1" / "step").read_text() == f"{123456:>20}\n"
    subprocess.run([sys.executable, "-c", "import hook; hook.step(1)"], cwd=rig.root, check=True)


def test_a_process_is_dead_only_when_its_threads_are() -> None:
    """A zombie leader whose other threads run on is alive."""
    source = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", source])
    try:
        wait_for("zombie leader", lambda: (p := fence.read_process(process.pid)) and p.state == "Z")
        os.kill(process.pid, signal.SIGKILL)
        wait_for("death", lambda: fence.read_process(process.pid) is None)
    finally:
        process.kill()
        process.wait()


def test_fencing_waits_for_a_process_that_has_lost_its_environment_already() -> None:
    source = "b = bytearray(800 << 20)\nb[::4096] = bytes(200 << 10)\nprint('ready', flush=True)\ninput()"
    env = {**os.environ, fence.MARKER_VARIABLE: "big#1"}

    def met_on_its_way_out() -> bool:
        with subprocess.Popen(
            [sys.executable, "-c", source], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert fence.has_marker(process.pid, "big#1")
            process.kill()
            wait_for("loss of the environment", lambda: not fence.has_marker(process.pid, "big#1"))
            met = alive(process.pid)
            assert fence.fence("big#1").confirmed_dead
            assert not alive(process.pid)
            return met

    # It is gone some 100 ms after its environment: who is not run meanwhile meets none.
    assert any(met_on_its_way_out() for _ in range(20))


def test_a_pid_that_became_anothers_is_left_alone() -> None:
    innocent = subprocess.Popen(["sleep", "1000"])
    try:
        process = fence.read_process(innocent.pid)
        assert process is not None
        assert fence.fence("", ((innocent.pid, process.start_ticks - 1),)).confirmed_dead
        fence.kill(replace(process, start_ticks=process.start_ticks - 1))
        assert innocent.poll() is None
        report = fence.fence("", ((innocent.pid, process.start_ticks),))
        assert (report.killed, report.confirmed_dead) == (1, True)
        assert innocent.wait(5) == -signal.SIGKILL
    finally:
        innocent.kill()
        innocent.wait()


def test_a_preload_that_leaves_processes_behind_means_cold_starts(tmp_path: Path) -> None:
    (tmp_path / "leaver.py").write_text("import subprocess; left = subprocess.Popen(['sleep', '1000'])")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    with launcher(preload=["leaver"], env=env) as rig, Agent(rig.socket_path) as agent:
        assert agent.expect(protocol.Warm).error == "preloading left processes running"
        assert rig.run(agent, "python", "-c", "print(1)").code == 0
        assert len(fence.survivors(agent.expect(protocol.Hello).marker)) == 1


def test_numerical_libraries_use_as_many_threads_as_in_a_fresh_process() -> None:
    source = (
        "import numpy as n; a = n.ones((500, 500)); a @ a\n"
        "print([l for l in open('/proc/self/status') if l.startswith('Threads')])"
    )
    with launcher(preload=["numpy"]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        threads = (Path("/proc") / str(rig.process.pid) / "task").iterdir()
        assert len(list(threads)) == 1
        rig.write("prog.py", source)
        for env in ({}, {"OMP_NUM_THREADS": "3"}, {"OPENBLAS_NUM_THREADS": "1"}):
            rig.run(agent, "python", "prog.py", env=env)
            assert agent.all(protocol.Started)[-1].warm
            plain = subprocess.run(
                [sys.executable, "prog.py"],
                cwd=rig.root,
                env={"PATH": os.environ["PATH"], **env},
                capture_output=True,
                check=True,
            )
            assert rig.log() == plain.stdout


def test_nothing_leaks_from_attempt_to_attempt(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    rig.write("prog.py", "print('x')")
    descriptors = Path("/proc") / str(rig.process.pid) / "fd"
    rig.run(agent, "python", "prog.py")
    rig.reserve(agent, "an answer says that the loop has gone on", 2, 1)
    before = len(list(descriptors.iterdir()))
    for _ in range(10):
        rig.run(agent, "python", "prog.py")
        rig.run(agent, "nonesuch")
        rig.run(agent, "true", cwd="/nonesuch")
        rig.start(agent, "true", attempt_dir="/proc/nonesuch")
    rig.run(agent, "true")
    rig.reserve(agent, "and so it has here", 2, 1)
    assert len(list(descriptors.iterdir())) == before


def test_a_death_that_cannot_be_confirmed_is_said_so_and_corrected_later(pair: tuple[Rig, Agent]) -> None:
    """A tracer's claim on the dead keeps them from their parent: to the launcher, like a stuck process."""
    rig, agent = pair
    attempt = rig.start(agent, "sleep", "1000")
    pid = agent.expect(protocol.Started).pid
    seize = 0x4206
    assert ctypes.CDLL(None, use_errno=True).ptrace(seize, pid, None, None) == 0, os.strerror(
        ctypes.get_errno()
    )
    asked = now_ms()
    agent.send(protocol.Kill(attempt))
    first = agent.expect(protocol.Exited)
    assert now_ms() - asked >= 5_000
    assert (first.confirmed_dead, first.survivors, first.signal) == (False, 1, signal.SIGKILL)
    rig.start(agent, "true")
    assert "not confirmed dead" in agent.expect(protocol.StartFailed).reason
    os.waitpid(pid, 0)
    second = agent.expect(protocol.Exited, lambda each: each.confirmed_dead)
    assert (second.attempt, second.reason, second.survivors) == (attempt, "killed", 0)
    assert rig.run(agent, "true").code == 0


SAVES = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path(sys.argv[1]).open("a").write("saved\\n")
    time.sleep(0.3)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(1000)
"""


def test_a_program_that_is_asked_to_end_saves_and_ends_by_itself(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with launcher() as rig, Agent(rig.socket_path) as agent:
        attempt = rig.start(agent, sys.executable, "-c", SAVES, str(saved))
        agent.expect(protocol.Output)
        for _ in range(3):
            agent.send(protocol.Terminate(attempt))
        exited = agent.expect(protocol.Exited, of(attempt))
    assert (exited.code, exited.reason, exited.confirmed_dead) == (0, "exit", True)
    assert saved.read_text() == "saved\n", "SIGTERM is sent once, however often it is asked for"


def test_a_program_that_ignores_sigterm_can_still_be_killed() -> None:
    ignoring = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(1, flush=True); time.sleep(1000)"
    )
    with launcher() as rig, Agent(rig.socket_path) as agent:
        attempt = rig.start(agent, sys.executable, "-c", ignoring)
        agent.expect(protocol.Output)
        agent.send(protocol.Terminate(attempt))
        agent.send(protocol.Kill(attempt))
        exited = agent.expect(protocol.Exited, of(attempt))
    assert (exited.signal, exited.reason) == (9, "killed")


def test_an_attempt_that_is_suspended_stays_as_it_is_with_all_that_it_started_until_it_is_killed(
    pair: tuple[Rig, Agent],
) -> None:
    rig, agent = pair
    rig.write("prog.py", DOUBLE_FORK.format(then="time.sleep(1000)"))
    attempt = rig.start(agent, "python", "prog.py")
    child = agent.expect(protocol.Started).pid
    orphan = orphan_of(rig)
    for _ in range(2):
        agent.send(protocol.Suspend(attempt))

    def stopped(pid: int) -> bool:
        process = fence.read_process(pid)
        return process is not None and process.state == "T"

    wait_for("the stop of both", lambda: stopped(child) and stopped(orphan))
    assert not [each for _, each in agent.messages if isinstance(each, protocol.Exited)]
    agent.send(protocol.Kill(attempt))
    exited = agent.expect(protocol.Exited)
    assert (exited.signal, exited.reason, exited.confirmed_dead) == (9, "killed", True)
    assert not alive(orphan)


def test_a_suspended_attempt_is_killed_at_its_deadline_like_any_other(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    attempt = rig.start(agent, "sleep", "1000")
    agent.expect(protocol.Started)
    agent.send(protocol.Suspend(attempt))
    agent.grant_ms = 600
    agent.expect(protocol.Pull, lambda pull: pull.stamp_ms + 600 in agent.deadlines_ms)
    agent.grant_ms = None
    exited = agent.expect(protocol.Exited)
    assert (exited.reason, exited.confirmed_dead) == ("deadline", True)
