"""When is a checkpoint that TensorFlow writes finished? Judged from two looks at its directory. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from recovery.checkpoints.tf_files import MAX_STEP, FileSet, complete_set, number_of

META_PATIENCE_LOOKS = 20
"""How long to wait for a `.meta` that should come; it is not needed to restore."""

OVERTAKEN_LOOKS = 3
"""So many saves in a row were followed by the next before they could be looked at twice: hurry."""


@dataclass(frozen=True, slots=True, order=True)
class FileMark:
    """A file as one look saw it. Two equal marks: nobody wrote to it in between."""

    name: str
    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the generation's directory.

    Attributes:
        prefix: what the `checkpoint` file names, inside this directory; empty when it names nothing here.
        files: those whose name begins with the prefix and a dot, sorted.
        elsewhere: what the `checkpoint` file names, when that is not in this directory.
        writes_meta: another checkpoint in this directory has a `.meta`, so this one will get one too.
    """

    prefix: str
    files: tuple[FileMark, ...] = ()
    elsewhere: str = ""
    writes_meta: bool = False


class Idle:
    """Nothing new."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """TensorFlow is still writing this one."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """This one can never be committed; `reason` says why."""

    prefix: str
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Complete and unchanged; take it while it looks like `marks`."""

    step: int
    files: FileSet
    marks: tuple[FileMark, ...]


Judgement = Idle | Unfinished | Unusable | Finished
IDLE = Idle()


def judge(before: Look | None, now: Look, *, patient: bool, final: bool, hurried: bool = False) -> Judgement:
    """What the newest look shows.

    Args:
        before: the look before it, if any.
        now: this look.
        patient: go on waiting for a `.meta` that is to be expected.
        final: the writer is dead, so that one look is enough and nothing more will come.
        hurried: saves come faster than looks; the state file's word is enough, as TensorFlow writes it after
            data and index, and whoever takes them checks that they did not change meanwhile.
    """
    if not now.prefix:
        return Unusable(now.elsewhere, "it is not in $CHECKPOINT_DIR itself") if now.elsewhere else IDLE
    step = number_of(now.prefix)
    if step is None or step > MAX_STEP:
        return Unusable(
            now.prefix,
            "in checkpoint.mode: mounted its name must have a number at its end, such as model.ckpt-120",
        )
    names = {mark.name for mark in now.files}
    found = complete_set(now.prefix, names)
    if found is None:
        return (
            Unusable(now.prefix, "files are missing and its writer is dead")
            if final
            else Unfinished(now.prefix)
        )
    if not final and not hurried:
        meta = f"{now.prefix}.meta"
        half_meta = meta not in names and any(name.startswith(f"{meta}.") for name in names)
        if half_meta or (patient and now.writes_meta and meta not in names):
            return Unfinished(now.prefix)
        if before is None or (before.prefix, before.files) != (now.prefix, now.files):
            return Unfinished(now.prefix)
    return Finished(step, found, tuple(mark for mark in now.files if mark.name in set(found.names)))


class Watch:
    """The looks of one watcher at one generation, judged one after the other.

    A step that is settled, and an Unusable that was returned before, are Idle.
    """

    def __init__(self) -> None:
        self._before: Look | None = None
        self._settled: set[int] = set()
        self._reported: set[str] = set()
        self._looks_at_prefix = 0
        self._overtaken = 0

    def judge(self, now: Look, *, final: bool) -> Judgement:
        """What the newest look shows. `final`: the writer is dead."""
        if self._before is not None and self._before.prefix == now.prefix:
            self._looks_at_prefix += 1
        else:
            self._looks_at_prefix = 0
            self._overtaken += 1
        judgement = judge(
            self._before,
            now,
            patient=self._looks_at_prefix < META_PATIENCE_LOOKS,
            final=final,
            hurried=self._overtaken >= OVERTAKEN_LOOKS,
        )
        self._before = now
        if isinstance(judgement, Unusable):
            if judgement.prefix in self._reported:
                return IDLE
            self._reported.add(judgement.prefix)
        if isinstance(judgement, Finished) and judgement.step in self._settled:
            return IDLE
        return judgement

    def settle(self, step: int) -> None:
        """This step is not to be taken, now or later."""
        self._settled.add(step)

    def taken(self, step: int) -> None:
        """This step was taken: the looks keep up with the saves."""
        self.settle(step)
        self._overtaken = 0
