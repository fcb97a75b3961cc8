"""What trains already yields to what starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from agent.inside import priority, protocol
from tests.launcher.harness import Agent, launcher, wait_for

AUTOGROUP = Path("/proc/self/autogroup")


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
        priority.renice(child.pid, 7)
        threads = [int(path.name) for path in Path(f"/proc/{child.pid}/task").iterdir()]
        assert len(threads) == 2
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {7}
        child.stdin.close()


def test_a_session_that_is_gone_is_no_error() -> None:
    child = subprocess.Popen(["true"], start_new_session=True)
    child.wait()
    priority.renice(child.pid, 7)


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
        assert rig.log() == b"0\n"
