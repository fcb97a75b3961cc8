"""The steps that a job's switch may take, written down a second time: by phase, and no flip without a close.

The product has a table by which it makes every write (docs/design.md). This list is not made from it: a wrong
row there, or a write past it, is seen here.
"""

from __future__ import annotations

from chaos.sim.cluster.etcd import Effect
from chaos.sim.promises.evidence import Evidence
from supervisor.contract import codec, keys
from supervisor.contract.desired import JobPhase, JobSwitch

PROMISE = "a switch takes only the steps that there are"
STEPS = {
    "waiting": "waiting running stopping failed parked",
    "running": "running finishing stopping failed parked",
    "finishing": "finishing succeeded parked",
    "stopping": "stopping stopped parked",
    "succeeded": "succeeded waiting stopped parked deleted",
    "failed": "failed waiting stopped parked deleted",
    "stopped": "stopped waiting parked deleted",
    "parked": "parked waiting stopping succeeded failed stopped deleted",
}
"""The phases that may follow on each."""


class Turns:
    """Looks at every write of a switch that takes effect, before the picture has taken it in."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen

    def on_effect(self, effect: Effect) -> None:
        """A write is about to take effect."""
        for key, raw in effect.puts.items():
            if key.startswith("switches/"):
                self._check_step(key, codec.decode(JobSwitch, raw))
        for key in effect.deleted:
            if key.startswith("switches/"):
                self._check_phase(self._seen.picture.must_switch(keys.parse(key)[0]), "deleted")

    def _check_phase(self, before: JobSwitch, follows: str) -> None:
        phase = before.shown_phase.value
        if follows not in STEPS[phase].split():
            self._seen.broken(PROMISE, f"{before.job}: {phase} -> {follows}")

    def _check_step(self, key: str, after: JobSwitch) -> None:
        before = self._seen.picture.switch(keys.parse(key)[0])
        if before is None:
            return
        self._check_phase(before, after.shown_phase.value)
        if after.closing is not None and after.phase not in (JobPhase.WAITING, JobPhase.RUNNING):
            self._seen.broken(PROMISE, f"{after.job} is {after.phase.value}, and closed")
        closed = before.closing
        flips = after.generation > before.generation and after.phase is JobPhase.RUNNING
        if flips and (closed is None or (closed.plan_id, closed.base) != (after.plan_id, after.base)):
            self._seen.broken(PROMISE, f"{after.job}: {after.plan_id} comes into force, closed for {closed}")
