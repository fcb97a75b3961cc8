"""Which TensorFlow wrote a checkpoint, as the `.meta` beside it says. Pure."""

from __future__ import annotations

from recovery.checkpoints.protobuf import Message, read_varint
from supervisor.contract.errors import BadCheckpoint

HEAD_BYTES = 1 << 23
"""The version stands behind the list of operators, which is far shorter."""

MAX_VERSION = 64
_INFO_TAG = 0x0A
_VERSION = 5


def tf_version(head: bytes) -> str:
    """The release in a MetaGraphDef that begins with `head` (its first `HEAD_BYTES`); empty when it has none.

    The file is not needed to restore: one that cannot be read says nothing of its checkpoint.
    """
    try:
        tag, at = read_varint(head, 0, len(head))
        size, at = read_varint(head, at, len(head))
        if tag != _INFO_TAG or size > len(head) - at:
            return ""
        text = Message(head[at : at + size]).text(_VERSION)
    except BadCheckpoint:
        return ""
    version = text.decode(errors="replace")
    return version if len(version) <= MAX_VERSION and version.isprintable() else ""
