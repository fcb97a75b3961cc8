"""What the simulator's programs save: real files, TensorFlow's or two of the program's own.

Each save tells the generations that its weights have gone through, so that a lineage can be checked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from chaos.bundles import bundle, plain

Weights = tuple[int, tuple[int, ...]]
"""The global step, and the generations that the weights descend from, the oldest first."""
PLAIN_FILES = ("weights-{step}.bin", "state-{step}.json")
"""Of a save that is not TensorFlow's, in the order in which they are written."""
UINT8 = 4


def files_of(step: int, chain: tuple[int, ...], *, own: bool) -> dict[str, bytes]:
    """The two files of a save, in the order in which they are written; `own`: PLAIN_FILES."""
    body = json.dumps({"step": step, "chain": chain}).encode()
    if own:
        return {name.format(step=step): body for name in PLAIN_FILES}
    prefix = f"model.ckpt-{step}"
    made = bundle(prefix, [{b"state": plain(UINT8, [len(body)], body)}])
    return {name: made[name] for name in (f"{prefix}.data-00000-of-00001", f"{prefix}.index")}


async def write_bundle(directory: Path, step: int, files: dict[str, bytes], save_s: float) -> None:
    """As `tf.train.Saver` does: the data, `save_s` seconds later the index, then what names it the newest."""
    (data, values), (index, table) = files.items()
    (directory / data).write_bytes(values)
    await asyncio.sleep(save_s)
    (directory / index).write_bytes(table)
    prefix, temporary = f"model.ckpt-{step}", directory / "checkpoint.tmp"
    temporary.write_text(f'model_checkpoint_path: "{prefix}"\nall_model_checkpoint_paths: "{prefix}"\n')
    temporary.rename(directory / "checkpoint")


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


def newest_bundle(directory: Path) -> Weights | None:
    """What tf.train.latest_checkpoint finds there: whatever the `checkpoint` file names."""
    state = directory / "checkpoint"
    if not state.exists():
        return None
    prefix = state.read_text().split('"')[1]
    return _weights((directory / f"{prefix}.data-00000-of-00001").read_bytes())


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
