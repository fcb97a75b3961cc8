"""`python -m benchmarks.partial`: what does it cost to restore only the parameter server that was lost?

A program of TensorFlow 1 with a chief, a worker and two parameter servers trains in processes of this
benchmark, without a supervisor. At a random step one parameter server is killed and started again at its
address, and the program recovers by itself: fully, as TensorFlow does, or partially
(`agent/inside/child/partial.py`). Its last checkpoint is then judged on held-out examples. JSON on
standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import re
import runpy
import shutil
import signal
import socket
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from agent.inside.child import partial, patches, tf1
from benchmarks import clicks
from benchmarks.support.figures import machine
from examples.demo.steplog import Step, StepLog

STATE = Path("var/bench/partial")
DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits_async" / "train.py"
PATIENCE_S = 180.0
POLL_S = 0.002
SAVES = 10
"""Checkpoints of a run: what is lost is at most a tenth of it."""
_RESTORED = re.compile(r"restored (\d+) of \d+ variables from \S+-(\d+)")
Floats = NDArray[np.float32]
Tensors = Callable[[str], Floats]


@dataclass(frozen=True, slots=True)
class Model:
    """A program, the steps of a run, and how its checkpoint is judged."""

    program: Path
    steps: int
    judge: Callable[[Tensors], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Arm:
    """The task that is killed, if any, and the restore that follows."""

    victim: int | None = None
    partial: bool = False
    shorter: bool = False
    """Whether the run ends earlier, by the steps that a full recovery would make again."""


ARMS = {
    "no_failure": Arm(),
    "full": Arm(victim=1),
    # A full recovery goes back to an earlier state: the one that it has after as many steps.
    "full_equal_work": Arm(shorter=True),
    "partial": Arm(victim=1, partial=True),
    "partial_of_global_step": Arm(victim=0, partial=True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all arms of all models in turns, and print the figures; exit code 1 when a run failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.partial", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=10, help="runs of each arm (%(default)s)")
    parser.add_argument("--faults", type=int, default=1, help="kills in each run (%(default)s)")
    parser.add_argument("--model", choices=MODELS, action="append", help="this one alone")
    parser.add_argument("--arm", choices=ARMS, action="append", help="this one alone")
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    flags = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    info = machine()
    importlib.import_module("tensorflow.compat.v1")  # once: each task is a fork
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    failures: list[str] = []
    for seed in range(1, flags.seeds + 1):
        for name in flags.model or MODELS:
            for arm in flags.arm or ARMS:
                run = _Run(MODELS[name], ARMS[arm], seed, flags.faults, flags.state.resolve())
                try:
                    found = run.measure()
                except RuntimeError as error:
                    failures.append(f"{seed} {name} {arm}: {error}")
                    say(failures[-1])
                    continue
                say(f"{seed} {name} {arm}: {found}")
                runs.setdefault(name, {}).setdefault(arm, []).append(found)
    print(json.dumps({**report(info, flags, runs), "failures": failures}, indent=2))
    return int(bool(failures))


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def report(
    info: Mapping[str, object],
    flags: argparse.Namespace,
    runs: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]],
) -> dict[str, object]:
    """The document: mean and standard deviation of each figure."""
    return {
        "benchmark": "partial",
        "machine": info,
        "settings": {"seeds": flags.seeds, "faults": flags.faults, "saves": SAVES},
        "models": {
            name: {
                "steps": MODELS[name].steps,
                "arms": {
                    arm: {key: _spread([each[key] for each in found]) for key in found[0]}
                    for arm, found in arms.items()
                },
            }
            for name, arms in runs.items()
        },
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": round(statistics.fmean(values), 5), "sd": round(deviation, 5)}


@dataclass(slots=True)
class _Run:
    """One run of one arm."""

    model: Model
    arm: Arm
    seed: int
    faults: int
    state: Path

    def measure(self) -> dict[str, float]:
        """Train, kill, and judge."""
        shutil.rmtree(self.state, ignore_errors=True)
        self.state.mkdir(parents=True)
        kills = self._kills() if self.arm.victim is not None else []
        log = StepLog(self.state / "steps")
        began = time.monotonic()
        with _Tasks(self) as tasks:
            killed = [self._kill(tasks, log, kill) for kill in kills]
            tasks.join()
        wall_s = time.monotonic() - began
        log.read()
        made = sum(map(len, log.steps.values()))
        last = self._saved()
        judged = _forked(
            lambda: self.model.judge(_tensors(self._checkpoint(last))), self.state / "judged.json"
        )
        return {
            **judged,
            "steps_that_count": last,
            "steps_redone": made - last,
            "updates_lost_by_the_victim": self._lost(killed) if self.arm.partial else made - last,
            "pause_s": round(max((_pause_s(log, each.ns) for each in killed), default=0.0), 3),
            "wall_s": round(wall_s, 2),
        }

    def _lost(self, killed: Sequence[Step]) -> int:
        """By what the chief says of each recovery that has restored something."""
        text = (self.state / "chief-0.log").read_text(errors="replace")
        restored = [int(step) for count, step in _RESTORED.findall(text) if count != "0"]
        if len(restored) != len(killed):
            raise RuntimeError(f"{len(killed)} kills, {len(restored)} recoveries: see {self.state}")
        return sum(each.step - step for each, step in zip(killed, restored, strict=True))

    def _checkpoint(self, step: int) -> Path:
        return self.state / "checkpoints" / f"model.ckpt-{step}"

    def _saved(self) -> int:
        """The step of the newest checkpoint."""
        text = (self.state / "checkpoints" / "checkpoint").read_text()
        return int(text.splitlines()[0].rpartition("-")[2].strip('"'))

    @property
    def _save_steps(self) -> int:
        return self.model.steps // SAVES

    def _kills(self) -> list[int]:
        """The steps, which are the same in every arm, each in another part of the run."""
        chance = random.Random(self.seed)
        part = self.model.steps * 0.85 / self.faults
        low = 0.1 * self.model.steps
        return [int(low + part * (each + chance.random())) for each in range(self.faults)]

    def _steps(self) -> int:
        """The step at which the run ends."""
        # A save comes that many steps after the one before, and one more.
        again = sum(kill % (self._save_steps + 1) for kill in self._kills())
        return self.model.steps - (again if self.arm.shorter else 0)

    def _kill(self, tasks: _Tasks, log: StepLog, step: int) -> Step:
        """Kill the victim once the others are at this step, and start it again."""
        while (newest := log.newest()) is None or newest.step < step:
            tasks.check()
            time.sleep(POLL_S)
            log.read()
        tasks.restart(f"ps:{self.arm.victim}")
        return newest

    def start(self, task: str, cluster: Mapping[str, Sequence[str]]) -> int:
        """A fork that runs the program as this task; returns its pid."""
        role, _, index = task.partition(":")
        environment = {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": int(index)}}),
            "CHECKPOINT_DIR": str(self.state / "checkpoints"),
            "STEP_LOG": str(self.state / "steps"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        arguments = ["--steps", str(self._steps()), "--save-steps", str(self._save_steps)]
        return _fork(lambda: self._program(environment, arguments), self.state / f"{role}-{index}.log")

    def _program(self, environment: Mapping[str, str], arguments: Sequence[str]) -> None:
        patches.apply(tf1.changes(lambda _: False, lambda **_: None))
        if self.arm.partial:
            patches.apply(partial.changes())
        os.environ.update(environment)
        sys.argv = [str(self.model.program), *arguments]
        runpy.run_path(str(self.model.program), run_name="__main__")


class _Tasks:
    """The processes of one run."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
            for each in sockets:
                each.bind(("127.0.0.1", 0))
            ports = [each.getsockname()[1] for each in sockets]
        first, second, chief, worker = (f"127.0.0.1:{port}" for port in ports)
        self._cluster = {"ps": [first, second], "chief": [chief], "worker": [worker]}
        self._pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        for task in ("ps:0", "ps:1", "chief:0", "worker:0"):
            self._pids[task] = self._run.start(task, self._cluster)
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._pids.clear()

    def restart(self, task: str) -> None:
        """Kill it and start it again."""
        pid = self._pids.pop(task)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._pids[task] = self._run.start(task, self._cluster)

    def check(self) -> None:
        """Raise RuntimeError if one has ended."""
        for task, pid in self._pids.items():
            if _ended(pid) is not None:
                del self._pids[task]
                raise RuntimeError(f"{task} has ended: see {self._run.state}")

    def join(self) -> None:
        """Wait for the end of the chief and the worker."""
        deadline = time.monotonic() + PATIENCE_S
        for task in ("chief:0", "worker:0"):
            while (code := _ended(self._pids[task])) is None:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{task} trains on after {PATIENCE_S:g} s: see {self._run.state}")
                time.sleep(POLL_S)
            del self._pids[task]
            if code:
                raise RuntimeError(f"{task} failed: see {self._run.state}")


def _pause_s(log: StepLog, since_ns: int) -> float:
    """The longest time without a step of anybody after this moment."""
    times = sorted(each.ns for steps in log.steps.values() for each in steps if each.ns >= since_ns)
    return max(after - before for before, after in pairwise(times)) / 1e9


def _ended(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _fork(body: Callable[[], object], output: Path) -> int:
    """Run it in a fork of this interpreter, which has imported TensorFlow and has no thread of it."""
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        body()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _forked(body: Callable[[], dict[str, float]], answer: Path) -> dict[str, float]:
    """The result of `body` in a fork: nothing of TensorFlow may run in this process."""
    pid = _fork(lambda: answer.write_text(json.dumps(body())), answer.with_suffix(".log"))
    os.waitpid(pid, 0)
    found: dict[str, float] = json.loads(answer.read_text())
    return found


def _tensors(checkpoint: Path) -> Tensors:
    tf: Any = importlib.import_module("tensorflow")
    get: Tensors = tf.train.load_checkpoint(str(checkpoint)).get_tensor
    return get


def _dense(get: Tensors, inputs: Floats, name: str) -> Floats:
    found: Floats = inputs @ get(f"{name}/kernel") + get(f"{name}/bias")
    return found


def judge_digits(get: Tensors) -> dict[str, float]:
    """On the images that examples/digits_async/train.py holds out."""
    _, images, _, digits = clicks.digits.load_data()
    logits = _dense(get, np.maximum(_dense(get, images, "hidden"), 0), "logits")
    logits -= logits.max(axis=1, keepdims=True)
    likely = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return {
        "accuracy": float((logits.argmax(axis=1) == digits).mean()),
        "logloss": float(-likely[np.arange(len(digits)), digits].mean()),
    }


def judge_clicks(get: Tensors) -> dict[str, float]:
    """On examples of the generating model; its own probabilities have an AUC of 0.791."""
    rows, clicked, _ = clicks.held_out()
    parts = [get(f"table_{each}")[rows[:, each]] for each in range(clicks.FEATURES)]
    inner = np.maximum(_dense(get, np.concatenate(parts, axis=1), "hidden"), 0)
    logits = _dense(get, inner, "logits")[:, 0]
    loss = np.logaddexp(0, logits) - clicked * logits
    ranks = np.empty(len(logits))
    ranks[logits.argsort()] = np.arange(len(logits))
    hits = clicked == 1
    auc = (ranks[hits].mean() - (hits.sum() - 1) / 2) / (~hits).sum()
    return {"auc": float(auc), "logloss": float(loss.mean())}


MODELS = {
    "digits": Model(DIGITS, 1000, judge_digits),
    "clicks": Model(Path(clicks.__file__), 1000, judge_clicks),
}

if __name__ == "__main__":
    sys.exit(main())
