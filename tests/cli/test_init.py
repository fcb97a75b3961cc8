"""`init`: what is read from programs, and the job files that are written for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.adapters.files.jobfile import load_job_file
from supervisor.cli.jobs.draft import Draft, draft, text_of
from supervisor.cli.jobs.program_facts import PlaceKind, facts_of, modules_imported
from supervisor.contract.job.placeholders import fill
from supervisor.contract.job.spec import JobSpec
from tests.cli.shell import ctl

TF1 = """
import tensorflow.compat.v1 as tf
cluster = tf.train.ClusterSpec({"ps": ps, "worker": workers})
server = tf.train.Server(cluster)
with tf.device(tf.train.replica_device_setter(cluster=cluster)):
    pass
"""
ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--ps_hosts", type=str, default="")
parser.add_argument("--worker_hosts", type=str)
parser.add_argument("--job_name", required=True)
parser.add_argument("--task_index", type=int, default=0)
parser.add_argument("--logdir", default="/tmp/train")
args = parser.parse_args()
sv = tf.train.Supervisor(is_chief=True, logdir=args.logdir)
print("step", step, "loss", loss)
"""
APP_FLAGS = """
flags = tf.app.flags
flags.DEFINE_string("ps", "", "parameter servers")
flags.DEFINE_string("workers", "", "workers")
flags.DEFINE_string("job", "", "")
flags.DEFINE_integer("index", 0, "")
flags.DEFINE_string("model_dir", "/tmp/m", "")
FLAGS = flags.FLAGS
with tf.train.MonitoredTrainingSession(master=server.target, checkpoint_dir=FLAGS.model_dir) as session:
    print(f"Iteration {i}")
"""
ABSL_SYNC = """
from absl import flags, app
flags.DEFINE_string("worker_hosts", None, "")
flags.DEFINE_string("ps_hosts", None, "")
flags.DEFINE_string("task_type", None, "")
flags.DEFINE_integer("task_id", 0, "")
optimizer = tf.train.SyncReplicasOptimizer(optimizer)
saver = tf.train.Saver()
saver.save(sess, os.path.join(os.environ["CHECKPOINT_DIR"], "model"), global_step=step)
"""
ESTIMATOR = """
import json, os
import tensorflow as tf
config = json.loads(os.environ.get("TF_CONFIG") or "{}")
if config["task"]["type"] == "master":
    pass
estimator = tf.estimator.DNNClassifier(model_dir="/tmp/model/run", feature_columns=[])
estimator2 = tf.estimator.Estimator(model_fn, model_dir="/tmp/model/run")
tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
"""
KERAS = """
import tensorflow as tf
parser.add_argument("--data", required=True)
parser.add_argument("--log_dir", default="logs")
callbacks = [
    tf.keras.callbacks.ModelCheckpoint(filepath="ckpts/weights-{epoch}.weights.h5"),
    tf.keras.callbacks.TensorBoard(log_dir=args.log_dir),
]
model.fit(x, y, callbacks=callbacks)
model.save("final.keras")
"""
BACKUP = """
import os
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
directory = os.getenv("MODEL_DIR", "/tmp")
backup = tf.keras.callbacks.BackupAndRestore(backup_dir=os.path.join(directory, "backup"))
model.fit(x, y, callbacks=[backup])
"""
COORDINATOR = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
checkpoint = tf.train.Checkpoint(model=model)
manager = tf.train.CheckpointManager(checkpoint, "/tmp/my_work", max_to_keep=3)
print("Finished epoch", i)
"""
MIRRORED_LOOP = """
import os, tempfile
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
workdir = tempfile.mkdtemp()
manager = tf.train.CheckpointManager(tf.train.Checkpoint(), os.path.join(workdir, "ckpt"), 3)
print('Epoch: %d, accuracy: %f' % (epoch, accuracy))
"""
PLAIN = """
import numpy as np
parser.add_argument("--workers", type=int, default=4)
parser.add_argument("--index", type=int, default=4)
"""
IN_GRAPH = """
import tensorflow as tf
server = tf.train.Server(tf.train.ClusterSpec({"worker": hosts}), "worker", 0)
"""
LOOP = """
import tensorflow as tf
ckpt = tf.train.Checkpoint(step=step)
prefix = os.path.join(FLAGS.output, "ckpt")
FLAGS.output
parser.add_argument("--output", default="/tmp/out")
path = ckpt.save(prefix)
tf.saved_model.save(model, args.export)
parser.add_argument("--export")
logging.info("at step %d", step)
"""


def drafted(source: str, *words: str) -> Draft:
    return draft("train", "train.py", ["python", "train.py", *words], facts_of({"train.py": source}))


HOSTS = ["--ps_hosts={ps_hosts}", "--worker_hosts={worker_hosts}"]
TABLE: list[tuple[str, str, str, dict[str, int], list[str], str]] = [
    ("argparse", TF1 + ARGPARSE, "async", {"ps": 1, "worker": 2}, [*HOSTS, "--job_name={job_name}",
     "--task_index={task_index}", "--logdir={checkpoint_dir}"], ""),
    ("tf.app.flags", TF1 + APP_FLAGS, "async", {"ps": 1, "worker": 2}, ["--ps={ps_hosts}",
     "--workers={worker_hosts}", "--job={job_name}", "--index={task_index}", "--model_dir={checkpoint_dir}"],
     ""),
    ("absl, sync", TF1 + ABSL_SYNC, "sync", {"ps": 1, "worker": 2}, [*HOSTS, "--task_type={job_name}",
     "--task_id={task_index}"], ""),
    ("Estimator", ESTIMATOR, "async", {"master": 1, "ps": 1, "worker": 2, "evaluator": 1}, [],
     "/tmp/model/run"),
    ("Keras", KERAS, "plain", {"worker": 1}, ["--log_dir={output_dir}/log_dir"], "ckpts"),
    ("BackupAndRestore", BACKUP, "multiworker", {"worker": 2}, [], ""),
    ("coordinator", COORDINATOR, "coordinator", {"chief": 1, "ps": 1, "worker": 2}, [], "/tmp/my_work"),
    ("mirrored loop", MIRRORED_LOOP, "multiworker", {"worker": 2}, [], ""),
    ("no cluster", PLAIN, "plain", {"worker": 1}, [], ""),
    ("in-graph", IN_GRAPH, "in_graph", {"worker": 2}, [], ""),
    ("loop", LOOP, "plain", {"worker": 1}, ["--output={checkpoint_dir}", "--export={output_dir}/export"], ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "strategy", "counts", "flags", "adopt"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_what_is_read_from_a_program(
    tmp_path: Path, source: str, strategy: str, counts: dict[str, int], flags: Sequence[str], adopt: str
) -> None:
    made = drafted(source)
    assert (made.strategy, made.counts, made.command[2:], made.adopt) == (strategy, counts, flags, adopt)
    spec = loaded(tmp_path, made)
    assert spec.strategy.value == strategy
    assert {role.name: role.count for role in spec.roles} == counts
    assert spec.checkpoint.adopt == adopt


def loaded(directory: Path, made: Draft) -> JobSpec:
    (directory / "job.yaml").write_text(text_of(made, "train.py", "job.yaml"))
    return load_job_file(directory / "job.yaml", checkpoint_base="file:///x").spec


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            MIRRORED_LOOP,
            "how to restore what train.py:6 (CheckpointManager) saves to a directory that is new",
        ),
        (PLAIN, "where train.py saves: no saver of TensorFlow's was found"),
        (PLAIN, "how train.py tells its steps: print one"),
        (KERAS, "whether what train.py:10 (save) writes to final.keras should stay"),
        (KERAS, "the value of --data, which train.py requires: add it to the command"),
        (IN_GRAPH, "the names of the roles"),
        ('import os\nos.environ["TF_CONFIG"] = "{}"\n', "the cluster, as train.py:2 sets TF_CONFIG itself"),
        ("saver.save(sess, where())", "where train.py:1 (save) saves: see that it is below $CHECKPOINT_DIR"),
        (
            "saver.save(sess, './model.ckpt')",
            "how a job could adopt ./model.ckpt, to which train.py:1 (save) saves",
        ),
    ],
)
def test_what_could_not_be_told_is_said(source: str, told: str) -> None:
    assert [each for each in drafted(source).unknown if each.startswith(told)]


def test_a_directory_that_a_variable_names_is_given_by_that_variable(tmp_path: Path) -> None:
    assert loaded(tmp_path, drafted(BACKUP)).env == {"MODEL_DIR": "{checkpoint_dir}"}


def test_what_the_user_has_given_is_kept_in_its_form() -> None:
    given = ["--ps_hosts", "a:1", "--worker_hosts=a:2,b:2,c:2", "--job_name", "worker", "--rate=0.1"]
    made = drafted(TF1 + ARGPARSE, *given)
    assert made.counts == {"ps": 1, "worker": 3}, "as many as hosts were given"
    assert made.command[2:] == [
        *(
            "--ps_hosts",
            "{ps_hosts}",
            "--worker_hosts={worker_hosts}",
            "--job_name",
            "{job_name}",
            "--rate=0.1",
        ),
        *("--task_index={task_index}", "--logdir={checkpoint_dir}"),
    ]


@pytest.mark.parametrize(
    "word",
    [
        *("{x}", "{{x}}", "{task_index}", '{"a": {"b": 1}}', "${HOME}", "${ps_hosts}", "é: #"),
        *("a\u00a0b", "\x7f\U0001f600", "line\n\u2028two", "\U000e0001"),
    ],
)
def test_braces_and_odd_characters_of_the_users_command_stay_what_they_are(tmp_path: Path, word: str) -> None:
    spec = loaded(tmp_path, drafted(PLAIN, word))
    assert fill(spec.roles[0].command[2], {"task_index": "0", "ps_hosts": "h"}) == word


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (lambda: facts_of({"x.py": text}), lambda: modules_imported(text)):
        with suppress(SyntaxError):
            read()


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(SyntaxError):
        facts_of({"x.py": "x = " + "(" * 100_000})


def test_calls_of_what_calls_return_are_read_however_many() -> None:
    assert facts_of({"x.py": "f" + "()" * 1_500}).files == ("x.py",)


def test_the_search_for_a_path_ends_however_often_a_name_is_assigned() -> None:
    """Without a bound this would be some 40 ** 8 looks."""
    lines = [f"p = p or q{index}" for index in range(40)]
    (use,) = facts_of({"x.py": "\n".join([*lines, "saver.save(s, p)"])}).saves
    assert use.place.kind is PlaceKind.UNKNOWN


def test_the_verb_writes_a_file_that_passes_and_writes_over_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from lib import flags\n" + TF1 + APP_FLAGS)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "flags.py").write_text(
        '\n\nparser.add_argument("--needed", required=True)\nraise SystemExit("ran")\n'
    )
    done = ctl(tmp_path, "init", "--", "python", "-u", "train.py", "--steps", "100")
    assert (done.returncode, done.stdout) == (0, "wrote job.yaml: strategy async, 1 ps, 2 worker\n"), (
        done.stderr
    )
    assert "could not tell the value of --needed, which train.py requires" in done.stderr
    text = (tmp_path / "job.yaml").read_text()
    assert "# train.py:6 puts variables on parameter servers. The strategy" in text
    assert 'command:\n- python\n- "-u"\n- train.py\n- "--steps"\n- "100"\n- "--ps={ps_hosts}"\n' in text
    assert ctl(tmp_path, "validate", "job.yaml", "--offline").returncode == 0
    again = ctl(tmp_path, "init", "--", "python", "train.py")
    assert (again.returncode, (tmp_path / "job.yaml").read_text()) == (2, text)
    assert "error: job.yaml exists and is not written over; name another one with --file" in again.stderr
    other = ctl(tmp_path, "init", "--file", "lib/b.yaml", "-o", "json", "--", "python", "-m", "train")
    assert json.loads(other.stdout)["roles"] == {"ps": 1, "worker": 2}
    assert "code: {dir: ..}" in (tmp_path / "lib" / "b.yaml").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml", "lib", "train.py"], (
        "nothing else is left"
    )


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["python", "none.py"], 3, "error: none.py: no such file"),
        (["python", "-m", "none"], 3, "error: there is no module 'none' in this directory"),
        (["python", "-u"], 2, "`python -u` names no program"),
        (["python", "train.py", "a\udcff"], 2, r"error: 'a\udcff' is not UTF-8, and a job file"),
        (["python", "bad.py"], 2, "error: bad.py:2: this Python cannot read it: "),
    ],
)
def test_mistakes(tmp_path: Path, command: list[str], code: int, said: str) -> None:
    (tmp_path / "bad.py").write_text("x = 1\nprint 'two'\n")
    done = ctl(tmp_path, "init", "--", *command)
    assert said in done.stderr
    assert (done.returncode, done.stdout, (tmp_path / "job.yaml").exists()) == (code, "", False)


def test_a_program_that_is_not_python_gets_a_file_too(tmp_path: Path) -> None:
    done = ctl(tmp_path, "init", "--", "./train.sh", "{x}")
    assert done.stdout == "wrote job.yaml: strategy plain, 1 worker\n"
    assert "it is not Python" in done.stderr


ZOO = Path(__file__).parents[1] / "programs" / "zoo"
READ = [
    *(
        "coordinator_extra_fields",
        "keras_backup_restore",
        "loop_epoch_step",
        "mirrored_loop",
        "tf1_monitored_master",
    ),
    *("tf1_scaffold_evaluator", "tf1_supervisor", "tf1_sync_replicas", "tfkeras_ckpt_epoch"),
]


@pytest.mark.parametrize("name", READ)
def test_programs_of_the_zoo_are_read_as_their_job_files_say(name: str) -> None:
    spec = load_job_file(ZOO / f"{name}.yaml", checkpoint_base="file:///x").spec
    made = drafted((ZOO / f"{name}.py").read_text())
    assert (made.strategy, set(made.counts)) == (spec.strategy.value, {role.name for role in spec.roles})
