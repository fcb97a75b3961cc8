"""structlog without rich, which it loads where it is installed, for tracebacks in colours.

No log of ours has such, and rich takes 6 MiB of each daemon.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

__all__ = ["structlog"]

if TYPE_CHECKING:
    import structlog
else:
    _absent = {} if "rich" in sys.modules else {"rich": None}
    sys.modules.update(_absent)
    structlog = importlib.import_module("structlog")
    for _name in _absent:
        del sys.modules[_name]
