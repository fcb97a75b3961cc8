"""The compares that each kind of transaction must have (rules 2, 3, 6, 7 and 9).

If two protections back each other up, the loss of one breaks nothing for a long time. These checks see it at
the first transaction. They look at the write itself, not at its consequences.
"""

from __future__ import annotations

from chaos.sim.cluster.etcd import Effect
from chaos.sim.promises.evidence import Evidence, is_recorded_again
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Absent, ModifiedAt
from supervisor.contract.checkpoint import CommitRecord, CommitState
from supervisor.contract.desired import JobSwitch, LostMark, Placement, Plan
from supervisor.contract.ids import TaskId
from supervisor.contract.observed import AttemptReport, Incarnation
from supervisor.control.decide.checkpoints.collecting import ADOPTED

PROMISE = "a decision compares what it relies on"


class Compares:
    """Looks at every write that takes effect, before the picture has taken it in."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen
        self._picture = seen.picture
        self._registered: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """Etcd has lost all that was written."""
        self._registered.clear()

    def on_effect(self, effect: Effect) -> None:
        """A write is about to take effect."""
        for key, raw in effect.puts.items():
            match key.split("/")[0]:
                case "switches":
                    self._check_switch(effect, key, codec.decode(JobSwitch, raw))
                case "commits":
                    self._check_commit(effect, key, codec.decode(CommitRecord, raw))
                case "lost" if key not in effect.before:
                    self._check_mark(effect, key, codec.decode(LostMark, raw))
                case "nodes":
                    self._check_node(effect, codec.decode(Incarnation, raw))
                case "plans" if key in effect.before:
                    plans = codec.decode(Plan, effect.before[key].value), codec.decode(Plan, raw)
                    gone = set(plans[0].placements) - set(plans[1].placements)
                    self._need(effect, "a move", *self._marks(plans[0], gone))
                    if len(plans[0].placements) != len(plans[1].placements):
                        self._check_resize(effect, key, plans[1])
                case _:
                    pass
        for key in effect.deleted:
            if key.startswith("lost/"):
                self._need(effect, "the end of a mark", key)

    def _need(self, effect: Effect, what: str, *wanted: str) -> None:
        """A revision of each of these keys, or its absence."""
        compared = {each.key for each in effect.compares}
        for key in wanted:
            if key not in compared:
                self._seen.broken(PROMISE, f"{what} does not compare {key}: {effect.compares}")

    def _need_absent(self, effect: Effect, what: str, key: str) -> None:
        if Absent(key) not in effect.compares:
            self._seen.broken(PROMISE, f"{what} does not compare that there is no {key}")

    def _check_switch(self, effect: Effect, key: str, switch: JobSwitch) -> None:
        before = self._picture.switch(switch.job)
        if before is None or before.job_uuid != switch.job_uuid:
            return
        head, plan_id = keys.head(switch.job), switch.plan_id
        closes = switch.closing is not None and switch.closing != before.closing
        flips = switch.generation > before.generation and plan_id != before.plan_id
        if not any(isinstance(each, ModifiedAt) and each.key == key for each in effect.compares):
            self._seen.broken(PROMISE, f"{key} is written over what may have changed: {effect.compares}")
        if closes:
            self._need(effect, "closing", head)
        if not flips:
            return
        plan = self._picture.plan(switch.job, plan_id)
        placed = set(plan.placements) if plan is not None else set()
        nodes = {keys.node(placement.node) for placement in placed}
        replaced = self._picture.plan(switch.job, before.plan_id)
        # Who stays where it was is not taken away, though its node may have been marked a moment ago.
        marks = self._marks(replaced, set(replaced.placements) - placed) if replaced is not None else []
        self._need(effect, "a flip", head, keys.plan(switch.job, plan_id), *sorted(nodes), *marks)

    def _check_commit(self, effect: Effect, key: str, record: CommitRecord) -> None:
        job = keys.parse(key)[0]
        head, switch = keys.head(job), keys.switch(job)
        if is_recorded_again(effect, key, record):
            self._need_absent(effect, "a rebuild", head)
            self._need(effect, "a rebuild", keys.job_record(job), keys.intent(job))
            return
        if key not in effect.before:
            self._need_absent(effect, "a commit", key)
            self._need(effect, "a commit", switch, head)
            if record.incarnation == ADOPTED:
                # No agent tells of it: the job must be the same, and nobody have asked it to start.
                self._need(effect, "an import", keys.job_record(job), keys.intent(job))
            else:
                self._need(effect, "a commit", keys.node(record.node))
        elif codec.decode(CommitRecord, effect.before[key].value).state is not record.state:
            self._need(effect, f"{record.state.value}", key, head)
            if record.state is CommitState.COLLECTING:
                self._need(effect, "collecting", switch)
        else:
            return
        if head not in effect.puts:
            self._seen.broken(PROMISE, f"{key} is written without {head}")

    def _check_resize(self, effect: Effect, key: str, plan: Plan) -> None:
        """All that the size was decided from, and that tells of it."""
        job, spec = plan.job, keys.cluster_spec(plan.job, plan.plan_id)
        self._need(effect, "a resize", key, keys.switch(job), keys.job_record(job), keys.intent(job), spec)

    def _check_mark(self, effect: Effect, key: str, mark: LostMark) -> None:
        self._need_absent(effect, "a mark", key)
        self._need(effect, "a mark", keys.node(mark.node))

    def _check_node(self, effect: Effect, me: Incarnation) -> None:
        """A new life may not have been marked yet; one that registers again may, and one that is over."""
        if me.fenced:
            self._need(effect, "the word that a node is fenced", keys.node(me.node))
            return
        lives = list(me.succeeds)
        if (me.node, me.incarnation) in self._registered:
            lives.append(me.incarnation)
        self._registered.add((me.node, me.incarnation))
        self._need(effect, "registering", keys.node(me.node))
        for life in lives:
            self._need_absent(effect, "registering", keys.lost(me.node, life))

    def _marks(self, plan: Plan, replaced: set[Placement]) -> list[str]:
        """The marks by which tasks may be taken away from where they were. What is dead needs none."""
        found = {
            keys.lost(placement.node, placement.incarnation)
            for placement in replaced
            if not self._is_dead(plan, placement)
        }
        return sorted(key for key in found if self._picture.has(key))

    def _is_dead(self, plan: Plan, placement: Placement) -> bool:
        task = TaskId(plan.job, placement.role, placement.index)
        wanted = self._picture.assigned(placement.node, task, plan.plan_id)
        raw = self._picture.raw(keys.attempt(wanted.attempt_id)) if wanted is not None else None
        return raw is not None and codec.decode(AttemptReport, raw).confirmed_dead
