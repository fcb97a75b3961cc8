"""Real launchers with real programs, in trouble. Their fate is read from /proc.

Each story is one promise. Its bounds are seconds apart from what a broken one would show, so that a machine
with much else to do breaks none.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agent.inside import protocol
from agent.inside.clock import now_ms
from agent.inside.processes import fence
from chaos.mutants import leftovers
from chaos.processes import free_ports
from tests.launcher.harness import INSIDE, Agent, Rig, of, wait_for

GRANT_MS = 3_000
LATE_MS = 8_000
"""The delay that a slow launcher may have, in milliseconds; a broken one does not end at all."""

GRANTED_LATE_MS = 3_500
"""The same where what is broken ends, 4.5 s late."""
ENDLESS = "import time; time.sleep(600)"
ESCAPES = """\
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open("escaped.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename("escaped.new", "escaped")
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""
LOOP_S = 6.0
CADENCE = "1000 1000 0.05 1 -1"
"""Failures all the time, so that only the limit of 5 % of the time keeps saves apart."""
LOOP = """\
import sys, time
import trainer_hook
ours = sys._tfsup_should_save.__globals__
ours["PROBE_S"], ours["interval"].LEAST_MS = 0.2, 50
if {breaks}:
    ours["Cadence"].due = lambda self: 1 // 0
end_s, saves = time.monotonic() + {loop_s}, 0
while time.monotonic() < end_s:
    if trainer_hook.should_save(0.5):
        time.sleep(0.1)
        saves += 1
    time.sleep(0.005)
print("saves:", saves, flush=True)
"""
ENDS = """\
import os, time
while not os.path.exists("end"):
    time.sleep(0.01)
raise SystemExit(7)
"""


@dataclass(frozen=True, slots=True)
class Story:
    """Some trouble, and the promise that holds through it: `tell` raises AssertionError when it does not."""

    name: str
    promise: str
    tell: Callable[[], None]


def stories(only: str = "") -> Iterator[tuple[str, str]]:
    """The name of each story, and what is broken in it; empty when nothing is."""
    for story in STORIES:
        if only in {"", story.name}:
            try:
                story.tell()
            except AssertionError as error:
                yield story.name, f"[{story.promise}] {error}"
            else:
                yield story.name, ""


@contextmanager
def _launcher(**overrides: object) -> Iterator[Rig]:
    root = Path(tempfile.mkdtemp(prefix=leftovers.prefix_of(leftovers.LAUNCHERS)))
    env = {"PATH": os.environ["PATH"], "HOME": str(root)}
    config: dict[str, object] = {
        "protocol": protocol.PROTOCOL,
        "launcher_id": root.name,
        "job": "digits",
        "socket": str(root / "agent.sock"),
        "state_dir": str(root / "state"),
        "env": env,
        "pull_ms": 50,
        "idle_pull_ms": 100,
        **overrides,
    }
    path = root / "config.json"
    path.write_text(json.dumps(config))
    process = subprocess.Popen(
        [sys.executable, str(INSIDE), str(path)],
        env={**env, fence.MARKER_VARIABLE: f"{root.name}#mutant"},
        start_new_session=True,
    )
    try:
        yield Rig(root, process)
    finally:
        process.kill()
        process.wait()
        for pid in carrying(root.name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(root, ignore_errors=True)


def carrying(launcher_id: str) -> set[int]:
    """Processes that were started with the marker of this launcher, itself among them."""
    marker = f"\0{fence.MARKER_VARIABLE}={launcher_id}#".encode()
    found = set()
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdigit() and marker in b"\0" + path.joinpath("environ").read_bytes():
                found.add(int(path.name))
    return found


def _gone(pid: int) -> bool:
    """A zombie is: nobody may be there to bury it."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _death_ms(pid: int, limit_ms: int) -> int:
    """The latest time of its death; raises AssertionError if it lives after the limit."""
    while not _gone(pid):
        assert now_ms() < limit_ms, f"{pid} is alive {now_ms() - limit_ms} ms after it must be dead"
        wait_for("moment", lambda: True)
    return now_ms()


def _run(
    rig: Rig, agent: Agent, program: str = ENDLESS, *, reservation: str | None = None
) -> tuple[str, int]:
    """Start it, exec'd as any command is; returns the attempt and its pid, once it is granted time."""
    attempt = rig.start(
        agent, sys.executable, "-c", program, attempt=None, reservation=reservation, warm=False
    )
    started = agent.expect(protocol.Started, of(attempt))
    agent.expect(protocol.Pull, lambda pull: pull.attempt == attempt)
    return attempt, started.pid


def _falls_silent() -> None:
    with _launcher() as rig, Agent(rig.socket_path, grant_ms=GRANT_MS) as agent:
        _, pid = _run(rig, agent)
        agent.grant_ms = None
        _death_ms(pid, now_ms() + GRANT_MS + LATE_MS)


def _agent_dies() -> None:
    with _launcher() as rig, Agent(rig.socket_path, grant_ms=GRANT_MS) as agent:
        _, pid = _run(rig, agent)
        agent.close()
        _death_ms(pid, now_ms() + GRANT_MS + LATE_MS)


def _answers_late() -> None:
    """An answer that comes after 4.5 s grants 5 s from when it was asked for, not from when it comes."""
    with _launcher() as rig, Agent(rig.socket_path, grant_ms=5_000) as agent:
        _, pid = _run(rig, agent)
        agent.grant_ms = None
        asked = wait_for("silence", lambda: _unanswered_ms(agent, 4_500))
        agent.send(protocol.Grant(asked, 5_000, agent.name))
        _death_ms(pid, asked + 5_000 + GRANTED_LATE_MS)


def _unanswered_ms(agent: Agent, age_ms: int) -> int | None:
    stamp = agent.all(protocol.Pull)[-1].stamp_ms
    return stamp if now_ms() - stamp >= age_ms else None


def _thaws() -> None:
    """Frozen past its deadline, with a generous answer in its socket."""
    with _launcher() as rig, Agent(rig.socket_path, grant_ms=1_500) as agent:
        _, pid = _run(rig, agent)
        agent.grant_ms = None
        asked = wait_for("silence", lambda: _unanswered_ms(agent, 300))
        rig.process.send_signal(signal.SIGSTOP)
        wait_for("passing of the deadline", lambda: now_ms() > asked + 2_000)
        agent.send(protocol.Grant(asked, 60_000, agent.name))
        rig.process.send_signal(signal.SIGCONT)
        _death_ms(pid, now_ms() + LATE_MS)


def _no_grant() -> None:
    with _launcher() as rig, Agent(rig.socket_path, grant_ms=None) as agent:
        attempt = rig.start(agent, sys.executable, "-c", ENDLESS)
        agent.expect(protocol.Pull)
        agent.send(protocol.Kill(attempt))
        agent.expect(protocol.StartFailed, of_failed(attempt))
        assert not agent.all(protocol.Started), "it was started"


def of_failed(attempt: str) -> Callable[[protocol.StartFailed], bool]:
    """Matches what is said of one attempt that was not started."""
    return lambda message: message.attempt == attempt


def _killed_for_sure() -> None:
    """Once an attempt is said to be dead, no process of it is left, wherever it hid."""
    with _launcher() as rig, Agent(rig.socket_path, grant_ms=60_000) as agent:
        attempt, pid = _run(rig, agent, ESCAPES)
        escaped = _escaped(rig)
        agent.send(protocol.Kill(attempt))
        agent.expect(protocol.Exited, lambda each: each.attempt == attempt and each.confirmed_dead)
        left = {each for each in (pid, escaped) if not _gone(each)}
        assert not left, f"confirmed dead, and {left} live"


def _escaped(rig: Rig) -> int:
    path = rig.root / "escaped"
    return int(wait_for("escaped grandchild", lambda: path.read_text() if path.exists() else None))


def _launcher_dies() -> None:
    """Its program dies with it; what escaped from it is found by its agent, who knows but its name."""
    with _launcher() as rig, Agent(rig.socket_path, grant_ms=60_000) as agent:
        _, pid = _run(rig, agent, ESCAPES)
        escaped = _escaped(rig)
        rig.process.kill()
        rig.process.wait()
        _death_ms(pid, now_ms() + LATE_MS)
        fence.fence(f"{rig.root.name}#")
        assert _gone(escaped), f"{escaped} has escaped for good"
        assert not carrying(rig.root.name), "something of it is left"


def _port_in_use() -> None:
    """Its port stays its own while anything of the attempt lives, also when launcher and program are dead."""
    with (
        tempfile.TemporaryDirectory() as locks,
        _launcher() as rig,
        Agent(rig.socket_path, grant_ms=60_000) as agent,
    ):
        [port] = free_ports(1)
        assert isinstance(rig.reserve(agent, "a", port, port, lock_dir=locks), protocol.Reserved)
        _, pid = _run(rig, agent, ESCAPES, reservation="a")
        escaped = _escaped(rig)
        rig.process.kill()
        rig.process.wait()
        _death_ms(pid, now_ms() + LATE_MS)
        with _launcher() as other, Agent(other.socket_path, grant_ms=60_000) as second:
            answer = other.reserve(second, "b", port, port, lock_dir=locks)
            assert isinstance(answer, protocol.ReserveFailed), f"{escaped} lives, and {port} is given away"
            os.kill(escaped, signal.SIGKILL)
            _death_ms(escaped, now_ms() + LATE_MS)
            assert isinstance(other.reserve(second, "c", port, port, lock_dir=locks), protocol.Reserved)


def _port_to_avoid() -> None:
    with tempfile.TemporaryDirectory() as locks, _launcher() as rig, Agent(rig.socket_path) as agent:
        [port] = free_ports(1)
        answer = rig.reserve(agent, "a", port, port, lock_dir=locks, avoid=(port,))
        assert isinstance(answer, protocol.ReserveFailed), f"{port} may be known to a zombie, and is given"


def _exit_is_told() -> None:
    """An attempt ends while its agent is away: the successor hears how, until it says that it has."""
    with _launcher() as rig:
        with Agent(rig.socket_path, "first", 60_000) as agent:
            attempt, _ = _run(
                rig, agent, "import os, time\nwhile not os.path.exists('end'): time.sleep(0.01)\nexit(7)"
            )
            agent.close()
            rig.write("end", "")
            state = rig.root / "state"
            wait_for("end", lambda: not (carrying(rig.root.name) - {rig.process.pid}))
        for name in ("second", "third"):
            with Agent(rig.socket_path, name, 60_000) as agent:
                hello = agent.expect(protocol.Hello)
                # It is welcomed: only then does this agent's end end the connection.
                agent.send(protocol.AckExit("somebody else's"))
                told = {each.attempt: each.code for each in hello.exits}
                assert told == {attempt: 7}, f"{name} hears {told}; {sorted(state.rglob('*'))}"


def _one_at_a_time() -> None:
    with _launcher() as rig, Agent(rig.socket_path, grant_ms=60_000) as agent:
        _, pid = _run(rig, agent)
        second = rig.start(agent, sys.executable, "-c", ENDLESS)
        agent.expect(protocol.StartFailed, of_failed(second))
        assert len(carrying(rig.root.name) - {rig.process.pid}) == 1, "two attempts at a time"
        assert not _gone(pid), "the first is dead"


def _unwanted() -> None:
    with _launcher(linger_ms=500) as rig:
        wait_for("end of a launcher that nobody wants", lambda: rig.process.poll() is not None)


def _saves(*, breaks: bool) -> int:
    """The number of saves of a loop that asks whether to save. `breaks`: the code that answers has a bug."""
    with _launcher() as rig, Agent(rig.socket_path, grant_ms=60_000) as agent:
        shutil.copy(INSIDE / "trainer_hook.py", rig.root)
        rig.write("loop.py", LOOP.format(breaks=breaks, loop_s=LOOP_S))
        exited = rig.run(agent, sys.executable, "loop.py", env={"TFSUP_CADENCE": CADENCE})
        said = rig.log().decode(errors="replace")
        assert exited.code == 0, said
        return int(said.rpartition("saves:")[2])


def _saves_seldom() -> None:
    saves = _saves(breaks=False)
    assert saves, "it never saved"
    assert saves <= 2 + 0.05 * LOOP_S / 0.1, f"{saves} saves of 0.1 s in {LOOP_S:g} s"


def _saves_all_the_same() -> None:
    saves = _saves(breaks=True)
    assert saves >= 0.5 * LOOP_S, f"{saves} saves in {LOOP_S:g} s of a loop that saves every 0.5 s by itself"


STORIES = (
    Story("the agent falls silent", "no attempt outlives its grant", _falls_silent),
    Story("the agent dies", "no attempt outlives its grant", _agent_dies),
    Story("an answer comes late", "no attempt outlives its grant", _answers_late),
    Story("the launcher is frozen past its deadline", "killed as it thaws", _thaws),
    Story("nothing is granted", "nothing starts without a grant", _no_grant),
    Story("a program that has escaped is killed", "confirmed dead is dead", _killed_for_sure),
    Story("the launcher is killed", "nothing outlives its launcher", _launcher_dies),
    Story("a port whose task is half dead", "a port belongs to one attempt", _port_in_use),
    Story("a port to be avoided", "a port belongs to one attempt", _port_to_avoid),
    Story("an exit that nobody heard", "an exit is told until it is acknowledged", _exit_is_told),
    Story("a second start", "one attempt at a time", _one_at_a_time),
    Story("nobody wants the launcher", "nothing is left behind", _unwanted),
    Story("a loop asks when to save", "saves take no more time than they may", _saves_seldom),
    Story("a loop asks what is broken", "a loop that asks goes on saving", _saves_all_the_same),
)
