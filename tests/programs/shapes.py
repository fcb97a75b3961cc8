"""Every program of the zoo as data: what its shape is, which of its tasks are killed, and how it must end.

The programs lie in `zoo/` and `tutorials/`, each a job file and a page of Python that knows nothing of
tf-supervisor. `run.py` runs a shape, with and without kills.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from supervisor.contract.job.spec import Scope
from tests.examples.cases import Victim

HERE = Path(__file__).resolve().parent
NO_STEP = range(-1, 0)
ALL, TASK = Scope.ALL, Scope.TASK


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One program.

    Attributes:
        name: of the program, its job file and its job.
        shape: what a reader of docs/programs.md would recognise.
        victims: killed in turn, each after a checkpoint that is newer than the last restart.
        result: a regular expression for the last line of the task that ends with the result.
        role: the role of that task; its index is 0.
        saver: the task that saves; empty for a program that saves nothing.
        last_step: what `status` says at the end, a range as replicas race; NO_STEP: it prints none.
        last_save: the step of the newest commit at the end; an empty range: any.
        outputs: files that `supervisorctl outputs` has at the end.
        tutorial: written from the prose of a public tutorial.
        quick: whether `make test` runs it; not what its recording (test_recordings.py) shows as well.
        trouble: what does not hold yet, for the table; the run must then fail.
    """

    name: str
    shape: str
    result: str
    victims: tuple[Victim, ...] = (Victim("worker", ALL),)
    role: str = "worker"
    saver: str = "worker:0"
    last_step: range = NO_STEP
    last_save: range = range(0)
    outputs: tuple[str, ...] = ()
    tutorial: bool = False
    quick: bool = False
    trouble: str = ""

    @property
    def file(self) -> Path:
        """The job file."""
        return HERE / ("tutorials" if self.tutorial else "zoo") / f"{self.name}.yaml"


def exactly(step: int) -> range:
    """This step alone."""
    return range(step, step + 1)


def about(step: int) -> range:
    """`status` has it from the last beat, which may be a second before the end."""
    return range(step - step // 5 - 3, step + 4)


ONE_OF_TWO = (Victim("worker", ALL, index=1), Victim("worker", ALL))
COORDINATED = (Victim("worker", TASK, index=1), Victim("ps", ALL), Victim("chief", ALL))
LINE = r"3\.00 x \+ 2\.00"

SHAPES: tuple[Shape, ...] = (
    Shape(
        name="tf1_supervisor",
        shape="TF1 `tf.train.Supervisor`; flags `--ps_hosts`, `--task_index`; prints local and global step",
        result=r"Final w 3\.00 b 2\.00",
        victims=(Victim("worker", TASK, index=1), Victim("ps", ALL), Victim("worker", ALL)),
        last_step=about(500),
        quick=True,
    ),
    Shape(
        name="tf1_monitored_master",
        shape="TF1 `MonitoredTrainingSession` and TensorFlow's logging hooks; role `master`; two ps",
        result=r"learnt w 3\.0 b 2\.0",
        victims=(Victim("worker", TASK), Victim("ps", ALL, index=1), Victim("master", ALL)),
        role="master",
        saver="master:0",
        last_step=about(300),
        last_save=range(300, 303),
    ),
    Shape(
        name="tf1_scaffold_evaluator",
        shape="TF1 `Scaffold` with its own saver; an `evaluator` polls for checkpoints",
        result=r"^Done: step 25\d w 3\.00 b 2\.00",
        victims=(
            Victim("evaluator", TASK),
            Victim("worker", TASK),
            Victim("ps", ALL),
            Victim("chief", ALL),
        ),
        role="chief",
        saver="chief:0",
        last_step=about(250),
        last_save=range(250, 253),
    ),
    Shape(
        name="tf1_queue_runners",
        shape="TF1 queue runners, `Coordinator` and a plain `Saver`",
        result=r"Done: step 15\d w 3\.00 b 2\.00",
        last_step=about(150),
        last_save=range(150, 152),
    ),
    Shape(
        name="tf1_sync_replicas",
        shape="TF1 `SyncReplicasOptimizer`; flags `--job`, `--index`, `--ps`, `--workers`",
        result=r"finished at w 3\.0 b 2\.0",
        victims=(Victim("worker", ALL, index=1), Victim("ps", ALL), Victim("worker", ALL)),
        last_step=about(150),
    ),
    Shape(
        name="tf1_in_graph",
        shape="TF1 in-graph client on plain servers; saves to `mlp.ckpt`, a name without a step",
        result=r"client done: 15\d steps, w 3\.00, b 2\.00",
        victims=(Victim("worker", ALL, index=1), Victim("client", ALL)),
        role="client",
        saver="client:0",
        last_step=about(149),
        last_save=range(150, 152),
    ),
    Shape(
        name="tf1_best_model",
        shape="TF1, two savers in one directory: `model.ckpt-STEP`, `best_model.ckpt`; `1,000` in its steps",
        result=r"trained to step 150: w=3\.00 b=2\.00",
        last_step=about(150),
        last_save=exactly(150),
    ),
    Shape(
        name="tf1_thread_saver",
        shape="TF1, a thread saves every second while the main thread trains",
        result=r"stopped at iter 16\d with w=3\.00 b=2\.00",
        last_step=about(159),
        last_save=range(160, 162),
    ),
    Shape(
        name="keras_model_checkpoint",
        shape="Keras 3 `ModelCheckpoint`, whole models, one a epoch (`model-007.keras`)",
        result=rf"after 160 batches: {LINE}",
        last_save=exactly(16),
    ),
    Shape(
        name="keras_weights_only",
        shape="Keras 3 `ModelCheckpoint`, weights alone under one name; the epoch in a file beside",
        result=rf"epoch 16 of 16: {LINE}",
        quick=True,
    ),
    Shape(
        name="keras_best_only",
        shape="Keras 3 `ModelCheckpoint` of the best model, `TensorBoard`, `CSVLogger`, progress bar",
        result=rf"learnt {LINE}",
        outputs=("logs/history.csv",),
    ),
    Shape(
        name="keras_backup_restore",
        shape="Keras 3 `BackupAndRestore`, Keras's progress bar",
        result=rf"learnt {LINE}",
    ),
    Shape(
        name="tfkeras_ckpt_epoch",
        shape="tf.keras `fit` on `MultiWorkerMirroredStrategy`, `ModelCheckpoint` to `ckpt_{epoch}`",
        result=rf"Trained: {LINE}",
        victims=ONE_OF_TWO,
        last_save=exactly(120),
    ),
    Shape(
        name="loop_epoch_step",
        shape="custom loop, prints `Epoch 2, Step 10`: the number falls at each epoch",
        result=r"Finished 4 epochs: w=3\.00 b=2\.00",
    ),
    Shape(
        name="loop_silent",
        shape="custom loop that prints nothing",
        result=r"160 3\.00 2\.00",
    ),
    Shape(
        name="loop_progress_bar",
        shape="custom loop with a bar of tqdm's kind (`\\r`)",
        result=r"Done, w=3\.00, b=2\.00",
    ),
    Shape(
        name="loop_json_lines",
        shape="custom loop that prints JSON lines; `state-STEP` by its own count",
        result=r'"w": 3\.0, "b": 2\.0',
        last_step=about(160),
        last_save=exactly(150),
    ),
    Shape(
        name="loop_absl_subdir",
        shape="absl's flags and log, `step = 1,200`; checkpoints in `RUN/checkpoints`",
        result=r"finished: w=3\.00 b=2\.00",
        last_step=about(1600),
        last_save=exactly(1600),
    ),
    Shape(
        name="loop_two_families",
        shape="two `CheckpointManager`s in subdirectories: the whole state, and the model alone",
        result=r"end of training: w 3\.0, b 2\.0",
        last_step=about(160),
        last_save=range(160, 162),
        quick=True,
    ),
    Shape(
        name="loop_elsewhere",
        shape="saves to a flag's default, `/tmp/my_working_dir`",
        result=r"final step 160 w 3\.00 b 2\.00",
        last_step=about(160),
    ),
    Shape(
        name="loop_chdir",
        shape="changes its working directory, saves to the relative name `ckpt`",
        result=r"final step 160 w 3\.00 b 2\.00",
        last_step=about(160),
    ),
    Shape(
        name="loop_fork_loaders",
        shape="`multiprocessing` loaders that are forked",
        result=r"trained on 200 batches: w=3\.00 b=2\.00",
        last_save=exactly(200),
    ),
    Shape(
        name="loop_sigterm",
        shape="catches SIGTERM, saves and leaves with 143",
        result=r"final step 160 w 3\.00 b 2\.00",
        last_step=about(160),
        last_save=range(160, 162),
    ),
    Shape(
        name="loop_export",
        shape="exports a SavedModel and predictions at the end",
        result=r"exported; f\(0\), f\(1\), f\(2\) = 2\.0 5\.0 8\.0",
        last_step=about(160),
        last_save=exactly(160),
        outputs=("export/1/saved_model.pb", "export/predictions.csv"),
    ),
    Shape(
        name="loop_children",
        shape="starts children: one makes the data, one goes on in the background",
        result=r"RESULT steps=180 w=3\.00 b=2\.00",
        last_save=exactly(180),
        quick=True,
    ),
    Shape(
        name="loop_async_save",
        shape="asynchronous `Checkpoint.save`; prints bare numbers",
        result=r"final 160 3\.00 2\.00",
    ),
    Shape(
        name="loop_no_step_name",
        shape="`Checkpoint.write` to one name, again and again",
        result=r"final step 160 w 3\.00 b 2\.00",
        last_save=exactly(160),
    ),
    Shape(
        name="loop_log_file",
        shape="a shell script starts it; Python's logging on standard error, `step 7/160`",
        result=r"all done",
        last_step=about(160),
        last_save=exactly(160),
    ),
    Shape(
        name="data_service",
        shape="tf.data's service: a dispatcher and two data workers",
        result=r"final step 200 w 3\.00 b 2\.00",
        victims=(Victim("data_worker", TASK, index=1), Victim("dispatcher", TASK), Victim("worker", ALL)),
        last_step=about(200),
        last_save=exactly(200),
    ),
    Shape(
        name="coordinator_extra_fields",
        shape="TF2 `ClusterCoordinator`; reads TF_CONFIG itself and adds fields to it",
        result=r"coordinator: 16\d steps, w 3\.00, b 2\.00",
        victims=COORDINATED,
        role="chief",
        saver="chief:0",
        last_step=about(161),
    ),
    Shape(
        name="mirrored_loop",
        shape="TF2 `MultiWorkerMirroredStrategy`, custom loop; worker 1 saves to `workertemp_1`",
        result=r"\[0\] final 160 w 3\.00 b 2\.00",
        victims=ONE_OF_TWO,
        last_step=about(160),
        last_save=exactly(160),
    ),
    Shape(
        name="mirrored_fit_backup",
        shape="tf.keras `fit` on `MultiWorkerMirroredStrategy` with `BackupAndRestore`; a chief and a worker",
        result=rf"fit: {LINE}",
        victims=(Victim("worker", ALL), Victim("chief", ALL)),
        role="chief",
        saver="chief:0",
    ),
    Shape(
        name="checkpoint_guide",
        shape='guide "Training checkpoints": `./tf_ckpts`, the step prints ten apart',
        result=r"trained for 200 steps",
        last_step=about(200),
        tutorial=True,
    ),
    Shape(
        name="multi_worker_ctl",
        shape='tutorial "Custom training loop with Keras and MultiWorkerMirroredStrategy"',
        result=r"Trained 3 epochs\.",
        victims=ONE_OF_TWO,
        tutorial=True,
    ),
    Shape(
        name="multi_worker_fit",
        shape='tutorial "Multi-worker training with Keras": `BackupAndRestore` to `/tmp/backup`',
        result=r"evaluated: accuracy good",
        victims=ONE_OF_TWO,
        tutorial=True,
    ),
    Shape(
        name="parameter_server_loop",
        shape='tutorial "Parameter server training", custom loop',
        result=r"Trained 16 epochs, final loss is small",
        victims=COORDINATED,
        role="chief",
        saver="chief:0",
        tutorial=True,
    ),
    Shape(
        name="save_and_load",
        shape='tutorial "Save and load models": `training_2/cp-0005.weights.h5`',
        result=r"Restored model, accuracy: above 90%",
        last_save=exactly(50),
        tutorial=True,
    ),
    Shape(
        name="dcgan",
        shape='tutorial "DCGAN": `./training_checkpoints/ckpt`, a picture of each epoch',
        result=r"24 epochs of the game are over",
        tutorial=True,
    ),
    Shape(
        name="custom_training",
        shape='tutorial "Custom training with tf.distribute.Strategy": `MirroredStrategy` in one process',
        result=r"Optimizer made 180 steps, accuracy good",
        tutorial=True,
    ),
    Shape(
        name="tf1_trainer_guide",
        shape='TF1 guide "Distributed TensorFlow": `trainer.py`, `/tmp/train_logs`',
        result=r"reached the last step",
        victims=(Victim("worker", TASK, index=1), Victim("ps", ALL), Victim("worker", ALL)),
        tutorial=True,
    ),
    Shape(
        name="transformer",
        shape="tutorials of text translation: `./checkpoints/train`, `Epoch 2 Batch 5`",
        result=r"Translates, loss small",
        tutorial=True,
    ),
    Shape(
        name="training_loop",
        shape='guide "Writing a training loop from scratch": saves nothing, begins again after a kill',
        result=r"trained for 3 epochs, accuracy good",
        saver="",
        tutorial=True,
    ),
)
