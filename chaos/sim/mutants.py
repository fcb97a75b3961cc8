"""Bugs made by hand, each a rule switched off: the simulator is worth something if it finds them all.

A mutant is in force inside `with mutant.planted():`. For that time it replaces a decision, or a part of the
simulated world; never a checker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from unittest.mock import patch

from agent.core import duties, hear, tasks
from agent.core.state import Launcher
from agent.core.work import Work
from agent.inside import protocol
from agent.membership import Membership
from chaos.sim.etcd import RecordingStore
from chaos.sim.faults import Fault
from chaos.sim.launcher import SimLauncher
from recovery import commit
from recovery.checkpoints import commit_rule
from recovery.checkpoints.manifest import Manifest
from recovery.checkpoints.select import Chosen, Selection, select_base
from recovery.decide.scope import scope_of
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Compare, CreatedAt, ModifiedAt
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState, Verify
from supervisor.contract.desired import JobSwitch
from supervisor.contract.ids import TaskId
from supervisor.contract.job import JobSpec, Scope
from supervisor.control import base, collecting, failures, node_loss, spares


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule that is switched off, and which promise has to notice; `script` is the trouble that it needs."""

    name: str
    promise: str
    plant: Callable[[], AbstractContextManager[object]]
    script: tuple[Fault, ...] = ()

    def planted(self) -> AbstractContextManager[object]:
        """Put it in force until the end of the block."""
        return self.plant()


def _token_not_compared() -> AbstractContextManager[object]:
    """Rule 2: etcd takes a leader's writes whatever has become of its token."""

    def blind(compare: Compare) -> bool:
        return isinstance(compare, CreatedAt) and compare.key == keys.LEADER

    return patch.object(RecordingStore, "blind", staticmethod(blind))


def _incarnation_not_compared() -> AbstractContextManager[object]:
    """Rule 2: a predecessor of the agent that holds the node's key may go on writing."""

    def blind(compare: Compare) -> bool:
        return isinstance(compare, ModifiedAt) and compare.key.startswith("nodes/")

    return patch.object(RecordingStore, "blind", staticmethod(blind))


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
        verified: Verify,
    ) -> object:
        if view.switch is not None:
            switch = replace(codec.decode(JobSwitch, view.switch.value), closing=None)
            view = replace(view, switch=replace(view.switch, value=codec.encode(switch)))
        return commit_rule.decide(view, manifest, identity, path, manifest_crc32c, verified)

    return patch.object(commit, "decide", careless)


def _older_base() -> AbstractContextManager[object]:
    """Rule 8: the next generation starts from the second newest checkpoint."""

    def choose(records: Iterable[CommitRecord], switch: JobSwitch) -> Selection:
        chosen = select_base(records, switch)
        if isinstance(chosen, Chosen) and chosen.older:
            return Chosen(chosen.older[0], chosen.older[1:])
        return chosen

    return patch.object(base, "select_base", choose)


def _greedy_collection() -> AbstractContextManager[object]:
    """Rule 9: the newest checkpoint is enough."""

    def greedy(
        records: Iterable[CommitRecord], switch: JobSwitch, *_rest: object
    ) -> tuple[CommitRecord, ...]:
        found = sorted((each for each in records if each.state is CommitState.COMMITTED), key=_ref)
        return tuple(found[:-1])

    return patch.object(collecting, "collectable", greedy)


def _unknown_is_final() -> AbstractContextManager[object]:
    """Rule 8: a base that could not be read once is never tried again."""
    return patch.object(duties, "STAGE_AGAIN_MS", 10**9)


def _saver_in_place() -> AbstractContextManager[object]:
    """Section 6: the worker that saves comes back like any other, though it is TensorFlow's chief."""

    def by_role(spec: JobSpec, task: TaskId) -> tuple[Scope, str]:
        return scope_of(spec, replace(task, index=1) if task.role == "worker" else task)

    return patch.object(failures, "scope_of", by_role)


def _gpus_not_waited_for() -> AbstractContextManager[object]:
    """Rule 5: an attempt starts whoever may still hold its GPUs."""
    return patch.object(tasks, "_gpus_free", lambda *_: True)


def _spares_for_ever() -> AbstractContextManager[object]:
    """Section 7: what a node keeps in reserve for a job stays when the job has ended."""
    return patch.object(spares, "_over", lambda *_: False)


def _ref(record: CommitRecord) -> CheckpointRef:
    return record.ref


_DEAD = "a lost node's tasks are dead before the flip"
_ISOLATED = (Fault(0.5, "cut_node_off", 0, 9.0),)
_FORGOTTEN = (Fault(0.5, "agent_down", 0, 9.0),)

MUTANTS = (
    Mutant("token not compared", "every write is fenced", _token_not_compared),
    Mutant("incarnation not compared", "every write is fenced", _incarnation_not_compared),
    Mutant("D not waited for", _DEAD, _no_wait_for_d, _ISOLATED),
    Mutant(
        "D not waited for, follower",
        "a lost node's tasks are dead before they move",
        _no_wait_for_d,
        (Fault(0.5, "cut_node_off", 3, 9.0),),
    ),
    Mutant(
        "marks of earlier lives ignored",
        "no life goes on past its lost mark",
        _marks_of_earlier_lives_ignored,
        (Fault(0.3, "agent_kill", 0, 0.1), Fault(2.5, "lease_expires", 0, 0.1)),
    ),
    Mutant("grants for ever", "no task outlives D", _agent_grants_for_ever, _ISOLATED),
    Mutant("launcher without deadline", "no task outlives D", _launcher_without_deadline, _FORGOTTEN),
    Mutant(
        "commit while closing",
        "no late commit",
        _commit_while_closing,
        tuple(Fault(0.5 + 2 * n, "operator_restart", 0, 0.1) for n in range(5)),
    ),
    Mutant(
        "older base", "the base is the newest commit", _older_base, (Fault(5.0, "operator_restart", 0, 0.1),)
    ),
    Mutant("greedy collection", "the newest two and the base stay", _greedy_collection),
    Mutant(
        "saver in place",
        "training goes on from the base",
        _saver_in_place,
        tuple(Fault(5.0 + 3 * pick, "task_kill", pick, 0.1) for pick in range(3)),
    ),
    Mutant("spares for ever", "nothing is left behind", _spares_for_ever, (Fault(5.0, "task_kill", 0, 0.1),)),
    Mutant(
        "unknown is final",
        "liveness",
        _unknown_is_final,
        (Fault(0.1, "bad_store", 0, 9.0), *(Fault(0.5 + n, "operator_restart", 0, 0.1) for n in range(5))),
    ),
)

GPU_MUTANTS = (
    Mutant(
        "GPUs not waited for",
        "a GPU is in one exclusive task",
        _gpus_not_waited_for,
        tuple(
            fault
            for pick in range(4)
            for fault in (
                Fault(0.5 + 2.5 * pick, "task_stuck", pick, 6.0),
                Fault(1.2 + 2.5 * pick, "operator_restart", pick, 0.1),
            )
        ),
    ),
)
"""For `gpus.run_gpus`."""
