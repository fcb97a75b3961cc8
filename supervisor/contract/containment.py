"""An unexpected error is contained: one job, launcher, node or checkpoint is set aside, and all else goes on.

This is the only module that catches errors of any kind (decision 0045). It is used where a daemon turns to
one of many, and nowhere else: an error of a daemon's own state is to end it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

OURS = ("supervisor", "agent", "recovery")
"""The packages that the place of an error is looked for in."""

MOST = 300
"""Most characters of an error's text."""

MOST_FRAMES = 1_000

Tell = Callable[[str, Exception], object]
"""Called with the job that an error is about, and the error."""


class _Contained:
    """A `with` block that catches errors."""

    def __init__(self, tell: Callable[[Exception], object]) -> None:
        self._tell = tell

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, MemoryError):
            return False
        self._tell(error)
        return True


def contained(tell: Callable[[Exception], object]) -> _Contained:
    """Pass an error that ends the block to `tell`, which may raise it again, and go on after the block.

    A machine without memory, a cancelled task and the end of the process are not contained.
    """
    return _Contained(tell)


def told(error: BaseException) -> str:
    """The text of an unexpected error and the place where it was raised, in one line for people."""
    return f"{described(error)}, at {place_of(error)}"


def described(error: BaseException) -> str:
    """The text of an unexpected error, in one line of at most MOST characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= MOST else f"{text[: MOST - 3]}..."


def place_of(error: BaseException) -> str:
    """The innermost line of ours that an error was raised at: `agent/core/tasks.py:120 in start`.

    A function that raises for what its caller did hides itself by a local `__tracebackhide__`, as for pytest.
    """
    place, trace = "", error.__traceback__
    while trace is not None:
        if "__tracebackhide__" not in trace.tb_frame.f_locals:
            place = _of_ours(trace.tb_frame, trace.tb_lineno) or place
        trace = trace.tb_next
    return place or "an unknown place"


def frames_of(error: BaseException) -> Iterator[tuple[str, list[object]]]:
    """The functions that an error came through, the outermost first, each with the values of its variables.

    The variables come in reverse order of their assignment: the last one is the most likely subject of the
    error.
    """
    trace, left = error.__traceback__, MOST_FRAMES
    while trace is not None and left:
        yield trace.tb_frame.f_code.co_name, list(trace.tb_frame.f_locals.values())[::-1]
        trace, left = trace.tb_next, left - 1


def _of_ours(frame: FrameType, line: int) -> str:
    parts = frame.f_code.co_filename.split("/")
    at = next((index for index in range(len(parts) - 2, -1, -1) if parts[index] in OURS), -1)
    return f"{'/'.join(parts[at:])}:{line} in {frame.f_code.co_name}" if at >= 0 else ""
