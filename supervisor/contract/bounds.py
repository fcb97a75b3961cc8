"""Bounds of the plain values in records: size of numbers, characters of texts. Pure.

The codec checks every record against them, whatever wrote it. `contract.job.bounds` checks a job.
"""

from __future__ import annotations

import math
import re

MAX_INT = 2**63 - 1
"""The largest whole number in a record: 64 bits, as in its readers."""

STEPS = 10**12
"""Upper bound of steps, exclusive: keys and file names hold twelve digits."""

MAX_TASKS = 1000
MAX_DURATION_MS = 366 * 86_400_000
MAX_SIZE_BYTES = 2**60
MAX_WORDS = 4096
MAX_WORD_BYTES = 120_000
"""Most bytes of one word of a command or one variable, filled in: Linux starts no program with one of 131,072
bytes."""

MAX_START_BYTES = 768 * 1024
"""Most bytes of a task's command and environment together, filled in: a launcher takes messages of less than
1 MiB."""

MAX_SPEC_BYTES = 120 * 1024
"""Most bytes of a job in etcd."""

MAX_GIVEN_BYTES = 8 * 1024
"""Most bytes of the names of fields that a job file gives. Of a file with more of them none is recorded."""

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
    """The reason why a number, whole or not, cannot be in a record; empty if it can."""
    if isinstance(value, int):
        return "" if -MAX_INT - 1 <= value <= MAX_INT else "a whole number beyond 64 bits"
    return "" if math.isfinite(value) else f"{value} is not a finite number"


def text_objection(text: str) -> str:
    """The reason why a text cannot be in a record; empty if it can."""
    if not text.isascii() and _SURROGATE.search(text):
        return "half a character (a lone surrogate); write the whole one"
    return ""


def whole_text(text: str) -> str:
    """The text in a form for records: half characters, as in names that are not UTF-8, become escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
