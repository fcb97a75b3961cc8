"""docs/job-file.md as data: its tables of keys, its other tables, its examples; and the keys there are."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from supervisor.adapters.files.jobfile_model import JobModel
from supervisor.adapters.files.quantities import duration_ms, size_bytes

PAGE = Path(__file__).resolve().parents[2] / "docs/job-file.md"
KEYS = ("key", "value", "default", "meaning")
"""The heading of a table of keys."""

Cells = tuple[str, ...]


@dataclass(frozen=True)
class Key:
    """A row of a table of keys. `default` is the YAML that stands for a key that is left out, or words."""

    name: str
    value: str
    default: str
    section: str

    @property
    def written(self) -> str:
        """The default as a job file has it; empty if it cannot be written."""
        found = re.fullmatch(r"`([^`]*)`", self.default)
        return found[1] if found else ""


@dataclass(frozen=True)
class Example:
    """A job file, or a part of one."""

    section: str
    text: str


@dataclass(frozen=True)
class Field:
    """A key of the schema: its type, and how its model declares it (None: an entry of a mapping or list)."""

    kind: object
    declared: FieldInfo | None

    @property
    def default(self) -> object:
        """The value where the key is left out; None where it has none."""
        if self.declared is None or self.declared.is_required():
            return None
        return self.declared.get_default(call_default_factory=True)

    @property
    def sort(self) -> str:
        """How the page names values of this type; empty where several wordings are right."""
        kinds = {*_parts(self.kind), *(self.declared.metadata if self.declared is not None else ())}
        functions = {each.func for each in kinds if isinstance(each, BeforeValidator)}
        choices = [each for each in kinds if isinstance(each, type) and issubclass(each, Enum)]
        literals = [get_args(each) for each in kinds if get_origin(each) is Literal]
        if choices or literals:
            words = [str(each.value) for each in choices[0]] if choices else literals[0]
            return ", ".join(f"`{word}`" for word in sorted(words))
        names = {duration_ms: "duration", size_bytes: "size"}
        found = [names[function] for function in functions if function in names]
        return found[0] if found else "true or false" if bool in kinds else ""


def tables() -> dict[str, list[tuple[Cells, list[Cells]]]]:
    """The tables of each section: their headings and their rows."""
    found: dict[str, list[tuple[Cells, list[Cells]]]] = {}
    for section, text in sections().items():
        blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
        lines = [[_cells(line) for line in block.splitlines()] for block in blocks]
        found[section] = [(head, rows) for head, _, *rows in lines]
    return found


def sections() -> dict[str, str]:
    """The text under each heading; that before the first one is the section ""."""
    first, *rest = re.split(r"^## (.+)\n", PAGE.read_text(), flags=re.MULTILINE)
    return {"": first} | dict(zip(rest[::2], rest[1::2], strict=True))


def table(section: str, first: str) -> list[Cells]:
    """The rows of the table of a section whose first column is so called."""
    (rows,) = (rows for head, rows in tables()[section] if head[0] == first)
    return rows


def key_rows() -> list[Key]:
    """All rows of all tables of keys."""
    return [
        Key(name.strip("`"), value, default, section)
        for section, found in tables().items()
        for head, rows in found
        if head == KEYS
        for name, value, default, _ in rows
    ]


def examples() -> list[Example]:
    """All blocks of YAML."""
    return [
        Example(section, text)
        for section, body in sections().items()
        for text in re.findall(r"^```yaml\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)
    ]


def codes(cell: str) -> list[str]:
    """The parts of a cell that are code."""
    return re.findall(r"`([^`]+)`", cell)


def schema() -> dict[str, Field]:
    """Every key that a job file may have, spelled as on the page."""
    return dict(_below(JobModel, "", None))


def plain(name: str) -> str:
    """The spelling of a key in `schema`: names that a user chooses are NAME there."""
    return re.sub(r"\b[A-Z]+\b", "NAME", name)


def _below(kind: object, at: str, declared: FieldInfo | None) -> Iterator[tuple[str, Field]]:
    origin, inside = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, each in kind.model_fields.items():
            yield from _below(each.annotation, f"{at}.{name}" if at else name, each)
    elif origin is Annotated:
        yield from _below(inside[0], at, declared)
    elif origin in (Union, types.UnionType) and any(map(_has_keys, inside)):
        for each in inside:
            if each is not types.NoneType:
                yield from _below(each, at, declared)
    elif origin is dict:
        yield from _below(inside[1], f"{at}.NAME", None)
    elif origin is list and _has_keys(inside[0]):
        yield from _below(inside[0], f"{at}[]", None)
    else:
        yield at, Field(kind, declared)


def _has_keys(kind: object) -> bool:
    return any(isinstance(each, type) and issubclass(each, BaseModel) for each in _parts(kind))


def _parts(kind: object) -> Iterator[object]:
    """A type, and all that it is made of."""
    yield kind
    if get_origin(kind) is not Literal:
        for each in (*get_args(kind), *getattr(kind, "__metadata__", ())):
            yield from _parts(each)


def _cells(line: str) -> Cells:
    return tuple(cell.strip() for cell in line.strip().strip("|").split(" | "))
