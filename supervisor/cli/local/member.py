"""Starts a daemon of the embedded cluster from the same files as the command line.

It is run by its path with `python -P`, so that another directory or package called `supervisor` is not
imported.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[3])
LEASH = "--leash"
"""The option of a keeper that ends when its standard input does."""
MAINS = {
    "keeper": "supervisor.cli.local.keeper",
    "supervisor": "supervisor.main",
    "agent": "agent.main",
}


def main() -> None:
    """`member.py [--separate OWN SHOWN PARENT] KIND [ARGUMENT]...`."""
    sys.path.insert(0, ROOT)
    if sys.argv[1] == "--separate":
        own, shown, parent = sys.argv[2:5]
        importlib.import_module("supervisor.cli.local.separate").separate(Path(own), Path(shown), int(parent))
        del sys.argv[1:5]
    kind = sys.argv.pop(1)
    sys.argv[0] = f"tfsup-{kind}"
    importlib.import_module(MAINS[kind]).main()


if __name__ == "__main__":
    main()
