"""Dataclasses as JSON lines, and back: a small typed reader, so that a checker gets the types it names.

Unknown fields are passed over, missing ones take the default; a value of another type is an error.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class NotReadable(ValueError):
    """A line, or a record in etcd, is not what its reader takes it for."""


def dump(value: object) -> str:
    """One line of JSON, without its end, of a dataclass instance."""
    return json.dumps(_plain(value), separators=(",", ":"))


def append(path: Path, values: Iterable[object]) -> None:
    """Add lines to a file."""
    with path.open("a") as file:
        file.writelines(f"{dump(value)}\n" for value in values)


def read(kind: type[T], path: Path) -> tuple[T, ...]:
    """Every line of a file, oldest first; none if there is no file. A torn last line is left out."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return ()
    return tuple(_numbered(kind, path, raw))


def _numbered(kind: type[T], path: Path, raw: bytes) -> Iterator[T]:
    whole, end, torn = raw.rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if end else (), 1):
        try:
            yield parse(kind, line)
        except NotReadable as error:
            raise NotReadable(f"{path}:{number}: {error}") from error
    assert b"\n" not in torn


def parse(kind: type[T], text: str | bytes) -> T:
    """An instance of the dataclass `kind` from JSON. Raises NotReadable."""
    try:
        body: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotReadable(f"not JSON: {error}") from error
    value = _build(kind, body)
    assert isinstance(value, kind)
    return value


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    assert dataclasses.is_dataclass(value)
    return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


@cache
def _hints(kind: type) -> dict[str, object]:
    return get_type_hints(kind)


def _build(hint: object, body: object) -> object:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (arg for arg in args if arg is not type(None))
        return None if body is None else _build(inner, body)
    if origin is tuple:
        return tuple(_build(args[0], item) for item in _list(body))
    if origin is dict:
        return {key: _build(args[1], item) for key, item in _object(body).items()}
    assert isinstance(hint, type), f"no reader for {hint!r}"
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, _object(body))
    if hint is float and type(body) is int:
        return float(body)
    if type(body) is not hint:
        raise NotReadable(f"expected {hint.__name__}, found {type(body).__name__}")
    return body


def _dataclass(kind: type, body: dict[str, object]) -> object:
    values = {}
    for name, hint in _hints(kind).items():
        if name in body:
            try:
                values[name] = _build(hint, body[name])
            except NotReadable as error:
                raise NotReadable(f"{kind.__name__}.{name}: {error}") from error
    try:
        return kind(**values)
    except TypeError as error:
        raise NotReadable(f"{kind.__name__}: {error}") from error


def _list(body: object) -> list[object]:
    if not isinstance(body, list):
        raise NotReadable(f"expected a list, found {type(body).__name__}")
    return body


def _object(body: object) -> dict[str, object]:
    if not isinstance(body, dict):
        raise NotReadable(f"expected an object, found {type(body).__name__}")
    return body
