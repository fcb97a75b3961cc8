"""Who may write and who is who: rules 2, 3, 11 and 12 at the edge of agent and leader to etcd."""

from __future__ import annotations

from tests.guarantees.guarantee import DESK, MEMBER, Guarantee

MEMBERSHIP = "agent/membership.py"
DESK_FILE = "supervisor/control/desk.py"

ROWS = (
    Guarantee(
        2,
        "A successor takes away its predecessor's right to write.",
        MEMBERSHIP,
        "return ModifiedAt(keys.node(self._settings.node), self._written)",
        "return ModifiedAt(keys.node(self._settings.node), max(self._written, 3))",
        MEMBER + "test_a_successor_takes_its_predecessors_writes_away",
    ),
    Guarantee(
        2,
        "Every answer of an agent compares its incarnation's key.",
        "agent/effects.py",
        "compares = [self._membership.fence, ModifiedAt(write.requires, required.mod_revision)]",
        "compares = [ModifiedAt(write.requires, required.mod_revision)]",
        MEMBER + "test_a_succeeded_agents_answers_have_no_effect",
    ),
    Guarantee(
        2,
        "A deposed leader records no job.",
        DESK_FILE,
        "txn([token.compare(), *compares], ops)",
        "txn([*compares], ops)",
        DESK + "test_a_deposed_leader_records_no_job",
    ),
    Guarantee(
        3,
        "A read lets an agent go on only when it shows its own key and no lost mark.",
        MEMBERSHIP,
        "        self._marked_ms = -1\n        if holder is None:\n",
        "        self._marked_ms = -1\n        self._post(BeatSeen(sent_ms))\n        if holder is None:\n",
        MEMBER + "test_only_a_read_that_shows_the_own_key_and_no_mark_counts",
    ),
    Guarantee(
        3,
        "A mark of a life that the agent succeeded counts too.",
        MEMBERSHIP,
        "for life in (self._life, *self._me.succeeds))",
        "for life in (self._life,))",
        MEMBER + "test_a_mark_of_a_life_that_was_succeeded_counts_too",
    ),
    Guarantee(
        3,
        "A key that vanished is written again only where there is no lost mark.",
        MEMBERSHIP,
        "compares = [Absent(key), *map(Absent, self._marks())]",
        "compares = [Absent(key)]",
        MEMBER + "test_a_key_that_vanished_is_not_written_again_over_a_mark",
    ),
    Guarantee(
        3,
        "A marked agent that is alive appeals.",
        MEMBERSHIP,
        "        await self._coordination.txn([ModifiedAt(mark.key, mark.mod_revision)], [write])\n",
        "        await self._coordination.txn([Absent(mark.key)], [write])\n",
        MEMBER + "test_a_marked_agent_appeals",
    ),
    Guarantee(
        10,
        "A mark that is final ends the life of the incarnation, without appeal.",
        MEMBERSHIP,
        "        if record.final:\n",
        "        if record.final and self._me is None:\n",
        MEMBER + "test_a_final_mark_ends_this_life",
    ),
    Guarantee(
        11,
        "An agent runs under the D that its cluster has in etcd.",
        MEMBERSHIP,
        "        return record.d_ms\n",
        "        return self._settings.timing.d_ms\n",
        MEMBER + "test_an_agent_runs_under_the_clusters_d",
    ),
    Guarantee(
        12,
        "A successor joins in a transaction that compares the absence of a lost mark.",
        MEMBERSHIP,
        "compares: list[Compare] = [Absent(mark.key) for mark in marks]",
        "compares: list[Compare] = []",
        MEMBER + "test_a_successor_does_not_adopt_over_a_mark",
    ),
    Guarantee(
        12,
        "A successor of a marked life appeals, and extends nothing until the mark is withdrawn.",
        MEMBERSHIP,
        "        for read in found.reads[2:]:\n            if read:\n"
        "                return await self._contest(read[0])\n",
        "        marks = []\n",
        MEMBER + "test_a_successor_of_a_marked_life_appeals_and_does_not_join",
    ),
    Guarantee(
        12,
        "A node's key that holds another agent's incarnation is never taken.",
        MEMBERSHIP,
        "if holder is not None and not self._is_own(holder):",
        "if holder is not None and not holder.lease_id:",
        MEMBER + "test_another_agents_key_is_never_taken",
    ),
    Guarantee(
        12,
        "After a loss an agent has a new incarnation, which adopts nothing.",
        MEMBERSHIP,
        "        self._me = None\n        self._succeeds = ()\n",
        "        self._me = None\n        self._succeeds = self._own\n",
        MEMBER + "test_a_life_that_was_lost_is_followed_by_a_new_one_that_adopts_nothing",
    ),
    Guarantee(
        12,
        "Submitting a name again is an error without --resume or --fresh.",
        DESK_FILE,
        "        if mode is SubmitMode.NEW:\n",
        "        if mode is SubmitMode.NEW and not phase.ended:\n",
        DESK + "test_a_name_is_not_taken_twice_by_accident",
    ),
    Guarantee(
        12,
        "Two jobs cannot share a checkpoint URI.",
        DESK_FILE,
        "if other.name != spec.name and other.record.value.spec.checkpoint.uri == spec.checkpoint.uri:",
        "if other.name == spec.name and other.record.value.spec.checkpoint.uri != spec.checkpoint.uri:",
        DESK + "test_a_checkpoint_directory_belongs_to_one_job",
    ),
    Guarantee(
        12,
        "Submitting counts the generations that are found in the store, also damaged ones.",
        DESK_FILE,
        "floor = max(scan.max_generation, before.switch",
        "floor = max(len(scan.found), before.switch",
        DESK + "test_resuming_goes_on_above_every_generation_in_etcd_and_in_the_store",
    ),
)
