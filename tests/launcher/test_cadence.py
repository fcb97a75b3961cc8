"""Requests to a program to save: their interval, the measurements behind it, and real savers."""

from __future__ import annotations

import copy
import itertools
import math
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.inside import protocol, trainer_hook
from agent.inside.child import cadence as cadence_module
from agent.inside.child import saves, steering
from agent.inside.child.cadence import (
    COMMIT,
    OWN_ERROR,
    PROBE_S,
    TOGETHER,
    WANTED,
    WANTED_S,
    Cadence,
)
from agent.inside.child.interval import COMMITS_APART, LEAST_MS, MOST_MS, interval_ms
from supervisor.contract.bounds import MAX_DURATION_MS

if TYPE_CHECKING:
    from _typeshed import TraceFunction

DAY_MS = 86_400_000.0
OFTEN = "0.1 8640000 0.01 1 -1"
"""A failure a day, and one per cent of the time."""

times_ms = st.floats(0, 1e10)
overheads = st.floats(1e-4, 0.5)


@given(times_ms, times_ms, times_ms, overheads)
def test_an_interval_keeps_within_its_bounds(save: float, mtbf: float, commit: float, most: float) -> None:
    found = interval_ms(save, mtbf, commit, most)
    assert save <= most * found, "saves never take more of the time than they may"
    assert found >= COMMITS_APART * commit
    assert LEAST_MS <= found <= max(MOST_MS, math.ceil(save / most), math.ceil(COMMITS_APART * commit))


@given(st.tuples(times_ms, times_ms, times_ms), st.tuples(times_ms, times_ms, times_ms), overheads, overheads)
def test_an_interval_follows_each_of_its_causes(
    one: tuple[float, float, float], other: tuple[float, float, float], most: float, more: float
) -> None:
    (save, mtbf, commit), (dear, rare, slow) = map(min, one, other), map(max, one, other)
    assert interval_ms(save, mtbf, commit, max(most, more)) <= interval_ms(dear, rare, slow, min(most, more))


def test_an_interval_is_young_and_dalys() -> None:
    assert interval_ms(40, DAY_MS, 0, 0.01) == math.ceil(math.sqrt(2 * 40 * DAY_MS))
    assert interval_ms(40, 600_000, 0, 0.01) == 6_929
    assert interval_ms(40, 600_000, 9_000, 0.01) == 18_000
    assert interval_ms(90, 600_000, 0, 0.005) == 18_000


class Process:
    """One program's cadence, on a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, told: str = OFTEN) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(cadence_module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(sys, cadence_module.ASKED, None, raising=False)
        self.busy = False
        self.steered = 0
        self.cadence = Cadence(told, str(directory), lambda: self.busy, self._steered)

    def _steered(self) -> None:
        self.steered += 1

    def save(self, takes_s: float = 0.04) -> None:
        began_s = self.now_s
        self.now_s += takes_s
        self.cadence.saved(began_s, self.now_s)

    def until_due(self, most_s: int = 10_000) -> float:
        """Steps of a tenth of a second; how long until a save is due."""
        began_s = self.now_s
        for _ in range(10 * most_s):
            if self.cadence.due():
                return self.now_s - began_s
            self.now_s += 0.1
        raise AssertionError(f"no save is due in {most_s} s")


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Process:
    found = Process(monkeypatch, tmp_path)
    monkeypatch.setattr(steering, "time", SimpleNamespace(monotonic=lambda: found.now_s))
    return found


def test_a_save_is_due_after_the_interval_and_asked_for_once(process: Process) -> None:
    assert process.until_due() == pytest.approx(PROBE_S, abs=0.2), "what a save costs is not known yet"
    assert not process.cadence.due()
    process.save(5.0)
    assert process.until_due() == pytest.approx(20 * 5 - 5, abs=0.2), "the first one is slow, and no measure"
    process.save()
    assert process.until_due() == pytest.approx(84, abs=1)
    assert not process.cadence.due()
    process.now_s += 5
    assert not process.cadence.due(), "a save that has failed is not asked for at each step"
    assert process.until_due() > 60


def test_a_save_that_the_agent_wants_is_asked_for_once(process: Process, tmp_path: Path) -> None:
    process.save()
    process.save()
    process.until_due()
    process.save()
    (tmp_path / WANTED).touch()
    assert process.until_due(1) <= WANTED_S + 0.1
    process.save()
    assert process.until_due() > 10 * WANTED_S, "the next one is due by the clock"
    process.save()
    os.utime(tmp_path / WANTED, ns=(1, 1))
    assert process.until_due(1) <= WANTED_S + 0.1


def test_nothing_is_asked_while_a_save_is_under_way(process: Process) -> None:
    process.save()
    process.now_s += 10_000
    process.busy = True
    assert not process.cadence.due()
    process.busy = False
    assert process.cadence.due()


def test_what_saves_cost_at_most_is_kept_to(process: Process) -> None:
    process.save()
    for _ in range(20):
        process.until_due(100_000)
        process.save(60.0)
    assert process.until_due(100_000) >= 5_900, "a save of a minute may be made every hundred minutes"


def test_the_time_without_a_failure_makes_saves_rarer(process: Process) -> None:
    process.save()
    process.save()
    early_s = process.until_due()
    process.now_s += 30 * 86_400
    process.save()
    assert process.until_due() > 4 * early_s


def test_a_save_with_its_listeners_costs_what_all_of_it_takes(process: Process) -> None:
    process.save()
    process.now_s += 100
    began_s = process.now_s
    process.save()
    process.now_s += 1.0
    assert process.cadence.widen(began_s, process.now_s)
    assert process.cadence.pace()["cost_ms"] == 1_040
    process.now_s += 1
    assert not process.cadence.widen(process.now_s, process.now_s + 5), "that was no save"


def test_the_cost_of_the_attempt_before_is_known_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = Process(monkeypatch, tmp_path, OFTEN.replace("-1", "40"))
    process.save(0.3)
    assert process.cadence.pace()["cost_ms"] == 40
    assert 80 < process.until_due() < 90, "as late as if it were the second"


def test_a_store_that_is_slow_is_not_given_more_than_it_takes(process: Process, tmp_path: Path) -> None:
    process.cadence.open()
    assert (tmp_path / COMMIT).read_bytes() == b""
    process.save()
    (tmp_path / COMMIT).write_text("400000\n")
    assert process.until_due() >= 799
    process.save()
    (tmp_path / COMMIT).write_text("")
    assert process.until_due() >= 799, "it is being written"
    process.save()
    (tmp_path / COMMIT).write_text("lots")
    assert process.until_due() >= 799


@pytest.mark.parametrize(
    "told",
    ["", "x", "1 2", "0 1 0.1 1 -1", "nan 1 0.1 1 -1", "1 -5 0.1 1 -1", "1 1 0 1 -1", "1 inf 0.1 1 -1"],
)
def test_a_program_that_is_told_nothing_is_asked_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str
) -> None:
    process = Process(monkeypatch, tmp_path, told)
    process.cadence.steer(600_000)
    process.save()
    process.now_s += 100
    process.save()
    process.now_s += 100_000
    assert not process.cadence.due()
    assert process.cadence.pace() == {
        "every_ms": -1, "cost_ms": 40, "pays_ms": -1, "own_ms": -1, "why": "",
    }  # fmt: skip


def test_tasks_that_save_together_are_told_what_would_pay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = Process(monkeypatch, tmp_path, OFTEN.replace(" 1 -1", " 0 -1"))
    for _ in range(4):
        process.save()
        process.now_s += 600
    assert not process.cadence.due()
    found = process.cadence.pace()
    assert (found["every_ms"], found["own_ms"], found["why"]) == (600_040, -1, TOGETHER)
    assert 80_000 < found["pays_ms"] < 100_000


def test_a_loop_may_ask(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, cadence_module.ASKED, process.cadence.should_save, raising=False)
    asked: list[float] = []
    for _ in range(10_000):
        if trainer_hook.should_save():
            asked.append(process.now_s)
            process.now_s += 0.5
        process.now_s += 0.1
    assert process.steered == 1, "its agent is told once"
    assert asked[0] - 1_000 == pytest.approx(PROBE_S, abs=0.2)
    gaps_s = [later - one for one, later in itertools.pairwise(asked)]
    assert len(gaps_s) > 2
    assert min(gaps_s[1:]) > 200, "half a second, seen from outside, is what one of its saves costs"


def test_a_loop_that_asks_nobody_saves_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = trainer_hook._last_s[0]
    monkeypatch.setattr(trainer_hook, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(trainer_hook, "_last_s", [now_s])
    assert not trainer_hook.should_save(60)
    now_s += 61
    assert trainer_hook.should_save(60)
    assert not trainer_hook.should_save(60)


REAL = """
import os, sys, time
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", TF_USE_LEGACY_KERAS="1")
from agent.inside.child import cadence, interval, patches, saves, steering
interval.LEAST_MS, cadence.PROBE_S = 200, 0.3
patches.apply({**saves.changes(), **steering.changes(saves.cadence, saves.is_kept)})
os.environ["CHECKPOINT_DIR"] = where = sys.argv[1]
least = int(sys.argv[3])
told = {"TFSUP_CADENCE": sys.argv[2], "CHECKPOINT_DIR": where}
import numpy as np
import tensorflow as tf
import tf_keras
v1 = tf.compat.v1

def begin(name):
    saves.begin(os.path.join(where, name), told)

def goes_on(began, made):
    # For two seconds, and on a slow machine until it has saved as often as the test wants.
    return time.monotonic() - began < (60 if len(made) < least else 2)

def session(**every):
    made = []
    class Listener(v1.train.CheckpointSaverListener):
        def after_save(self, session, step):
            made.append(step)
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        add = v1.assign_add(step, 1)
        hook = v1.train.CheckpointSaverHook(where + "/tf1", listeners=[Listener()], **every)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as running:
            began = time.monotonic()
            while goes_on(began, made):
                running.run(add)
                time.sleep(0.002)
    return len(made), len(set(made)), saves.cadence().pace()["own_ms"]

begin("a")
print("hook", *session(save_secs=600))
begin("b")
print("steps", *session(save_steps=100000))
begin("c")
count = tf.Variable(0, dtype=tf.int64)
manager = tf.train.CheckpointManager(
    tf.train.Checkpoint(v=count), where + "/m", 3, step_counter=count, checkpoint_interval=100000
)
made, began = [], time.monotonic()
while goes_on(began, made):
    count.assign_add(1)
    made += filter(None, [manager.save()])
    time.sleep(0.002)
print("manager", len(made), saves.cadence().pace()["own_ms"])
begin("d")
model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(1,))])
model.compile("sgd", "mse")
def data():
    began = time.monotonic()
    while goes_on(began, Backup.made):
        time.sleep(0.002)
        yield np.ones((1, 1)), np.ones((1, 1))
class Backup(tf_keras.callbacks.BackupAndRestore):
    made = []
    def _backup(self, epoch, batch=0):
        Backup.made.append(batch)
        super()._backup(epoch, batch)
model.fit(data(), verbose=0, callbacks=[Backup(where + "/k", save_freq=100000)])
print("backup", len(Backup.made), saves.cadence().pace()["own_ms"])
"""


def _counts(directory: Path, told: str, least: int = 0) -> dict[str, list[int]]:
    found = subprocess.run(
        [sys.executable, "-c", REAL, str(directory), told, str(least)],
        cwd=Path(protocol.__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    lines = (line.split() for line in found.stdout.splitlines())
    return {name: [round(float(each)) for each in rest] for name, *rest in lines}


@pytest.mark.slow
def test_savers_of_tensorflow_save_as_often_as_pays(tmp_path: Path) -> None:
    """A failure every second: a save of some milliseconds pays several times a second."""
    (tmp_path / "on").mkdir()
    found = _counts(tmp_path / "on", "1000 1000 0.5 1 -1", 4)
    made, steps, own_ms = found["hook"]
    assert made == steps >= 4, "never twice at one step"
    assert own_ms == 600_000
    assert found["steps"][0] >= 4
    assert found["steps"][2] > 10_000, "how long so many steps take"
    assert found["manager"][0] >= 3
    assert found["backup"][0] >= 3
    (tmp_path / "off").mkdir()
    assert _counts(tmp_path / "off", "") == {
        "hook": [2, 2, -1],
        "steps": [2, 2, -1],
        "manager": [1, -1],
        "backup": [0, -1],
    }


HOOKS = "tensorflow.python.training.basic_session_run_hooks"
MANAGERS = "tensorflow.python.checkpoint.checkpoint_management"
BACKUPS = "tf_keras.src.callbacks"


class Strange:
    """A hook of another TensorFlow."""

    def __init__(self, path: str) -> None:
        self.path = path


class Known:
    """A hook as TensorFlow has it."""

    class Timer:
        last = None

        def should_trigger_for_step(self, step: int) -> bool:
            return self.last is None

        def update_last_triggered_step(self, step: int) -> object:
            self.last = step
            return None, None

        def last_triggered_step(self) -> int | None:
            return self.last

    kept = 5

    def __init__(self, path: str = "/checkpoints/model.ckpt") -> None:
        self._timer = self.Timer()
        self._save_path = path

    def _save(self) -> str:
        return "saved"

    def _get_saver(self) -> object:
        return SimpleNamespace(saver_def=SimpleNamespace(max_to_keep=self.kept))


class Endless(Known):
    """One that keeps every checkpoint."""

    kept = 0

    def __init__(self) -> None:
        super().__init__()

    def _save(self) -> str:
        return "saved"


def below(directory: str) -> bool:
    return directory.startswith("/checkpoints")


def changed(cadence: Cadence, module: str, name: str, kind: type) -> None:
    """The class as the one of this name in the module, which is changed."""
    found = types.ModuleType("changed")
    vars(found)[name] = kind
    steering.changes(lambda: cadence, below)[module](found)


def made(kind: type, cadence: Cadence, *args: str) -> object:
    """An instance of this class, as the CheckpointSaverHook of a module that is steered."""
    own = {name: vars(kind)[name] for name in ("__init__", "_save") if name in vars(kind)}
    hook = type(kind.__name__, (kind,), own)
    changed(cadence, HOOKS, "CheckpointSaverHook", hook)
    return hook(*args)


def test_a_hook_that_is_not_known_is_left_alone_and_that_is_told(process: Process) -> None:
    hook = made(Strange, process.cadence, "/a")
    assert vars(hook) == {"path": "/a"}
    assert process.cadence.pace()["why"] == "the CheckpointSaverHook of this TensorFlow is not known"
    assert process.cadence.pace()["own_ms"] == -1


def test_a_timer_triggers_when_a_save_is_due_but_never_twice_at_one_step(process: Process) -> None:
    hook = made(Known, process.cadence)
    timer = vars(hook)["_timer"]
    assert timer.should_trigger_for_step(1)
    timer.update_last_triggered_step(1)
    process.save()
    assert not timer.should_trigger_for_step(2)
    assert process.cadence.pace()["own_ms"] == 0
    process.now_s += 1_000
    assert timer.should_trigger_for_step(1_000_002), "the hook asks first with a step that surely is another"
    assert not timer.should_trigger_for_step(1), "the workers have made no step since"
    assert timer.should_trigger_for_step(2), "and asks again later"
    timer.update_last_triggered_step(2)
    assert not timer.should_trigger_for_step(3)
    assert timer.last == 2, "other attributes are the timer's own"


def test_modules_that_lack_what_is_changed_are_left_alone(process: Process) -> None:
    for change in steering.changes(lambda: process.cadence, below).values():
        module = types.ModuleType("other")
        vars(module).update(CheckpointSaverHook=None, CheckpointManager=type("CheckpointManager", (), {}))
        before = dict(vars(module))
        change(module)
        assert vars(module) == before


def asked_steps(
    process: Process, hook: object, steps: int, step_s: float = 1.0, noted: bool = True
) -> list[int]:
    """The steps at which a hook saves, as TensorFlow's hook asks its timer."""
    timer, found = vars(hook)["_timer"], []
    for step in range(steps):
        process.now_s += step_s
        if timer.should_trigger_for_step(step + 1_000_000) and timer.should_trigger_for_step(step):
            timer.update_last_triggered_step(step)
            found.append(step)
            if noted:
                process.save()
    return found


def test_a_hook_that_saves_elsewhere_is_left_alone_and_the_other_is_asked(process: Process) -> None:
    elsewhere = made(Known, process.cadence, "/tmp/model.ckpt")
    assert asked_steps(process, elsewhere, 3_000, noted=False) == [0]
    assert process.cadence.pace()["why"] == steering.OUTSIDE
    assert process.cadence.pace()["own_ms"] == -1
    assert len(asked_steps(process, made(Known, process.cadence), 3_000)) > 10


def test_a_saver_that_keeps_every_checkpoint_is_left_alone(process: Process) -> None:
    assert asked_steps(process, made(Endless, process.cadence), 3_000) == [0]
    assert process.cadence.pace()["why"] == steering.KEEPS_ALL


def test_a_saver_whose_saves_are_not_seen_is_asked_once(process: Process) -> None:
    hook = made(Known, process.cadence)
    process.save()
    process.save()
    assert len(asked_steps(process, hook, 3_000, noted=False)) == 2, "its own one, and one that was asked for"
    assert process.cadence.pace()["why"] == steering.UNSEEN
    assert process.cadence.pace()["own_ms"] == -1


class Counting(Known):
    """One that counts steps, with TensorFlow's rules."""

    class Timer(Known.Timer):
        _every_steps = 500

        def should_trigger_for_step(self, step: int) -> bool:
            return self.last is None or step >= self.last + self._every_steps

    def __init__(self) -> None:
        super().__init__()

    def _save(self) -> str:
        return "saved"


def test_a_timer_that_counts_steps_triggers_at_its_own_steps_too(process: Process) -> None:
    hook = made(Counting, process.cadence)
    found = asked_steps(process, hook, 2_100)
    assert {0, 500, 1_000, 1_500, 2_000} <= set(found)
    assert len(found) > 10
    timer = vars(hook)["_timer"]
    assert timer.last_triggered_step() == found[-1], "the hook saves no step twice"
    assert timer.last == 2_000
    assert process.cadence.pace()["own_ms"] == pytest.approx(500_000, rel=0.1)


def test_a_copy_of_a_hook_has_a_timer_of_its_own(process: Process) -> None:
    hook = made(Known, process.cadence)
    timer = copy.deepcopy(vars(hook)["_timer"])
    assert type(timer) is Known.Timer
    with pytest.raises(AttributeError):
        _ = steering._Timer.__new__(steering._Timer).last


def test_an_error_in_what_is_added_stops_no_training(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> bool:
        raise OverflowError

    hook = made(Known, process.cadence)
    process.cadence.open()
    monkeypatch.setattr(Cadence, "due", fails)
    monkeypatch.setattr(Cadence, "widen", fails)
    assert asked_steps(process, hook, 100, noted=False) == [0]
    assert vars(Known)["_save"](hook) == type(hook).__dict__["_save"](hook) == "saved"
    # Its own clock may be as old as the tests' process.
    monkeypatch.setattr(trainer_hook, "_last_s", [time.monotonic()])
    assert not trainer_hook.should_save()
    monkeypatch.setattr(Cadence, "steer", fails)
    made(Known, process.cadence)


def test_an_error_in_what_is_added_is_told_and_ends_the_asking(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def fails(_: Cadence) -> bool:
        nonlocal asked
        asked += 1
        raise OverflowError

    hook = made(Known, process.cadence)
    process.cadence.open()
    for _ in range(3):
        process.save()
        process.now_s += 600
    monkeypatch.setattr(Cadence, "due", fails)
    asked_steps(process, hook, 100, noted=False)
    assert asked == 1
    found = process.cadence.pace()
    assert found["why"].startswith(f"{OWN_ERROR}, OverflowError at test_cadence.py:")
    assert found["own_ms"] == -1
    # A loop that asks by itself saves by its own clock, as without a supervisor.
    monkeypatch.setattr(trainer_hook, "_last_s", [trainer_hook._last_s[0] - 600.0])
    assert trainer_hook.should_save()


@pytest.mark.parametrize(
    ("told", "own_ms"), [(math.inf, 0), (math.nan, 0), (-5, 0), (1e12, cadence_module.MOST_OWN_MS), (7.4, 7)]
)
def test_what_a_saver_does_by_itself_is_told_within_bounds(
    process: Process, told: float, own_ms: int
) -> None:
    process.cadence.steer(told)
    assert process.cadence.pace()["own_ms"] == own_ms <= MAX_DURATION_MS


def test_nothing_is_due_while_another_thread_notes_a_save(process: Process) -> None:
    """At each line of it: the first, slow save gives way to the second one."""
    process.save()
    process.now_s += PROBE_S + 1
    found: list[bool] = []

    def at_line(frame: types.FrameType, event: str, arg: object) -> TraceFunction:
        if frame.f_code is Cadence.saved.__code__:
            found.append(not process.cadence._saves)
        return at_line

    before = sys.gettrace()
    sys.settrace(at_line)
    try:
        process.save()
    finally:
        sys.settrace(before)
    assert found
    assert not any(found), "no save was known for a moment"


class Manager:
    """A CheckpointManager with TensorFlow's rules."""

    def __init__(self, directory: str, kept: int | None) -> None:
        self._checkpoint_prefix = f"{directory}/ckpt"
        self._max_to_keep = kept
        self._checkpoint_interval = 500
        self._last_checkpoint_step: int | None = None
        self.step = 0

    def save(self, number: int | None = None, check_interval: bool = True) -> str | None:
        last = self._last_checkpoint_step
        first = 0 if last is None else last + (self._checkpoint_interval if check_interval else 1)
        if self.step < first:
            return None
        self._last_checkpoint_step = self.step
        return f"{self._checkpoint_prefix}-{self.step}"


def managed(process: Process, directory: str, kept: int | None) -> list[int]:
    """The steps at which it saves. It is asked twice at each step, and waits for data at step 700."""
    kind = type("Manager", (Manager,), {"save": Manager.save})
    changed(process.cadence, MANAGERS, "CheckpointManager", kind)
    manager, found = kind(directory, kept), []
    for manager.step in [*range(700), *[700] * 1_000, *range(701, 2_100)]:
        process.now_s += 1
        for _ in range(2):
            if manager.save() is not None:
                found.append(manager.step)
                process.save()
    return found


def test_a_manager_saves_at_its_own_steps_too_and_no_step_twice(process: Process) -> None:
    found = managed(process, "/checkpoints", 3)
    assert {0, 500, 1_000, 1_500, 2_000} <= set(found)
    assert len(found) == len(set(found)) > 10
    assert found[-1] > 2_000, "asked to the end, though it had nothing to save for a while"


def test_a_manager_that_saves_elsewhere_is_left_alone(process: Process) -> None:
    assert managed(process, "/tmp", 3) == [0, 500, 1_000, 1_500, 2_000]
    assert process.cadence.pace()["why"] == steering.OUTSIDE


def test_a_manager_that_keeps_all_is_left_alone(process: Process) -> None:
    assert managed(process, "/checkpoints", None) == [0, 500, 1_000, 1_500, 2_000]
    assert process.cadence.pace()["why"] == steering.KEEPS_ALL


class Backup:
    """A BackupAndRestore with tf_keras' rules."""

    def __init__(self, directory: str) -> None:
        self.backup_dir = directory
        self.save_freq, self._batches_count = 500, 0
        self.made: list[int] = []

    def on_train_batch_end(self, batch: int) -> None:
        self._batches_count += 1
        if self._batches_count >= self.save_freq:
            self._batches_count = 0
            self.made.append(batch)


@pytest.mark.parametrize(("directory", "asked"), [("/checkpoints/k", True), ("/tmp/k", False)])
def test_a_backup_saves_after_its_own_batches_too(process: Process, directory: str, asked: bool) -> None:
    kind = type("Backup", (Backup,), {"on_train_batch_end": Backup.on_train_batch_end})
    changed(process.cadence, BACKUPS, "BackupAndRestore", kind)
    backup = kind(directory)
    for batch in range(1, 2_100):
        process.now_s += 1
        before = len(backup.made)
        backup.on_train_batch_end(batch)
        if len(backup.made) > before:
            process.save()
    assert {500, 1_000, 1_500, 2_000} <= set(backup.made)
    assert (len(backup.made) > 10) is asked
    assert process.cadence.pace()["why"] == ("" if asked else steering.OUTSIDE)


def test_what_lies_below_the_checkpoint_directory_is_kept(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    saves.begin(str(tmp_path / "attempt"), {saves.KEPT[0]: str(tmp_path / "kept")})
    try:
        assert saves.is_kept(str(tmp_path / "kept"))
        assert saves.is_kept(str(tmp_path / "link" / "not" / "yet"))
        assert not saves.is_kept(str(tmp_path / "other"))
        assert not saves.is_kept("gs://bucket/kept")
    finally:
        saves._journals.clear()
    assert not saves.is_kept(str(tmp_path / "kept"))
