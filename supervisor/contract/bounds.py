"""How large and how odd a plain value may be: the one place for everybody. Pure.

The codec holds every record to these bounds, whoever wrote it. `contract.job.bounds` holds a job to them.
"""

from __future__ import annotations

import math
import re

MAX_INT = 2**63 - 1
"""Whole numbers in records have 64 bits, as in all that read them."""

STEPS = 10**12
"""No step reaches it: keys and file names hold twelve digits."""

MAX_TASKS = 1000
MAX_DURATION_MS = 366 * 86_400_000
MAX_SIZE_BYTES = 2**60
MAX_WORDS = 4096
MAX_WORD_BYTES = 120_000
"""Of one word of a command or one variable, filled in: Linux starts no program with one of 131,072 bytes."""

MAX_START_BYTES = 768 * 1024
"""Of all that a task is started with, filled in: a launcher takes messages of less than 1 MiB."""

MAX_SPEC_BYTES = 120 * 1024
"""Of a job in etcd."""

MAX_VARIABLES = 1000
MAX_ROLES = 100
MAX_PRELOAD = 64
MAX_LABELS = 64
MAX_NAME_LENGTH = 256
MAX_STEP_PATTERNS = 32
MAX_FILE_PATTERNS = 16
MAX_RULES = 64
MAX_PATH_LENGTH = 4096

_SURROGATE = re.compile("[\ud800-\udfff]")


def number_objection(value: float) -> str:
    """Why a number, whole or not, cannot be in a record; empty when it can."""
    if isinstance(value, int):
        return "" if -MAX_INT - 1 <= value <= MAX_INT else "a whole number beyond 64 bits"
    return "" if math.isfinite(value) else f"{value} is not a finite number"


def text_objection(text: str) -> str:
    """Why a text cannot be in a record; empty when it can."""
    if not text.isascii() and _SURROGATE.search(text):
        return "half a character (a lone surrogate); write the whole one"
    return ""


def whole_text(text: str) -> str:
    """The text as a record can hold it: half characters, as in names that are not UTF-8, are spelt out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
