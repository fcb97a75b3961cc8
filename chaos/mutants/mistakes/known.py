"""Mistakes that the table of guarantees has already, by the promise that they break."""

from __future__ import annotations

from chaos.mutants.edit import Edit
from tests.guarantees.table import TABLE

_BY_PROMISE = {row.promise: row for row in TABLE}


def known(promise: str) -> Edit:
    """The mistake of the guarantee with this promise; both stay in step with the code by one text."""
    row = _BY_PROMISE[promise]
    return Edit(row.file, row.snippet, row.broken)
