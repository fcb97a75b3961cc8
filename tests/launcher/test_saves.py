"""Notes of where a warm program saves: TensorFlow's and Keras' own savers, real ones in one launcher."""

from __future__ import annotations

import json
from pathlib import Path

from agent.checkpoints.saves import parse
from agent.inside import protocol
from agent.inside.child import saves
from tests.launcher.harness import Agent, Rig, launcher

TENSORFLOW = """
import os, sys, traceback
import numpy as np
import tensorflow as tf

here, inside = os.getcwd(), os.environ["CHECKPOINT_DIR"]
manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=tf.Variable(1.0)), inside + "/sub", 3)
for _ in range(3):
    manager.save()
manager.checkpoint.restore(manager.latest_checkpoint)
tf.train.Checkpoint(v=tf.Variable(2.0)).write("by_write/x")
tf.saved_model.save(tf.Module(), "exported")

v1 = tf.compat.v1
with tf.Graph().as_default(), v1.Session() as session:
    variable, saver = v1.get_variable("w", [2]), None
    saver = v1.train.Saver()
    session.run(v1.global_variables_initializer())
    os.mkdir("by_tf1")
    saver.restore(session, saver.save(session, "by_tf1/model.ckpt", global_step=7))

import keras
model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
ones = np.ones((4, 1))
saving = keras.callbacks.ModelCheckpoint("by_keras/w{epoch}.weights.h5", save_weights_only=True)
model.fit(ones, ones, verbose=0, epochs=2, callbacks=[saving, keras.callbacks.BackupAndRestore("backup")])
try:
    model.save("nowhere/at/all.keras")
except FileNotFoundError:
    print("foreign frames:", "agent/inside" in traceback.format_exc())
"""

FAKE = """
import functools, os
class Saver:
    def save(self, sess, save_path, global_step=None):
        "The saver's own words."
        save_path = os.fspath(save_path)
        os.makedirs(os.path.dirname(save_path), exist_ok=True)
        return "%s-%d" % (save_path, global_step)
"""
PROGRAM = """
import inspect, os, sys
from tensorflow.python.training.saver import Saver
print(Saver.save.__doc__, inspect.signature(Saver.save), Saver.save.__module__)
for step, path in enumerate(sys.argv[1:]):
    print(Saver().save(None, path, global_step=step))
"""


NESTED = """
import os, sys
from tensorflow.python.training.saver import Saver

class Slow(os.PathLike):
    def __fspath__(self):
        print("in the save:", os.path.exists(mark))
        Saver().save(None, "inner/m", global_step=1)
        print("after the inner one:", os.path.exists(mark))
        return "outer/m"

mark = os.path.join(os.path.dirname(os.environ["TFSUP_STEP_FILE"]), "saving")
print("before:", os.path.exists(mark))
Saver().save(None, Slow(), global_step=1)
print("after:", os.path.exists(mark))
try:
    Saver().save(None, "/dev/null/m", global_step=1)
except OSError:
    print("after a failure:", os.path.exists(mark))
"""


def _places(rig: Rig, number: int = 1) -> dict[str, tuple[str, int, int]]:
    """(below, saved, restored) by directory, those of the launcher's own root without it."""
    body = json.loads((rig.root / "logs" / str(number) / saves.FILE).read_bytes())
    return {
        each["directory"].replace(f"{rig.root}/", ""): (each["below"], each["saved"], each["restored"])
        for each in body["places"]
    }


def _run(rig: Rig, agent: Agent, *argv: str, inside: Path | None = None) -> int | None:
    directory = inside or rig.root / "ckpt"
    directory.mkdir(exist_ok=True)
    env = {"CHECKPOINT_DIR": str(directory)}
    return rig.run(agent, "python", *argv, env=env).code


def test_the_savers_of_tensorflow_and_keras_tell_where_they_write() -> None:
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}
    with launcher(preload=["tensorflow"], env=env) as rig, Agent(rig.socket_path) as agent:
        assert agent.expect(protocol.Warm, timeout_s=60).error is None
        rig.write("prog.py", TENSORFLOW)
        assert _run(rig, agent, "prog.py") == 0, rig.log()
        assert b"foreign frames: False" in rig.log()
        found = _places(rig)
        below, saved, restored = found.pop("ckpt/sub")
        assert (below, restored) == ("CHECKPOINT_DIR", 1)
        assert saved >= 1, "counts are written at most every fifth of a second"
        assert found.keys() == {"by_write", "by_tf1", "by_keras", "backup"}, "an export is no checkpoint"
        assert {each[0] for each in found.values()} == {""}
        assert found["by_tf1"][2] == 1


def _write_fake(rig: Rig) -> None:
    package = rig.root / "tensorflow" / "python" / "training"
    package.mkdir(parents=True)
    for directory in (package, package.parent, package.parent.parent):
        (directory / "__init__.py").touch()
    (package / "saver.py").write_text(FAKE)


def test_a_saver_that_the_program_imports_itself_looks_and_works_as_before() -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        _write_fake(rig)
        rig.write("prog.py", PROGRAM)
        assert _run(rig, agent, "prog.py", "away/m") == 0
        first, second = rig.log().decode().splitlines()
        assert first.startswith("The saver's own words. (self, sess, save_path, global_step=None)")
        assert first.endswith("tensorflow.python.training.saver")
        assert second == "away/m-0"
        assert _places(rig) == {"away": ("", 1, 0)}


def test_a_save_through_a_link_is_one_into_the_checkpoint_directory() -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        _write_fake(rig)
        rig.write("prog.py", PROGRAM)
        (rig.root / "ckpt").mkdir()
        (rig.root / "linked").symlink_to(rig.root / "ckpt")
        assert _run(rig, agent, "prog.py", "linked/m", "linked/sub/m", "ckpt-2/m") == 0
        assert {name: below for name, (below, _, _) in _places(rig).items()} == {
            "linked": "CHECKPOINT_DIR",
            "linked/sub": "CHECKPOINT_DIR",
            "ckpt-2": "",
        }


def test_a_program_that_saves_to_a_new_place_each_time_fills_no_disk() -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        _write_fake(rig)
        rig.write("prog.py", PROGRAM)
        paths = [f"place{n}/m" for n in range(2 * saves.MOST_PLACES)]
        assert _run(rig, agent, "prog.py", *paths) == 0
        assert len(_places(rig)) == saves.MOST_PLACES
        assert parse((rig.root / "logs/1" / saves.FILE).read_bytes()).outside == saves.MOST_PLACES


def test_while_a_save_is_under_way_a_file_says_so() -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        _write_fake(rig)
        rig.write("prog.py", NESTED)
        assert _run(rig, agent, "prog.py") == 0, rig.log()
        assert rig.log().decode().splitlines() == [
            "before: False",
            "in the save: True",
            "after the inner one: True",
            "after: False",
            "after a failure: False",
        ]


def test_a_directory_that_cannot_be_written_stops_no_save() -> None:
    with launcher(preload=[]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        _write_fake(rig)
        source = "import os, shutil\nshutil.rmtree(os.path.dirname(os.environ['TFSUP_STEP_FILE']))\n"
        rig.write("prog.py", source + PROGRAM)
        assert _run(rig, agent, "prog.py", "away/m") == 0
