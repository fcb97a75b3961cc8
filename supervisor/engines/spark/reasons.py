"""The reason of a failed Spark job in one line, from what pyspark raises."""

from __future__ import annotations

from supervisor.adapters.neutral import one_line

_LONGEST = 400
_RECENT = "most recent failure: "
_HOW_TO_INSTALL = (
    "; install tf-supervisor in the Python of the executors (PYSPARK_PYTHON), which runs the agents"
)


def reason_of(text: str) -> str:
    """The line that says what happened: of Java's stacks and those of Python workers the rest is left out."""
    if "No module named 'supervisor" in text or "No module named 'agent" in text:
        missing = next(line for line in text.splitlines() if "No module named" in line)
        return one_line(missing.strip()) + _HOW_TO_INSTALL
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("at ", "Driver stacktrace", "An error occurred"))]
    first = said[0] if said else "Spark gives no reason"
    first = first.partition(_RECENT)[2] or first
    if "PythonException" in first or first.endswith("Traceback (most recent call last):"):
        # The words of the exception are the last line of its traceback.
        stack = text[text.index("Traceback (most recent call last)") :].splitlines()[1:]
        first = next((line for line in stack if line and not line[0].isspace()), first)
    return one_line(first.removeprefix(": "))[:_LONGEST]
