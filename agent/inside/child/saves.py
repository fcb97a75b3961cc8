"""The saves and restores of a warm program: TensorFlow's and Keras' savers note each path in a small file.

So do sessions of a cluster whether they survive the loss of a parameter server.

While a save is under way another file lies beside it. The agent looks for both in the attempt's directory.
The program may write anything there, so the files are a hint and prove nothing.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
import types
from typing import Any, Callable, Optional

from .cadence import VARIABLE, Cadence
from .patches import Change, as_if

FILE = "saves.json"
AGAIN = "again"
"""In the file: how often a session was made again after a loss."""
SAVING = "saving"
"""The name of an empty file that exists while a save is under way."""
KEPT = ("CHECKPOINT_DIR", "TFSUP_OUTPUT_DIR")
"""Variables with the directories whose content is sent to the store."""

MOST_PLACES = 16
_LONGEST = 500
_PAUSE_S = 0.2
_LOCK_S = 0.3
_TF1_POSITION = 2
_PATH_ARGUMENTS = ("save_path", "file_prefix", "filepath")
_EXPORTED = "/variables/variables"
"""Suffix of the prefix in an exported SavedModel. An export is no checkpoint."""


class _Journal:
    """The counts of this process's saves and restores, by directory."""

    def __init__(self, attempt_dir: str, env: dict[str, str]) -> None:
        self._attempt_dir = attempt_dir
        self._kept = {name: env[name] for name in KEPT if env.get(name)}
        self._places: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._next_s = 0.0
        self._under_way = 0
        self._survives: Optional[bool] = None
        self._again = 0
        self.cadence = Cadence(
            env.get(VARIABLE, ""), attempt_dir, lambda: self._under_way > 0, self._note_pace
        )

    def open(self) -> None:
        """Begin the file, which shows that saves are noted. No save is under way yet.

        An earlier program of the same attempt may have been killed in one.
        """
        try:
            os.makedirs(self._attempt_dir, exist_ok=True)
            self._write()
            os.unlink(os.path.join(self._attempt_dir, SAVING))
        except OSError:
            pass  # there is none, or the disk is full, which stops no training

    def is_kept(self, directory: str) -> bool:
        """Whether a save in `directory` counts for `cadence`."""
        root = self._kept.get(KEPT[0], "")
        return bool(root) and "://" not in directory and _is_below(os.path.abspath(directory), root)

    def save_begins(self) -> None:
        """Note the beginning of a save. Savers call each other, and threads save at the same time."""
        if not self._lock.acquire(timeout=_LOCK_S):
            return
        try:
            self._under_way += 1
            if self._under_way == 1:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                os.close(os.open(os.path.join(self._attempt_dir, SAVING), flags, 0o640))
        except OSError:
            pass  # a full disk stops no training
        finally:
            self._lock.release()

    def save_ends(self) -> None:
        """Note the end of a save, finished or failed."""
        if not self._lock.acquire(timeout=_LOCK_S):
            return
        try:
            self._under_way = max(0, self._under_way - 1)
            if not self._under_way:
                os.unlink(os.path.join(self._attempt_dir, SAVING))
        except OSError:
            pass
        finally:
            self._lock.release()

    def note(self, kind: str, path: str, began_s: float, ended_s: float) -> None:
        """Count a save or a restore of `path`, and write the file, but not more often than at its
        interval.
        """
        remote = "://" in path
        path = path if remote else os.path.abspath(path)
        directory, _, name = path.rpartition("/")
        directory = directory or "/"
        if path.endswith(_EXPORTED) or len(path) > _LONGEST:
            return
        # A child that was forked in the middle of another thread's save inherits a lock that nobody releases.
        if not self._lock.acquire(timeout=_LOCK_S):
            return
        try:
            place = self._places.get(directory)
            if place is None:
                if len(self._places) >= MOST_PLACES:
                    return
                below = (
                    []
                    if remote
                    else [name for name, root in self._kept.items() if _is_below(directory, root)]
                )
                place = {"directory": directory, "below": "".join(below[:1]), "saved": 0, "restored": 0}
                self._places[directory] = place
                self._next_s = 0.0
            place[kind] += 1
            place["last"] = name
            if kind == "saved" and place["below"] == KEPT[0]:
                self.cadence.saved(began_s, ended_s)
                # The first one comes right after a restore, and the next one only when it pays.
                self._next_s = 0.0 if place[kind] == 1 else self._next_s
            now_s = time.monotonic()
            if now_s >= self._next_s:
                self._next_s = now_s + _PAUSE_S
                self._write()
        finally:
            self._lock.release()

    def _note_pace(self) -> None:
        """Tell the agent that a saver is asked."""
        if not self._lock.acquire(timeout=_LOCK_S):
            return
        try:
            self._write()
        except OSError:
            pass  # a full disk stops no training
        finally:
            self._lock.release()

    def session(self, *, survives: Optional[bool], again: bool) -> None:
        """Note a session. One that does not survive speaks for all of the process."""
        if not self._lock.acquire(timeout=_LOCK_S):
            return
        try:
            if survives is not None:
                self._survives = survives and self._survives is not False
            self._again += again
            self._write()
        except OSError:
            pass  # a full disk stops no training
        finally:
            self._lock.release()

    def _write(self) -> None:
        path = os.path.join(self._attempt_dir, FILE)
        beside = f"{path}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(beside, flags, 0o640), "w", encoding="utf-8") as file:
            body = {"places": list(self._places.values()), "pace": self.cadence.pace()}
            json.dump({**body, "recovers": self._survives is True, AGAIN: self._again}, file)
        os.replace(beside, path)


_journals: list[_Journal] = []
"""The journal of this process, once its program begins."""


def begin(attempt_dir: str, env: dict[str, str]) -> None:
    """Begin to note saves and restores in `attempt_dir`; `env` has the variables of KEPT."""
    journal = _Journal(attempt_dir, env)
    _journals[:] = [journal]
    journal.open()
    journal.cadence.open()


def cadence() -> Optional[Cadence]:
    """The cadence of this process; None before its program begins."""
    return _journals[0].cadence if _journals else None


def note_session(*, survives: Optional[bool] = None, again: bool = False) -> None:
    """Note whether a session of the cluster survives the loss of a parameter server, or was made again."""
    if _journals:
        _journals[0].session(survives=survives, again=again)


def is_kept(directory: str) -> bool:
    """Whether a checkpoint in `directory` is one of the job's: it lies below `$CHECKPOINT_DIR`."""
    return bool(_journals) and _journals[0].is_kept(directory)


def changes() -> dict[str, Change]:
    """Module -> the change by which its savers note their paths."""
    in_keras = functools.partial(
        _change_functions,
        {
            "save_model": "saved",
            "save_weights": "saved",
            "load_model": "restored",
            "load_weights": "restored",
        },
    )
    return {
        "tensorflow.python.training.saver": functools.partial(_change_saver, "Saver", _TF1_POSITION),
        "tensorflow.python.checkpoint.checkpoint": functools.partial(_change_saver, "TrackableSaver", 1),
        "tensorflow.python.training.tracking.util": functools.partial(_change_saver, "TrackableSaver", 1),
        "keras.src.saving.saving_api": in_keras,
        "keras.saving.saving_api": in_keras,
        "tf_keras.src.saving.saving_api": in_keras,
    }


def _change_saver(name: str, position: int, module: types.ModuleType) -> None:
    """Change a saver. `position` is that of the path among the arguments, with `self` as the first."""
    saver = vars(module).get(name)
    if not isinstance(saver, type):
        return
    for method, kind in (("save", "saved"), ("restore", "restored")):
        function = vars(saver).get(method)
        if isinstance(function, types.FunctionType):
            setattr(saver, method, _noting(function, kind, position))


def _change_functions(kinds: dict[str, str], module: types.ModuleType) -> None:
    for name, kind in kinds.items():
        function = vars(module).get(name)
        if isinstance(function, types.FunctionType):
            position = 0 if name == "load_model" else 1
            setattr(module, name, _noting(function, kind, position))


def _noting(function: types.FunctionType, kind: str, position: int) -> Callable[..., object]:
    def noting(*args: object, **kwargs: object) -> object:
        journal = _journals[0] if kind == "saved" and _journals else None
        began_s = time.monotonic()
        if journal is not None:
            journal.save_begins()
        try:
            result = function(*args, **kwargs)
        finally:
            if journal is not None:
                journal.save_ends()
        ended_s = time.monotonic()
        try:
            given = args[position] if len(args) > position else None
            for name in _PATH_ARGUMENTS:
                given = kwargs.get(name, given)
            # TF1's `save` returns the path with the step in it, or None where it has saved nothing.
            path = _text(result if kind == "saved" and position == _TF1_POSITION else given)
            if path and _journals:
                _journals[0].note(kind, path, began_s, ended_s)
        except Exception:
            pass  # a path that cannot be noted stops no training
        return result

    return as_if(noting, function)


def _text(path: object) -> str:
    numpy = getattr(path, "numpy", None)
    if callable(numpy):
        path = numpy()
    return os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""


def _is_below(directory: str, root: str) -> bool:
    """Whether `directory` is `root` or lies in it, even through a link or another mount of it."""
    try:
        wanted = os.stat(root)
    except OSError:
        return False
    directory = os.path.realpath(directory)
    while True:
        try:
            found = os.stat(directory)
        except OSError:
            found = None  # a directory that is gone by now
        if found is not None and (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
        above = os.path.dirname(directory)
        if above == directory:
            return False
        directory = above
