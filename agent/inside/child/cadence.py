"""How often a save pays, in a warm program: what saves cost is measured, and savers are asked to save.

The leader tells how often the job fails, the agent how long a commit takes; `interval` makes of them how far
apart saves are to be.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from . import interval

VARIABLE = "TFSUP_CADENCE"
"""`FAILURES OVER_MS MAX_OVERHEAD STEERS COST_MS`: so many failures in so long, the share of the time that
saves may take, whether savers may be asked (1 or 0), and what a save has cost before (-1: not known)."""
ASKED = "_tfsup_should_save"
"""The name in `sys` of a function that tells a loop whether to save."""
COMMIT = "commit_ms"
"""A file in the attempt's directory: how long the last commit took. The agent writes it."""
WANTED = "save_wanted"
"""A file in the attempt's directory: the agent wants a save now, as its node is about to leave."""
WANTED_S = 0.25
"""How often a program looks for that file, at most."""

PROBE_S = 60.0
"""A saver that has not saved by itself until then is asked, so that it is known what a save costs."""
SOON = 20
"""The second save is at most so many times as far away as the first one took, where no cost is known."""
TOGETHER = "all of its tasks must save at the same step"
OWN_ERROR = "an error of tf-supervisor's own"
_KEPT = 8
_MOST_COMMIT_BYTES = 16
MOST_OWN_MS = 366 * 86_400_000
"""The agent believes no longer interval (`MAX_DURATION_MS`)."""


class _Told(NamedTuple):
    """The content of `VARIABLE`."""

    failures: float
    over_ms: float
    max_overhead: float
    steers: bool
    cost_ms: float

    @classmethod
    def read(cls, text: str) -> Optional[_Told]:
        """None for what no agent of ours would say."""
        try:
            failures, over_ms, max_overhead, steers, cost_ms = map(float, text.split())
        except ValueError:
            return None
        if 0 < failures < math.inf and 0 <= over_ms < math.inf and 0 < max_overhead <= 1:
            return cls(failures, over_ms, max_overhead, steers == 1, cost_ms)
        return None


class Cadence:
    """The measured saves of one process. Times are monotonic.

    `busy`: whether a save is under way. `changed`: is called once a saver is asked.
    """

    def __init__(
        self, told: str, attempt_dir: str, busy: Callable[[], bool], changed: Callable[[], object]
    ) -> None:
        self._told = _Told.read(told)
        self._steers = self._told is not None and self._told.steers
        self._commit_file = os.path.join(attempt_dir, COMMIT)
        self._wanted_file = os.path.join(attempt_dir, WANTED)
        self._wanted_ns = 0
        self._wanted_look_s = 0.0
        self._busy = busy
        self._changed = changed
        self._began_s = time.monotonic()
        # Replaced as a whole: one thread notes a save while another asks whether one is due.
        self._saves: Tuple[Tuple[float, float], ...] = ()
        self._is_new = True
        self._look_s = 0.0
        self._asked_s = 0.0
        self._own_ms = -1
        self._why = TOGETHER if self._told is not None and not self._steers else ""
        self._known_commit_ms = 0

    def open(self) -> None:
        """The program begins. A loop that asks by itself finds its answer in `sys` (`trainer_hook`)."""
        try:
            # The agent, which may be another user, writes to a file that is there.
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            os.close(os.open(self._commit_file, flags, 0o640))
        except OSError:
            pass  # a full disk stops no training
        if self._steers:
            setattr(sys, ASKED, lambda: harmless(self, self.should_save))

    @property
    def steers(self) -> bool:
        """Whether savers may be asked to save."""
        return self._steers

    @property
    def is_steered(self) -> bool:
        """Whether one is."""
        return self._own_ms >= 0

    def steer(self, own_ms: float) -> None:
        """A saver is asked from now on that saves every `own_ms` by itself; 0: that is not known."""
        if self._steers:
            is_new = not self.is_steered
            self._own_ms = max(0, round(min(own_ms, MOST_OWN_MS))) if math.isfinite(own_ms) else 0
            if is_new:
                self._changed()

    def leave(self, why: str) -> None:
        """A saver cannot be asked."""
        self._why = self._why or why

    def stop(self, why: str) -> None:
        """The saver that was asked is asked no more. Another one says so with its next ask (`steer`)."""
        self._own_ms = -1
        self.leave(why)

    def give_up(self, error: Exception) -> None:
        """Ask no saver of this process any more. A loop that asks by itself goes on by its own clock."""
        self._steers = False
        self._own_ms = -1
        self._why = f"{OWN_ERROR}, {type(error).__name__} at {_place(error)}"
        if getattr(sys, ASKED, None) is not None:
            setattr(sys, ASKED, None)

    def saved(self, began_s: float, ended_s: float) -> None:
        """A checkpoint was saved. The first save of a process is slow: it counts until there is another."""
        if self.widen(began_s, ended_s):
            return
        before = self._saves
        if before and self._is_new:
            before, self._is_new = (), False
        self._saves = (*before, (began_s, ended_s))[-_KEPT:]
        self._look_s = 0.0

    def widen(self, began_s: float, ended_s: float) -> bool:
        """Whether the last save was a part of what took so long: then all of it is its cost."""
        saves = self._saves
        if not saves or began_s > saves[-1][1]:
            return False
        self._saves = (*saves[:-1], (min(began_s, saves[-1][0]), ended_s))
        return True

    def saved_since(self, asked_s: float) -> bool:
        """Whether a save that was noted began at this time or later."""
        saves = self._saves
        return bool(saves) and saves[-1][0] >= asked_s

    def due(self) -> bool:
        """Whether to save now; said once an interval. It may be asked at each step."""
        now_s = time.monotonic()
        if not self._steers or (now_s < self._look_s and now_s < self._wanted_look_s) or self._busy():
            return False
        if self._is_wanted(now_s):
            return True
        if now_s < self._look_s:
            return False
        saves = self._saves
        if not saves:
            # Once, so that it is known what a save costs: one that goes elsewhere tells nothing.
            self._look_s = self._began_s + PROBE_S if now_s < self._began_s + PROBE_S else math.inf
            return self._look_s == math.inf
        interval_s = self._interval_ms(now_s) / 1000
        due_s = saves[-1][0] + interval_s
        # A save that fails, or goes elsewhere, is not asked for again at each step.
        self._look_s = due_s if now_s < due_s else now_s + interval_s
        return now_s >= due_s

    def _is_wanted(self, now_s: float) -> bool:
        """Whether the agent wants a save; said once for each time that it does."""
        if now_s < self._wanted_look_s:
            return False
        self._wanted_look_s = now_s + WANTED_S
        try:
            stamp_ns = os.stat(self._wanted_file).st_mtime_ns
        except OSError:
            return False
        wanted = stamp_ns != self._wanted_ns
        self._wanted_ns = stamp_ns
        return wanted

    def should_save(self) -> bool:
        """`due` for a loop that asks, and saves in its own way: that takes until it asks again."""
        now_s, asked_s = time.monotonic(), self._asked_s
        self._asked_s = 0.0
        if asked_s and not self.saved_since(asked_s):
            self.saved(asked_s, now_s)
        if not self.is_steered:
            self.steer(0)
        if self.due():
            self._asked_s = now_s
        return self._asked_s > 0

    def pace(self) -> Dict[str, Any]:
        """The numbers that the agent gets; -1: not known."""
        saves = self._saves
        pays_ms = self._interval_ms(time.monotonic()) if saves and self._told is not None else -1
        seen_ms = round(1000 * (saves[-1][0] - saves[0][0]) / (len(saves) - 1)) if len(saves) > 1 else -1
        every_ms = seen_ms
        if self.is_steered and saves:
            every_ms = min(each for each in (pays_ms, self._own_ms or seen_ms) if each > 0)
        return {
            "every_ms": every_ms,
            "cost_ms": math.ceil(self._cost_ms()) if saves else -1,
            "pays_ms": pays_ms,
            "own_ms": self._own_ms,
            "why": self._why,
        }

    def _cost_ms(self) -> float:
        if self._is_new and self._told is not None and self._told.cost_ms >= 0:
            return self._told.cost_ms
        held_s = [ended_s - began_s for began_s, ended_s in self._saves]
        return 1000 * sum(held_s) / max(1, len(held_s))

    def _interval_ms(self, now_s: float) -> int:
        assert self._told is not None
        mtbf_ms = (self._told.over_ms + 1000 * (now_s - self._began_s)) / self._told.failures
        found_ms = interval.interval_ms(self._cost_ms(), mtbf_ms, self._commit_ms(), self._told.max_overhead)
        return min(found_ms, self._soon_ms()) if self._is_new and self._told.cost_ms < 0 else found_ms

    def _soon_ms(self) -> int:
        """The first save of a process is the slowest by far. The second one, which shows that, comes soon."""
        return round(
            max(interval.LEAST_MS, SOON * self._cost_ms(), interval.COMMITS_APART * self._commit_ms())
        )

    def _commit_ms(self) -> int:
        try:
            with open(self._commit_file, "rb") as file:
                self._known_commit_ms = max(0, int(file.read(_MOST_COMMIT_BYTES)))
        except (OSError, ValueError):
            pass  # none yet, or it is being written
        return self._known_commit_ms


def harmless(cadence: Optional[Cadence], ask: Callable[[], object]) -> bool:
    """Whether the answer is yes. An error in what tf-supervisor adds to a program stops no training.

    It ends all asking, and `status` says why (`Cadence.give_up`).
    """
    try:
        return bool(ask())
    except Exception as error:
        if cadence is not None:
            cadence.give_up(error)
        return False


def _place(error: Exception) -> str:
    """FILE:LINE where it was raised."""
    found = error.__traceback__
    while found is not None and found.tb_next is not None:
        found = found.tb_next
    if found is None:
        return "?"
    return f"{os.path.basename(found.tb_frame.f_code.co_filename)}:{found.tb_lineno}"
