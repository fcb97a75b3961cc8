"""A program that is no TensorFlow: its saves are JSON files of its own, one for each few steps.

It goes on from the newest one in `$CHECKPOINT_DIR`. `--scribble`: besides, it does there what programs may to
a directory: makes others, writes on at the end of files, removes some that it has open. `--state-bytes`: so
large at least is each save. `--print-bytes`: so much it prints before its first step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

STEP_S = 0.05
LARGE_BYTES = 9 << 20
"""More than a mount fetches to change it."""
LINE = b"as good as nothing " * 50 + b"\n"


def main() -> None:
    """Train to the last step."""
    flags = _flags()
    directory = Path(os.environ["CHECKPOINT_DIR"])
    _print(flags.print_bytes)
    begun = max((int(path.stem.rpartition("-")[2]) for path in directory.glob("state-*.json")), default=0)
    for step in range(begun + 1, flags.steps + 1):
        print(f"step {step}", flush=True)
        if flags.scribble:
            _scribble(directory, step)
        elif step % flags.save_every == 0 or step == flags.steps:
            _save(directory, step, flags.state_bytes)
        time.sleep(STEP_S)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--scribble", action="store_true")
    parser.add_argument("--state-bytes", type=int, default=0)
    parser.add_argument("--print-bytes", type=int, default=0)
    return parser.parse_args()


def _print(size: int) -> None:
    for _ in range(0, size, len(LINE)):
        sys.stdout.buffer.write(LINE)


def _save(directory: Path, step: int, size: int) -> None:
    fresh = directory / ".state"
    fresh.write_text(json.dumps({"step": step, "weights": list(range(step)), "rest": " " * size}))
    fresh.rename(directory / f"state-{step}.json")


def _scribble(directory: Path, step: int) -> None:
    """Files are opened anew for each line, as a logger does that nobody keeps open."""
    (directory / f"notes-{step}").mkdir(exist_ok=True)
    with (directory / "notes.txt").open("a") as notes:
        notes.write(f"step {step}\n")
    scratch = directory / f"scratch-{step}"
    with scratch.open("w") as file:
        file.write("not for long")
        scratch.unlink()
    _scribble_much(directory, step)


def _scribble_much(directory: Path, step: int) -> None:
    """In files that are too large to be sent again for each line."""
    log = directory / "log.bin"
    with log.open("ab") as file:
        file.write(b"on" if log.stat().st_size else bytes(LARGE_BYTES))
    scratch = directory / f"large-{step}"
    large = scratch.open("wb", buffering=0)
    large.write(bytes(LARGE_BYTES))
    closing = threading.Thread(target=large.close)
    closing.start()
    # While its content is on its way to the store; or, as it happens, just before or after.
    scratch.unlink()
    closing.join()


if __name__ == "__main__":
    main()
