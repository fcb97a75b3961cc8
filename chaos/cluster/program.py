"""A daemon that a node runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Program:
    """A daemon's name and command; its working directory is where it may write."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
