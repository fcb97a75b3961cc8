"""While a pause is in force nothing starts, and the brake comes in time. Written down a second time.

Nothing here is made from the product's rules: nodes are counted by their keys and marks in etcd alone.
"""

from __future__ import annotations

from chaos.sim.cluster.etcd import Effect
from chaos.sim.promises.evidence import Evidence
from supervisor.contract import codec, keys
from supervisor.contract.desired import Assignment, Cordon, JobPhase, JobSwitch, LostMark
from supervisor.contract.job.pause import Pause
from supervisor.contract.observed import Incarnation

PAUSED = "nothing starts during a pause"
BRAKE = "nothing starts while too many nodes are lost"
LEAST = 3
SHARE = 0.5
WINDOW_S = 200.0
"""Marks that are older than this may no longer count for the brake."""


class Pauses:
    """Looks at every write that takes effect, before the picture has taken it in."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen
        self._picture = seen.picture
        self._marked_s: dict[str, float] = {}

    def forget(self) -> None:
        """Etcd has lost all that was written, or is as it was before."""
        self._marked_s.clear()

    def on_effect(self, effect: Effect) -> None:
        """A write is about to take effect."""
        for key, raw in effect.puts.items():
            if job := self._started(effect, key, raw):
                self._check(job, key)
        for key in effect.puts:
            if key.startswith("lost/"):
                self._marked_s.setdefault(key, self._seen.world.loop.time())
            if key == keys.PAUSE and codec.decode(Pause, effect.puts[key]).in_force:
                self._seen.count("pauses")
        for key in effect.deleted:
            self._marked_s.pop(key, None)

    def _started(self, effect: Effect, key: str, raw: bytes) -> str:
        """The job of which this write starts something; empty for none."""
        if key.startswith("switches/"):
            after = codec.decode(JobSwitch, raw)
            before = self._picture.switch(after.job)
            flips = before is not None and after.generation > before.generation
            return after.job if flips and after.phase is JobPhase.RUNNING else ""
        if key.startswith("assignments/"):
            order = codec.decode(Assignment, raw)
            switch = self._picture.switch(order.job)
            if switch is None or switch.plan_id != order.plan_id:
                return ""
            held = effect.before.get(key)
            old = codec.decode(Assignment, held.value).attempt if held is not None else 0
            return order.job if order.attempt > old else ""
        return ""

    def _check(self, job: str, key: str) -> None:
        intent, pause = self._picture.intent(job), self._pause()
        if pause is not None and pause.in_force:
            self._seen.broken(PAUSED, f"{key} is written: {pause}")
        elif intent is not None and intent.paused is not None:
            self._seen.broken(PAUSED, f"{key} is written: {intent.paused}")
        elif lost := self._too_many_lost(pause.passed if pause is not None else 0):
            self._seen.broken(BRAKE, f"{key} is written while {', '.join(lost)} are lost")

    def _pause(self) -> Pause | None:
        raw = self._picture.raw(keys.PAUSE)
        return codec.decode(Pause, raw) if raw is not None else None

    def _too_many_lost(self, passed: int) -> list[str]:
        """The lost nodes, if more than half are lost and have been for D; none otherwise."""
        now_s = self._seen.world.loop.time()
        old_s = now_s - self._seen.world.timing.d_ms / 1000
        marks: dict[str, list[str]] = {}
        for key in self._picture.under("lost/"):
            raw = self._picture.raw(key)
            if raw is not None and not codec.decode(LostMark, raw).fenced:
                marks.setdefault(keys.parse(key)[0], []).append(key)
        there, lost = 0, []
        for node in {*marks, *(keys.parse(key)[0] for key in self._picture.under("nodes/"))}:
            if self._has_cordon(node):
                continue
            raw = self._picture.raw(keys.node(node))
            known = marks.get(node, [])
            if raw is not None:
                mine = keys.lost(node, codec.decode(Incarnation, raw).incarnation)
                known = [mine] if mine in known else []
                there += not known
            if any(
                now_s - WINDOW_S < self._marked_s.get(key, old_s) < old_s
                and self._picture.created(key) > passed
                for key in known
            ):
                lost.append(node)
        return sorted(lost) if len(lost) >= LEAST and len(lost) > SHARE * (there + len(lost)) else []

    def _has_cordon(self, node: str) -> bool:
        raw = self._picture.raw(keys.cordon(node))
        return raw is not None and codec.decode(Cordon, raw).in_force
