"""Guarantees about files that tasks write beside their checkpoints: they are safe, or named."""

from __future__ import annotations

from tests.guarantees.guarantee import AGENT, Guarantee

WORK = "tests/outputs/test_work.py::"
NODE = "tests/outputs/test_node.py::"
SEND = "tests/outputs/test_send.py::"
ADOPT = "tests/launcher/test_adopt.py::"
LOGS = "tests/logs/test_storing.py::"
MODELS = "tests/models/test_publisher.py::"

ROWS = (
    Guarantee(
        9,
        "What a task wrote that no store has is removed only after an event has named it.",
        "agent/outputs/leftover_work.py",
        "if each.named and (now_ms >= each.until_ms or full):",
        "if now_ms >= each.until_ms or full:",
        WORK + "test_what_tasks_wrote_elsewhere_stays_when_the_job_has_ended_and_is_named",
    ),
    Guarantee(
        9,
        "What lies beside checkpoints stays when the directory of its generation goes.",
        "agent/outputs/leftover_work.py",
        "return _CHECKPOINT.fullmatch(path.name) is None",
        "return False",
        WORK + "test_what_lies_beside_checkpoints_stays_when_its_generation_goes",
    ),
    Guarantee(
        9,
        "Outputs are removed from a node only after they are in the store.",
        "agent/outputs/sender.py",
        "if entry.state.ended and entry.state.done:",
        "if entry.state.ended:",
        NODE + "test_what_is_written_while_the_last_but_one_is_sent_is_sent_before_the_directory_goes",
    ),
    Guarantee(
        9,
        "A successor of an agent that dies at any moment sends what a task has written.",
        "agent/outputs/sender.py",
        "            await self._call(partial(save_state, self.files.notes(uuid), state))\n"
        "            await self._call(partial(self.files.link_exports, state))\n",
        "            await self._call(partial(self.files.link_exports, state))\n",
        "tests/outputs/test_crash_points.py::test_some_points[crash-local]",
    ),
    Guarantee(
        9,
        "Outputs that could not be sent stay on their node, and are named.",
        "agent/outputs/directories.py",
        "if found.complete and sent == found.files.keys():",
        "if found.complete or sent == found.files.keys():",
        WORK + "test_outputs_that_could_not_be_sent_stay_and_are_named",
    ),
    Guarantee(
        9,
        "Outputs that were sent while they grew are read once more at the end of their attempt.",
        "recovery/outputs/send.py",
        "not sent.shows(seen) or (final and not sent.whole)",
        "not sent.shows(seen)",
        SEND + "test_a_file_that_was_changed_inside_while_it_grew_is_whole_at_the_end",
    ),
    Guarantee(
        6,
        "A task starts after what its earlier attempts wrote has been brought in, or could not be.",
        "agent/core/tasks.py",
        "    return has_outputs and asked.done",
        "    return asked.done",
        AGENT + "test_an_attempt_starts_once_its_output_directory_is_there",
    ),
    Guarantee(
        6,
        "An earlier attempt that sends its outputs late replaces nothing that a later one wrote.",
        "recovery/outputs/index.py",
        "or change.writer >= found.writer:",
        "or change.writer:",
        SEND + "test_two_nodes_that_write_at_once_lose_nothing",
    ),
    Guarantee(
        9,
        "Where tasks of another user write, the agent removes no link but one into the job that has ended.",
        "agent/checkpoints/adopted.py",
        "if Path(os.readlink(last, dir_fd=fd)).parent == parent:",
        "if os.readlink(last, dir_fd=fd):",
        ADOPT + "test_nothing_but_a_link_into_the_job_goes_from_a_directory_of_the_machine",
    ),
    Guarantee(
        10,
        "A store that hangs holds up no logs of jobs with another store, and no task.",
        "recovery/stores/open.py",
        'self._log_threads.setdefault(str(place), DaemonThreads(1, "logs", LOG_NICE))',
        'self._log_threads.setdefault("", DaemonThreads(1, "logs", LOG_NICE))',
        LOGS + "test_a_store_that_hangs_holds_up_no_other_store_and_no_end",
    ),
    Guarantee(
        10,
        "No secret of a task is in its stored log.",
        "agent/logs/storing.py",
        "self._known, self._masker = dict(known), Masker(known.values())",
        "self._known, self._masker = dict(known), Masker()",
        LOGS + "test_no_secret_is_stored[memory]",
    ),
    Guarantee(
        9,
        "A model server never sees a part of a version: it comes once it is whole, and goes, by a rename.",
        "recovery/models/store.py",
        '                await self._rename(source, f"{self._removed}/{each.id}")',
        "                await self._store.delete_tree(source)",
        "tests/models/test_crash_points.py::test_some_points[crash-local]",
    ),
    Guarantee(
        9,
        "A version is noted once all its files are in the store, so whoever finishes it publishes all of it.",
        "agent/models/publisher.py",
        "        await self._models.put(new.id, copy, copied.files, motion)\n        motion()\n",
        "",
        MODELS + "test_each_export_becomes_the_next_version_and_the_newest_are_kept[local]",
    ),
    Guarantee(
        8,
        "A model whose variables are damaged is not published.",
        "agent/models/exports.py",
        '    verified = verify_files(target, "", sorted(export.files), go_on, moved)',
        '    verified = verify_files(target, "", [], go_on, moved)',
        MODELS + "test_damaged_variables_are_refused_and_a_repaired_export_is_taken",
    ),
    Guarantee(
        9,
        "The number of a model's version never gets other bytes, even when its version is forgotten.",
        "recovery/models/index.py",
        "    number = max((index.last, *taken)) + 1",
        "    number = max((0, *(each.version for each in index.versions), *taken)) + 1",
        "tests/models/test_index.py::test_a_number_is_never_given_again",
    ),
    Guarantee(
        9,
        "An attempt that another has followed publishes no model.",
        "recovery/models/index.py",
        "    if (index.generation, index.attempt) > (generation, attempt):",
        "    if (index.generation, index.attempt) > (generation + 1, attempt):",
        MODELS + "test_an_attempt_that_is_over_publishes_nothing[local]",
    ),
    Guarantee(
        9,
        "A repaired index of a model gives no number again that the damaged one may have given.",
        "recovery/models/repair.py",
        "        last=max(base.last + serial - base.serial, *seen, 0),\n",
        "        last=max(base.last, *seen, 0),\n",
        "tests/cli/test_models.py::test_a_broken_index_is_repaired_and_servers_see_the_same",
    ),
    Guarantee(
        9,
        "Models that hang hold up the outputs of a task that has ended for a bounded time.",
        "agent/models/publisher.py",
        "        if self._tried_ms >= FINAL_TRIALS_MS:\n",
        "        if self._tried_ms < 0:\n",
        MODELS + "test_models_that_hang_hold_up_a_look_and_the_end_of_their_task_for_a_bounded_time",
    ),
)
