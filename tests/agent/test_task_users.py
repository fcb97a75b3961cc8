"""A user of its own for each job of a node."""

from __future__ import annotations

import asyncio
import base64
import ctypes
import grp
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent import launchers as launchers_module
from agent.core.events import Event, LauncherSaid, Observed
from agent.core.state import AgentState, Attempt
from agent.host import regular_files, task_users
from agent.host.ownership import TaskDirectories
from agent.host.task_users import OneUser, UserRange
from agent.inside import protocol
from agent.inside.launcher import environ
from agent.inside.processes import fence
from agent.launchers import MOST_SILENT, SocketLaunchers
from agent.logs.task_logs import AttemptFiles
from agent.operate import Operator
from agent.runtimes import strays as strays_module
from agent.runtimes.process import ProcessRuntime
from agent.runtimes.strays import Strays, kill_strays
from supervisor.adapters.clock import BootClock
from supervisor.adapters.files.config import docker as config_docker
from supervisor.adapters.files.config.agent import load_agent
from supervisor.contract.errors import NoRoom, UserError
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.timing import FAST
from supervisor.contract.views.jobs import ExecRequest
from tests.agent.core import NO_SPARES
from tests.agent.other_users import open_python, own_uid
from tests.cli.agent_config import write_config
from tests.support.sinks import ListSink

LOW = own_uid(61_300)
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
FORKING = """
import os, sys
uid, mark = int(sys.argv[1]), sys.argv[2]
pid = os.fork()
if not pid:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    os.execve("/bin/sleep", ["sleep", "600"], {"TFSUP_MARKER": mark})
os.waitpid(pid, 0)
"""
CROWD = """
import socket, sys, time
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(sys.argv[1])
print("up", flush=True)
try:
    held[-1].recv(1)
except OSError:
    pass
print("ended", flush=True)
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives users")


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that other users may pass."""
    path = Path(tempfile.mkdtemp(prefix="task-users-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserRange:
    """Of two for jobs, on a machine where nobody has left files."""
    monkeypatch.setattr(task_users, "SHARED", (tmp_path / "tmp",))
    for name in ("tmp", "attempts", "homes"):
        (tmp_path / name).mkdir()
    return UserRange(LOW, LOW + 2, tmp_path / "ckpt", tmp_path / "attempts", tmp_path / "homes")


def test_each_job_has_a_user_until_nothing_of_it_is_left(users: UserRange, tmp_path: Path) -> None:
    first, second = users.of("job-1"), users.of("job-2")
    assert {first[0], second[0]} == {LOW + 1, LOW + 2}
    assert first[0] == first[1]
    assert replace(users).of("job-1") == first
    job = tmp_path / "ckpt" / "job-1"
    assert (job.stat().st_uid, job.stat().st_gid, job.stat().st_mode & 0o777) == (0, first[1], 0o710)
    with pytest.raises(NoRoom, match=f"all 2 users from {LOW + 1} to {LOW + 2} are taken"):
        users.of("job-3")
    assert not (tmp_path / "ckpt" / "job-3").exists()
    job.rmdir()
    assert users.of("job-3") == first


@pytest.mark.parametrize("what", ["homes/life-1", "tmp/left"])
def test_a_user_who_owns_something_here_is_given_to_no_other_job(
    users: UserRange, tmp_path: Path, what: str
) -> None:
    first, second = (tmp_path / f"{what}-{each}" for each in (1, 2))
    for uid, path in ((LOW + 1, first), (LOW + 2, second)):
        path.mkdir()
        os.chown(path, uid, uid)
    with pytest.raises(NoRoom):
        users.of("job-1")
    second.rmdir()
    assert users.of("job-1") == (LOW + 2, LOW + 2)


@pytest.mark.parametrize(
    ("low", "make", "remove"),
    [(LOW + 20, ("-M", "8"), "-m"), (LOW + 30, ("-S", "1"), "-s"), (LOW + 40, ("-Q",), "-q")],
    ids=["memory", "semaphore", "queue"],
)
def test_a_user_who_has_an_ipc_object_is_given_to_no_other_job(
    users: UserRange, low: int, make: tuple[str, ...], remove: str
) -> None:
    """The whole machine sees them, so each kind has numbers that no other test has."""
    users = replace(users, low=low, high=low + 2)
    made = [_ipcmk(uid, make) for uid in (low + 1, low + 2)]
    try:
        with pytest.raises(NoRoom):
            users.of("job-1")
        subprocess.run(["ipcrm", remove, made.pop()], check=True)
        assert users.of("job-1") == (low + 2, low + 2)
    finally:
        for each in made:
            subprocess.run(["ipcrm", remove, each], check=True)


def _ipcmk(uid: int, make: tuple[str, ...]) -> str:
    """The number of the object that it makes."""
    command = ["ipcmk", *make]
    done = subprocess.run(
        command, user=uid, group=uid, extra_groups=[], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.split()[-1]


def test_the_maker_of_an_ipc_object_that_is_somebody_elses_now_has_it_still(
    users: UserRange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sysvipc").mkdir()
    (tmp_path / "sysvipc" / "msg").write_text(
        "       key      msqid perms   uid   gid  cuid  cgid\n"
        f"-123456789          3   600     0     0 {LOW + 1} {LOW + 1}\n"
    )
    monkeypatch.setattr(task_users, "SYSTEM_V", tmp_path / "sysvipc")
    assert users.of("job-1") == (LOW + 2, LOW + 2)
    with pytest.raises(NoRoom):
        users.of("job-2")


def test_a_directory_with_too_many_entries_to_look_at_gives_no_user(
    users: UserRange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any job can fill it, and all agents of the machine wait for the look."""
    monkeypatch.setattr(task_users, "MOST_ENTRIES", 2)
    for number in range(3):
        (tmp_path / "tmp" / str(number)).touch()
    with pytest.raises(NoRoom, match=f"{tmp_path / 'tmp'} has more than 2 entries"):
        users.of("job-1")
    (tmp_path / "tmp" / "0").unlink()
    users.of("job-1")


async def test_a_user_who_has_a_process_is_given_to_no_other_job(users: UserRange) -> None:
    users = replace(users, low=LOW + 50, high=LOW + 52)
    sleepers = [await _sleeper(uid, {}) for uid in (LOW + 51, LOW + 52)]
    try:
        with pytest.raises(NoRoom):
            await asyncio.to_thread(users.of, "job-1")
    finally:
        for each in sleepers:
            each.kill()
            await each.wait()


def test_what_has_lost_its_mark_and_its_launcher_is_found_by_its_user(root: Path) -> None:
    """A mark counts for a launcher that is there: no program makes a directory beside those of launchers."""
    user, homes, forged = LOW + 7, root / "launchers", root / "theirs" / "launchers"
    other = root / "other" / "launchers"
    for home in (homes / "a-1", homes / "a-2", other / "b-1", forged / "a-2"):
        home.mkdir(parents=True)
        os.chown(home, user, user)
    os.chown(forged, user, user)
    marks = {
        "none": "",
        "of the launcher that has ended": f"a-1#test/n@{homes}#0",
        "of no launcher": f"a-3#test/n@{homes}#0",
        "of a directory of its own": f"a-2#test/n@{forged}#0",
        "of a path of its own": f"../theirs/launchers/a-2#test/n@{homes}#0",
        "of another launcher": f"a-2#test/n@{homes}#0",
        "of another agent's launcher": f"b-1#test/m@{other}#0",
    }
    pids = {what: _orphan(user, mark) for what, mark in marks.items()}
    stranger = _orphan(LOW + 8, "")
    try:
        assert kill_strays(user, homes / "a-1", frozenset({str(other)}), 10_000) == 0
        left = {what for what, pid in pids.items() if fence.read_process(pid)}
        assert left == {"of another launcher", "of another agent's launcher"}
        assert fence.read_process(stranger)
    finally:
        for pid in (*pids.values(), stranger):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_an_orphan_that_its_agent_inherits_is_found(root: Path) -> None:
    """An agent that is PID 1 of a container, or a subreaper, becomes the parent of orphans."""
    user, homes = LOW + 9, root / "launchers"
    _be_subreaper(yes=True)
    try:
        pid = _orphan(user, "")
        found = fence.read_process(pid)
        assert found is not None
        assert found.parent == os.getpid()
        assert kill_strays(user, homes / "a-1", frozenset(), 10_000, {pid}) == 0
        assert fence.read_process(pid), "a launcher that has lost its mark"
        assert kill_strays(user, homes / "a-1", frozenset(), 10_000) == 0
        assert not fence.read_process(pid)
        os.waitpid(pid, 0)
    finally:
        _be_subreaper(yes=False)


def test_what_another_agent_has_forked_and_is_no_launcher_yet_is_left(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its job's user, and the mark comes with the program."""
    user, homes, other = LOW + 10, root / "launchers", root / "other" / "launchers"
    (other / "b-1").mkdir(parents=True)
    os.chown(other / "b-1", user, user)
    mark = f"b-1#test/m@{other}#0"
    agent = subprocess.Popen(
        [sys.executable, "-c", FORKING, str(user), mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agent.stdin is not None
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    try:
        monkeypatch.setattr(strays_module, "FORK_MS", 600_000)
        assert kill_strays(user, homes / "a-1", frozenset({str(other)}), 0) == 1
        assert fence.read_process(pid)
        agent.stdin.write("\n")
        agent.stdin.flush()
        deadline = time.monotonic() + 20
        while fence.marker_of(pid) != mark:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert kill_strays(user, homes / "a-1", frozenset({str(other)}), 10_000) == 0
        assert fence.read_process(pid)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        agent.communicate()


def test_what_never_becomes_a_launcher_is_ended(root: Path) -> None:
    user, homes = LOW + 11, root / "launchers"
    agent = subprocess.Popen(
        [sys.executable, "-c", FORKING, str(user), ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    assert kill_strays(user, homes / "a-1", frozenset(), 10_000) == 0
    assert not fence.read_process(pid)
    agent.communicate()


def _be_subreaper(*, yes: bool) -> None:
    assert ctypes.CDLL(None, use_errno=True).prctl(36, int(yes), 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER


def test_a_path_that_a_program_has_chosen_is_not_looked_at(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lie below an automounter or on a file server that does not answer."""
    user, homes, theirs = LOW + 60, root / "launchers", root / "net" / "launchers"
    looked, look = list[str](), Path.lstat

    def lstat(path: Path) -> os.stat_result:
        looked.append(str(path))
        return look(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    pids = [_orphan(user, mark) for mark in (f"x#y@{theirs}#", f"../net/launchers/x#y@{homes}#")]
    try:
        assert kill_strays(user, homes / "a-1", frozenset(), 10_000) == 0
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not [each for each in looked if "net" in each]


def test_agents_that_share_the_users_know_each_others_launchers(users: UserRange, tmp_path: Path) -> None:
    other = replace(users, homes=tmp_path / "other")
    assert users.all_homes() == frozenset()
    users.register()
    with (users.checkpoints / task_users.LOCK).open("a") as book:
        book.write("/cut sho")
    for _ in range(2):
        other.register()
    users.of("job-1")
    assert users.all_homes() == {str(users.homes), str(other.homes)}
    assert (users.checkpoints / task_users.LOCK).read_text() == f"{users.homes}\n{other.homes}\n"


async def test_a_look_for_strays_that_hangs_holds_up_no_fence_and_no_other_thread(
    users: UserRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go, sink = threading.Event(), ListSink()

    def hang(*_: object) -> int:
        assert let_go.wait(60)
        return 0

    monkeypatch.setattr(strays_module, "kill_strays", hang)
    monkeypatch.setattr(strays_module, "MOST_S", 0.2)
    strays = Strays(users, sink)
    try:
        async with asyncio.timeout(30):
            ends = [strays.end(LOW + 1, users.homes / f"life-{each}", set()) for each in range(40)]
            assert await asyncio.gather(*ends) == [0] * 40
            await asyncio.to_thread(os.getpid)
    finally:
        let_go.set()
        strays.close()
    assert [event for _, event, _ in sink.lines] == [
        "not all processes of a task were looked for: some may run on"
    ] * 40


def _orphan(uid: int, mark: str) -> int:
    """The pid of a process whose parent has ended."""
    env = {fence.MARKER_VARIABLE: mark} if mark else {}
    command = ("/bin/sh", "-c", "/bin/sleep 600 >/dev/null & echo $!")
    done = subprocess.run(
        command, user=uid, group=uid, extra_groups=[], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    return int(done.stdout)


def test_output_of_a_job_that_is_over_holds_no_user(users: UserRange, tmp_path: Path) -> None:
    """It stays until its room is needed; nobody but the agent can pass its directory any more."""
    output = tmp_path / "attempts" / "job-1"
    output.mkdir(mode=0o700)
    (output / "output.log").touch()
    uid, gid = users.of("job-1")
    os.chown(output, uid, gid)
    users.of("job-2")
    with pytest.raises(NoRoom):
        users.of("job-3")
    (tmp_path / "ckpt" / "job-1").rmdir()
    assert users.of("job-1") == (uid, gid), "the same job has the same user again"
    (tmp_path / "ckpt" / "job-1").rmdir()
    assert users.of("job-3") == (uid, gid)
    assert (output.stat().st_uid, output.stat().st_mode & 0o777) == (0, 0o700)


async def test_another_jobs_process_with_this_mark_does_not_hold_its_fence_up(
    users: UserRange, tmp_path: Path
) -> None:
    """Launchers' ids can be guessed: a job could keep another one's death from being confirmed."""
    users = replace(users, low=LOW + 70, high=LOW + 72)
    mine, other = users.of("job-1")[0], users.of("job-2")[0]
    home = tmp_path / "homes" / "life-1"
    home.mkdir()
    os.chown(home, mine, mine)
    directories = TaskDirectories(users, users.attempts, users.checkpoints, tmp_path)
    strays = Strays(users, ListSink())
    runtime = ProcessRuntime(users.homes, tmp_path / "agent.sock", FAST, tasks=directories, strays=strays)
    marked = {fence.MARKER_VARIABLE: "life-1#whatever"}
    stranger, own = await _sleeper(other, marked), await _sleeper(mine, marked)
    try:
        assert await runtime.fence("life-1", ()) == 0
        assert await own.wait() == -signal.SIGKILL
        assert stranger.returncode is None
    finally:
        stranger.kill()
        await stranger.wait()
        await runtime.close()


async def test_silence_of_one_user_costs_no_other_users_connection(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers_module, "HELLO_S", 600.0)
    said: asyncio.Queue[Event] = asyncio.Queue()
    launchers = SocketLaunchers(root / "s", ListSink(), None, OneUser(LOW, LOW))
    await launchers.open(said.put_nowait)
    try:
        async with asyncio.timeout(60):
            _, patient = await asyncio.open_unix_connection(root / "s")
            crowd = await _child(LOW, CROWD, str(root / "s"), str(2 * MOST_SILENT))
            patient.write(
                protocol.encode(protocol.Hello(protocol.PROTOCOL, "L", "job", 5, 5, "boot", warm=True))
            )
            event = await said.get()
        assert isinstance(event, LauncherSaid)
        patient.close()
        crowd.kill()
        await crowd.wait()
    finally:
        await launchers.close()


async def test_a_connection_of_another_user_is_ended_unread(root: Path) -> None:
    launchers = SocketLaunchers(root / "s", ListSink(), None, OneUser(LOW, LOW))
    await launchers.open(lambda _: None)
    try:
        async with asyncio.timeout(60):
            stranger = await _child(LOW + 5, CROWD, str(root / "s"), "1")
            assert stranger.stdout is not None
            assert await stranger.stdout.readline() == b"ended\n"
            await stranger.wait()
        assert not launchers._silent
    finally:
        await launchers.close()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("1-20", "from 1000 to"),
        ("2000-2000", "of at least two"),
        ("65000-66000", "nobody's"),
        ("0-1:2", "write UID:GID, or LOW-HIGH"),
        (f"{2**31 - 5}-{2**31}", "from 1000 to"),
    ],
)
def test_a_range_that_cannot_be_is_an_error(tmp_path: Path, value: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        load_agent(write_config(tmp_path, task_user=value))


def test_a_range_that_holds_a_user_of_this_machine_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = pwd.struct_passwd(("ann", "x", LOW + 5, LOW + 5, "", "/", ""))
    monkeypatch.setattr(pwd, "getpwall", lambda: [entry])
    with pytest.raises(UserError, match=f"{LOW}-{LOW + 9} holds user ann of this machine"):
        load_agent(write_config(tmp_path, task_user=f"{LOW}-{LOW + 9}"))


@pytest.mark.parametrize("file", ["subuid", "subgid"])
def test_a_range_that_rootless_containers_have_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setattr(config_docker, "SUBORDINATE", (tmp_path / "subuid", tmp_path / "subgid"))
    (tmp_path / file).write_text(f"ann:1000:5\nnonsense\nbob:{LOW - 300}:65536\n")
    with pytest.raises(UserError, match=f"{tmp_path / file}:3: {LOW - 300}-{LOW + 65235} of bob"):
        load_agent(write_config(tmp_path, task_user=f"{LOW}-{LOW + 9}"))
    (tmp_path / file).write_text("ann:1000:5\n")
    (tmp_path / "locks").chmod(0o1777)
    load_agent(write_config(tmp_path, task_user=f"{LOW}-{LOW + 9}"))


@pytest.mark.parametrize("of", ["getpwuid", "getgrgid"])
def test_a_number_that_the_machine_knows_is_given_to_no_job(
    users: UserRange, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Users of LDAP are in no list of all users."""
    _know(monkeypatch, of, {LOW + 1})
    assert users.of("job-1") == (LOW + 2, LOW + 2)
    with pytest.raises(NoRoom, match="or by users of this machine"):
        users.of("job-2")
    monkeypatch.setattr(task_users, "MOST_KNOWN", 1)
    with pytest.raises(NoRoom, match="is a range of this machine's users"):
        users.of("job-2")


async def test_no_process_of_a_user_whom_the_machine_knows_is_ended(
    root: Path, users: UserRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, sink = LOW + 61, ListSink()
    strays = Strays(replace(users, low=LOW + 60, high=LOW + 62), sink)
    _know(monkeypatch, "getpwuid", {user})
    pid = _orphan(user, "")
    try:
        for _ in range(2):
            assert await strays.end(user, root / "launchers" / "a-1", set()) == 0
        assert fence.read_process(pid)
        assert [(level, fields["of"]) for level, _, fields in sink.lines] == [("warning", "user ann")]
        monkeypatch.undo()
        assert await strays.end(user, root / "launchers" / "a-1", set()) == 0
        assert not fence.read_process(pid)
    finally:
        strays.close()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _know(monkeypatch: pytest.MonkeyPatch, of: str, numbers: set[int]) -> None:
    """The machine knows these as those of ann."""
    module, entry = {
        "getpwuid": (pwd, pwd.struct_passwd(("ann", "x", 0, 0, "", "/", ""))),
        "getgrgid": (grp, grp.struct_group(("ann", "x", 0, []))),
    }[of]

    def get(number: int) -> object:
        if number not in numbers:
            raise KeyError(number)
        return entry

    monkeypatch.setattr(module, of, get)


async def _sleeper(uid: int, env: dict[str, str]) -> asyncio.subprocess.Process:
    return await _child(uid, SLEEPER, env=env)


async def _child(
    uid: int, program: str, *arguments: str, env: dict[str, str] | None = None
) -> asyncio.subprocess.Process:
    """A process of this user that says that it is up."""
    pipe = asyncio.subprocess.PIPE
    command = [open_python(), "-c", program, *arguments]
    child = await asyncio.create_subprocess_exec(
        *command, stdout=pipe, env=env, user=uid, group=uid, extra_groups=[]
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"up\n"
    return child


async def test_an_operators_command_runs_as_the_jobs_user(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", open_python())
    task = await _sleeper(LOW, {})
    found = fence.read_process(task.pid)
    assert found is not None
    runs = AttemptId(TaskId("job", "worker", 0), 1, 1)
    state = AgentState(NO_SPARES, "life", "boot", FAST.d_ms, view=Observed((), (), 1))
    state.attempts[runs] = Attempt(
        runs, "u", "p", "l1", 1, "h:1", warm=True, pid=found.pid, start_ticks=found.start_ticks
    )
    (root / "l1").mkdir()
    environ.keep(str(root / "l1"), str(runs), str(root), {"PATH": os.defpath})
    os.chown(root / "l1", LOW, LOW)
    files = AttemptFiles(root, ListSink())
    operator = Operator(root, files, lambda: state, BootClock(), ListSink(), foreign=True)
    try:
        async with aclosing(operator.run(ExecRequest(str(runs.task), ("id",), 20_000))) as chunks:
            said = [base64.b64decode(each.data) async for each in chunks if each.stream == "out"]
    finally:
        task.kill()
        await task.wait()
    assert b"".join(said).startswith(f"uid={LOW} gid={LOW} groups={LOW}".encode())


@pytest.mark.parametrize("name", ["signalled", "other"])
def test_a_file_of_another_name_is_neither_read_nor_written(tmp_path: Path, name: str) -> None:
    """A task could have its agent, which is root, empty any file of the same file system."""
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    (tmp_path / "signalled").hardlink_to(secret)
    (tmp_path / "other").touch()
    if name == "other":
        regular_files.replace(tmp_path / "other", "new")
        assert regular_files.read_start(tmp_path / "other", 9) == b"new"
        return
    with pytest.raises(OSError, match="with one name"):
        regular_files.replace(tmp_path / "signalled", "15 1")
    with pytest.raises(OSError, match="with one name"):
        regular_files.read_start(tmp_path / "signalled", 9)
    assert secret.read_text() == "of somebody else"


def test_locks_that_a_job_has_made_are_root_s_when_the_next_job_comes(
    users: UserRange, tmp_path: Path
) -> None:
    locks, theirs = tmp_path / "locks", users.of("job-1")
    locks.mkdir(mode=0o777)
    (locks / "port-1.lock").touch(mode=0o600)
    (locks / "port-2.lock").symlink_to(tmp_path / "tmp")
    (locks / "port-3.lock").touch(mode=0o640)
    for name in ("port-1.lock", "port-2.lock"):
        os.chown(locks / name, *theirs, follow_symlinks=False)
    locks.chmod(0o1777)
    directories = TaskDirectories(users, users.attempts, users.checkpoints, locks)
    directories.make("job-2", users.of("job-2"))
    first = (locks / "port-1.lock").stat()
    assert (first.st_uid, first.st_mode & 0o777) == (0, 0o666)
    assert not (locks / "port-2.lock").is_symlink()
    assert (locks / "port-3.lock").stat().st_mode & 0o777 == 0o640, "not a task's"
    assert (tmp_path / "tmp").stat().st_uid == 0
