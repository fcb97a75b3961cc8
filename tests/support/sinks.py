"""A Sink that remembers what was said, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.contract.boundaries import Logger


@dataclass
class ListSink(Logger):
    """Keeps (level, event, fields) in `lines`."""

    lines: list[tuple[str, str, dict[str, object]]] = field(default_factory=list)

    def debug(self, event: str, **fields: object) -> object:
        self.lines.append(("debug", event, fields))
        return None

    def info(self, event: str, **fields: object) -> object:
        self.lines.append(("info", event, fields))
        return None

    def warning(self, event: str, **fields: object) -> object:
        self.lines.append(("warning", event, fields))
        return None

    def error(self, event: str, **fields: object) -> object:
        self.lines.append(("error", event, fields))
        return None
