"""All attacks, by what they abuse."""

from __future__ import annotations

from tests.attacks.attack import Attack
from tests.attacks.corpus import (
    calls,
    checkpoints,
    environment,
    files,
    job_files,
    output,
    ports,
    processes,
    sockets,
)

KINDS: tuple[tuple[str, tuple[Attack, ...]], ...] = (
    ("Job files", job_files.ATTACKS),
    ("Output", output.ATTACKS),
    ("Files", files.ATTACKS),
    ("Checkpoints", checkpoints.ATTACKS),
    ("Processes", processes.ATTACKS),
    ("Sockets", sockets.ATTACKS),
    ("Ports", ports.ATTACKS),
    ("Environment", environment.ATTACKS),
    ("Requests", calls.ATTACKS),
)
ATTACKS = tuple(attack for _, found in KINDS for attack in found)
