"""One versioned JSON form for every value that crosses a process boundary.

A record is `{"v": MAJOR, "record": CLASS, ...fields}`. Readers ignore fields that they do not know and take
the default for fields that are missing, so that two releases can run side by side; a higher MAJOR is refused.
A number or a text that is out of bounds (`contract.bounds`) is refused too.

A field with the metadata NEEDED must not be ignored. A record in which it is not as by default has the name
`CLASS+FIELD`, which no release reads that does not know the field.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from supervisor.contract.bounds import MAX_INT, number_objection, text_objection, whole_text
from supervisor.contract.errors import IncompatibleRecord, NewerRelease

VERSION = 1
NEEDED = MappingProxyType({"needed": True})
"""The metadata of a field that no reader may ignore."""

_SCALARS = frozenset({int, str, float, bool})
_JSON = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False)

T = TypeVar("T")
Decoder = Callable[[object], object]


def encode(value: object, *, brief: bool = False) -> bytes:
    """Serialise a dataclass instance; equal values give equal bytes.

    Half characters, as in file names that are not UTF-8, become escapes. `brief` leaves out fields with the
    value that a reader gives to a missing one: for what is not kept, as a later release may have other
    defaults. Raises ValueError for a number that readers refuse.
    """
    fields = _brief_fields(value) if brief else _plain_fields(value)
    envelope = {"v": VERSION, "record": "+".join((type(value).__name__, *sorted(_needs(value))))}
    assert not envelope.keys() & fields.keys(), f"{envelope['record']} has a field of the envelope's name"
    body = envelope | fields
    return _JSON.encode(body).encode()


def decode(kind: type[T], raw: bytes) -> T:
    """Read a record of class `kind`; raises IncompatibleRecord for anything else, NewerRelease among them."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise IncompatibleRecord(f"not a {kind.__name__} record: {error}") from error
    if not isinstance(body, dict):
        raise IncompatibleRecord(f"not a {kind.__name__} record: JSON {type(body).__name__}")
    version, name = body.get("v"), body.get("record")
    if type(version) is not int:
        raise IncompatibleRecord(f"not a {kind.__name__} record: version {str(version)[:80]}")
    if version > VERSION:
        raise NewerRelease(
            f"{str(name)[:80]} record has version {str(version)[:80]}; this release reads up to {VERSION}: "
            "upgrade this daemon"
        )
    named, *needs = str(name).split("+")
    if named != kind.__name__:
        raise IncompatibleRecord(f"expected a {kind.__name__} record, found {str(name)[:80]!r}")
    hint: Any = kind
    if unknown := sorted(set(needs) - _needed_fields(hint)):
        raise IncompatibleRecord(
            f"{named} record uses {unknown[0][:80]!r}, which this release does not know: upgrade this daemon"
        )
    return from_plain(kind, body)


def to_plain(value: object) -> object:
    """Turn dataclasses, enums, tuples and scalars into values that `json.dumps` accepts."""
    if type(value) is str:  # as most are
        return value if value.isascii() else whole_text(value)
    if type(value) is int and -MAX_INT <= value <= MAX_INT:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return whole_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if why := number_objection(value):
            raise ValueError(why)
        return value
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {whole_text(str(key)): to_plain(item) for key, item in value.items()}
    return _plain_fields(value)


def from_plain(kind: type[T], body: object) -> T:
    """Build `kind` from parsed JSON; raises IncompatibleRecord with the path of the wrong field."""
    hint: Any = kind
    result = _decoder(hint)(body)
    assert isinstance(result, kind)
    return result


def _plain_fields(value: object) -> dict[str, object]:
    assert dataclasses.is_dataclass(value), f"cannot encode {value!r}"
    assert not isinstance(value, type), f"cannot encode the class {value!r}"
    return {name: to_plain(getattr(value, name)) for name in _names(type(value))}


def _brief(value: object) -> object:
    if type(value) in _SCALARS:
        return to_plain(value)
    if isinstance(value, tuple):
        return [_brief(item) for item in value]
    return _brief_fields(value) if dataclasses.is_dataclass(value) else to_plain(value)


def _brief_fields(value: object) -> dict[str, object]:
    kind: Any = type(value)
    found = ((name, getattr(value, name), default) for name, default in _defaults(kind))
    return {name: _brief(given) for name, given, default in found if given != default}


@cache
def _defaults(kind: Any) -> tuple[tuple[str, object], ...]:
    """The fields of a class, each with its default. No value equals that of a field without one."""
    return tuple((field.name, field.default) for field in dataclasses.fields(kind))


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _needs(value: object) -> set[str]:
    """The NEEDED fields that are not as by default, anywhere in a value."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return set[str]().union(*map(_needs, value))
    kind: Any = type(value)
    found = set[str]()
    for name, needed in _marked_fields(kind):
        inner = getattr(value, name)
        found |= {name} if needed and inner != _default(kind, name) else _needs(inner)
    return found


@cache
def _default(kind: Any, name: str) -> object:
    (given,) = (each for each in dataclasses.fields(kind) if each.name == name)
    return given.default if given.default_factory is dataclasses.MISSING else given.default_factory()


@cache
def _marked_fields(kind: Any) -> tuple[tuple[str, bool], ...]:
    """The fields of a type that are NEEDED, and those in which there may be such."""
    if not dataclasses.is_dataclass(kind):
        return ()
    hints = get_type_hints(kind)
    fields = [(each.name, "needed" in each.metadata) for each in dataclasses.fields(kind)]
    return tuple((name, needed) for name, needed in fields if needed or _needed_fields(hints[name]))


@cache
def _needed_fields(hint: Any) -> frozenset[str]:
    """The NEEDED fields of a type, and of all types in it."""
    own = frozenset(name for name, needed in _marked_fields(hint) if needed)
    if not dataclasses.is_dataclass(hint):
        return own.union(*map(_needed_fields, get_args(hint)))
    hints = get_type_hints(hint)
    return own.union(*(_needed_fields(hints[each.name]) for each in dataclasses.fields(hint)))


@cache
def _decoder(hint: Any) -> Decoder:
    if dataclasses.is_dataclass(hint):
        return _dataclass_decoder(hint)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _optional_decoder(hint)
    if origin is tuple:
        return _tuple_decoder(hint)
    if origin is dict:
        inner = _decoder(get_args(hint)[1])
        return lambda body: {_whole(key): inner(item) for key, item in _require(body, dict).items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda body: _enum(hint, body)
    return _scalar_decoder(getattr(hint, "__supertype__", hint))


def _dataclass_decoder(hint: Any) -> Decoder:
    hints = get_type_hints(hint)
    fields = {field.name: _decoder(hints[field.name]) for field in dataclasses.fields(hint) if field.init}

    def read(body: object) -> object:
        given = _require(body, dict)
        values = {}
        for name, inner in fields.items():
            if name in given:
                try:
                    values[name] = inner(given[name])
                except IncompatibleRecord as error:
                    raise IncompatibleRecord(f"{hint.__name__}.{name}: {error}") from error
        try:
            return hint(**values)
        except TypeError as error:
            raise IncompatibleRecord(f"{hint.__name__}: {error}") from error

    return read


def _optional_decoder(hint: Any) -> Decoder:
    (inner_hint,) = [arg for arg in get_args(hint) if arg is not type(None)]
    inner = _decoder(inner_hint)
    return lambda body: None if body is None else inner(body)


def _tuple_decoder(hint: Any) -> Decoder:
    args = get_args(hint)
    if len(args) == 2 and args[1] is Ellipsis:
        inner = _decoder(args[0])
        return lambda body: tuple(inner(item) for item in _require(body, list))
    inners = tuple(_decoder(arg) for arg in args)

    def read(body: object) -> object:
        items = _require(body, list)
        if len(items) != len(inners):
            raise IncompatibleRecord(f"expected {len(inners)} items, found {len(items)}")
        return tuple(inner(item) for inner, item in zip(inners, items, strict=True))

    return read


def _scalar_decoder(hint: type) -> Decoder:
    def read(body: object) -> object:
        if type(body) is not hint and not (hint is float and type(body) is int):
            raise IncompatibleRecord(f"expected {hint.__name__}, found {type(body).__name__}")
        if isinstance(body, str):
            return _whole(body)
        if isinstance(body, int | float) and (why := number_objection(body)):
            raise IncompatibleRecord(why)
        return float(body) if hint is float and isinstance(body, int) else body

    # Most are whole numbers or plain texts, and are taken as they are.
    if hint is int:
        return lambda body: body if type(body) is int and -MAX_INT <= body <= MAX_INT else read(body)
    if hint is str:
        return lambda body: body if type(body) is str and body.isascii() else read(body)
    return read


def _whole(text: str) -> str:
    if why := text_objection(text):
        raise IncompatibleRecord(why)
    return text


def _enum(hint: type[Enum], body: object) -> Enum:
    try:
        return hint(body)
    except (ValueError, TypeError) as error:
        raise IncompatibleRecord(f"unknown {hint.__name__} {repr(body)[:80]}: upgrade this daemon") from error


def _require(body: object, kind: type[T]) -> T:
    if not isinstance(body, kind):
        raise IncompatibleRecord(f"expected {kind.__name__}, found {type(body).__name__}")
    return body
