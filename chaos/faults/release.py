"""The next release of the product: this tree with fields in its records that this one does not know."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from chaos.cluster.program import REPOSITORY

PACKAGES = ("supervisor", "agent", "recovery")
NUMBER = '"99.0.0"'
CHANGES = (
    ("agent/main.py", 'metadata.version("tf-supervisor")', NUMBER),
    (
        "supervisor/contract/observed.py",
        '    release: str = ""\n',
        '    release: str = ""\n    zone: str = "z1"\n',
    ),
    (
        "supervisor/contract/desired.py",
        "    save_grace_ms: int = 0\n",
        '    save_grace_ms: int = 0\n    priority: str = "usual"\n',
    ),
    (
        "agent/core/saved/record.py",
        '    member: str = ""\n',
        '    member: str = ""\n    colour: str = "blue"\n',
    ),
)
"""In records of agents and leader in etcd, and in the agent's own file: what an older release must bear."""


def next_release(directory: Path) -> Path:
    """The tree, made once; its packages are copies with CHANGES."""
    tree = Path(os.path.realpath(directory))
    if not tree.exists():
        fresh = tree.with_name(f"{tree.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / package, fresh / package, ignore=ignored)
        for name, old, new in CHANGES:
            text = (fresh / name).read_text()
            assert old in text, f"{name} has no {old!r} any more"
            (fresh / name).write_text(text.replace(old, new, 1))
        fresh.rename(tree)
    return tree
