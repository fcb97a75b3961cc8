"""Patterns that name the files of a save, for programs whose checkpoints are not TensorFlow's own."""

from __future__ import annotations

import re

from supervisor.contract.errors import UserError

STEP = "{step}"
MAX_DEPTH = 8
"""Most parts of a path."""

MAX_LENGTH = 1024
"""Most characters of a pattern."""

_PIECE = re.compile(r"\{step\}|\?|[^?{]+|\{")


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern of paths relative to $CHECKPOINT_DIR.

    `*` and `?` stand for characters of one name, `{step}` (once) for the digits of the global step: the only
    group of the result. Raises UserError for a pattern that can name no file of a checkpoint.
    """
    parts = text.split("/")
    if not text or any(part in ("", ".", "..") for part in parts):
        raise UserError(f"{text!r} must be a path below $CHECKPOINT_DIR, such as backup/model-{STEP}.keras")
    if len(text) > MAX_LENGTH:
        raise UserError(f"a pattern of {len(text)} characters is too long; at most {MAX_LENGTH} are possible")
    if len(parts) > MAX_DEPTH:
        raise UserError(f"{text!r} has more than {MAX_DEPTH} parts")
    if "**" in text:
        raise UserError(f"{text!r}: * stands for characters of one name; write each directory")
    if text.count(STEP) > 1:
        raise UserError(f"{text!r} has {STEP} more than once")
    return re.compile("/".join(rf"(?>{_part(part)}(?=/|\Z))" for part in parts))


def _part(text: str) -> str:
    """The expression for one name.

    A star that another star follows takes as few characters as possible, without backtracking.

    The stars after it match the rest. So the time grows with the length of the name alone, for any number of
    stars. A star before the step, or before the end of the name, takes as many characters as possible.
    """
    first, *others = text.split("*")
    found = _fixed(first)
    for index, fixed in enumerate(others):
        greedy = STEP in fixed or index == len(others) - 1
        found += f"[^/]*{_fixed(fixed)}" if greedy else f"(?>[^/]*?{_fixed(fixed)})"
    return found


def _fixed(text: str) -> str:
    special = {STEP: r"(\d{1,12})", "?": r"[^/]"}
    return "".join(special.get(piece) or re.escape(piece) for piece in _PIECE.findall(text))
