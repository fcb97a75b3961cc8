"""The table of guarantees, and docs/guarantees.md as made from it.

`python -m tests.guarantees.table` prints the document; `test_table.py` holds the two together.
"""

from __future__ import annotations

import sys

from tests.guarantees import (
    rows_agent,
    rows_checkpoints,
    rows_control,
    rows_docker,
    rows_generations,
    rows_gpus,
    rows_identity,
    rows_mount,
    rows_outputs,
    rows_promises,
    rows_record,
)
from tests.guarantees.guarantee import Guarantee

RULES = {
    1: "State",
    2: "Writes",
    3: "Losing a node",
    4: "Dead-man's switch",
    5: "Frozen is not dead",
    6: "Generations",
    7: "Commit",
    8: "Bad is not unreadable",
    9: "Collecting",
    10: "Unknown is not gone",
    11: "etcd gone altogether",
    12: "Identity",
    13: "Record",
}

NOT_COVERED: dict[int, str] = {
    4: "That a sign of life comes only from the loop that it vouches for holds by construction.",
    5: "Of agents of one machine that report the same GPU, two could have it for a moment, if one had to "
    "leave it before etcd knew that it had begun. Each should have GPUs of its own.",
}
"""The promises of a rule that have no row yet, and why."""

TABLE: tuple[Guarantee, ...] = tuple(
    sorted(
        (
            row
            for part in (
                rows_control,
                rows_generations,
                rows_record,
                rows_identity,
                rows_agent,
                rows_checkpoints,
                rows_mount,
                rows_outputs,
                rows_gpus,
                rows_docker,
                rows_promises,
            )
            for row in part.ROWS
        ),
        key=lambda row: row.rule,
    )
)

INTRODUCTION = """\
# Guarantees

The safety rules of [design.md](design.md), each with what keeps it and a test that fails when it is disabled.

This page is made from `tests/guarantees/table.py` (`python -m tests.guarantees.table >docs/guarantees.md`),
which also holds, for each row, the code that keeps the promise and a plausible mistake in its place.
`make test` checks that page, table and code belong together. `make test-all` makes each mistake in a copy
of the tree, runs the test, and insists that it fails; without the mistake all of them pass.

A row says that its promise has a test that bites. It does not say that the promise holds under every
combination of failures: that is what the simulator (`python -m chaos.sim`) and the chaos tests look for.
"""


def render() -> str:
    """The whole of docs/guarantees.md."""
    lines = [
        INTRODUCTION,
        "| rule | promise | kept by | test that fails when it is disabled |",
        "|---|---|---|---|",
    ]
    for row in TABLE:
        where, _, test = row.test.partition("::")
        name = f"{row.rule} {RULES[row.rule]}"
        lines.append(f"| {name} | {row.promise} | `{row.file}` | `{where}` `{test}` |")
    lines += ["", "## Not covered yet", ""]
    lines += [f"- Rule {rule} ({RULES[rule]}): {why}" for rule, why in sorted(NOT_COVERED.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
