"""The training programs under attack, and the job files that run them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
KEEP = 4
"""Checkpoints of a job."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that tells `$STEP_LOG` what it does and takes faults of its own from `$CHAOS_CONTROL`.

    Attributes:
        first_steps_s: so long at most from `submit` to the first step of every trainer.
        patience: how much longer than the light program it takes to converge.
        act_after: without a step for so long, a task is restarted.
        evaluates: it has an evaluator.
        families: of the faults that it can have; empty: all.
        without: faults of these families that it cannot have.
    """

    name: str
    text: str
    command: tuple[str, ...]
    preload: tuple[str, ...]
    first_steps_s: float
    patience: float = 1.0
    act_after: str = "6s"
    evaluates: bool = True
    env: dict[str, str] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


STEPS = Program(
    "steps",
    "plain Python in the roles of TensorFlow's between-graph replicas; a run takes seconds",
    (str(REPOSITORY / "chaos/programs/steps.py"),),
    ("google_crc32c",),
    30.0,
)
DIGITS = Program(
    "digits",
    "examples/digits_async: real TensorFlow",
    (str(REPOSITORY / "chaos/programs/digits.py"), "--steps", "1000000", "--save-steps", "100"),
    ("tensorflow.compat.v1", "sklearn.datasets", "sklearn.model_selection"),
    240.0,
    4.0,
    "60s",
    False,
    {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"},
    ("task", "agent", "supervisor", "node", "etcd", "store"),
    # It has no evaluator, its parameter server takes no orders, it is slow to be called hung, a first step
    # comes before it looks for orders, and it restores what it finds.
    (
        *("kill-evaluator", "exit-early", "stop-worker", "stop-ps", "stop-chief", "hang-worker"),
        *("crash-loop", "crash-for-good", "node-bad", "unrestorable"),
    ),
)
FILES = str(REPOSITORY / "chaos/programs/files.py")
"""A program without TensorFlow and without a step log."""

PROGRAMS = {each.name: each for each in (STEPS, DIGITS)}


def job_file(program: Program, name: str, env: Mapping[str, str], gpus: int = 0) -> dict[str, object]:
    """The job file of a program, as a document; `env` is added to its environment. Workers get `gpus`."""
    evaluator = {"evaluator": {"count": 1}} if program.evaluates else {}
    return {
        "name": name,
        "command": [sys.executable, *program.command],
        "strategy": "async",
        "roles": {
            "chief": {"count": 1},
            "ps": {"count": 1},
            "worker": {"count": 2, "resources": {"gpus": gpus}},
            **evaluator,
        },
        "checkpoint": {"keep": KEEP},
        "preload": list(program.preload),
        # Shorter than users would have them, so that a run that waits for a hang takes seconds.
        "progress": {"suspect_after": "2s", "act_after": program.act_after},
        # TensorFlow's hooks write event files beside the checkpoints, which no store gets. A run leaves none.
        "limits": {"keep_work": "0s"},
        "env": {"PYTHONPATH": str(REPOSITORY), **program.env, **env},
    }


def in_order(job: Mapping[str, object]) -> dict[str, object]:
    """The same job, whose programs start when its parameter server listens."""
    roles = job["roles"]
    assert isinstance(roles, dict)
    later = {name: {**roles[name], "after": ["ps"]} for name in ("chief", "worker")}
    return {**job, "roles": {**roles, **later}}
