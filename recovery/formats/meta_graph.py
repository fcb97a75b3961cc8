"""The version of the TensorFlow that wrote a checkpoint, read from its `.meta` or `saved_model.pb`. Pure."""

from __future__ import annotations

from recovery.formats.protobuf import Message, read_varint
from supervisor.contract.errors import BadCheckpoint

HEAD_BYTES = 1 << 23
"""Bytes to read from the head of the file. The version follows the list of operators, which is far
shorter."""

MAX_VERSION = 64
SAVED_MODEL = "saved_model.pb"
_SCHEMA_TAG, _GRAPHS_TAG, _INFO_TAG = 0x08, 0x12, 0x0A
_VERSION = 5


def tf_version(name: str, head: bytes) -> str:
    """The release in the file `name`, whose first `HEAD_BYTES` are `head`; empty if there is none.

    A restore does not need the file, so an unreadable one does not make its checkpoint bad.
    """
    try:
        at = _first_graph(head) if name.endswith(SAVED_MODEL) else 0
        tag, at = read_varint(head, at, len(head))
        size, at = read_varint(head, at, len(head))
        if tag != _INFO_TAG or size > len(head) - at:
            return ""
        text = Message(head[at : at + size]).text(_VERSION)
    except BadCheckpoint:
        return ""
    version = text.decode(errors="replace")
    return version if len(version) <= MAX_VERSION and version.isprintable() else ""


def _first_graph(head: bytes) -> int:
    """The offset of the first MetaGraphDef of a SavedModel, after the version of the schema."""
    tag, at = read_varint(head, 0, len(head))
    if tag == _SCHEMA_TAG:
        _, at = read_varint(head, at, len(head))
        tag, at = read_varint(head, at, len(head))
    if tag != _GRAPHS_TAG:
        raise BadCheckpoint("it is no SavedModel")
    return read_varint(head, at, len(head))[1]
