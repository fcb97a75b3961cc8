"""The saves of the simulator's programs: real files, TensorFlow's or two of the program's own.

Each save names the generations that its weights have gone through, so that a lineage can be checked.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from chaos.bundles import bundle, plain

Weights = tuple[int, tuple[int, ...]]
"""The global step, and the generations that the weights descend from, the oldest first."""
PLAIN_FILES = ("weights-{step}.bin", "state-{step}.json")
"""The files of a save that is not TensorFlow's, in the order in which they are written."""
NUMBERED, OVERWRITTEN = "model.ckpt-{step}", "run/mlp.ckpt"
"""The names of a program's saves: by step, or the same for all, in a directory below."""
UINT8, INT64 = 4, 9
_STEP_BYTES = 8


def files_of(step: int, chain: tuple[int, ...], *, own: bool, named: str = NUMBERED) -> dict[str, bytes]:
    """The two files of a save, in the order in which they are written; `own`: PLAIN_FILES."""
    body = json.dumps({"step": step, "chain": chain}).encode()
    if own:
        return {name.format(step=step): body for name in PLAIN_FILES}
    prefix = named.format(step=step)
    number = step.to_bytes(_STEP_BYTES, "little")
    tensors = {b"state": plain(UINT8, [len(body)], body), b"global_step": plain(INT64, [], number)}
    made = bundle(prefix, [tensors])
    return {name: made[name] for name in (f"{prefix}.data-00000-of-00001", f"{prefix}.index")}


async def write_bundle(
    directory: Path, files: dict[str, bytes], save_s: float, wall_ms: Callable[[], int]
) -> None:
    """Save as `tf.train.Checkpoint` does.

    It writes the data by a rename, `save_s` seconds later the index in place, then the file `checkpoint`.
    Files get the time of the machine's wall clock, which a fault may set back.
    """
    (data, values), (index, table) = files.items()
    path = directory / data
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name("data.tempstate")
    temporary.write_bytes(values)
    _set_time(temporary, wall_ms())
    temporary.rename(path)
    await asyncio.sleep(save_s)
    (directory / index).write_bytes(table)
    _set_time(directory / index, wall_ms())
    prefix, temporary = Path(index).name.removesuffix(".index"), path.with_name("checkpoint.tmp")
    temporary.write_text(f'model_checkpoint_path: "{prefix}"\nall_model_checkpoint_paths: "{prefix}"\n')
    _set_time(temporary, wall_ms())
    temporary.rename(path.with_name("checkpoint"))


def _set_time(path: Path, wall_ms: int) -> None:
    os.utime(path, ns=(wall_ms * 1_000_000, wall_ms * 1_000_000))


async def write_plain(
    directory: Path, files: dict[str, bytes], save_s: float, at_end: list[Callable[[], None]]
) -> None:
    """The second file comes in halves, `save_s` seconds apart. `at_end`: what the writer's end leads to."""
    (weights, values), (state, text) = files.items()
    (directory / weights).write_bytes(values)
    with (directory / state).open("wb", buffering=0) as file:
        # What a process has open the kernel closes, whatever ends it.
        at_end.append(file.close)
        file.write(text[: len(text) // 2])
        await asyncio.sleep(save_s)
        file.write(text[len(text) // 2 :])
        at_end.remove(file.close)


def files_below(stored: Mapping[str, Mapping[str, bytes]], path: str) -> dict[str, bytes]:
    """All files of a directory of the store and those below it, by their paths relative to it."""
    inside = f"{path}/"
    return {
        f"{directory}/{name}".removeprefix(inside): data
        for directory, files in stored.items()
        if f"{directory}/".startswith(inside)
        for name, data in files.items()
    }


def newest_bundle(directory: Path, named: str = NUMBERED) -> Weights | None:
    """The weights that tf.train.latest_checkpoint finds there: those that the file `checkpoint` names; None
    without it.
    """
    state = (directory / named).parent / "checkpoint"
    if not state.exists():
        return None
    prefix = state.read_text().split('"')[1]
    return _weights(state.with_name(f"{prefix}.data-00000-of-00001").read_bytes()[:-_STEP_BYTES])


def newest_plain(directory: Path) -> Weights | None:
    """The newest that can be read: a program may have been killed in the middle of a save."""
    return max(filter(None, map(_read_state, directory.glob("state-*.json"))), default=None)


def _read_state(path: Path) -> Weights | None:
    try:
        return _weights(path.read_bytes())
    except ValueError:
        return None


def _weights(raw: bytes) -> Weights:
    body = json.loads(raw)
    return (body["step"], tuple(body["chain"]))
