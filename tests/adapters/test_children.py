"""A program runs within its bounds, for real, and nothing that it starts is left when its time is over."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.adapters.children import bounded
from supervisor.adapters.children.bounded import Child, Ended, run
from tests.agent.other_users import own_uid
from tests.support.waiting import until

ESCAPE = """
import os, sys, time
# It leaves its session and its parents, and its environment shows nothing of where it is from.
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", {then!r}], {{}})
    os._exit(0)
os.wait()
while not os.path.exists({pid!r}): time.sleep(0.01)
{last}
"""
SLEEPS = (
    "import os, time; open({new!r}, 'w').write(str(os.getpid())); os.rename({new!r}, {pid!r}); "
    "time.sleep(120)"
)
FORKS_ON = "import os\nopen({pid!r}, 'w').write('0')\nwhile True:\n  if os.fork(): os._exit(0)"


def child(program: str, limit_s: float = 60.0, kept: int = 1000, memory: int = 0) -> Child:
    command = (sys.executable, "-I", "-S", "-c", program)
    return Child(command=command, env={}, cwd="/", limit_s=limit_s, kept=kept, memory=memory)


def escaping(pid: Path, last: str, then: str = SLEEPS) -> str:
    paths = {"pid": str(pid), "new": f"{pid}.new"}
    return ESCAPE.format(then=then.format(**paths), pid=str(pid), last=last)


def is_alive(pid: Path) -> bool:
    return Path(f"/proc/{pid.read_text()}/cwd").exists()


async def test_a_program_gets_its_input_and_environment_and_its_end_is_told(tmp_path: Path) -> None:
    program = (
        "import os, sys; os.write(1, sys.stdin.buffer.read() + os.environb[b'A'] + os.getcwdb()); sys.exit(3)"
    )
    ended = await run(replace(child(program), told="key=\udcff\n", env={"A": "\udcfe"}, cwd=str(tmp_path)))
    assert ended == Ended(3, b"key=\xff\n\xfe" + os.fsencode(tmp_path))


async def test_a_program_that_stops_its_guard_is_ended_with_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "_SLACK_S", 0.0)
    monkeypatch.setattr(bounded, "GONE_S", 0.5)
    program = (
        "import os, signal, time; os.kill(os.getppid(), signal.SIGSTOP); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(120)"
    )
    assert await run(child(program, limit_s=1.0)) == Ended(-signal.SIGKILL, late=True)
    await until(lambda: not is_alive(tmp_path / "pid"))


async def test_what_a_program_inherits_is_bounded() -> None:
    program = (
        "import os; print(sorted(os.listdir('/proc/self/fd')), os.nice(0), "
        "open('/proc/self/oom_score_adj').read().strip(), os.getsid(0) == os.getpid())"
    )
    ended = await run(replace(child(program), nice=7, oom_score_adj=1000))
    # The fourth is that of the listing.
    assert ended.output == b"['0', '1', '2', '3'] 7 1000 True\n"


async def test_a_program_that_cannot_be_started_is_the_error_of_its_caller(tmp_path: Path) -> None:
    path = tmp_path / "program"
    asked = Child(command=(str(path),), env={}, cwd="/", limit_s=60.0)
    with pytest.raises(FileNotFoundError):
        await run(asked)
    path.write_text("")
    with pytest.raises(PermissionError):
        await run(asked)


@pytest.mark.parametrize("last", ["", "time.sleep(600)"])
async def test_a_process_that_hides_ends_with_its_program(tmp_path: Path, last: str) -> None:
    pid = tmp_path / "pid"
    limit_s = 1.5
    ended = await run(child(escaping(pid, last), limit_s))
    while not pid.exists():  # the machine is so busy that it had no time to hide
        limit_s *= 4
        assert limit_s < 60
        ended = await run(child(escaping(pid, last), limit_s))
    assert not is_alive(pid)
    assert ended.late == ("sleep" in last)


@pytest.mark.parametrize("count", [1, 20])
async def test_processes_that_fork_and_end_on_and_on_are_ended(tmp_path: Path, count: int) -> None:
    """Each lives for a moment, so it is gone when it is looked for."""
    pid, mark = tmp_path / "pid", f"fork-on-{os.getpid()}-{count}"
    many = f"import os\nfor _ in range({count - 1}):\n  if os.fork() == 0: break\n"
    begun = time.monotonic()
    await run(child(escaping(pid, "", f"{many}{FORKS_ON}  # {mark}")))
    assert time.monotonic() - begun < 20
    assert not any(mark.encode() in _command_of(each) for each in Path("/proc").glob("[0-9]*"))


def _command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


async def test_signals_for_the_service_of_its_daemon_do_not_end_the_guard_first(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    last = "import signal; os.kill(os.getppid(), signal.SIGTERM); print(signal.getsignal(signal.SIGTERM))"
    ended = await run(child(escaping(pid, last)))
    assert (ended.code, ended.output, is_alive(pid)) == (0, b"0\n", False)


async def test_a_process_that_hides_ends_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    work = asyncio.create_task(run(child(escaping(pid, "time.sleep(600)"))))
    await until(pid.exists)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not is_alive(pid)


async def test_a_process_that_hides_ends_when_the_process_of_its_caller_is_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = (
        "import asyncio\nfrom tests.adapters.test_children import *\n"
        f"asyncio.run(run(child(escaping(Path({str(pid)!r}), 'time.sleep(600)'))))"
    )
    caller = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    await until(pid.exists)
    caller.kill()
    await caller.wait()
    await until(lambda: not is_alive(pid))


async def test_a_program_whose_guard_is_killed_ends_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = SLEEPS.format(pid=str(pid), new=f"{pid}.new")
    work = asyncio.create_task(run(child(program)))
    await until(pid.exists)
    guard = int(Path(f"/proc/{pid.read_text()}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    assert await work == Ended(-signal.SIGKILL)
    await until(lambda: not is_alive(pid))


async def test_output_is_kept_to_its_bound_and_read_no_more_after_the_most(tmp_path: Path) -> None:
    ended = await run(child("print('x' * 100_000 + 'end')", kept=10))
    assert ended.output == b"xxxxxxend\n"
    ended = await run(child("while True: print('x' * 100_000)", limit_s=1.0, kept=10))
    assert ended.late
    program = "print('x' * 100_000_000); open('all', 'w')"
    ended = await run(replace(child(program, kept=0), cwd=str(tmp_path)))
    assert (ended.output, ended.code, (tmp_path / "all").exists()) == (b"", 0, True)


async def test_memory_of_all_that_a_program_started_is_bounded(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hog = "x = bytes([1]) * (100 << 20); " + SLEEPS
    ended = await run(child(escaping(pid, "time.sleep(600)", hog), memory=80 << 20))
    assert ended.over_memory
    assert not is_alive(pid)
    ended = await run(child("import time; time.sleep(0.6)", memory=80 << 20))
    assert (ended.code, ended.over_memory) == (0, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a child to another user")
async def test_another_user_has_no_rights_of_the_caller_and_cannot_stop_its_end(tmp_path: Path) -> None:
    uid = own_uid(54_500)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    program = "id -u; id -G; readlink /proc/self/cwd; kill -9 $PPID || echo no"
    asked = Child(
        command=("/bin/sh", "-c", program), env={}, cwd=str(closed), user=(uid, uid), limit_s=60.0, kept=1000
    )
    said = (await run(asked)).output.decode().splitlines()
    assert (said[:3], said[-1]) == ([str(uid), str(uid), str(closed)], "no")
