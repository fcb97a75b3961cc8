"""Patterns that find the step in a line of a task's output, and the bounds of those in a job file. Pure.

They are Python regular expressions over bytes. A pattern that compiles within these bounds does so in
milliseconds. The time for matching is bounded at its use (docs/decisions/0044-bounds-for-everybody.md).
"""

from __future__ import annotations

import re
import warnings
from importlib import import_module

from supervisor.contract.errors import UserError

MAX_LENGTH = 500
"""Most characters of a pattern."""

MAX_REPEAT = 1000
"""Largest count of a repetition `{m,n}`; for nested ones, largest product of the counts."""

_PARSER = import_module("re._parser")
_REPEAT = re.compile(r"\{(\d*),?(\d*)\}", re.ASCII)


def compile_step_pattern(text: str) -> re.Pattern[bytes]:
    """Compile a pattern that finds a step in a line. Raises UserError for one that is out of bounds."""
    if len(text) > MAX_LENGTH:
        raise UserError(f"has {len(text)} characters; at most {MAX_LENGTH} are allowed")
    for found in _REPEAT.finditer(text):
        if any(len(number) > 9 or int(number) > MAX_REPEAT for number in found.groups() if number):
            raise UserError(
                f"repeats something {found[0][:40]} times; at most {MAX_REPEAT} are allowed: "
                "write + or * for any number"
            )
    try:
        with warnings.catch_warnings(action="ignore"):
            times = _times(_PARSER.parse(text.encode()))
            if times <= MAX_REPEAT:
                return re.compile(text.encode())
    except (re.error, UnicodeEncodeError) as error:
        raise UserError(f"not a regular expression: {error}") from error
    except (OverflowError, RecursionError, MemoryError) as error:
        raise UserError(f"cannot be compiled ({type(error).__name__}); write a simpler one") from error
    raise UserError(
        f"repeats something {times} times by counts inside counts; at most {MAX_REPEAT} are allowed: "
        "write + or * for any number"
    )


def _times(tree: object) -> int:
    """The largest product of counts around one place of a parsed pattern. `*` and `+` count once."""
    found, todo = 1, [(tree, 1)]
    while todo:
        part, times = todo.pop()
        parts = getattr(part, "data", part)
        if not isinstance(parts, list | tuple):
            continue
        if len(parts) == 3 and all(isinstance(each, int) for each in parts[:2]):
            least, most, _ = parts
            times *= max(1, int(most if most <= MAX_REPEAT else least))
            found = max(found, times)
        todo += [(each, times) for each in parts]
    return found


def check_step_pattern(text: str) -> str:
    """Return a pattern of a job file. It must have one group, around the step; raises UserError."""
    groups = compile_step_pattern(text).groups
    if groups != 1:
        raise UserError(f"has {groups} groups; it needs exactly one, around the step: step=(\\d+)")
    return text
