"""Durations as people write them."""

from __future__ import annotations

import argparse
import re

_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    """`90s`, `30m`, `1.5h`. Raises ValueError, whose text is for people."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration: write 90s, 30m or 1h")
    return float(match[1]) * _UNITS[match[2]]


def argument(text: str) -> float:
    """The same as a type of argparse, which tells of a ValueError in words of its own."""
    try:
        return seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def shown(for_s: float) -> str:
    """The duration for people: `45 s`, `12 min`, `1.5 h`."""
    if for_s < 100:
        return f"{for_s:.0f} s"
    return f"{for_s / 60:.0f} min" if for_s < 100 * 60 else f"{for_s / 3600:.1f} h"
