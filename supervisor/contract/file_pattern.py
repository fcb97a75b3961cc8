"""Patterns that name the files of a save, for programs whose checkpoints are not TensorFlow's own."""

from __future__ import annotations

import re

from supervisor.contract.errors import UserError

STEP = "{step}"
MAX_DEPTH = 8
"""Parts of a path at most."""

_PIECE = re.compile(r"\{step\}|\*|\?|[^*?{]+|\{")


def compile_pattern(text: str) -> re.Pattern[str]:
    """What matches the paths, relative to $CHECKPOINT_DIR, that `text` names.

    `*` and `?` stand for characters of one name, `{step}` (once) for the digits of the global step: the only
    group of the result. Raises UserError for a pattern that can name no file of a checkpoint.
    """
    parts = text.split("/")
    if not text or any(part in ("", ".", "..") for part in parts):
        raise UserError(f"{text!r} must be a path below $CHECKPOINT_DIR, such as backup/model-{STEP}.keras")
    if len(parts) > MAX_DEPTH:
        raise UserError(f"{text!r} has more than {MAX_DEPTH} parts")
    if "**" in text:
        raise UserError(f"{text!r}: * stands for characters of one name; write each directory")
    if text.count(STEP) > 1:
        raise UserError(f"{text!r} has {STEP} more than once")
    return re.compile("".join(_translate(piece) for piece in _PIECE.findall(text)))


def _translate(piece: str) -> str:
    special = {STEP: r"(\d{1,12})", "*": r"[^/]*", "?": r"[^/]"}
    return special.get(piece) or re.escape(piece)
