"""Guarantees of supervisors and agents about promises while etcd is gone: rule 11."""

from __future__ import annotations

from tests.guarantees.guarantee import Guarantee

WORD = "tests/control/test_promises.py::"
BOOK = "tests/agent/test_promised.py::"
PROMISES = "supervisor/control/decide/facts/promises.py"
PROMISER = "supervisor/control/loop/promise_log.py"
PROMISED = "agent/core/promised.py"

ROWS = (
    Guarantee(
        11,
        "Only with the promises of all supervisors do tasks run on.",
        PROMISED,
        "all(name in book.given for name in book.supervisors)",
        "len(book.given) > len(book.supervisors) // 2",
        BOOK + "test_only_with_all_promises_tasks_run_on",
    ),
    Guarantee(
        11,
        "A promise counts from when it was asked for, with drift kept back.",
        PROMISED,
        "until_ms = max(event.sent_ms + event.for_ms,",
        "until_ms = max(work.now_ms + event.for_ms,",
        BOOK + "test_with_all_of_them_tasks_run_on_from_when_it_was_asked",
    ),
    Guarantee(
        11,
        "Promises extend a deadline that has not passed; they revive nothing.",
        PROMISED,
        "    if state.may_run(work.now_ms) and all(",
        "    if all(",
        BOOK + "test_promises_revive_nothing",
    ),
    Guarantee(
        11,
        "A launcher is granted D at most, also by promises.",
        "agent/core/launcher_events.py",
        "min(until_ms - work.now_ms, state.d_ms)",
        "(until_ms - work.now_ms)",
        BOOK + "test_a_launcher_is_granted_d_at_most",
    ),
    Guarantee(
        11,
        "A promise is given up only when every launcher's deadline rests on a read again.",
        PROMISED,
        "    elif sent_ms >= book.reads_ms:\n",
        "    else:\n",
        BOOK + "test_promises_are_given_up_at_the_second_read_that_counts",
    ),
    Guarantee(
        11,
        "A promise is on disk before it is given.",
        PROMISER,
        "            await self._save()\n        except Refused as error:\n            return promises",
        "            await asyncio.sleep(0)\n        except Refused as error:\n            return promises",
        WORD + "test_a_promise_is_on_disk_before_it_is_given",
    ),
    Guarantee(
        11,
        "A supervisor that knows of a lost mark, or is taking tasks away, promises nothing.",
        PROMISES,
        "    if any(request.node in taking.nodes for taking in word.takings):\n",
        "    if not word.boot_id:\n",
        WORD + "test_what_is_refused[taking]",
    ),
    Guarantee(
        11,
        "What takes tasks away is noted on disk before it is sent, and nothing is promised meanwhile.",
        PROMISER,
        "        word = promises.take(snap, self.word, taking, self._clock.now_ms())\n",
        "        return True\n        word = promises.take(snap, self.word, taking, self._clock.now_ms())\n",
        WORD + "test_while_a_taking_is_being_written_nothing_is_promised",
    ),
    Guarantee(
        11,
        "A node that was promised to be left alone is not marked before the promise is over.",
        "supervisor/control/decide/nodes/node_loss.py",
        " in picture.marks or promises.held_ms(snap, picture.node):\n        return []",
        " in picture.marks:\n        return []",
        WORD + "test_a_node_that_was_promised_is_not_marked_before_the_promise_is_over",
    ),
    Guarantee(
        11,
        "On a mark that was on its way nothing is done before the promise is over.",
        "supervisor/control/decide/facts/standing.py",
        "lost and not promises.held_ms(snap, placement.node)",
        "lost",
        WORD + "test_on_a_mark_that_was_on_its_way_nothing_is_done_before_the_promise_is_over",
    ),
    Guarantee(
        11,
        "No flip takes the tasks of a promised node away.",
        "supervisor/control/decide/facts/standing.py",
        "is Standing.SUSPECTED or promises.held_ms(snap, placement.node)",
        "is Standing.SUSPECTED",
        WORD + "test_no_flip_takes_the_tasks_of_a_promised_node_away_though_it_beats",
    ),
    Guarantee(
        11,
        "A supervisor that lost its file declares nothing for V + D, and promises nothing until it saw etcd.",
        PROMISES,
        "        return Word(boot_id, now_ms + silence_ms, blind=True)\n",
        "        return Word(boot_id)\n",
        WORD + "test_a_supervisor_without_its_file_declares_nothing_for_v_and_d",
    ),
    Guarantee(
        11,
        "A supervisor whose machine has booted waits out promises whose ends it cannot tell any more.",
        PROMISES,
        "    if word.boot_id == boot_id:\n        return word\n",
        "    if word.boot_id:\n        return word\n",
        WORD + "test_after_a_boot_takings_are_known_and_promises_are_waited_out",
    ),
)
