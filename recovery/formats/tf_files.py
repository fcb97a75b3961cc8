"""The files that TensorFlow writes for a checkpoint, and its `checkpoint` state file. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from supervisor.contract.errors import BadCheckpoint

STATE_FILE = "checkpoint"
MAX_STATE_BYTES = 1 << 20
MAX_STEP = 10**11
"""The highest number that is taken for a step. A larger one is a time (`model-1700000000000`) or noise."""

_ENDING = re.compile(r"\.(?:ckpt|tf)$")
_TF_NUMBER = re.compile(r"(.*)-(\d{1,20})$", re.ASCII | re.DOTALL)
_NUMBERS = re.compile(r"(.*?)[-_.=](\d{1,20})(?:[-_.=]\d+)*$", re.ASCII | re.DOTALL)
_NUMBERS_ALONE = re.compile(r"(\d{1,20})(?:[-_.=]\d+)*((?:\.[A-Za-z]\w*)*)$", re.ASCII)
_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$", re.ASCII)
_STATE_LINE = re.compile(r'^(model_checkpoint_path|all_model_checkpoint_paths)\s*:\s*"((?:[^"\\]|\\.)*)"\s*$')
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
_LETTERS = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}


@dataclass(frozen=True, slots=True)
class SavedState:
    """TensorFlow's CheckpointState: the newest prefix, and all prefixes that the saver keeps, as it spells
    them.
    """

    newest: str
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileSet:
    """The names that make up one complete checkpoint; `others` is `.meta`, where there is one."""

    prefix: str
    index: str
    shards: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all its files, sorted."""
        return tuple(sorted((self.index, *self.shards, *self.others)))

    def in_place(self, name: str) -> bool:
        """Whether TensorFlow may write `name` in place: all but the shards, which it renames."""
        return name not in self.shards


def parse_state(text: str) -> SavedState | None:
    """Read a `checkpoint` state file; None when it names no checkpoint (empty, cut short, or foreign)."""
    newest = ""
    known: list[str] = []
    for line in text.splitlines():
        match = _STATE_LINE.match(line)
        if match is None:
            continue
        value = _unescape(match[2])
        if match[1] == "model_checkpoint_path":
            newest = value
        else:
            known.append(value)
    return SavedState(newest, tuple(known)) if newest else None


def render_state(prefix: str) -> bytes:
    """A `checkpoint` state file that names exactly `prefix`, relative to its own directory."""
    quoted = prefix.replace("\\", "\\\\").replace('"', '\\"')
    return f'model_checkpoint_path: "{quoted}"\nall_model_checkpoint_paths: "{quoted}"\n'.encode()


def number_of(prefix: str) -> int | None:
    """The number in a name: of a step (`model.ckpt-120`), an epoch (`ckpt_3`, `cp-0005.ckpt`) or a save."""
    return split_number(prefix.rpartition("/")[2])[1]


def split_number(name: str) -> tuple[str, int | None]:
    """(the part of a name that is the same in each save, the number).

    The number that TensorFlow appends is the last one; `weights.03-0.25` and `03-0.25.weights` are of
    epoch 3. A number before other words (`1-encoder`) tells parts of a model apart.
    """
    ending = _ENDING.search(name)
    bare, rest = (name[: ending.start()], ending[0]) if ending else (name, "")
    match = _TF_NUMBER.match(bare)
    alone = _NUMBERS_ALONE.match(bare) if match is None else None
    if alone:
        return alone[2] + rest, int(alone[1])
    match = match or _NUMBERS.match(bare)
    return (match[1] + rest, int(match[2])) if match else (name, None)


def is_shard(name: str) -> bool:
    """Whether a file of this name is a data file, which TensorFlow writes under another name and renames."""
    return _SHARD.search(name) is not None


def complete_set(prefix: str, names: Collection[str]) -> FileSet | None:
    """The files of `prefix` among `names`; None while its index or a shard is missing."""
    index = f"{prefix}.index"
    if index not in names:
        return None
    shards: dict[int, dict[int, str]] = {}
    for name in names:
        match = _SHARD.search(name)
        if match and name[: match.start()] == prefix:
            shards.setdefault(int(match[2]), {})[int(match[1])] = name
    full = [count for count, found in shards.items() if count and set(found) == set(range(count))]
    if len(full) != 1:
        return None
    meta = f"{prefix}.meta"
    others = (meta,) if meta in names else ()
    return FileSet(prefix, index, tuple(sorted(shards[full[0]].values())), others)


def is_state_file(name: str) -> bool:
    """Whether a file at this path is called as TensorFlow's state files are."""
    return name.rpartition("/")[2] == STATE_FILE


def names_of_bundles(names: Collection[str]) -> frozenset[str]:
    """The names that belong to the index or the data files of a complete checkpoint."""
    prefixes = (name.removesuffix(".index") for name in names if name.endswith(".index"))
    sets = filter(None, (complete_set(prefix, names) for prefix in prefixes))
    return frozenset(name for found in sets for name in (found.index, *found.shards))


def require_set(prefix: str, names: Collection[str]) -> FileSet:
    """Like `complete_set`, for names that must be one checkpoint and nothing else; raises BadCheckpoint."""
    found = complete_set(prefix, names)
    if found is None:
        raise BadCheckpoint(f"checkpoint {prefix!r} lacks its index or a data file")
    if surplus := sorted(set(names) - set(found.names)):
        raise BadCheckpoint(f"{surplus[0]!r} is no file of checkpoint {prefix!r}")
    return found


def _unescape(text: str) -> str:
    def replace(match: re.Match[bytes]) -> bytes:
        body = match[1]
        if body[:1] in b"01234567":
            return bytes([int(body, 8) & 0xFF])
        if body[:1] == b"x" and len(body) > 1:
            return bytes([int(body[1:], 16)])
        return _LETTERS.get(body, body)

    return _ESCAPE.sub(replace, text.encode()).decode(errors="replace")
