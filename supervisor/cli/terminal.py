"""The terminal: whether there is one, and text that cannot steer it."""

from __future__ import annotations

import os
import sys

from supervisor.adapters.neutral import Neutraliser, neutralise, one_line

__all__ = ["Neutraliser", "colours", "neutralise", "on_terminal", "one_line"]


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def colours() -> bool:
    """Whether to use colours: on a terminal with colours, without NO_COLOR."""
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
