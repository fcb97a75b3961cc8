"""The answers of a checker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chaos.history.history import History


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: how, when (CLOCK_BOOTTIME), and what shows it."""

    promise: str
    text: str
    at_ms: float = -1.0
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """The same, before it is said which promise it was."""

    text: str
    at_ms: float = -1.0
    evidence: tuple[str, ...] = ()


Check = Callable[[History], Iterator[Broken]]
