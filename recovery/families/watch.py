"""The decision when a save of one family is finished, from consecutive looks at it. Pure."""

from __future__ import annotations

from recovery.families.families import Save, StateFile, is_newer
from recovery.families.watch_rule import (
    IDLE,
    META_PATIENCE_LOOKS,
    OVERTAKEN_LOOKS,
    FileMark,
    Idle,
    Unfinished,
)

STATE_PATIENCE_LOOKS = 5
"""Looks to wait for a first state file. `tf.train.Checkpoint.write` makes none."""

OVERTAKEN_UNNAMED_LOOKS = 10 * OVERTAKEN_LOOKS


class FamilyWatch:
    """The looks of one watcher at one family.

    A save is taken once: the newest one taken and all older ones give Idle. A refused save gives Idle until
    one of its files changes.
    """

    def __init__(self) -> None:
        self.taken: Save | None = None
        self._before: Save | None = None
        self._refused: tuple[FileMark, ...] = ()
        self._looks = 0
        self._overtaken = 0
        self._stateless = False

    def judge(self, now: Save | None, state: StateFile | None, *, final: bool) -> Save | Idle | Unfinished:
        """The result of the newest look.

        Args:
            now: the newest complete save; None without any.
            state: the `checkpoint` file of its directory.
            final: the writer is dead, so that one look is enough and nothing more will come.
        """
        before, self._before = self._before, now
        if now is None or self.knows(now) or now.marks == self._refused:
            return IDLE
        if before is None or before.tensors != now.tensors:
            self._looks = 0
            self._overtaken += 1
        else:
            self._looks += 1
        if final or self.hurries(now, state):
            return now
        if before is None or (before.prefix, before.marks) != (now.prefix, now.marks):
            return Unfinished(now.prefix)
        if now.half_meta or self._awaits_meta(now) or self._awaits_state(now, state):
            return Unfinished(now.prefix)
        return now

    def knows(self, save: Save) -> bool:
        """Whether this save was taken, or is older than one that was."""
        taken = self.taken
        return taken is not None and (taken.tensors == save.tensors or is_newer(taken, save))

    def hurries(self, now: Save, state: StateFile | None) -> bool:
        """Whether saves come faster than looks, so that one look with its state file must be enough.

        TensorFlow writes the state file after data and index. Where it names none of the saves, an index is
        enough, but later. The caller compares each tensor with the index, and checks that no file changed
        meanwhile.
        """
        named = state is not None and state.prefix == now.prefix
        return self._overtaken >= (OVERTAKEN_LOOKS if named else OVERTAKEN_UNNAMED_LOOKS)

    def take(self, save: Save, state: StateFile | None = None) -> None:
        """Record that this save was taken, or is the one that training began with."""
        self.taken = save
        self._overtaken = 0
        self._stateless = state is None or state.mark.mtime_ns < save.finished_ns

    def refuse(self, save: Save) -> None:
        """Record that this save cannot be taken as it is now."""
        self._refused = save.marks

    def _awaits_meta(self, now: Save) -> bool:
        return now.expects_meta and not now.files.others and self._looks < META_PATIENCE_LOOKS

    def _awaits_state(self, now: Save, state: StateFile | None) -> bool:
        if self._stateless:
            return False
        if state is None:
            return self._looks < STATE_PATIENCE_LOOKS
        return state.mark.mtime_ns < now.finished_ns and self._looks < META_PATIENCE_LOOKS
