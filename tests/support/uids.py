"""Numbers of users that no other process of the suite uses meanwhile."""

import os

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def own_uid(first: int) -> int:
    """`first` in the first process of a suite, another number in each of the others."""
    return first + 1000 * (_WORKER % 4)
