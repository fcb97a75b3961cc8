"""Durations, sizes, texts and names in our YAML files, each with one spelling and an error that shows it."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from supervisor.adapters.files.yaml_file import WrittenFloat, WrittenInt
from supervisor.contract.bounds import MAX_DURATION_MS, MAX_SIZE_BYTES, text_objection
from supervisor.contract.errors import UserError
from supervisor.contract.ids import check_name

_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(ms|s|m|min|h|d)")
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]i?)?B")
_SIZE_BYTES = {"": 1}
_SIZE_BYTES |= {unit: 1000**power for power, unit in enumerate("KMGT", start=1)}
_SIZE_BYTES |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGT", start=1)}


def duration_ms(value: object) -> int:
    """Read `30s`, `500ms`, `2m`, `1h` or a plain 0; raises ValueError that shows the form."""
    if isinstance(value, int) and not isinstance(value, bool) and value == 0:
        return 0
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f"{_shown(value)} is not a duration; write a number and a unit: 500ms, 30s, 5m or 2h"
        )
    result = round(float(match[1]) * _DURATION_MS[match[2]])
    if result > MAX_DURATION_MS:
        raise ValueError(f"{_shown(value)} is more than a year; give a shorter duration")
    return result


def size_bytes(value: object) -> int:
    """Read `2GiB`, `512MiB`, `1.5GB` or a plain 0; raises ValueError that shows the form."""
    if isinstance(value, int) and not isinstance(value, bool) and value == 0:
        return 0
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{_shown(value)} is not a size; write a number and a unit: 512MiB, 2GiB or 1.5GB")
    result = round(float(match[1]) * _SIZE_BYTES[match[2] or ""])
    if result > MAX_SIZE_BYTES:
        raise ValueError(f"{_shown(value)} is more than {MAX_SIZE_BYTES // 2**50} PiB; give a smaller size")
    return result


def text(value: object) -> str:
    """A string, or a number as it was written; raises ValueError for anything else."""
    if isinstance(value, WrittenInt | WrittenFloat):
        return value.written
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("must not contain a NUL character; remove it")
        if why := text_objection(value):
            raise ValueError(f"must not contain {why}")
        return value
    raise ValueError(f"must be text, found {_shown(value)}; put it in quotes")


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, WrittenInt | WrittenFloat):
        return value.written[:40]
    return (
        repr(value)[:40]
        if isinstance(value, str)
        else f"a {'list' if isinstance(value, list) else 'mapping'}"
    )


def _name(value: str) -> str:
    try:
        return check_name("the name", value)
    except UserError as error:
        raise ValueError(str(error)) from error


DurationMs = Annotated[int, BeforeValidator(duration_ms)]
SizeBytes = Annotated[int, BeforeValidator(size_bytes)]
Text = Annotated[str, BeforeValidator(text)]
Name = Annotated[Text, AfterValidator(_name)]
