"""examples/digits_async, unchanged but for what chaos needs: it tells `$STEP_LOG` and has ills when told to.

Its `open_step_log` is replaced by one that writes the lines of `chaos.programs.steps`, and TensorFlow's saver
tells of what it saves and restores.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from types import ModuleType

from chaos.programs import REPOSITORY
from chaos.programs.steps import Ills, StepLog

PROGRAM = REPOSITORY / "examples/digits_async/train.py"


class Told:
    """Takes the lines that the program writes after each step: `monotonic_ns global_step`."""

    def __init__(self, log: StepLog, ills: Ills) -> None:
        self._log, self._ills = log, ills

    def write(self, line: str) -> None:
        """One step; then its ills, if it is to have some."""
        self._log.tell("step", int(line.split()[1]))
        self._ills.suffer()


def main() -> None:
    """Run the program with the words of our own command line."""
    config = json.loads(os.environ["TF_CONFIG"])
    task = f"{config['task']['type']}:{config['task']['index']}"
    log, ills = StepLog(task), Ills(task)
    log.tell("start", int(os.environ.get("TFSUP_BASE_STEP", "-1")))

    @contextlib.contextmanager
    def open_step_log(*_: object) -> Iterator[Told]:
        yield Told(log, ills)

    program = _loaded()
    _tell_of_saves(program.tf.train, log)
    vars(program)["open_step_log"] = open_step_log
    program.main()


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits_async", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tell_of_saves(train: ModuleType, log: StepLog) -> None:
    """Tell the step in what is saved and restored: its name has the one before, while others trained on."""
    saver: type = train.Saver
    save: Callable[..., object] = vars(saver)["save"]
    restore: Callable[..., object] = vars(saver)["restore"]

    def saved(*words: object, **more: object) -> object:
        prefix = save(*words, **more)
        log.tell("saved", int(train.load_variable(str(prefix), "global_step")))
        return prefix

    def restored(*words: object) -> object:
        found = restore(*words)
        log.tell("restored", int(train.load_variable(str(words[-1]), "global_step")))
        return found

    type.__setattr__(saver, "save", saved)
    type.__setattr__(saver, "restore", restored)


if __name__ == "__main__":
    main()
