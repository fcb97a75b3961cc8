"""The step of a save, from its name and its tensors (docs/decisions/0034). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from recovery.formats.bundle import Bundle, Piece
from recovery.formats.tf_files import MAX_STEP

MAX_COUNTERS = 64
_WIDTHS = {3: 4, 9: 8, 22: 4, 23: 8}
"""TensorFlow's number of an integer type -> bytes."""

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_ITERATIONS = frozenset({"iterations", "_iterations", "iter"})
_GLOBAL_STEP, _STEP, _SAVES = "global_step", "step", "save_counter"


def counters(bundle: Bundle) -> tuple[Piece, ...]:
    """The tensors that may hold a step: single integers with the names that TensorFlow gives to counters."""
    found = (
        piece
        for piece in bundle.pieces
        if piece.shape == () and _WIDTHS.get(piece.dtype) == piece.size and _kind(piece.name)
    )
    return tuple(sorted(found, key=lambda piece: (len(piece.name), piece.name))[:MAX_COUNTERS])


def step_of_save(number: int | None, values: Mapping[str, int]) -> int | None:
    """The step of a save; None if neither name nor tensors give one.

    Args:
        number: the number in its name: a step, an epoch or a count of saves.
        values: the values of its `counters`. A value above MAX_STEP is no step.

    A variable `global_step` is the step. A variable `step` of the program, or else the iterations of the
    optimizer that made fewest, are compared with the number in the name: epochs and saves are fewer than
    steps, so the larger one is the step. The count of saves is used where there is nothing else.
    """
    by_kind: dict[str, list[int]] = {}
    for name in sorted(values, key=lambda each: (len(each), each)):
        if 0 <= values[name] <= MAX_STEP:
            by_kind.setdefault(_kind(name), []).append(values[name])
    if by_kind.get(_GLOBAL_STEP):
        return by_kind[_GLOBAL_STEP][0]
    made = [value for value in by_kind.get("iterations", ()) if value]
    counted = by_kind.get(_STEP) or ([min(made)] if made else [])
    in_name = [number] if number is not None and number <= MAX_STEP else []
    known = [*counted[:1], *in_name] or by_kind.get(_SAVES, [])
    return max(known, default=None)


def _kind(name: str) -> str:
    """The kind of counter that a tensor of this name is; empty if it is none."""
    whole = name.removesuffix(_VALUE)
    last = whole.rpartition("/")[2]
    if last == _GLOBAL_STEP:
        return _GLOBAL_STEP
    if last in _ITERATIONS:
        return "iterations"
    # Deeper down these may be anything.
    return whole if whole in {_STEP, _SAVES} else ""
