"""The Python of a wrapper starts warm and is like the real one: each script runs both ways."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.inside import protocol, shim
from agent.inside.child import stacks, warm
from agent.inside.processes import fence, spawn, zygote
from tests.launcher.harness import Agent, Rig, launcher, of, wait_for

# Programs of the scripts below. Each first notes in a file whether its interpreter has the preloaded module.
PROGRAMS = {
    "surroundings.py": """
import json, os, resource, signal, stat, threading
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
print(json.dumps({
    "argv": sys.argv, "orig": sys.orig_argv, "executable": sys.executable, "prefix": sys.prefix,
    "path": sys.path, "flags": str(sys.flags), "cwd": os.getcwd(), "main": __file__, "name": __name__,
    "env": {name: os.environ[name] for name in sorted(os.environ) if not name.startswith("TFSUP_")},
    "umask": os.umask(0), "nice": os.nice(0), "processors": sorted(os.sched_getaffinity(0)),
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
    "tty": [os.isatty(fd) for fd in range(3)],
    "kinds": [stat.S_IFMT(os.fstat(fd).st_mode) for fd in range(3)],
    "descriptors": [int(fd) for fd in sorted(os.listdir("/proc/self/fd")) if int(fd) < 900][:-1],
    "handlers": [str(signal.getsignal(number)).split(" at ")[0] for number in range(1, 32)],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "ignored": status["SigIgn"], "blocked": status["SigBlk"], "threads": threading.active_count(),
    "streams": [each.encoding + each.errors + each.name for each in (sys.stdin, sys.stdout, sys.stderr)],
    "sizes": [str(os.get_inheritable(fd)) for fd in range(3)],
}, indent=1))
""",
    "read.py": "print(repr(sys.stdin.read()))",
    "seek.py": "print(sys.stdin.seekable(), sys.stdin.mode, sys.stdin.newlines, repr(sys.stdin.readline()))",
    "exit.py": "sys.exit(int(sys.argv[1]))",
    "die.py": "import os; os.kill(os.getpid(), int(sys.argv[1]))",
    "raise.py": "raise KeyError('x')",
    "child.py": """
import subprocess
print(subprocess.run([sys.argv[1], "exit.py", "5"]).returncode, flush=True)
print(subprocess.run(f"{sys.argv[1]} exit.py 6", shell=True).returncode)
""",
    "descriptor.py": "import os; os.write(7, b'seven'); print(os.read(8, 10))",
    "closes.py": """
import os
os.close(1); os.close(2)
open("closed", "w").close()
while not os.path.exists("over"):
    pass
""",
    "handler.py": """
import signal, time
def got(number, frame):
    print("got", number, flush=True)
    open(f"got-{number:d}", "w").close()
    if number in (signal.SIGTERM, signal.SIGRTMAX):
        sys.exit(9)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGWINCH, signal.SIGRTMAX):
    signal.signal(number, got)
try:
    open("ready", "w").close()
    while True:
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupt")
    sys.exit(8)
""",
    "sleep.py": """
import os, time
with open("pid.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("pid.new", "pid")
time.sleep(600)
""",
    "executes.py": "import os; os.execv(sys.executable, [sys.executable, 'handler.py'])",
    "console": "print('console', sys.argv[0].rpartition('/')[2], sys.argv[1:])",
}
# A filter that allows all, and a child that adds another one.
SANDBOXES = """
import ctypes, os, signal, struct
from agent.inside.processes import peer
libc = ctypes.CDLL(None, use_errno=True)
allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(allow)))
def sandbox():
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program):
        raise OSError(ctypes.get_errno(), "seccomp")
def look(*steps):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for step in steps:
            step()
        os.write(writer, b".")
        signal.pause()
    os.read(reader, 1)
    try:
        peer.read(child)
        print("same", flush=True)
    except peer.Differs as differs:
        print(differs, flush=True)
    os.kill(child, 9)
sandbox()
look()
look(sandbox)
"""
NOTE = 'import sys; open("{}", "a").write("warm " if "calendar" in sys.modules else "cold ")\n'
AND_KILL = (
    "python handler.py & p=$!; until [ -e ready ]; do sleep 0.01; done; kill -{} $p; {}wait $p; echo $?"
)
GOT_1, GOT_10 = (f"until [ -e got-{number} ]; do sleep 0.01; done" for number in (1, 10))
AND_SLEEP = "python sleep.py & p=$!; until [ -e pid ]; do sleep 0.01; done; {}"

# Each script, and how its programs start. `sh -c`, but for those that are lists of words.
SCRIPTS: dict[str, tuple[str | list[str], str]] = {
    "surroundings": ("python surroundings.py a '' 'b c'", "warm"),
    "its own environment": ("export A=1; B=$(printf 'x\\ny') SPARE=/ python surroundings.py", "warm"),
    "a variable that is gone": ("unset SPARE; python3 surroundings.py", "warm"),
    "another home": ("HOME=/tmp python exit.py 1", "cold"),
    "a variable that was read at the import": ("READ_EARLY=1 python exit.py 1", "cold"),
    "a package that was replaced": (
        "p=$PYTHONPATH/pack; mv $p old; cp -r old $p; python exit.py 3; rm -r $p; mv old $p",
        "cold",
    ),
    "another place for packages": (
        "touch $PYTHONPATH/x.pth; python exit.py 3; echo $?; rm $PYTHONPATH/x.pth",
        "cold",
    ),
    "a package that was missed": (
        "touch $PYTHONPATH/absent.py; python exit.py 3; echo $?; rm $PYTHONPATH/absent.py",
        "cold",
    ),
    "a package that nothing has imported": (
        "touch $PYTHONPATH/x.py; python exit.py 3; echo $?; rm $PYTHONPATH/x.py",
        "warm",
    ),
    "another directory": ("mkdir -p below; cd below; python ../surroundings.py", "warm"),
    "a directory that is gone": (
        "mkdir gone; cd gone; rmdir ../gone; exec python ../surroundings.py",
        "cold",
    ),
    "another umask": ("umask 027; python surroundings.py", "warm"),
    "limits": ("ulimit -n 1000; ulimit -c 0; ulimit -S -f 50000; python surroundings.py", "warm"),
    "the size of stacks": ("ulimit -s 4096; python surroundings.py", "cold"),
    "a lower priority": ("nice -n 5 python surroundings.py", "warm"),
    "idle input and output": ("ionice -c3 python exit.py 3", "cold"),
    "fewer processors": ("taskset -c 0 python surroundings.py", "warm"),
    "ignored signals": ("trap '' INT HUP USR1; python surroundings.py", "warm"),
    "in the background": ("python surroundings.py & wait $!", "warm"),
    "nohup": ("nohup python surroundings.py", "warm"),
    "more descriptors": ("exec 7>seven 8</dev/zero 5>&1; python surroundings.py", "warm"),
    "passed descriptors": ("exec 7>seven 8</dev/null; python descriptor.py; cat seven", "warm"),
    "a closed descriptor": ("python exit.py 3 <&-", "cold"),
    "terminal": ("script -qec 'python surroundings.py' /dev/null", "cold"),
    "input": ("echo text | python read.py", "warm"),
    "seek in a pipe": (r"printf 'a\r\nb' | python seek.py", "warm"),
    "seek in a file": (r"printf 'a\r\nb' >out; python seek.py <out", "warm"),
    "no input": ("python read.py </dev/null", "warm"),
    "a pipe": ("python surroundings.py | tee copy", "warm"),
    "a file": ("python surroundings.py >out 2>&1; cat out", "warm"),
    "the end of a pipe": ("(python closes.py &) | cat; touch over", "warm"),
    "exit": ("python exit.py 7; echo $?; python exit.py 0; echo $?", "warm warm"),
    "exit at once": ("set -e; python exit.py 4; echo never", "warm"),
    "exec": ("exec python exit.py 11", "warm"),
    "exec of what dies": ("exec python die.py 15", "warm"),
    "env": (["env", "-u", "LANG", "A=1", "python", "exit.py", "12"], "cold"),
    "env alone": (["env", "A=1", "python", "surroundings.py"], "warm"),
    "bash": (["bash", "-c", "set -euo pipefail; python raise.py | cat"], "warm"),
    "a script": (["bash", "run.sh", "x"], "warm"),
    "death": (
        "python die.py 9; echo $?; python die.py 6; echo $?; python die.py 15; echo $?",
        "warm warm warm",
    ),
    "interrupt": ("python die.py 2; echo $?", "warm"),
    "two at a time": (
        "python sleep.py & until [ -e pid ]; do sleep 0.01; done; python exit.py 3; echo $?; kill $!",
        "warm cold",
    ),
    "from the program": ("python child.py python", "warm cold cold"),
    "by path from the program": (f"python child.py {sys.executable}", "warm cold cold"),
    "by path": (f"{sys.executable} exit.py 3; echo $?", "cold"),
    "another python first": ("mkdir -p v; ln -sf /usr/bin/true v/python; PATH=v:$PATH python exit.py 3", ""),
    "by the path that was found": (
        "mkdir -p v; ln -sf /usr/bin/true v/python; p=$(command -v python); PATH=$PWD/v:$PATH $p exit.py 3",
        "cold",
    ),
    "without a PATH": ("env -i $(command -v python) -c 'import sys; print(sys.prefix, sys.path)'", ""),
    "the last place in PATH": ("PATH=${PATH%%:*} python exit.py 3", "cold"),
    "module": ("python -m exit 5", "warm"),
    "unbuffered": ("python -u surroundings.py | cat", "warm"),
    "code": ("python -c 'import sys; print(sys.argv, sys.executable)' a", ""),
    "standard input": ("echo 'print(__name__)' | python - a", ""),
    "version": ("python -V", ""),
    "option": ("python -O exit.py 3", "cold"),
    "no such file": ("python nonesuch.py; echo $?", ""),
    "a variable of Python": ("PYTHONOPTIMIZE=1 python exit.py 1", "cold"),
    "a variable of TensorFlow": ("TF_CPP_MIN_LOG_LEVEL=3 python exit.py 1", "cold"),
    "no such python": ("python3.1 exit.py 1", ""),
    "a link": ("ln -sf $(command -v python) link; ./link exit.py 3; echo $?", "cold"),
    "a relative place in PATH": ("PATH=$PATH:. python exit.py 3; echo $?", "cold"),
    "a console script": ("./console x", "warm"),
    "TERM": (AND_KILL.format("TERM", ""), "warm"),
    "TERM later": (AND_KILL.format("USR1", f"{GOT_10}; kill -HUP $p; {GOT_1}; kill $p; "), "warm"),
    "INT": (["bash", "-c", "set -m; " + AND_KILL.format("INT", "")], "warm"),
    "KILL": (AND_KILL.format("KILL", ""), "warm"),
    "KILL of what stands for it": (
        AND_SLEEP.format(
            "kill -9 $p; wait $p; echo $?; while kill -0 $(cat pid); do sleep 0.01; done 2>&1 | tail -1"
        ),
        "warm",
    ),
    "KILL of the program": (AND_SLEEP.format("kill -9 $(cat pid); wait $p; echo $?"), "warm"),
    "STOP and CONT": (
        AND_SLEEP.format(
            "kill -STOP $p; until grep -q '^State:.T' /proc/$(cat pid)/status; do sleep 0.01; done; "
            "echo stands; kill -CONT $p; "
            "while grep -q '^State:.T' /proc/$(cat pid)/status; do sleep 0.01; done; "
            "kill -TERM $p; wait $p; echo $?"
        ),
        "warm",
    ),
    "timeout": ("timeout --foreground 100 " + AND_KILL.format("TERM", ""), "warm"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, Agent]]:
    packages = tmp_path_factory.mktemp("packages")
    (packages / "pack").mkdir()
    (packages / "pack" / "__init__.py").write_text(
        "import calendar, os\nos.getenv('READ_EARLY')\nassert dict(os.environ)['SPARE']\n"
        "try:\n    import absent\nexcept ImportError:\n    absent = None\n"
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "HOME": "/", "LANG": "C.UTF-8", "PYTHONPATH": str(packages), "SPARE": "1"}
    with launcher(preload=["pack"], env=env) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        for name, source in PROGRAMS.items():
            head = "#!/usr/bin/env python\n" if name == "console" else ""
            rig.write(name, head + NOTE.format(rig.root / "was") + source.lstrip())
        (rig.root / "console").chmod(0o755)
        rig.write("run.sh", 'export A=1\npython surroundings.py "$@"\n')
        yield rig, agent


def run(rig: Rig, agent: Agent, *argv: str, **options: object) -> tuple[str, int | None, str]:
    for name in ("was", "ready", "closed", "over", "pid", "seven", "out", "copy", "got-1", "got-10"):
        (rig.root / name).unlink(missing_ok=True)
    (rig.root / "was").touch()
    exited = rig.run(agent, *argv, **options)
    code = exited.code if exited.signal is None else -exited.signal
    return rig.log().decode(), code, (rig.root / "was").read_text().strip()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_wrappers_python_is_like_the_real_one(served: tuple[Rig, Agent], name: str) -> None:
    rig, agent = served
    script, expected = SCRIPTS[name]
    argv = ["sh", "-c", script] if isinstance(script, str) else script
    cold = run(rig, agent, *argv, warm=False)
    warm = run(rig, agent, *argv, warm=True)
    assert _comparable(warm[0]) == _comparable(cold[0])
    assert warm[1] == cold[1]
    assert warm[2] == expected


def _comparable(log: str) -> str:
    """A log without what differs between two runs: a shell tells of a death if it has seen it in time."""
    return re.sub(r'"(_|OLDPWD)": .*|/fd/\d+|.*(Killed|Aborted|Terminated|Interrupt).*\n', "", log)


def test_a_wrapper_that_cannot_be_run_fails_to_start(served: tuple[Rig, Agent]) -> None:
    rig, agent = served
    exited = rig.run(agent, "./nonesuch", "python", "exit.py", "3")
    assert (exited.code, exited.reason) == (127, "start_failed")
    assert "cannot run './nonesuch'" in exited.detail


def test_another_version_in_the_same_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "python").symlink_to("/usr/bin/echo")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}  # without a locale, too
    with (
        launcher(str(tmp_path / "python3"), preload=["calendar"], env=env) as rig,
        Agent(rig.socket_path) as agent,
    ):
        agent.expect(protocol.Warm)
        rig.write("warm.py", "import sys; print('calendar' in sys.modules)")
        rig.run(agent, "sh", "-c", "python warm.py; python3 warm.py")
        assert rig.log() == b"warm.py\nTrue\n"


def test_all_of_a_wrappers_attempt_dies_with_its_launcher() -> None:
    with launcher(preload=["calendar"]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        members = _sleeping(rig, agent)
        rig.process.kill()
        wait_for("their end", lambda: not any(map(fence.read_process, members)))


def test_a_program_dies_with_what_stands_for_it(served: tuple[Rig, Agent]) -> None:
    rig, agent = served
    members = _sleeping(rig, agent, "python sleep.py; echo $?; sleep 600")
    directory = str(rig.root / "state" / "bin").encode()
    (shim,) = [pid for pid in members if directory in Path(f"/proc/{pid}/cmdline").read_bytes()]
    program = int((rig.root / "pid").read_text())
    os.kill(shim, signal.SIGKILL)
    rig.logged("137")
    wait_for("its end", lambda: fence.read_process(program) is None)
    agent.send(protocol.Kill(agent.all(protocol.Started)[-1].attempt))
    _over(agent)


def test_a_killed_attempt_leaves_nothing_of_a_wrapper(served: tuple[Rig, Agent]) -> None:
    rig, agent = served
    members = _sleeping(rig, agent)
    agent.send(protocol.Kill(agent.all(protocol.Started)[-1].attempt))
    exited = _over(agent)
    assert (exited.signal, exited.confirmed_dead) == (signal.SIGKILL, True)
    assert not any(map(fence.read_process, members))


def test_the_program_belongs_to_the_main_process_which_dumps_its_stacks(served: tuple[Rig, Agent]) -> None:
    rig, agent = served
    members = _sleeping(rig, agent)
    main = agent.all(protocol.Started)[-1].pid
    program = int((rig.root / "pid").read_text())
    assert {main, program} < set(members)
    assert program in fence.children(main)
    logs = rig.root / "logs" / str(rig._count)
    os.kill(main, stacks.SIGNAL)
    wait_for("stacks", lambda: b"sleep.py" in (logs / stacks.FILE).read_bytes())
    assert (logs / "saves.json").exists()
    agent.send(protocol.Terminate(agent.all(protocol.Started)[-1].attempt))
    assert _over(agent).signal == signal.SIGTERM


def test_a_save_that_an_earlier_program_left_is_over(served: tuple[Rig, Agent]) -> None:
    rig, agent = served
    script = "d=${TFSUP_STEP_FILE%/*}; touch $d/saving; python exit.py 0; ls $d"
    log, _, how = run(rig, agent, "sh", "-c", script, warm=True)
    assert how == "warm"
    assert "saving" not in log.split()
    assert "saves.json" in log.split()


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"READ_EARLY": "1"}, "cold"),
        ({"TF_CPP_MIN_LOG_LEVEL": "3"}, "cold"),
        ({"PYTHONPATH": "/"}, "cold"),
        (
            {"TF_CONFIG": "{}", "TF_GRPC_WORKER_CACHE_QUEUES": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
            "warm",
        ),
    ],
)
def test_what_an_attempt_is_given_was_not_there_at_the_import(
    served: tuple[Rig, Agent], env: dict[str, str], expected: str
) -> None:
    rig, agent = served
    assert run(rig, agent, "sh", "-c", "python exit.py 3", warm=True, env=env)[1:] == (3, expected)


@pytest.mark.parametrize(
    ("argv", "warm", "takes"),
    [
        (("python", "exit.py", "0"), True, True),
        (("python", "exit.py", "0"), False, False),
        (("sh", "-c", "python exit.py 0"), True, False),
    ],
)
def test_only_a_program_that_the_launcher_forks_takes_new_addresses(
    served: tuple[Rig, Agent], argv: tuple[str, ...], warm: bool, takes: bool
) -> None:
    rig, agent = served
    run(rig, agent, *argv, warm=warm)
    started = agent.all(protocol.Started)[-1]
    assert started.takes_addresses == takes


def test_a_program_without_a_handler_for_stack_dumps_outlives_one(served: tuple[Rig, Agent]) -> None:
    rig, agent = served
    (rig.root / "ready").unlink(missing_ok=True)
    rig.start(agent, "sh", "-c", "exec python executes.py")
    wait_for("its handler", (rig.root / "ready").exists)
    main = agent.all(protocol.Started)[-1].pid
    os.kill(main, stacks.SIGNAL)
    os.kill(main, signal.SIGRTMAX)  # of two that wait, the lower number comes first
    assert _over(agent).code == 9


def test_a_program_that_its_wrapper_became_may_save_when_it_is_asked_to_end(
    served: tuple[Rig, Agent],
) -> None:
    rig, agent = served
    (rig.root / "ready").unlink(missing_ok=True)
    attempt = rig.start(agent, "sh", "-c", "exec python handler.py")
    wait_for("its handler", (rig.root / "ready").exists)
    agent.send(protocol.Terminate(attempt))
    assert _over(agent).code == 9
    assert b"got 15" in rig.log()


def test_another_process_gets_no_warm_start(served: tuple[Rig, Agent]) -> None:
    rig, agent = served
    _sleeping(rig, agent, "env -0 >env && mv env environment; sleep 600; python exit.py 1")
    (rig.root / "was").write_text("")
    directory = rig.root / "state" / "bin"
    # It gets the whole environment of the attempt, and is another process all the same.
    wait_for("its environment", (rig.root / "environment").exists)
    entries = (rig.root / "environment").read_text().rstrip("\0").split("\0")
    env = dict(entry.split("=", 1) for entry in entries)
    done = subprocess.run([directory / "python", "exit.py", "3"], cwd=rig.root, env=env, check=False)
    assert (done.returncode, (rig.root / "was").read_text()) == (3, "cold ")
    agent.send(protocol.Kill(agent.all(protocol.Started)[-1].attempt))
    _over(agent)


def test_without_preload_a_wrapper_is_run_as_it_is() -> None:
    with launcher() as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        rig.run(agent, "sh", "-c", "echo $PATH; ps -o args= $PPID")
        assert not agent.all(protocol.Started)[-1].warm
        assert "state/bin" not in rig.log().decode()
        assert not (rig.root / "state" / "bin").exists()


def test_the_real_python_has_the_signals_of_the_shim(tmp_path: Path) -> None:
    """Here the other end does not hear that the shim goes."""
    (tmp_path / "bin").mkdir()
    copy = tmp_path / "bin" / "python"
    copy.write_text(f"#!{sys.executable} -IS\n{Path(shim.__file__).read_text()}")
    copy.chmod(0o700)
    script = "trap '' HUP INT; exec {} -c 'print(open(\"/proc/self/status\").read())'"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / shim.SOCKET))
        listener.listen()
        shown = subprocess.Popen(["sh", "-c", script.format(copy)], stdout=subprocess.PIPE, text=True)
        conn, _ = listener.accept()
        with conn:
            conn.recv(1 << 12)
            conn.shutdown(socket.SHUT_RD)
            conn.send(shim.READY)
            text = shown.communicate()[0]
    real = subprocess.check_output(["sh", "-c", script.format(sys.executable)], text=True)
    signals = re.compile(r"^Sig(?:Blk|Ign|Cgt):.*$", re.MULTILINE)
    assert signals.findall(text) == signals.findall(real)


def test_a_sandbox_inside_a_sandbox_is_told_apart() -> None:
    done = subprocess.run([sys.executable, "-c", SANDBOXES], capture_output=True, text=True, check=False)
    assert done.stdout == "same\nSeccomp_filters\n", done.stderr


def test_a_program_and_its_shim_may_end_in_the_same_turn() -> None:
    """The selector has the shim's end, too, when the program's was dealt with."""
    empty: frozenset[int] = frozenset()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        order = spawn.Order(
            (), "/", {}, {}, {}, None, warm.Preloaded(), 1, 1, -1, empty, 0, listener=listener
        )
        server = zygote.Zygote(order, 0)
        with server._selector, server._signals, server._wakeup:
            server._on_request()


def _sleeping(rig: Rig, agent: Agent, script: str = "python sleep.py; echo over") -> list[int]:
    """The processes of an attempt whose program sleeps."""
    (rig.root / "pid").unlink(missing_ok=True)
    if not (rig.root / "sleep.py").exists():
        rig.write("sleep.py", NOTE.format(rig.root / "was") + PROGRAMS["sleep.py"].lstrip())
    attempt = rig.start(agent, "sh", "-c", script)
    agent.expect(protocol.Started, of(attempt))
    if "sleep.py" in script:
        wait_for("its program", (rig.root / "pid").exists)
    return [each.pid for each in fence.members(f"{rig.root.name}#", spare=(rig.process.pid,))]


def _over(agent: Agent) -> protocol.Exited:
    attempt = agent.all(protocol.Started)[-1].attempt
    exited = agent.expect(protocol.Exited, of(attempt))
    agent.send(protocol.AckExit(attempt))
    return exited
