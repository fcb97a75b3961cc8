"""The launcher's memory in pages of 2 MiB, before it is forked.

A fork copies an entry of the page table for each written page, some 55,000 for an interpreter with
TensorFlow, and the end of the child frees each of them.
"""

from __future__ import annotations

import ctypes
import re

_HUGE = 2 << 20
_MADV_COLLAPSE = 25
_PRIVATE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0 ")
_MOSTLY = 0.75


def merge() -> int:
    """Merge resident memory into large pages where possible; returns the bytes of addresses.

    A page is filled up with zeroes, so only mappings that are mostly in memory are merged. It is a hint: a
    kernel before 6.1, or one without free pages of that size, changes nothing.
    """
    libc, merged = ctypes.CDLL(None), 0
    try:
        mappings = _resident()
    except OSError:
        return 0  # a kernel that does not tell
    for low, high in mappings:
        begin, end = -(-low // _HUGE) * _HUGE, high // _HUGE * _HUGE
        if (
            begin < end
            and libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_COLLAPSE) == 0
        ):
            merged += end - begin
    return merged


def _resident() -> list[tuple[int, int]]:
    """The private anonymous mappings that are mostly in memory."""
    found: list[tuple[int, int]] = []
    low = high = 0
    with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if line.startswith("Rss:"):
                if int(line.split()[1]) * 1024 >= _MOSTLY * (high - low) > 0:
                    found.append((low, high))
            elif not line[0].isupper():
                match = _PRIVATE.match(line)
                low, high = (int(match[1], 16), int(match[2], 16)) if match else (0, 0)
    return found
