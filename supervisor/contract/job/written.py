"""Values as a job file writes them: what `init` writes, and what `describe` shows. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum

_PLAIN = re.compile(r"[A-Za-z_./-][A-Za-z0-9_./=+-]*")
_RESERVED = frozenset({"true", "false", "null", "yes", "no", "on", "off", "~", "-", ".", ""})
_DURATIONS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_SIZES = {f"{unit}i": 1024**power for power, unit in zip(range(4, 0, -1), "TGMK", strict=True)}
_SIZES |= {unit: 1000**power for power, unit in zip(range(4, 0, -1), "TGMK", strict=True)} | {"": 1}


def scalar(text: str) -> str:
    """A text, between double quotes where YAML would take it for something else."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _RESERVED and not text.startswith("-")
    return text if plain else "".join(map(_escaped, json.dumps(text, ensure_ascii=False)))


def flow(value: object) -> str:
    """A value on one line: a text, a number, a list or a mapping."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, Enum):
        return flow(value.value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(str(key))}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return scalar(str(value))


def duration(milliseconds: int | None) -> str:
    """A duration in the largest unit that has it as a whole number: `90s`, `5m`."""
    return _in_units(milliseconds, _DURATIONS, "")


def size(count: int) -> str:
    """A number of bytes, as `512MiB`."""
    return _in_units(count, _SIZES, "B")


def _in_units(number: int | None, units: Mapping[str, int], end: str) -> str:
    if not number:
        return flow(number)
    unit = next(unit for unit, each in units.items() if number % each == 0)
    return f"{number // units[unit]}{unit}{end}"


def _escaped(char: str) -> str:
    """A character as an escape between double quotes of YAML."""
    return char if char.isprintable() else f"\\U{ord(char):08x}"
