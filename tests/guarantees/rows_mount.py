"""What holds for jobs whose directory is a mount: rules 5, 7, 8, 9 and 12."""

from __future__ import annotations

from tests.guarantees.guarantee import Guarantee

TAKE = "tests/mount/test_take.py::"
LAYOUT = "tests/mount/test_layout.py::"
CRASH = "tests/mount/test_crash_points.py::"

ROWS = (
    Guarantee(
        5,
        "A mounted generation writes to a directory that no other generation sees.",
        "recovery/mount/layout.py",
        'return f"{LIVE}/g{generation:05d}.{plan_id}"',
        'return f"{LIVE}/g{0:05d}.{plan_id}"',
        TAKE + "test_generations_do_not_see_each_other",
    ),
    Guarantee(
        7,
        "A checkpoint that is taken from a mounted directory is found there at every moment.",
        "recovery/mount/take.py",
        "            await live.link(name, place)\n            try:\n",
        "            try:\n",
        CRASH + "test_at_every_effect[Crash]",
    ),
    Guarantee(
        8,
        "The base of a mounted generation is verified where it lies before a program starts from it.",
        "recovery/mount/base.py",
        "        if hex_crc32c(crc) != file.crc32c:\n",
        "        if not crc:\n",
        TAKE + "test_a_base_that_was_damaged_in_the_store_is_bad",
    ),
    Guarantee(
        9,
        "The directory that the generation in force writes to is not collected.",
        "recovery/collect.py",
        "if generation <= switch.generation and path != in_force",
        "if generation <= switch.generation",
        LAYOUT + "test_live_directories_go_when_another_generation_is_in_force",
    ),
    Guarantee(
        12,
        "Generations start above any that only wrote to a mounted directory.",
        "recovery/collect.py",
        "*(live_generation(name) or 0 for name in self.live)",
        "*(0 for name in self.live)",
        LAYOUT + "test_a_generation_that_only_wrote_is_never_used_again",
    ),
)
