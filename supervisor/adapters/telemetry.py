"""Logs by structlog: JSON lines for files, a readable form for terminals, neither with secrets in it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from supervisor.adapters.plain_structlog import structlog
from supervisor.contract.errors import UserError
from supervisor.contract.secret import sounds_secret

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

ROTATE_BYTES = 16 * 1024 * 1024
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_NOT_SECRET = frozenset({"leader_token"})
# C0, DEL, C1, and what reorders or breaks lines on a terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_MULTILINE = frozenset({"exception", "stack"})
_REDACTED = "(redacted)"

Line = MutableMapping[str, object]


def configure_logging(json_file: Path | None, level: str = "info", *, console: bool = True) -> Tee:
    """Send this process's logs to a file (JSON lines, appended), to stderr (readable), or to both.

    Returns the writer, for its count of dropped lines and to close it at the end.

    Raises UserError when the level is unknown or the file cannot be opened.
    """
    if level not in LEVELS:
        raise UserError(f"log level {level!r}: choose one of {', '.join(LEVELS)}")
    outputs: list[Output] = []
    if json_file is not None:
        outputs.append(JsonOutput(json_file))
    if console:
        outputs.append(ConsoleOutput(sys.stderr))
    tee = Tee(outputs)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redact,
            _hand_over,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_args: tee,
        cache_logger_on_first_use=False,
    )
    return tee


def get_logger(component: str, **fields: object) -> FilteringBoundLogger:
    """A logger whose every line names the component and carries `fields`; it is a `Logger`."""
    logger: FilteringBoundLogger = structlog.get_logger(component=component, **fields)
    return logger


def redact(_logger: object, _method: str, line: Line) -> Line:
    """Replace values whose key looks like a secret's, at any depth of mappings and lists."""
    for key, value in line.items():
        line[key] = _redacted(key, value)
    return line


def escape(text: str) -> str:
    """Replace control characters, so that a logged value cannot command the terminal that shows it."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class Output:
    """One destination of lines. A full disk or a closed pipe must not stop a daemon: lines are dropped."""

    def __init__(self, stream: TextIO) -> None:
        self.dropped = 0
        self._stream = stream

    def write(self, line: Line) -> None:
        """Render and write one line."""
        try:
            self._stream.write(self.render(line) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.dropped += 1

    def render(self, line: Line) -> str:
        """The text of one line, without its end."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the output."""


class JsonOutput(Output):
    """JSON lines; unknown types by their repr. A file that has grown large becomes `NAME.1`.

    Raises UserError when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(_open(path))
        self._path = path
        self._renderer = structlog.processors.JSONRenderer(default=repr)

    def write(self, line: Line) -> None:
        """Render and write one line; rotate the file first if it is full."""
        try:
            if self._stream.tell() > ROTATE_BYTES:
                self._stream.close()
                self._path.replace(f"{self._path}.1")
                self._stream = _open(self._path)
        except (OSError, ValueError, UserError):
            self.dropped += 1
            return
        super().write(line)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def render(self, line: Line) -> str:
        """One JSON object."""
        return str(self._renderer(None, "", dict(line)))


class ConsoleOutput(Output):
    """Readable lines; colours on a terminal only."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty())

    def render(self, line: Line) -> str:
        """Time, level, event, and then key=value."""
        safe = {escape(key): _escaped(key, value) for key, value in line.items()}
        return self._renderer(None, "", safe)


class Tee:
    """A logger for structlog: it takes finished lines and writes them to every output."""

    def __init__(self, outputs: list[Output]) -> None:
        self._outputs = outputs

    @property
    def dropped(self) -> int:
        """The number of lines that could not be written."""
        return sum(output.dropped for output in self._outputs)

    def close(self) -> None:
        """Close the log file; later lines for it are dropped."""
        for output in self._outputs:
            output.close()

    def msg(self, line: Line) -> None:
        """Write one line everywhere."""
        for output in self._outputs:
            output.write(line)

    debug = info = warning = error = critical = exception = msg


def _hand_over(_logger: object, _method: str, line: Line) -> tuple[tuple[Line], dict[str, object]]:
    return (line,), {}


def _redacted(key: str, value: object) -> object:
    if key not in _NOT_SECRET and sounds_secret(key):
        return _REDACTED
    if isinstance(value, dict):
        return {name: _redacted(str(name), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted("", inner) for inner in value]
    return value


def _escaped(key: str, value: object) -> object:
    if key in _MULTILINE and isinstance(value, str):
        return "\n".join(escape(row.replace("\t", "    ")) for row in value.split("\n"))
    if isinstance(value, bool | int | float) or value is None:
        return value
    return escape(value if isinstance(value, str) else repr(value))


def _open(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise UserError(f"log file {path}: {error.strerror}") from error
    return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")
