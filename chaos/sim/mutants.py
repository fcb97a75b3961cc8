"""Bugs made by hand, each a rule switched off: the simulator is worth something if it finds every one of them.

A mutant is in force inside `with mutant.planted():`. It replaces a decision, or a part of the simulated world,
for that time; never a checker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from unittest.mock import patch

from agent.core import duties, hear
from agent.core.state import Launcher
from agent.core.work import Work
from agent.inside import protocol
from agent.membership import Membership
from chaos.sim.etcd import RecordingStore
from chaos.sim.launcher import SimLauncher
from recovery import commit
from recovery.checkpoints import commit_rule
from recovery.checkpoints.manifest import Manifest
from recovery.checkpoints.select import Chosen, Selection, select_base
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Compare, CreatedAt, ModifiedAt
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.desired import JobSwitch
from supervisor.control import generation, lifecycle, node_loss


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule that is switched off, and which promise has to notice."""

    name: str
    promise: str
    plant: Callable[[], AbstractContextManager[object]]

    def planted(self) -> AbstractContextManager[object]:
        """Put it in force until the end of the block."""
        return self.plant()


def _token_not_compared() -> AbstractContextManager[object]:
    """Rule 2: etcd takes a leader's writes whatever has become of its token."""
    holds = RecordingStore._holds

    def careless(self: RecordingStore, compare: Compare) -> bool:
        leads = isinstance(compare, CreatedAt) and compare.key == keys.LEADER
        return leads or holds(self, compare)

    return patch.object(RecordingStore, "_holds", careless)


def _incarnation_not_compared() -> AbstractContextManager[object]:
    """Rule 2: a predecessor of the agent that holds the node's key may go on writing."""
    holds = RecordingStore._holds

    def careless(self: RecordingStore, compare: Compare) -> bool:
        of_node = isinstance(compare, ModifiedAt) and compare.key.startswith("nodes/")
        return of_node or holds(self, compare)

    return patch.object(RecordingStore, "_holds", careless)


def _no_wait_for_d() -> AbstractContextManager[object]:
    """Rule 3: the leader replaces the tasks of a node as soon as it has marked it."""
    return patch.object(node_loss, "_wait_ms", lambda *_: 0)


def _marks_of_earlier_lives_ignored() -> AbstractContextManager[object]:
    """Rule 3: an agent looks for its own lost mark, not for those of the lives that it succeeded."""

    def own(self: Membership) -> tuple[str, ...]:
        assert self._me is not None
        return (keys.lost(self._me.node, self._life),)

    return patch.object(Membership, "_marks", own)


def _agent_grants_for_ever() -> AbstractContextManager[object]:
    """Rule 4: an agent's answer to a pull does not depend on its own deadline."""

    def generous(work: Work, launcher: Launcher, pull: protocol.Pull) -> None:
        work.say(launcher.launcher_id, protocol.Grant(pull.stamp_ms, 4_000, work.state.life))

    stack = ExitStack()
    stack.enter_context(patch.object(hear, "_on_pull", generous))
    stack.enter_context(patch("agent.core.tasks.stop_all", lambda *_: None))
    return stack


def _launcher_without_deadline() -> AbstractContextManager[object]:
    """Rule 4: a launcher that hears nothing goes on for ever."""
    return patch.object(SimLauncher, "_enforce_deadline", lambda _self: None)


def _commit_while_closing() -> AbstractContextManager[object]:
    """Rule 7: a commit does not look at whether the switch is closing."""

    def careless(
        view: commit_rule.CommitView,
        manifest: Manifest,
        identity: commit_rule.CommitIdentity,
        path: str,
        manifest_crc32c: str,
    ) -> object:
        if view.switch is not None:
            switch = replace(codec.decode(JobSwitch, view.switch.value), closing=None)
            view = replace(view, switch=replace(view.switch, value=codec.encode(switch)))
        return commit_rule.decide(view, manifest, identity, path, manifest_crc32c)

    return patch.object(commit, "decide", careless)


def _older_base() -> AbstractContextManager[object]:
    """Rule 8: the next generation starts from the second newest checkpoint."""

    def choose(records: Iterable[CommitRecord], switch: JobSwitch) -> Selection:
        chosen = select_base(records, switch)
        if isinstance(chosen, Chosen) and chosen.older:
            return Chosen(chosen.older[0], chosen.older[1:])
        return chosen

    return patch.object(generation, "select_base", choose)


def _greedy_collection() -> AbstractContextManager[object]:
    """Rule 9: the newest checkpoint is enough."""

    def greedy(
        records: Iterable[CommitRecord], switch: JobSwitch, *_rest: object
    ) -> tuple[CommitRecord, ...]:
        found = sorted((each for each in records if each.state is CommitState.COMMITTED), key=_ref)
        return tuple(found[:-1])

    return patch.object(lifecycle, "collectable", greedy)


def _unknown_is_final() -> AbstractContextManager[object]:
    """Rule 8: a base that could not be read once is never tried again."""
    return patch.object(duties, "STAGE_AGAIN_MS", 10**9)


def _ref(record: CommitRecord) -> CheckpointRef:
    return record.ref


MUTANTS = (
    Mutant("token not compared", "every write is fenced", _token_not_compared),
    Mutant("incarnation not compared", "every write is fenced", _incarnation_not_compared),
    Mutant("D not waited for", "a lost node's tasks are dead before the flip", _no_wait_for_d),
    Mutant(
        "marks of earlier lives ignored",
        "a lost node's tasks are dead before the flip",
        _marks_of_earlier_lives_ignored,
    ),
    Mutant("grants for ever", "a lost node's tasks are dead before the flip", _agent_grants_for_ever),
    Mutant("launcher without deadline", "a lost node's tasks are dead before the flip", _launcher_without_deadline),
    Mutant("commit while closing", "no late commit", _commit_while_closing),
    Mutant("older base", "the base is the newest commit", _older_base),
    Mutant("greedy collection", "the newest two and the base stay", _greedy_collection),
    Mutant("unknown is final", "liveness", _unknown_is_final),
)
