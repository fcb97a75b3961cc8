"""A lost life of an agent leaves no saver and no reader; its successor knows the cluster of the tasks."""

from __future__ import annotations

from dataclasses import replace

from agent.core.events import Evicted, Fenced, Joined, Observed, TermsSeen
from agent.core.instructions import Cleared, Commit, FollowCommits, StopCommit, StopFollowing, Unfollow
from agent.core.saved import adopt
from supervisor.contract.boundaries import Seen
from supervisor.contract.timing import FAST
from tests.agent.core import ME, NO_SPARES, ORDER, SAVES, Core, only

OTHER = replace(SAVES, job="other", job_uuid="v", plan_id="q1")
FOLLOWER = replace(ORDER, job="other", job_uuid="v", role="evaluator", plan_id="q1", follow=True)


def saving() -> Core:
    """An agent whose task saves, with one of another job that reads what is saved elsewhere."""
    core = Core().running()
    saver = replace(ORDER, checkpoint_uri="file:///s")
    follower = replace(FOLLOWER, checkpoint_uri="file:///t")
    core.state = replace(core.state, view=None)
    core.see(SAVES, saver)
    view = core.state.view
    assert view is not None
    core.feed(replace(view, assignments=(saver, follower), switches=(SAVES, OTHER)))
    assert only(Commit, core.said)
    assert only(FollowCommits, core.said)
    return core


def test_what_a_lost_life_saved_is_no_more_committed() -> None:
    """The simulator: the saver went on under the next life's fence, and committed for a job on hold."""
    out = saving().feed(Evicted("lost"))
    assert [(each.job_uuid, each.generation) for each in only(StopCommit, out)] == [("u", 1)]


def test_what_other_nodes_save_is_no_more_brought_in_for_a_lost_life() -> None:
    core = saving()
    out = core.feed(Evicted("lost"))
    assert [(each.job_uuid, each.generation) for each in only(StopFollowing, out)] == [("v", 1)]
    assert not core.state.following


def test_the_output_of_a_lost_life_is_no_more_read() -> None:
    """The simulator: it was read for ever, and the beats told of a task that nobody had placed there."""
    core = Core().running()
    out = core.feed(Evicted("lost"), Fenced(core.launcher_id, 0))
    assert only(Cleared, out)
    assert [each.attempt for each in only(Unfollow, out)] == [ORDER.attempt_id]


def test_a_successor_knows_which_cluster_the_tasks_are_of() -> None:
    core = Core().running()
    seen = Seen("assignments/n1/x", 7, "digest")
    core.feed(TermsSeen((), 0, "c1"), Observed((ORDER,), (SAVES,), core.now_ms, seen=seen))
    core.feed(Evicted("lost"), Observed((), (), core.now_ms), Fenced(core.launcher_id, 0))
    heir = adopt.restore(adopt.record_of(core.state), NO_SPARES, "life2", "boot", core.now_ms, frozenset())
    assert (heir.cluster, heir.seen) == ("c1", seen), "until this life has joined anew"
    core.feed(Joined(replace(ME, incarnation="life9"), core.now_ms, adopt=False, d_ms=FAST.d_ms))
    assert core.state.seen is None
