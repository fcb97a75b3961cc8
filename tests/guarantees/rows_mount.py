"""Guarantees for jobs whose directory is a mount: rules 5, 7, 8, 9, 12 and 13."""

from __future__ import annotations

from tests.guarantees.guarantee import LAUNCHER, Guarantee

TAKE = "tests/mount/test_take.py::"
MODES = "tests/mount/test_modes.py::"
LAYOUT = "tests/mount/test_layout.py::"
CRASH = "tests/mount/test_crash_points.py::"
DATA = "tests/data/test_mounts.py::"
SWEEP = "tests/control/test_sweep.py::"

ROWS = (
    Guarantee(
        5,
        "A mount is the tasks' user's alone: no other user of the node reads or writes there.",
        "recovery/mount/kernel.py",
        '    extra["default_permissions"] = True\n',
        "",
        "tests/mount/test_files.py::test_a_mount_is_the_tasks_users_alone[local]",
    ),
    Guarantee(
        5,
        "No task can change the data that its job reads.",
        "recovery/mount/kernel.py",
        '        extra["ro"] = True\n',
        "        pass\n",
        DATA + "test_tasks_read_a_directory_and_cannot_change_it",
    ),
    Guarantee(
        5,
        "Jobs whose tasks have different users share no mount of data.",
        "agent/data/mounts.py",
        'f"{uri} {user}"',
        'f"{uri}"',
        DATA + "test_jobs_of_one_user_share_a_mount_and_others_do_not",
    ),
    Guarantee(
        5,
        "A mounted generation writes to a directory that no other generation sees.",
        "recovery/mount/layout.py",
        'return f"{LIVE}/g{generation:05d}.{plan_id}"',
        'return f"{LIVE}/g{0:05d}.{plan_id}"',
        TAKE + "test_generations_do_not_see_each_other",
    ),
    Guarantee(
        3,
        "A killed task does not live on in a call that waits for HDFS.",
        "recovery/mount/filesystem.py",
        "        if in_vain():\n",
        "        if in_vain() and not in_vain():\n",
        "tests/mount/test_faults.py::test_a_call_of_whom_nobody_waits_for_is_given_up",
    ),
    Guarantee(
        7,
        "A checkpoint that is taken from a mounted directory is found there at every moment.",
        "recovery/mount/staging.py",
        "        await self._live.link(name, place)\n        try:\n",
        "        try:\n",
        CRASH + "test_at_every_effect[Crash]",
    ),
    Guarantee(
        7,
        "A mounted save of any name, in any directory, is committed and shown again.",
        "recovery/mount/sight.py",
        "                deeper.append(path)\n",
        "                pass\n",
        MODES + "test_saves_of_any_name_in_any_directory_come_back_as_they_were[mounted]",
    ),
    Guarantee(
        7,
        "A mounted save is read back where it was moved to, whatever the program writes under its name.",
        "recovery/mount/take.py",
        'below = PLACES + "/" + place.name if self._shows_places() else ""',
        'below = ""',
        TAKE + "test_a_save_that_is_written_over_while_it_is_read_back_is_committed_as_it_was",
    ),
    Guarantee(
        7,
        "What a mounted program has not saved anew is in each later checkpoint.",
        "recovery/mount/take.py",
        "if await staging.carry(old.files, old.place, begun):",
        "if not await staging.carry(old.files, old.place, begun):",
        MODES + "test_families_are_told_apart_and_kept_together[mounted]",
    ),
    Guarantee(
        7,
        "A copy that is not what was committed gets into no later checkpoint.",
        "recovery/mount/staging.py",
        "if await self._copy(old, file.name, place) != (file.size, file.crc32c):",
        "if await self._copy(old, file.name, place) is None:",
        TAKE + "test_a_carried_save_that_is_damaged_where_it_lies_is_left_out_and_told",
    ),
    Guarantee(
        7,
        "A mount shows nothing of its store but what its generation has, and checkpoints, to be read alone.",
        "recovery/mount/layout.py",
        "own = place is not None and place.ref is not None and ",
        "own = place is not None or ",
        "tests/mount/test_files.py::test_what_was_taken_is_seen_in_its_place_and_cannot_be_changed_there",
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
        8,
        "No program starts before its mounted directory shows that it is there.",
        "agent/inside/child/waiting.py",
        "    while path:\n",
        "    while path and wait_ms < 0:\n",
        LAUNCHER + "test_waiting.py::test_a_program_runs_when_the_sign_of_its_directory_is_seen[True]",
    ),
    Guarantee(
        8,
        "A mounted run that began from scratch although it had a base is ended, its commits are set aside.",
        "supervisor/control/decide/facts/missed_base.py",
        "not 0 <= beat.first_step < base.step",
        "not 0 <= beat.first_step < 0",
        "tests/control/test_missed_base.py::"
        "test_a_run_that_began_before_its_base_is_restarted_once_and_its_commits_are_set_aside",
    ),
    Guarantee(
        9,
        "A mounted save that is not committed yet is not collected: there is no other copy.",
        "supervisor/control/loop/sweep.py",
        "if each.over or (not each.linked and stale(each))",
        "if each.over or stale(each)",
        SWEEP + "test_the_only_copy_of_a_mounted_save_stays",
    ),
    Guarantee(
        9,
        "The directory that the generation in force writes to is not collected.",
        "recovery/retention/collect.py",
        "if generation <= switch.generation and path != in_force",
        "if generation <= switch.generation",
        LAYOUT + "test_live_directories_go_when_another_generation_is_in_force",
    ),
    Guarantee(
        12,
        "Generations start above any that only wrote to a mounted directory.",
        "recovery/retention/collect.py",
        "*(live_generation(name) or 0 for name in self.live)",
        "*(0 for name in self.live)",
        LAYOUT + "test_a_generation_that_only_wrote_is_never_used_again",
    ),
    Guarantee(
        13,
        "A program that ends because its mount has gone is not blamed, however quick it is.",
        "agent/checkpoints/healing.py",
        "                self._note_loss(files, control.look(files, wish, now_ms), now_ms)\n",
        "                control.look(files, wish, now_ms)\n",
        "tests/mount/test_agent.py::"
        "test_an_error_after_the_mount_has_failed_the_program_is_the_stores[True-False]",
    ),
    Guarantee(
        13,
        "A task that waits for its data is not taken for one that hangs.",
        "agent/logs/steps.py",
        "Sign(FILES, min([waited_ms, *moved_ms])), told))",
        "told))",
        "tests/data/test_core.py::test_a_task_that_waits_for_its_data_works",
    ),
    Guarantee(
        13,
        "Waits for data keep a task from being taken for one that hangs for ten minutes in all.",
        "agent/logs/steps.py",
        "    if min(shown_ms) >= WAITING_MS:\n",
        "    if not shown_ms:\n",
        "tests/data/test_core.py::test_all_waits_for_data_together_count_as_work_for_a_bounded_time",
    ),
    Guarantee(
        13,
        "An error that follows one of the store behind a mounted directory does not burn the budget.",
        "recovery/policy/causes.py",
        "    if end.store_lost and ",
        "    if end.store_lost and end.oom and ",
        "tests/decide/test_causes.py::test_an_error_shortly_after_the_store_failed_is_the_stores",
    ),
)
