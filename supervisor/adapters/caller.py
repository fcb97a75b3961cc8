"""The caller on whose request this task of the event loop works."""

from __future__ import annotations

from contextvars import ContextVar

from supervisor.contract.access import Caller

CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Set where a request has been let in, for as long as it is served. None: the daemon acts on its own."""
