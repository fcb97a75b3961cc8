"""In which order the processes of a suite run it: what takes long first, what shares a server in one of them.

With `--dist worksteal` each process begins with an equal number of neighbours in the list, and takes from the
end of another's share when it is done. So each share begins with modules that take long, and ends with many
short tests: nobody waits at the end for one that has just begun a long one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pytest

from tests.support.durations import SECONDS

_SERVERS = ("hdfs", "dockerd")
"""Fixtures of a whole process that take long to start: best in few of them."""
_LONG_S = 3.0


def arranged(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """The same tests, in shares of the sizes that xdist gives to so many processes, one after the other."""
    kin: dict[str, list[list[pytest.Item]]] = {}
    for path, group in groupby(items, key=_module):
        module = list(group)
        kin.setdefault(_server(module) or path, []).append(module)
    shares: list[list[pytest.Item]] = [[] for _ in range(processes)]
    loads = [0.0] * processes
    short: list[pytest.Item] = []
    for family in sorted(kin.values(), key=lambda modules: -sum(map(_seconds, modules))):
        seconds = sum(map(_seconds, family))
        tests = [item for module in sorted(family, key=_seconds, reverse=True) for item in module]
        if seconds < _LONG_S:
            short += tests
            continue
        least = loads.index(min(loads))
        loads[least] += seconds
        shares[least] += tests
    return _filled(shares, short)


def _filled(shares: list[list[pytest.Item]], short: list[pytest.Item]) -> list[pytest.Item]:
    """The shares, each with so many of the short tests that all are of one size."""
    left = len(short) + sum(map(len, shares))
    for number, share in enumerate(shares):
        size = left // (len(shares) - number)
        missing = max(0, size - len(share))
        share.extend(short[:missing])
        del short[:missing]
        left -= max(size, len(share))
    return [item for share in shares for item in share] + short


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _server(module: list[pytest.Item]) -> str:
    names = {name for item in module for name in getattr(item, "fixturenames", ())}
    return next((server for server in _SERVERS if server in names), "")


def _seconds(module: list[pytest.Item]) -> float:
    return SECONDS.get(_module(module[0]), 0.01 * len(module))
