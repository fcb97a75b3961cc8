"""One row of the table of guarantees."""

from __future__ import annotations

from dataclasses import dataclass

MOVES = "tests/control/test_moves.py::"
SERVERS = "tests/control/test_servers.py::"
WORKERS = "tests/control/test_moving_workers.py::"
JOINING = "tests/agent/test_joining.py::"
NODES = "tests/control/test_nodes.py::"
HOLDING = "tests/control/test_holding.py::"
GENERATIONS = "tests/control/test_generations.py::"
LOST_NODES = "tests/control/test_lost_nodes.py::"
BASES = "tests/control/test_bases.py::"
DELETION = "tests/control/test_deletion.py::"
PARKING = "tests/control/test_parking.py::"
POWER = "tests/control/test_power.py::"
FENCED = "tests/control/test_fenced.py::"
INCIDENTS = "tests/control/test_incidents.py::"
RESIZING = "tests/control/test_resizing.py::"
LIVE_RESIZING = "tests/control/test_live_resizing.py::"
ENDS = "tests/control/test_ends.py::"
PAUSES = "tests/control/test_pauses.py::"
BRAKE = "tests/control/test_brake.py::"
LEADER = "tests/control/test_leader_rules.py::"
AGENT = "tests/agent/test_core_rules.py::"
MEMBER = "tests/agent/test_membership.py::"
AGENT_LOOP = "tests/agent/test_daemon_loop.py::"
SUPERVISOR = "tests/control/test_daemon.py::"
JOB_SERVICE = "tests/control/test_job_service.py::"
FILES = "tests/agent/test_files.py::"
PURE = "tests/checkpoints/test_pure_rules.py::"
COMMIT = "tests/checkpoints/test_commit.py::"
STAGE = "tests/checkpoints/test_stage.py::"
LAUNCHER = "tests/launcher/"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A promise, what keeps it, and how that is shown.

    Attributes:
        rule: its number in docs/design.md.
        promise: one line, as a reader of the documentation needs it.
        file: the file that keeps it, relative to the root of the tree.
        snippet: what keeps it there; occurs exactly once in the file.
        broken: what a plausible mistake would have in its place.
        test: the id of a test that fails then, and passes otherwise.
    """

    rule: int
    promise: str
    file: str
    snippet: str
    broken: str
    test: str
