"""The files of a SavedModel, and whether its `saved_model.pb` is one. Pure, and without TensorFlow.

    saved_model.pb    SavedModel: 1 schema version, 2 meta graphs
    variables/        a tensor bundle with the prefix `variables`
    assets/ ...       any other files

A MetaGraphDef has 1 its info, 2 its graph, 5 its signatures by name. Graphs may be large, and programs may
write anything: of a file only the beginnings of its fields are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from recovery.formats.meta_graph import SAVED_MODEL
from recovery.formats.protobuf import read_varint
from recovery.formats.tf_files import complete_set
from supervisor.contract.errors import BadCheckpoint

VARIABLES = "variables/variables"
MAX_FIELDS = 1 << 16
Read = Callable[[int, int], bytes]
"""Bytes of a file from an offset: so many, or fewer at its end."""

_GRAPHS, _INFO, _GRAPH = 2, 1, 2
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
_HEAD_BYTES = 20
"""The longest tag and length."""


def check_names(names: Collection[str]) -> None:
    """Raise BadCheckpoint unless these are the names of all files that a SavedModel needs."""
    if SAVED_MODEL not in names:
        raise BadCheckpoint(f"{SAVED_MODEL} is missing")
    if complete_set(VARIABLES, names) is None:
        raise BadCheckpoint(f"{VARIABLES}.index or one of its data files is missing")


def check_graph(read: Read, size: int) -> None:
    """Raise BadCheckpoint unless a file of this size is a `saved_model.pb`, whole and with a graph in it."""
    graphs = [(start, end) for number, start, end in _fields(read, 0, size) if number == _GRAPHS]
    if not graphs:
        raise BadCheckpoint("it has no graph")
    for start, end in graphs:
        if not {_INFO, _GRAPH} <= {number for number, _, _ in _fields(read, start, end)}:
            raise BadCheckpoint("its graph is empty")


def _fields(read: Read, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message from `at` to `end`: number, and where its content begins and ends."""
    for _ in range(MAX_FIELDS):
        if at == end:
            return
        head = read(at, min(_HEAD_BYTES, end - at))
        tag, used = read_varint(head, 0, len(head))
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            length, after = 0, read_varint(head, used, len(head))[1]
        elif kind == _BYTES:
            length, after = read_varint(head, used, len(head))
        elif kind in _FIXED:
            length, after = _FIXED[kind], used
        else:
            raise BadCheckpoint(f"field {number} has the unknown kind {kind}")
        start, at = at + after, at + after + length
        if at > end or not number:
            raise BadCheckpoint(f"field {number} is cut short")
        yield number, start, at
    raise BadCheckpoint(f"it has more than {MAX_FIELDS} fields")
