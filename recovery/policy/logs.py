"""The cause of a program's end, from what its main thread raised and the last lines of its output.

A warm program's own process notes the exception that ended its main thread. Of any other program the output
is read, and only the line that ended the program counts: the final line of the last traceback, a fatal line
of C++, or the very last line of an argument parser, a shell or the launcher. A name that is merely quoted, in
the middle of a line or in a log line, is no evidence, and neither is the traceback of another thread. All of
this takes time in proportion to the text, whatever is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from supervisor.contract.incident import OMITTED, Cause, Raised

MAX_LINE = 300
RECENT = 4096
"""Characters at the end of an output that count as one with its end."""
MAX_SHOWN, _SHOWN_LINES = 400, 4
MAX_ERRORS = 8
MAX_TEXT, MAX_NEXT_TEXT = 2048, 512
"""Characters that are kept of an exception's message, of its beginning and of its end together; the second
for those that it came from. TensorFlow names the nodes of the graph before the reason."""

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


EXCEPTIONS = (
    Pattern(_TENSORFLOW + "NanLossDuringTrainingError", Cause.NAN_LOSS),
    Pattern(_TENSORFLOW + "InvalidArgumentError", Cause.NAN_LOSS, r"Tensor had (?:NaN|Inf)"),
    # A peer that came back with a new life, which no session or context of this task knows.
    Pattern(_TENSORFLOW + "InvalidArgumentError", Cause.PEER_LOST, "Unable to find a context_id"),
    Pattern(_TENSORFLOW + "(?:UnavailableError|AbortedError)", Cause.PEER_LOST),
    # So is a dispatcher of tf.data's service that came back without fault_tolerant_mode.
    Pattern(
        _TENSORFLOW + "NotFoundError",
        Cause.PEER_LOST,
        r"could be caused by a dispatcher restart|iteration for job .*Dataset id \d+ not found",
    ),
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

SYSTEM_EXIT = "SystemExit"
"""The class by which a program ends itself. The output says why."""
MAX_FRAMES = 3
_FRAME = re.compile(r"  File \"(?:[^\"]*/)?(?P<file>[^\"/]+)\", line (?P<line>\d+), in (?P<function>\S+)")
_TRACEBACK = "Traceback (most recent call last):"
_GROUP, _IN_GROUP = f"  + Exception Group {_TRACEBACK}", "  | "
_ASIDE = re.compile(
    r"Exception in thread |Exception ignored (?:in|on)\b|Unhandled exception in thread |Process \S+:$"
    r"|Error in (?:atexit|sys)\.|--- Logging error ---|future: <"
)
"""The line before a traceback that ended no main thread: it is of another thread or process, or of an ignored
error."""
_CHAIN = frozenset(
    {
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    }
)
_EXCEPTION = re.compile(r"(?P<name>[A-Za-z_]\w*(?:\.\w+)*)(?:: ?(?P<text>.*))?")
_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d |[IWEF]\d{4} |WARNING|INFO|ERROR")
_FATAL = re.compile(
    r"(?:\d{4}-\d\d-\d\d [\d:.]+: F |F\d{4} [\d:.]+ +\d+ )\S+\] (?P<text>.*)"
    r"|terminate called after throwing an instance of '(?P<thrown>[^']*)'"
)
_WHAT = "  what():  "
_STATUS = re.compile(rf"(?:^|[\s:(])(?P<code>{'|'.join(STATUS_CODES)}): ")
_BARE_STATUS = re.compile(rf"(?P<code>{'|'.join(STATUS_CODES)}): (?P<text>.*)")
_PROGRESS = re.compile(r"(?i).{0,40}?\b(?:step|epoch|iter|iteration|batch)\b\W{0,4}\d")
_RULE = re.compile(r"={10,}")
_NO_HEADER = re.compile(_TENSORFLOW + r"\w+Error: .*")
_SYNTAX = re.compile(r"  File \".*\", line \d+")
_ERRORS = re.compile(r"\d+ root error\(s\) found\.")
_ROOT = re.compile(r"  \(\d+\) [A-Z_]+: .*")
"""An error of several that TensorFlow lists."""
_OF_A_GRAPH = re.compile(
    r".*\(most recent call last\):|Node: '.*'|={10,}"
    r"|Additional GRPC error information .*|:[A-Z_]+:Error received from peer .*"
)
"""A line in which TensorFlow says where in a graph or a cluster an error is, or nothing."""
_NODE = re.compile(r"^\{\{function_node [^\s{}]{1,300}\}\} ")
"""The head of a message: the operation that it is of, which may be as long as what may be shown."""


_NO_FILES = "allow_missing_files was set to false and "
_SHARD = re.compile(r"/part-\d{5}-of-\d{5}")
_NO_TEMPORARY = re.compile(r"_temp(?:/part-\d{5}-of-\d{5}\S*)?; No such file or directory")
_OF_A_SERVER = re.compile(r"(?:from remote target |From )/job:ps/")
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


def lacks_protocol(told: str) -> bool:
    """Whether TensorFlow reports that it has no server or session of the kind that the program asked for."""
    return _NO_PROTOCOL.search(told) is not None


def has_shards_apart(told: str) -> bool:
    """Whether TensorFlow reports that shards of a save were missing in its directory, or that a parameter
    server found no directory for its shard: only the coordinator's node has it.
    """
    if _NO_TEMPORARY.search(told) and _OF_A_SERVER.search(told):
        return True
    for after in told.split(_NO_FILES)[1:]:
        name, _, rest = after.partition(" ")
        directory, temporary, shard = name.partition("_temp")
        if directory and temporary and _SHARD.search(shard) and rest.startswith("did not exist"):
            return True
    return False


def last_words(tail: str, noted: tuple[Raised, ...] = (), *, aborted: bool = False) -> Finding | None:
    """The cause of a program's end; None if nothing names one.

    `tail`: the end of its output. `noted`: the exception that ended its main thread, and those that it came
    from, where they are known. `aborted`: SIGABRT ended it, which no exception does by itself: one that the
    tail shows may have been handled.
    """
    if noted and noted[0].name != SYSTEM_EXIT:
        return _of(noted)
    lines = _lines(tail)
    found = _last_line(lines) or _fatal_line(lines)
    if found is None:
        found = _of(noted if noted or aborted else raised(tail))
    return found or (_status_alone(lines) if lines else None)


def raised(text: str) -> tuple[Raised, ...]:
    """The exception that ended the program that wrote `text`, and those that it came from, nearest first.

    Nothing where the text ends with something else. Of tracebacks that do not belong together the last one
    that is not of another thread counts.
    """
    lines = _lines(text)
    if _last_line(lines) or _fatal_line(lines):
        return ()
    lines = lines[_since(lines) :]
    printed = _printed(lines)
    main = [each for each in printed if not each.aside] or printed
    if main:
        return bounded((*reversed(main[-1].errors), *((_UNSEEN,) if main[-1].is_cut else ())))
    return bounded(_without_heading(lines))


def bounded(errors: Iterable[Raised]) -> tuple[Raised, ...]:
    """Errors with names and messages of a bounded length, and no more of them than MAX_ERRORS."""
    kept = list(errors)[:MAX_ERRORS]
    return tuple(_cut(each, MAX_NEXT_TEXT if number else MAX_TEXT) for number, each in enumerate(kept))


def with_beginning(tail: str, errors: tuple[Raised, ...]) -> str:
    """`tail` with the beginning of the exception that ended the program before it, where it lacks that."""
    if not errors or not errors[0].frames or errors[0].name == SYSTEM_EXIT:
        return tail
    places = (re.fullmatch(r"(.*):(\d+) in (.*)", each) for each in errors[0].frames)
    frames = [f'{each[1]}", line {each[2]}, in {each[3]}' for each in places if each is not None]
    if not frames or (frames[-1] in tail and errors[0].name in tail):
        return tail
    message = f"{errors[0].name}: {errors[0].text}"[:MAX_SHOWN].splitlines()[:_SHOWN_LINES]
    shown = "\n".join((_TRACEBACK, *(f'  File "{each}' for each in frames), *message, OMITTED, ""))
    room = RECENT - len(shown.encode())
    return shown + tail.encode()[-room:].decode(errors="ignore")


def error_of_the_code(tail: str, noted: tuple[Raised, ...] = ()) -> Raised | None:
    """The exception of OF_THE_CODE that ended the program, without its message; None if something else did.

    All exceptions that it came from must be such, and each that was printed before it: an exception that was
    raised while the program handled the loss of a peer is a consequence of that loss. An exception whose
    chain begins before `tail` is taken for a consequence too.
    """
    is_noted = bool(noted) and noted[0].name != SYSTEM_EXIT
    errors = noted if is_noted else raised(tail)
    if not errors or not errors[0].frames:
        return None
    before: list[Raised] = []
    seen: list[Raised] = []
    for each in _printed(_lines(tail)):
        seen += each.errors
        if not each.aside and each.errors[-1].name == errors[0].name:
            before = list(seen)
    names = {each.name for each in (*errors, *(before or (seen if is_noted else ())))}
    if not all(re.fullmatch(OF_THE_CODE, name) for name in names):
        return None
    return Raised(errors[0].name, "", errors[0].frames)


def _since(lines: list[str]) -> int:
    """Index of the line from which on an exception may have ended the program: its message may be long, but
    holds no log line and no step.
    """
    size = number = 0
    for number in reversed(range(len(lines))):
        size += len(lines[number]) + 1
        if size > RECENT and (_LOG_LINE.match(lines[number]) or _PROGRESS.match(lines[number])):
            return number + 1
    return 0


_UNSEEN = Raised("")
"""Stands for exceptions whose tracebacks the text does not hold any more."""


@dataclass(slots=True)
class _Printed:
    """Tracebacks that belong together, as they were printed: each came from those before it.

    `aside`: they ended no main thread. `is_cut`: the first came from one that the text does not hold.
    """

    aside: bool
    is_cut: bool
    errors: list[Raised] = field(default_factory=list)


def _lines(text: str) -> list[str]:
    """The lines of a text, without empty ones at its end and without the margin of a group of exceptions."""
    lines = text.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    if _GROUP not in lines:
        return lines
    return [
        _TRACEBACK if line == _GROUP else line.removeprefix(_IN_GROUP) if line.startswith(_IN_GROUP) else line
        for line in lines
    ]


def _is_heading(lines: list[str], number: int) -> bool:
    """Whether a traceback begins here. A blank line follows the heading of one that a message quotes, as that
    of a `py_function`.
    """
    return lines[number] == _TRACEBACK and bool("".join(lines[number + 1 : number + 2]).strip())


def _printed(lines: list[str]) -> list[_Printed]:
    """The tracebacks of a text, each up to the last line of its exception's message."""
    found: list[_Printed] = []
    block, frames = _Printed(aside=False, is_cut=False), list[str]()
    name, message = "", list[str]()
    awaits_its_exception = chained = False
    for number, line in enumerate((*lines, _TRACEBACK)):
        ends = number == len(lines)
        heading = ends or _is_heading(lines, number)
        if heading or line in _CHAIN or _ASIDE.match(line):
            if name:
                found += [] if block.errors else [block]
                block.errors.append(Raised(name, "\n".join(message).strip(), tuple(frames[-MAX_FRAMES:])))
            name, awaits_its_exception = "", heading
            chained = chained or line in _CHAIN
        elif name:
            message += [] if _LOG_LINE.match(line) else [line]
        elif awaits_its_exception and (frame := _FRAME.fullmatch(line)):
            frames.append(f"{frame['file']}:{frame['line']} in {frame['function']}")
        elif awaits_its_exception and (exception := _exception(line)):
            name, message = exception.name, [exception.text]
        if heading and not ends:
            aside = any(map(_ASIDE.match, lines[max(0, number - 2) : number]))
            if not (chained and found and not aside):
                block = _Printed(aside, is_cut=chained)
            frames, chained = [], False
    return found


def _exception(line: str) -> Raised | None:
    """The exception whose class and first line of text this line is; None for any other line."""
    match = None if _LOG_LINE.match(line) else _EXCEPTION.fullmatch(line)
    return Raised(match["name"], match["text"] or "") if match is not None else None


def _without_heading(lines: list[str]) -> list[Raised]:
    """A syntax error in the program itself has no heading; of a long error of TensorFlow it is cut off."""
    syntax = max((number for number, line in enumerate(lines) if _SYNTAX.fullmatch(line)), default=None)
    if syntax is not None:
        at = next((number for number in range(syntax, len(lines)) if _exception(lines[number])), None)
    else:
        at = max((number for number, line in enumerate(lines) if _NO_HEADER.fullmatch(line)), default=None)
    first = _exception(lines[at]) if at is not None else None
    if at is None or first is None:
        return []
    return [Raised(first.name, "\n".join((first.text, *lines[at + 1 :])))]


def _cut(error: Raised, most: int) -> Raised:
    frames = tuple(each[:MAX_LINE] for each in error.frames)
    error = Raised(error.name[:MAX_LINE], error.text, frames)
    if len(error.text) <= most:
        return error
    half = most // 2
    end = error.text[-half:]
    whole_lines = end.partition("\n")[2] or end
    return Raised(error.name, f"{error.text[:half]}\n{whole_lines}", error.frames)


def _last_line(lines: list[str]) -> Finding | None:
    before = "\n".join(lines[:-1])
    for row in LAST_LINES if lines else ():
        if re.fullmatch(row.name, lines[-1]) and re.search(row.text, before):
            return _finding(row.cause, lines[-2] if lines[-1].startswith("Pass --help") else lines[-1])
    return None


def _fatal_line(lines: list[str]) -> Finding | None:
    """A fatal line of C++ that comes after any traceback: the process aborted there."""
    after = max((number + 1 for number in range(len(lines)) if _is_heading(lines, number)), default=0)
    for number in reversed(range(after, len(lines))):
        fatal = _FATAL.match(lines[number])
        if fatal is None:
            continue
        text = fatal["text"]
        if text is None and after:
            continue  # what is torn down after an exception that ended the program
        if text is None:
            what = next((each for each in lines[number + 1 : number + 3] if each.startswith(_WHAT)), "")
            text = f"{fatal['thrown']}: {what.removeprefix(_WHAT)}"
        status = _STATUS.search(text)
        return _finding(STATUS_CODES[status["code"]] if status else Cause.PROGRAM_EXIT, text)
    return None


def _of(errors: tuple[Raised, ...]) -> Finding | None:
    """The cause by an exception. One that is raised while the loss of a peer is handled follows from it."""
    found = [_by_its_class(each) for each in errors]
    if not found:
        return None
    lost = next((each for each in found if each.cause is Cause.PEER_LOST), None)
    if found[0].cause is Cause.PROGRAM_EXIT and lost is not None:
        return lost
    return next((each for each in found if each.line), None)


def _by_its_class(error: Raised) -> Finding:
    text = f"{error.name}: {error.text}" if error.text else error.name
    for row in EXCEPTIONS:
        if re.fullmatch(row.name, error.name) and re.search(row.text, text):
            return _finding(row.cause, _in_a_line(error))
    return _finding(Cause.PROGRAM_EXIT, _in_a_line(error))


def _in_a_line(error: Raised) -> str:
    """Class and reason. The first line of a message may only name a task, or announce what follows."""
    said, *rest = map(str.rstrip, _NODE.sub("", error.text).splitlines() or [""])
    rest = [line for line in rest if line and not _OF_A_GRAPH.fullmatch(line)]
    if not _ERRORS.fullmatch(said):
        rest = [line for line in rest if not line.startswith((" ", "\t", "<")) or _ROOT.match(line)] or rest
    told = [said]
    for line in rest:
        if told[-1] and not told[-1].endswith(":") and not _ERRORS.fullmatch(told[-1]):
            break
        told.append(line.strip())
    reason = " ".join(filter(None, told))
    if error.name == SYSTEM_EXIT:
        return reason
    return f"{error.name}: {reason}" if reason else error.name


def _status_alone(lines: list[str]) -> Finding | None:
    """A status that is the last line, or that heads a long error of TensorFlow's, whose class is cut off."""
    headed = [number + 1 for number, line in enumerate(lines[:-1]) if _RULE.fullmatch(line)]
    for number in (len(lines) - 1, *reversed(headed)):
        status = _BARE_STATUS.fullmatch(lines[number])
        if status is not None:
            text = "\n".join((status["text"], *lines[number + 1 : number + 3]))
            return _finding(STATUS_CODES[status["code"]], _in_a_line(Raised(status["code"], text)))
    return None


def _finding(cause: Cause, line: str) -> Finding:
    return Finding(cause, line.strip()[:MAX_LINE])
