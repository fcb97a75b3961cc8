"""Notes on saves that a watcher cannot use. Each is reported once, with the reason and the remedy. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from recovery.families.families import Family, Incomplete, Save, Saves, Sight
from recovery.families.watch import FamilyWatch
from recovery.families.watch_rule import META_PATIENCE_LOOKS, FileMark, Unusable

MAX_NOTES = 100
"""Most notes of one generation: a program can make any number of names."""


SHARDS_ELSEWHERE = (
    "data files are missing: if parameter servers write their own shards, save without (TF1: "
    "`scaffold=tf.train.Scaffold(saver=tf.train.Saver())`), or set checkpoint.mode: mounted with a "
    "checkpoint.uri in HDFS"
)


class Notes:
    """A queue of notes, in the order in which the unusable saves were found.

    `no_data`: the reason to give for an index without its data files.
    """

    def __init__(self, no_data: str = SHARDS_ELSEWHERE) -> None:
        self._no_data = no_data
        self._told: set[tuple[str, str]] = set()
        self._waiting: list[Unusable] = []
        self._suspects: dict[str, tuple[tuple[FileMark, ...], str, int]] = {}
        self._incomplete: dict[str, tuple[tuple[FileMark, ...], int]] = {}

    def next(self) -> Unusable | None:
        """Take the next note from the queue; None if it is empty."""
        return self._waiting.pop(0) if self._waiting else None

    def note(self, path: str, reason: str) -> None:
        """Add a note: the entry at `path` cannot be used."""
        if (path, reason) not in self._told and len(self._told) < MAX_NOTES:
            self._told.add((path, reason))
            self._waiting.append(Unusable(path, reason))

    def refused(self, save: Save, reason: str, *, final: bool) -> None:
        """Add a note on a save that does not verify.

        Unless `final`, it waits for the next look: the program may be overwriting the save.
        """
        if final:
            self.note(save.prefix, reason)
        else:
            self._suspects[save.prefix] = (save.marks, reason, 0)

    def look_over(
        self,
        sight: Sight,
        saves: Mapping[Family, Saves],
        watches: Mapping[Family, FamilyWatch],
        *,
        final: bool,
    ) -> None:
        """Add notes on the unusable entries of this look."""
        for path, reason in sight.refused.items():
            self.note(path, reason)
        for seen in saves.values():
            if seen.newest is not None and seen.newest.prefix in self._suspects:
                self._look_over_suspect(seen.newest, final=final)
        incomplete = [(family, each) for family, seen in saves.items() for each in seen.incomplete]
        for prefix in self._incomplete.keys() - {each.prefix for _, each in incomplete}:
            del self._incomplete[prefix]
        named = {state.prefix for state in sight.states.values()}
        for family, each in incomplete:
            has_index = any(mark.name == f"{each.prefix}.index" for mark in each.marks)
            if has_index or each.prefix in named:
                self._look_over_incomplete(each, watches.get(family), final=final)

    def _look_over_suspect(self, save: Save, *, final: bool) -> None:
        marks, reason, looks = self._suspects.pop(save.prefix)
        if marks != save.marks:
            return
        if final or looks >= META_PATIENCE_LOOKS:
            self.note(save.prefix, reason)
        else:
            self._suspects[save.prefix] = (marks, reason, looks + 1)

    def _look_over_incomplete(self, seen: Incomplete, watch: FamilyWatch | None, *, final: bool) -> None:
        """Add notes on indexes without data files.

        An index that is older than the save taken last is being deleted: no note.
        """
        prefix, marks = seen.prefix, seen.marks
        taken = watch.taken if watch is not None else None
        if taken is not None and (seen.turn, max(mark.mtime_ns for mark in marks)) < taken.age:
            return
        if final:
            self.note(prefix, "files are missing and its writer is dead")
            return
        before, looks = self._incomplete.get(prefix, (marks, 0))
        self._incomplete[prefix] = (marks, looks + 1 if before == marks else 0)
        if looks >= META_PATIENCE_LOOKS:
            self.note(prefix, self._no_data)
