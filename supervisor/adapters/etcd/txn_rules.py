"""The bounds of a transaction in etcd, checked by both adapters before it is sent."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.contract.boundaries import (
    Absent,
    Compare,
    CreatedAt,
    Delete,
    DeletePrefix,
    ModifiedAt,
    Op,
    Put,
)

MAX_OPS = 128
"""etcd's default --max-txn-ops, for the compares and for each branch."""

MAX_REQUEST_BYTES = 1_572_864
"""etcd's default --max-request-bytes."""


def check_txn(compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op]) -> None:
    """Assert the bounds that each caller must keep: the size, and one write per key and branch."""
    for what, items in (("compares", compares), ("then", then), ("otherwise", otherwise)):
        assert len(items) <= MAX_OPS, f"{len(items)} operations in {what}; etcd takes {MAX_OPS} at most"
    for compare in compares:
        match compare:
            case CreatedAt(_, revision) | ModifiedAt(_, revision):
                assert revision > 0, f"{compare!r} would mean Absent to etcd; say so"
            case Absent():
                pass
    for branch in (then, otherwise):
        _check_branch(branch)


def _check_branch(branch: Sequence[Op]) -> None:
    written: set[str] = set()
    for op in branch:
        if isinstance(op, Put):
            assert op.key not in written, f"{op.key} is put twice in one transaction"
            written.add(op.key)
    for op in branch:
        if isinstance(op, Delete):
            assert op.key not in written, f"{op.key} is both put and deleted in one transaction"
        elif isinstance(op, DeletePrefix):
            clash = [key for key in written if key.startswith(op.prefix)]
            assert not clash, f"{clash} put and deleted by prefix {op.prefix} in one transaction"
