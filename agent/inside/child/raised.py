"""The exception that ends the main thread of a warm program: its own process notes it for the agent.

The text of the output may end with the traceback of another thread, and may hold a part of this one only.
The program may write anything into the file, so it is a hint and proves nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import List, Optional

FILE = "raised.json"
MOST_ERRORS = 8
MOST_FRAMES = 3
MOST_TEXT = 4096
"""Characters of a message, of its beginning and of its end."""
_PRINTED_BY_ITSELF = ("__main__", "builtins")
_OF_ANOTHER_PROCESS = "RemoteTraceback"
"""Suffix of the classes by which a pool of processes shows the traceback of a child."""


def note(error: BaseException, attempt_dir: str, masked: Callable[[str], str]) -> None:
    """Write the error and those that it came from, the nearest first. Never raises.

    `masked` hides secrets in a message, as they are hidden in the output.
    """
    try:
        body = [_plain(each, masked) for each in _chain(error)]
        path = os.path.join(attempt_dir, FILE)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(f"{path}.new", flags, 0o640), "w", encoding="ascii") as file:
            json.dump(body, file)
        os.replace(f"{path}.new", path)
    except Exception:
        pass  # a full disk, or a message that cannot be made: the output is there


def _chain(error: BaseException) -> List[BaseException]:
    """As Python prints it; of a group the first exception stands for it."""
    found: List[BaseException] = []
    current: Optional[BaseException] = error
    while current is not None and len(found) < MOST_ERRORS:
        within = getattr(current, "exceptions", None)
        if sys.version_info >= (3, 11) and isinstance(current, BaseExceptionGroup) and within:
            current = within[0]
            continue
        if any(each is current for each in found):
            break
        if not type(current).__name__.endswith(_OF_ANOTHER_PROCESS):
            found.append(current)
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)
    return found


def _plain(error: BaseException, masked: Callable[[str], str]) -> dict[str, object]:
    kind = type(error)
    inside = "" if kind.__module__ in _PRINTED_BY_ITSELF else f"{kind.__module__}."
    if isinstance(error, SystemExit):
        text = error.code if isinstance(error.code, str) else ""
    else:
        text = str(error)
    text = masked(text)
    if len(text) > 2 * MOST_TEXT:
        text = f"{text[:MOST_TEXT]}\n{text[-MOST_TEXT:]}"
    frames: List[str] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames = [
            *frames[1 - MOST_FRAMES :],
            f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} in {code.co_name}",
        ]
        trace = trace.tb_next
    return {"name": f"{inside}{kind.__qualname__}", "text": text, "frames": frames}
