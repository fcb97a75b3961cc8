"""Hypothesis strategies for any record of the contract, from its type hints, optional fields included."""

from __future__ import annotations

import dataclasses
import types
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

T = TypeVar("T")

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", fullmatch=True)
"""Names that `ids.check_name` allows."""

_SCALARS: dict[type, st.SearchStrategy[object]] = {
    str: st.text(max_size=20),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
}


def records(kind: type[T]) -> st.SearchStrategy[T]:
    """Any value of a dataclass of the contract."""
    strategy: st.SearchStrategy[T] = _strategy(kind)
    return strategy


def _strategy(hint: object) -> st.SearchStrategy[Any]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(
            hint, **{field.name: _strategy(hints[field.name]) for field in dataclasses.fields(hint)}
        )
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of(*(st.none() if arg is type(None) else _strategy(arg) for arg in args))
    if origin is tuple:
        if args[-1] is Ellipsis:
            return st.lists(_strategy(args[0]), max_size=3).map(tuple)
        return st.tuples(*(_strategy(arg) for arg in args))
    if origin is dict:
        return st.dictionaries(_strategy(args[0]), _strategy(args[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    assert isinstance(hint, type)
    return _SCALARS[hint]
