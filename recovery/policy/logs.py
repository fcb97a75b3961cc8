"""The cause of a program's end, read from the last lines of its output: TensorFlow's errors and the user's.

Only the line that ended the program counts: the final line of the last traceback, a fatal line of C++, or the
very last line of an argument parser, a shell or the launcher. A name that is merely quoted, in the middle of
a line or in a log line, is no evidence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from supervisor.contract.incident import Cause

MAX_LINE = 300
_MESSAGE_LINES = 40
"""Number of lines of an exception's text to search. TensorFlow names the nodes of the graph before the
reason."""

_TENSORFLOW = r"tensorflow(?:_core)?(?:\.\w+)*\."


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause, and the line of output that shows it, cut to MAX_LINE characters."""

    cause: Cause
    line: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A row of a table: the whole name of an exception, or a whole last line, and a pattern that the text
    must contain.
    """

    name: str
    cause: Cause
    text: str = ""


@dataclass(frozen=True, slots=True)
class Raised:
    """An uncaught exception: its class, and where it was raised, `FILE:LINE in FUNCTION`, the innermost last.

    Two are equal if the same line of the same program has raised the same, whatever the text says.
    """

    name: str
    frames: tuple[str, ...]


EXCEPTIONS = (
    Pattern(_TENSORFLOW + "NanLossDuringTrainingError", Cause.NAN_LOSS),
    Pattern(_TENSORFLOW + "InvalidArgumentError", Cause.NAN_LOSS, r"Tensor had (?:NaN|Inf)"),
    # A peer that came back with a new life, which no session or context of this task knows.
    Pattern(_TENSORFLOW + "InvalidArgumentError", Cause.PEER_LOST, "Unable to find a context_id"),
    Pattern(_TENSORFLOW + "(?:UnavailableError|AbortedError)", Cause.PEER_LOST),
    # A torn input file, not the checkpoint.
    Pattern(_TENSORFLOW + "DataLossError", Cause.PROGRAM_EXIT, "(?:corrupted|truncated) record"),
    Pattern(_TENSORFLOW + "DataLossError", Cause.DATA_LOSS),
    Pattern(_TENSORFLOW + "OutOfRangeError", Cause.OUT_OF_RANGE),
    Pattern(_TENSORFLOW + "ResourceExhaustedError", Cause.RESOURCE_EXHAUSTED),
    Pattern(r"MemoryError|numpy(?:\.\w+)*\._ArrayMemoryError", Cause.RESOURCE_EXHAUSTED),
    Pattern(_TENSORFLOW + r"\w+|RuntimeError", Cause.PORT_CLASH, "Could not start gRPC server"),
    Pattern("OSError", Cause.PORT_CLASH, r"\[Errno 98\]|Address already in use"),
    # A library that this machine lacks is the machine's trouble, not a typing error.
    Pattern("ImportError", Cause.PROGRAM_EXIT, "cannot open shared object file"),
    Pattern("ImportError|ModuleNotFoundError|SyntaxError|IndentationError|TabError", Cause.USER_ERROR),
    Pattern(r"absl\.flags\._exceptions\.\w+", Cause.USER_ERROR),
)
"""The exception that ended a Python program -> cause; the first row that fits. Any other is PROGRAM_EXIT."""

STATUS_CODES = {
    "UNAVAILABLE": Cause.PEER_LOST,
    "ABORTED": Cause.PEER_LOST,
    "DATA_LOSS": Cause.DATA_LOSS,
    "OUT_OF_RANGE": Cause.OUT_OF_RANGE,
    "RESOURCE_EXHAUSTED": Cause.RESOURCE_EXHAUSTED,
}
"""A status in a fatal line of C++, or alone in a line that ends the output or heads an error -> cause."""

LAST_LINES = (
    Pattern(r"tf-supervisor: cannot run .*", Cause.MISSING_PROGRAM),
    Pattern(r"\S*python[\d.]*: can't open file .*", Cause.MISSING_PROGRAM),
    Pattern(r"\S*python[\d.]*: No module named .*", Cause.MISSING_PROGRAM),
    Pattern(r"\S*sh: (?:line )?(?:\d+: )?\S+: (?:command )?not found", Cause.MISSING_PROGRAM),
    Pattern(r"\S+(?: \S+)?: error: .*", Cause.USER_ERROR, r"(?m)^usage: "),
    Pattern(r"Error: .*", Cause.USER_ERROR, r"(?m)^Usage: "),
    Pattern(
        r"Pass --help\w* .* to see help on flags\.", Cause.USER_ERROR, r"(?m)^FATAL Flags parsing error: .*\Z"
    ),
    Pattern(r"  what\(\):  std::bad_alloc", Cause.RESOURCE_EXHAUSTED, r"(?m)^terminate called "),
)
"""The whole last line of the output -> cause, where `text` is found in what comes before it."""

OF_THE_CODE = (
    "ArithmeticError|AssertionError|AttributeError|FloatingPointError|IndexError|KeyError|LookupError|NameError|"
    "NotImplementedError|OverflowError|RecursionError|TypeError|UnboundLocalError|UnicodeDecodeError|"
    "UnicodeEncodeError|ValueError|ZeroDivisionError"
)
"""Names of exceptions that are about a program's own code or flags. Others may be about files, peers or the
machine."""

MOST_FRAMES = 3
_FRAME = re.compile(r"  File \"(?:[^\"]*/)?(?P<file>[^\"/]+)\", line (?P<line>\d+), in (?P<function>\S+)")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
_CHAIN = re.compile(
    "During handling of the above exception, another exception occurred:"
    "|The above exception was the direct cause of the following exception:"
)
_EXCEPTION = re.compile(r"(?P<name>[A-Za-z_]\w*(?:\.\w+)*)(?:: ?(?P<text>.*))?")
_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d |[IWEF]\d{4} |WARNING|INFO|ERROR")
_FATAL = re.compile(r"(?:\d{4}-\d\d-\d\d [\d:.]+: F |F\d{4} [\d:.]+ +\d+ )\S+\] (?P<text>.*)")
_STATUS = re.compile(rf"(?:^|[\s:(])(?P<code>{'|'.join(STATUS_CODES)}): ")
_BARE_STATUS = re.compile(rf"(?P<code>{'|'.join(STATUS_CODES)}): .*")
_RULE = re.compile(r"={10,}")
_NO_HEADER = re.compile(_TENSORFLOW + r"\w+Error: .*")
_SYNTAX = re.compile(r"  File \".*\", line \d+")


_SHARDS_APART = re.compile(
    r"allow_missing_files was set to false and \S+_temp\w*/part-\d{5}-of-\d{5}\S* did not exist"
)
SHARDS_APART = (
    "its parameter servers each write their own shard of a checkpoint, and in mode staged each node has a "
    "directory of its own, so that no save is ever whole: set `checkpoint: {mode: mounted}` with a "
    "checkpoint.uri in HDFS, which gives all tasks one directory (docs/mounted.md)"
)


_NO_PROTOCOL = re.compile(
    r"No (?:server factory registered for the given ServerDef"
    r"|session factory registered for the given session options)"
)
NO_PROTOCOL = (
    "this node's TensorFlow is built without the job's protocol {protocol}: it knows no such server; remove "
    "`protocol` from the job file, or use a build that has it"
)


_LEFT_LOCK = re.compile(r"cache lockfile already exists \('(?P<path>[^']+)'\)")
LEFT_LOCK = (
    "tf.data's cache() found {path}, the lockfile of an attempt that was killed; if the next attempt finds "
    "it, too, remove it, or let cache() write below a directory that each attempt makes anew"
)


def left_lock(tail: str) -> str:
    """The lockfile of a cache of tf.data that a program found at its end; empty if it found none."""
    found = _LEFT_LOCK.search(tail)
    return found["path"] if found is not None else ""


_NO_SPACE = re.compile(
    r"No space left on device: (?:b?['\"])?(?P<path>/[^'\"\s;]+)"
    r"|(?P<first>/[^'\"\s;:]+); No space left on device"
)


def full_disk(line: str) -> str:
    """The path on a disk that is full, by the error that a program ended with; empty if it names none."""
    found = _NO_SPACE.search(line)
    return (found["path"] or found["first"]) if found is not None else ""


def lacks_protocol(tail: str) -> bool:
    """Whether TensorFlow reports that it has no server or session of the kind that the program asked for."""
    return _NO_PROTOCOL.search(tail) is not None


def has_shards_apart(tail: str) -> bool:
    """Whether TensorFlow reports that shards of a save were missing in its directory."""
    return _SHARDS_APART.search(tail) is not None


def last_words(tail: str) -> Finding | None:
    """The cause of a program's end by `tail`, the end of its output; None if no line names one."""
    lines = tail.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        return None
    for look in (_last_line, _fatal_line, _exception, _status_alone):
        found = look(lines)
        if found is not None:
            return found
    return None


def raised(tail: str) -> Raised | None:
    """The exception of OF_THE_CODE that ended the program that wrote `tail`; None if something else did.

    Every traceback in `tail` must be of such an exception: an exception that was raised while the program
    handled the loss of a peer is a consequence of that loss. An exception whose chain begins before `tail` is
    taken for a consequence too.
    """
    found, lines = last_words(tail), tail.splitlines()
    headings = [number + 1 for number, line in enumerate(lines) if _TRACEBACK.fullmatch(line)]
    ends = [_first(lines, heading) for heading in headings]
    names = [lines[end].partition(":")[0] if end is not None else "" for end in ends]
    at = ends[-1] if ends else None
    if found is None or at is None or not all(re.fullmatch(OF_THE_CODE, name) for name in names):
        return None
    if sum(_CHAIN.fullmatch(line) is not None for line in lines) >= len(headings):
        return None
    if found.line != lines[at].strip()[:MAX_LINE]:
        return None
    frames = [match for line in lines[headings[-1] : at] if (match := _FRAME.fullmatch(line))]
    where = tuple(f"{each['file']}:{each['line']} in {each['function']}" for each in frames[-MOST_FRAMES:])
    return Raised(names[-1], where) if where else None


def _last_line(lines: list[str]) -> Finding | None:
    before = "\n".join(lines[:-1])
    for row in LAST_LINES:
        if re.fullmatch(row.name, lines[-1]) and re.search(row.text, before):
            return _finding(row.cause, lines[-2] if lines[-1].startswith("Pass --help") else lines[-1])
    return None


def _fatal_line(lines: list[str]) -> Finding | None:
    """A fatal line of C++ that comes after any traceback: the process aborted there."""
    after = _last_traceback(lines)
    for line in reversed(lines[after:]):
        fatal = _FATAL.match(line)
        if fatal is not None:
            status = _STATUS.search(fatal["text"])
            return _finding(STATUS_CODES[status["code"]] if status else Cause.PROGRAM_EXIT, fatal["text"])
    return None


def _exception(lines: list[str]) -> Finding | None:
    at = _exception_line(lines)
    if at is None:
        return None
    match = _EXCEPTION.fullmatch(lines[at])
    assert match is not None
    text = "\n".join(lines[at : at + _MESSAGE_LINES])
    for row in EXCEPTIONS:
        if re.fullmatch(row.name, match["name"]) and re.search(row.text, text):
            return _finding(row.cause, lines[at])
    return _finding(Cause.PROGRAM_EXIT, lines[at])


def _exception_line(lines: list[str]) -> int | None:
    """Index of the final line of the last traceback: after its heading, the first that is not indented."""
    heading = _last_traceback(lines)
    if heading:
        return _first(lines, heading)
    # A syntax error in the program itself has no heading; of a long error of TensorFlow it is cut off.
    syntax = max((number for number, line in enumerate(lines) if _SYNTAX.fullmatch(line)), default=None)
    if syntax is not None:
        return _first(lines, syntax)
    return max((number for number, line in enumerate(lines) if _NO_HEADER.fullmatch(line)), default=None)


def _first(lines: list[str], start: int) -> int | None:
    """The first line from `start` on that is neither indented nor a log line, but an exception's."""
    for number in range(start, len(lines)):
        if _EXCEPTION.fullmatch(lines[number]) and not _LOG_LINE.match(lines[number]):
            return number
    return None


def _last_traceback(lines: list[str]) -> int:
    """Index after the heading of the last traceback; 0 if there is none."""
    return max((number + 1 for number, line in enumerate(lines) if _TRACEBACK.fullmatch(line)), default=0)


def _status_alone(lines: list[str]) -> Finding | None:
    """A status that is the last line, or that heads a long error of TensorFlow's, whose class is cut off."""
    headed = [line for rule, line in pairwise(lines) if _RULE.fullmatch(rule)]
    for line in (lines[-1], *reversed(headed)):
        status = _BARE_STATUS.fullmatch(line)
        if status is not None:
            return _finding(STATUS_CODES[status["code"]], line)
    return None


def _finding(cause: Cause, line: str) -> Finding:
    return Finding(cause, line.strip()[:MAX_LINE])
