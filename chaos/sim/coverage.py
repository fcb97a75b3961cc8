"""The states and transitions of a run, as etcd's history shows them.

`POSSIBLE` names what there is to be covered; what no seed of a range has reached is reported.
"""

from __future__ import annotations

from collections import Counter

from chaos.sim.cluster.etcd import Effect
from chaos.sim.cluster.world import World
from supervisor.contract import codec
from supervisor.contract.checkpoint import CommitRecord, CommitState
from supervisor.contract.desired import Cordon, JobPhase, JobSwitch
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.observed import AttemptReport, AttemptState, ExitReason, Incarnation

POSSIBLE = (
    *(f"job {phase.value}" for phase in JobPhase if phase is not JobPhase.PARKED),
    *(f"cause {cause.value}" for cause in Cause),
    *(f"outcome {outcome.value}" for outcome in Outcome),
    *(f"task {state.value}" for state in AttemptState),
    *(f"exit {reason.value}" for reason in ExitReason),
    *(f"checkpoint {state.value}" for state in CommitState),
    "switch closing",
    "switch opened again",
    "switch flipped",
    "saver changed",
    "plan made",
    "plan abandoned",
    "node joined",
    "node succeeded",
    "node's key gone",
    "node marked",
    "node marked for good",
    "mark withdrawn",
    "appeal",
    "cordon by the leader",
    "cordon for a while",
    "cordon by an operator",
    "cordon lifted",
    "GPU quarantined",
    "a leader elected",
    "spare wanted",
)
"""States and steps of jobs, tasks, nodes and checkpoints. Rules that fired, and faults, come on top."""


class Coverage:
    """Listens to every write that takes effect, before the checkers do."""

    def __init__(self, world: World) -> None:
        self.counts: Counter[str] = Counter()
        self._next = world.etcd.watcher
        world.etcd.watcher = self._on_effect

    def _on_effect(self, effect: Effect) -> None:
        for key, raw in effect.puts.items():
            self._on_put(effect, key, raw)
        for key in effect.deleted:
            self._on_delete(effect, key)
        self._next(effect)

    def _see(self, what: str) -> None:
        self.counts[what] += 1

    def _on_put(self, effect: Effect, key: str, raw: bytes) -> None:
        before = effect.before.get(key)
        match key.split("/", maxsplit=1)[0]:
            case "switches":
                old = codec.decode(JobSwitch, before.value) if before is not None else None
                self._on_switch(old, codec.decode(JobSwitch, raw))
            case "incidents":
                incident = codec.decode(Incident, raw)
                self._see(f"outcome {incident.outcome.value}")
                if before is None:
                    self._see(f"cause {incident.cause.value}")
                    self._see(f"rule {incident.rule}: {incident.scope.value}")
            case "attempts":
                report = codec.decode(AttemptReport, raw)
                self._see(f"task {report.state.value}")
                if report.exit is not None:
                    self._see(f"exit {report.exit.reason.value}")
            case "commits":
                self._see(f"checkpoint {codec.decode(CommitRecord, raw).state.value}")
            case "nodes":
                self._see("node succeeded" if codec.decode(Incarnation, raw).succeeds else "node joined")
            case "cordons":
                cordon = codec.decode(Cordon, raw)
                kind = "for a while" if cordon.cooldown_ms else "by an operator"
                kind = "by the leader" if cordon.incarnation else kind
                self._see(f"cordon {kind if cordon.in_force else 'lifted'}")
            case other:
                self._on_plain_put(other, new=before is None, raw=raw)

    def _on_plain_put(self, prefix: str, *, new: bool, raw: bytes) -> None:
        firsts = {
            "plans": "plan made",
            "appeals": "appeal",
            "lost": "node marked",
            "quarantines": "GPU quarantined",
            "leader": "a leader elected",
            "spares": "spare wanted",
        }
        if new and prefix in firsts:
            self._see(firsts[prefix])
        if prefix == "lost" and b'"final":true' in raw:
            self._see("node marked for good")

    def _on_switch(self, old: JobSwitch | None, new: JobSwitch) -> None:
        was = old.phase.value if old is not None else "nothing"
        if was != new.phase.value:
            self._see(f"job {new.phase.value}")
            self._see(f"job {was} -> {new.phase.value}")
        if old is None:
            return
        if new.generation > old.generation:
            self._see("switch flipped")
        elif new.closing is not None and old.closing is None:
            self._see("switch closing")
        elif new.closing is None and old.closing is not None:
            self._see("switch opened again")
        if new.saver and new.saver != old.saver and new.job_uuid == old.job_uuid:
            self._see("saver changed")

    def _on_delete(self, effect: Effect, key: str) -> None:
        match key.split("/", maxsplit=1)[0]:
            case "lost":
                self._see("mark withdrawn")
            case "nodes":
                self._see("node's key gone")
            case "plans":
                self._see("plan abandoned")
            case _:
                pass
