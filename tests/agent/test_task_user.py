"""An agent that is root: its tasks are another user's, with none of the agent's rights."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.instructions import Recipe
from agent.inside.processes import fence
from agent.runtimes import marks
from agent.runtimes.process import ProcessRuntime
from supervisor.adapters.files.config.agent import load_agent
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import UserError
from supervisor.contract.observed import Incarnation
from supervisor.contract.timing import FAST
from tests.agent.cluster import PATIENT, Job, Node, is_alive
from tests.agent.other_users import open_python, own_uid
from tests.cli.agent_config import write_config
from tests.support.etcd_server import EtcdServer

NUMBERS = itertools.count(1)
UID = own_uid(61_234)
LOW = own_uid(61_300)
HOSTILE = """
import json, os, signal, time
found = {"uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(), "home": os.environ["HOME"]}
agent = os.environ["AGENT_PID"]
def tried(what, do):
    try:
        do()
        found[what] = "done"
    except OSError as error:
        found[what] = type(error).__name__
state = os.environ["AGENT_STATE"]
tried("list the state directory", lambda: os.listdir(state))
tried("read the key of marks", lambda: open(state + "/marks.key").read())
tried("read the state file", lambda: open(state + "/agent.json").read())
tried("list other launchers", lambda: os.listdir(state + "/launchers"))
tried("list other jobs", lambda: os.listdir(state + "/attempts"))
tried("write beside the code", lambda: open(state + "/code/x", "w"))
tried("read the agent's environment", lambda: open("/proc/" + agent + "/environ").read())
tried("end the agent", lambda: os.kill(int(agent), signal.SIGKILL))
tried("raise its priority", lambda: os.nice(-20))
tried("write as root", lambda: open(state + "/by-a-task", "w"))
tried("write a checkpoint", lambda: open(os.environ["CHECKPOINT_DIR"] + "/mine", "w"))
print("FOUND " + json.dumps(found), flush=True)
while True:
    print("step 1", flush=True)
    time.sleep(0.05)
"""
SPY = """
import json, os, signal, sys, time
found = {"uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups()}
def tried(what, do):
    try:
        do()
        found[what] = "done"
    except OSError as error:
        found[what] = type(error).__name__
victim, launcher, homes, attempts, checkpoints = sys.argv[1:]
tried("end its task", lambda: os.kill(int(victim), signal.SIGKILL))
tried("end its launcher", lambda: os.kill(int(launcher), signal.SIGKILL))
tried("read its environment", lambda: open(f"/proc/{victim}/environ").read())
tried("list its launcher's directory", lambda: os.listdir(homes))
tried("list its output", lambda: os.listdir(attempts))
tried("pass its checkpoints", lambda: os.stat(checkpoints + "/summaries"))
print("FOUND " + json.dumps(found), flush=True)
while True:
    print("step 1", flush=True)
    time.sleep(0.05)
"""
WRAPPED = """
import os, sys, time
print("FOUND", os.getuid(), "warm" if "calendar" in sys.modules else "cold", flush=True)
time.sleep(600)
"""
FORGER = """
import os, sys, time
marker = sys.argv[1]
if os.environ.get("TFSUP_MARKER") != marker:
    os.execve(sys.executable, [sys.executable, "-c", sys.argv[2], *sys.argv[1:]], {"TFSUP_MARKER": marker})
print("up", flush=True)
time.sleep(600)
"""


def job_of(node: Node, me: Incarnation, program: str = "prog.py") -> Job:
    return Job(node, me, f"job-{node.name}", argv=(open_python(), str(node.root / program)))


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that another user may pass."""
    path = Path(tempfile.mkdtemp(prefix="task-user-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def node(etcd: EtcdServer, root: Path) -> AsyncIterator[Node]:
    """Its tasks live until a successor is there, however busy the machine is."""
    name = f"n{next(NUMBERS)}"
    more = {"task_user": f"{UID}:{UID}", **PATIENT}
    started = Node(etcd.endpoint, name, root, more, profile="default")
    for name in ("work", "prog.py"):
        (root / name).chmod(0o755)
    started.start()
    yield started
    await started.close()


@pytest.fixture
async def ranged(etcd: EtcdServer, root: Path) -> AsyncIterator[Node]:
    """With a user for each job."""
    name = f"n{next(NUMBERS)}"
    more = {"task_user": f"{LOW}-{LOW + 20}", **PATIENT}
    started = Node(etcd.endpoint, name, root, more, profile="default")
    for name in ("work", "prog.py"):
        (root / name).chmod(0o755)
    started.config()
    (root / "locks").chmod(0o1777)
    started.start()
    yield started
    await started.close()


async def test_a_task_cannot_signal_what_is_not_its_jobs(ranged: Node, root: Path) -> None:
    node = ranged
    me = await node.until_joined()
    victim = job_of(node, me)
    report = await victim.run()
    found = fence.read_process(report.pid)
    assert found is not None
    launcher = found.parent
    home = next((root / node.name / "launchers").iterdir())
    (root / "spy.py").write_text(SPY)
    spy = Job(node, me, "spy")
    places = (home, root / node.name / "attempts" / victim.uuid, root / "ckpt" / victim.uuid)
    spy.assignment = replace(
        spy.assignment,
        plan_id="q1",
        argv=(
            open_python(),
            str(root / "spy.py"),
            *map(str, (report.pid, launcher, *places)),
        ),
    )
    await spy.run()
    said = json.loads((await node.until_printed("FOUND ")).partition("FOUND ")[2].splitlines()[0])
    own = [said.pop(each) for each in ("uid", "gid", "groups")]
    assert set(said.values()) == {"PermissionError"}, said
    assert own[0] == own[1] != fence.user_of(report.pid)
    assert own[2] == []
    assert is_alive(report)
    assert fence.read_process(launcher) is not None

    node.kill()
    (root / node.name / "agent.saved").unlink()
    node.start()
    await node.until_joined(other_than=me.incarnation)
    assert is_alive(report), "its launcher is known again by its user and mark"
    uid = fence.user_of(report.pid)
    os.kill(report.pid, signal.SIGKILL)
    assert (await victim.exited()).exit is not None
    victim.assignment = replace(victim.assignment, attempt=2)
    await victim.write()
    again = await victim.running()
    assert fence.user_of(again.pid) == uid, "the job keeps its user"


@pytest.mark.slow
async def test_a_wrappers_warm_program_has_the_tasks_user(node: Node, root: Path) -> None:
    me = await node.until_joined()
    program = root / "wrapped.py"
    program.write_text(WRAPPED)
    program.chmod(0o755)
    job = Job(node, me, "wrapped", argv=("sh", "-c", f"python3 {program}; echo over"))
    job.assignment = replace(job.assignment, preload=("calendar",), env={"PATH": "/usr/bin:/bin"})
    await job.run()
    said = (await node.until_printed("FOUND ")).partition("FOUND ")[2].split()
    assert said[:2] == [str(UID), "warm"]


async def test_a_job_waits_for_a_user_until_another_one_has_left_nothing(ranged: Node) -> None:
    node = ranged
    node.kill()
    node.more["task_user"] = f"{LOW}-{LOW + 1}"
    node.start()
    me = await node.until_joined()
    first, second = job_of(node, me), Job(node, me, "second", (open_python(), str(node.root / "prog.py")))
    second.assignment = replace(second.assignment, plan_id="q1")
    report = await first.run()
    await second.write()
    waits = await node.until(second.delay)
    assert f"all 1 users from {LOW + 1} to {LOW + 1} are taken" in waits
    assert is_alive(report)
    first.switch = replace(first.switch, phase=JobPhase.STOPPED)
    await first.write()
    assert (await node.until(second.prepared)).address
    assert not (node.root / "ckpt" / first.uuid).exists()
    assert (node.root / "ckpt" / second.uuid).stat().st_gid == LOW + 1


async def test_a_task_has_none_of_its_agents_rights(node: Node, root: Path) -> None:
    me = await node.until_joined()
    (root / "hostile.py").write_text(HOSTILE)
    assert node.process is not None
    job = job_of(node, me, "hostile.py")
    checkpoints = root / "ckpt" / job.uuid / "generation-1"
    env = {
        "AGENT_PID": str(node.process.pid),
        "AGENT_STATE": str(root / node.name),
        "CHECKPOINT_DIR": str(checkpoints),
    }
    job.assignment = replace(job.assignment, env=env)
    report = await job.run()
    printed = await node.until_printed("FOUND ")
    found = json.loads(printed.partition("FOUND ")[2].splitlines()[0])
    done = {what for what, outcome in found.items() if outcome == "done"}
    assert (found["uid"], found["gid"], found["groups"], found["home"]) == (UID, UID, [], "/"), found
    assert done <= {"write a checkpoint"}, found
    assert node.process.poll() is None
    assert is_alive(report)


async def test_a_job_cannot_have_root_write_where_nobody_has_allowed_it(node: Node, root: Path) -> None:
    node.kill()
    node.more["stores"] = [f"file://{root}/store"]
    node.start()
    job = job_of(node, await node.until_joined())
    job.assignment = replace(job.assignment, checkpoint_uri=f"file://{root}/elsewhere")
    assert not (await job.prepare()).failure
    staged = await job.stage()
    assert staged.failure is not None
    assert "may use" in staged.detail
    assert not (root / "elsewhere").exists()


async def test_a_successor_adopts_and_ends_tasks_of_another_user(node: Node) -> None:
    me = await node.until_joined()
    job = job_of(node, me)
    report = await job.run()
    node.kill()
    node.start()
    await node.until_joined(other_than=me.incarnation)
    assert is_alive(report)
    os.kill(report.pid, signal.SIGKILL)
    assert (await job.exited()).exit is not None


@pytest.mark.parametrize("uid", [UID, UID + 1], ids=["the tasks", "another"])
@pytest.mark.parametrize("code", ["", "#" + "0" * 64])
async def test_a_forged_mark_ends_nothing(node: Node, root: Path, uid: int, code: str) -> None:
    """An agent that met an unknown launcher of its own would end all on the node."""
    me = await node.until_joined()
    job = job_of(node, me)
    report = await job.run()
    owner = marks.owner(f"test/{node.name}", root / node.name / "launchers")
    forged = f"{me.incarnation}-99#{owner}{code}"
    command = [open_python(), "-c", FORGER, forged, FORGER]
    pipe = asyncio.subprocess.PIPE
    forger = await asyncio.create_subprocess_exec(*command, stdout=pipe, user=uid, group=uid, extra_groups=[])
    assert forger.stdout is not None
    assert await forger.stdout.readline() == b"up\n"
    try:
        node.kill()
        node.start()
        await node.until_joined(other_than=me.incarnation)
        assert is_alive(report), "the task of the job goes on"
        assert forger.returncode is None, "a stranger's process is left alone"
    finally:
        forger.kill()
        await forger.wait()


async def test_what_a_lost_state_file_knew_is_ended_all_the_same(node: Node, root: Path) -> None:
    me = await node.until_joined()
    report = await job_of(node, me).run()
    known = {
        each.pid: each.start_ticks
        for each in fence.all_processes().values()
        if fence.user_of(each.pid) == UID
    }
    node.kill()
    (root / node.name / "agent.json").unlink()
    node.start()
    await node.until_joined(other_than=me.incarnation)
    assert not is_alive(report)
    left = [fence.read_process(pid) for pid in known]
    assert not [each for each in left if each is not None and each.start_ticks == known[each.pid]]


def test_a_user_for_plain_processes_contradicts_containers(tmp_path: Path) -> None:
    own = f"{os.geteuid()}:{os.getegid()}"
    with pytest.raises(
        UserError, match=r"task_user: is of `runtime: process`; containers have `docker\.user`"
    ):
        load_agent(write_config(tmp_path, runtime="docker", task_user=own))


@pytest.mark.parametrize("link", [False, True])
async def test_no_plain_process_runs_in_a_directory_of_the_kernel(tmp_path: Path, *, link: bool) -> None:
    workdir = tmp_path / "work"
    workdir.symlink_to("/proc/self")
    recipe = Recipe("job", "u", str(workdir) if link else "/dev/shm", "python", ())
    runtime = ProcessRuntime(tmp_path / "homes", tmp_path / "agent.sock", FAST)
    with pytest.raises(UserError, match="the kernel's"):
        await runtime.spawn("life-1", recipe)
    await runtime.close()
