"""How far apart saves are to be. Pure.

A save pays while the steps that it keeps are worth more than the time that it takes (Young, Daly).
"""

from __future__ import annotations

import math

LEAST_MS = 5_000
MOST_MS = 3_600_000
"""The longest interval by failures alone. Saves that take long may be further apart."""
COMMITS_APART = 2
"""The shortest interval, in times of a commit."""


def interval_ms(save_ms: float, mtbf_ms: float, commit_ms: float, max_overhead: float) -> int:
    """The time from one save to the next that pays.

    It is sqrt(2 * save * mtbf), within its bounds, unless saves would take more of the time than
    `max_overhead` (a share above 0), or the store could not keep up.
    """
    young_ms = min(math.sqrt(2 * save_ms * mtbf_ms), MOST_MS)
    return math.ceil(max(LEAST_MS, young_ms, save_ms / max_overhead, COMMITS_APART * commit_ms))
