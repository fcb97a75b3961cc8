"""The versions of TensorFlow in which a worker can move inside its generation.

It then joins parameter servers, a chief and other workers that go on running. That takes changes to modules
that TensorFlow keeps to itself. 2.16, 2.20 and 2.21 were tried; the tests use the newest. A program whose
modules are not those that are known is refused (`agent/inside/child/joining.py`), or takes no addresses
(`peers.py` there).
"""

from __future__ import annotations

import re

_OLDEST, _NEWEST = (2, 16), (2, 21)
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.\d.*)?")


def joins_supported(version: str) -> bool:
    """Whether a worker can join a running cluster of this version (`Started.tensorflow`)."""
    found = _VERSION.fullmatch(version)
    return found is not None and _OLDEST <= (int(found[1]), int(found[2])) <= _NEWEST
