"""The poll of TF1's workers, where the program imports TensorFlow itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.checkpoints.saves import SavesReader
from agent.inside import protocol
from agent.inside.child import partial
from tests.launcher.harness import Agent, Rig, launcher

MANAGER = """
class SessionManager:
    def __init__(self, ready_op=None, recovery_wait_secs=30, other=31):
        pass
"""
PROGRAM = """
import inspect, sys
from tensorflow.python.training import session_manager as m
print(m.SessionManager.__init__.__defaults__)
print(inspect.getsource(m), m.__file__, m.__spec__.origin, m.__loader__.__class__)
"""


def _write_fake(rig: Rig) -> None:
    package = rig.root / "tensorflow" / "python" / "training"
    package.mkdir(parents=True)
    for directory in (package, package.parent, package.parent.parent):
        (directory / "__init__.py").touch()
    (package / "session_manager.py").write_text(MANAGER)


def _plain(root: Path, program: str) -> bytes:
    return subprocess.run([sys.executable, program], cwd=root, capture_output=True, check=True).stdout


def test_a_program_that_imports_tensorflow_itself_polls_often_too() -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        _write_fake(rig)
        rig.write("prog.py", PROGRAM)
        plain = _plain(rig.root, "prog.py")
        for _ in range(2):
            assert rig.run(agent, "python", "prog.py").code == 0
            assert agent.all(protocol.Started)[-1].warm
            # Nothing else of the module differs.
            assert b"(None, 30, 31)" in plain
            assert rig.log() == plain.replace(b"(None, 30, 31)", b"(None, 0.1, 31)")


def test_a_manager_that_the_program_imports_itself_gets_the_change_of_its_job_too() -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        _write_fake(rig)
        with (rig.root / "tensorflow/python/training/session_manager.py").open("a") as file:
            file.write("    def prepare_session(self, master, init_op=None, init_fn=None): pass\n")
            file.write("    def _restore_checkpoint(self, master, saver=None): pass\n")
        rig.write(
            "prog.py",
            "from tensorflow.python.training.session_manager import SessionManager as m\n"
            "print(m.__init__.__defaults__, hasattr(m._restore_checkpoint, '__wrapped__'))",
        )
        asked = {partial.VARIABLE: partial.PARTIAL}
        assert rig.run(agent, "python", "prog.py", env=asked).code == 0
        assert rig.log() == b"(None, 0.1, 31) True\n"
        assert rig.run(agent, "python", "prog.py").code == 0
        assert rig.log() == b"(None, 0.1, 31) False\n"


def test_a_tensorflow_without_such_a_manager_is_left_alone() -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        _write_fake(rig)
        (rig.root / "tensorflow/python/training/session_manager.py").write_text("SessionManager = None\n")
        rig.write(
            "prog.py", "import tensorflow.python.training.session_manager as m\nprint(m.SessionManager)"
        )
        assert rig.run(agent, "python", "prog.py").code == 0
        assert rig.log() == b"None\n"


def test_a_program_without_tensorflow_is_told_that_it_is_missing() -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        _write_fake(rig)
        (rig.root / "tensorflow/python/training/session_manager.py").unlink()
        source = (
            "try:\n    import tensorflow.python.training.session_manager\n"
            "except ModuleNotFoundError as e:\n    print(e)"
        )
        rig.write("prog.py", source)
        assert rig.run(agent, "python", "prog.py").code == 0
        assert rig.log() == _plain(rig.root, "prog.py")


MONITORED = """
class ChiefSessionCreator:
    def __init__(self, master="", checkpoint_dir=None, path=None):
        self._master, self._checkpoint_dir, self._checkpoint_filename_with_path = master, checkpoint_dir, path


class WorkerSessionCreator:
    def __init__(self, master=""):
        self._master = master


class Coordinated:
    def __init__(self, creator):
        self._session_creator = creator


class _RecoverableSession:
    def __init__(self, sess_creator):
        self._sess_creator = sess_creator

    def _create_session(self):
        self._sess = None
"""
PREPARES = """
    def prepare_session(self, master, init_op=None, init_fn=None): pass
"""
SESSIONS = """
import json, os, sys
from tensorflow.python.training import monitored_session as m, session_manager
kept, cluster = os.environ["CHECKPOINT_DIR"], "grpc://localhost:1"
made = {
    "chief": lambda: m.ChiefSessionCreator(cluster, kept),
    "elsewhere": lambda: m.ChiefSessionCreator(cluster, "/tmp"),
    "scratch": lambda: m.ChiefSessionCreator(cluster),
    "a file": lambda: m.ChiefSessionCreator(cluster, kept, kept + "/model.ckpt-1"),
    "worker": lambda: m.WorkerSessionCreator(cluster),
    "own": lambda: type("Own", (m.ChiefSessionCreator,), {})(cluster, kept),
    "alone": lambda: m.ChiefSessionCreator("", None),
}
for name in sys.argv[1].split(","):
    if name:
        session = m._RecoverableSession(m.Coordinated(made[name]()))
        session._create_session()
        session._create_session()
"""


@pytest.mark.parametrize(
    ("sessions", "survives"),
    [
        ("", False),
        ("chief", True),
        ("worker", True),
        ("chief,chief,alone", True),
        ("alone", False),
        ("elsewhere", False),
        ("scratch", False),
        ("a file", False),
        ("own", False),
        ("scratch,chief", False),
    ],
)
def test_a_program_is_known_to_survive_a_lost_server_by_all_of_its_sessions(
    sessions: str, survives: bool
) -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        _write_fake(rig)
        (rig.root / "tensorflow/python/training/session_manager.py").write_text(MANAGER + PREPARES)
        (rig.root / "tensorflow/python/training/monitored_session.py").write_text(MONITORED)
        rig.write("prog.py", SESSIONS)
        kept, notes = rig.root / "kept", rig.root / "notes"
        kept.mkdir()
        env = {"CHECKPOINT_DIR": str(kept)}
        assert rig.run(agent, "python", "prog.py", sessions, env=env, attempt_dir=str(notes)).code == 0
        found = SavesReader(notes)
        assert found.read().recovers is survives
        assert found.again == len([each for each in sessions.split(",") if each]), "each is made once again"
