"""The caller whose request the present task of the event loop serves."""

from __future__ import annotations

from contextvars import ContextVar

from supervisor.contract.access import Caller

CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Set while a request is served. None: the daemon acts on its own."""
