"""Recoveries as histograms: each incident is observed once, when this leader has closed it."""

from __future__ import annotations

from supervisor.adapters.metrics.samples import LONG, SHORT, Rows, counter, histogram
from supervisor.contract.desired import LeaderToken
from supervisor.contract.incident import Incident, Outcome
from supervisor.control.decide.snapshot import Snapshot

BUCKETS = (*SHORT[5:8], *LONG[2:])

RECOVERY = histogram(
    "tfsup_recovery_duration_seconds",
    "Time from a failure until training went on and all restarted tasks ran, of incidents that recovered.",
    "cause",
    "scope",
    buckets=BUCKETS,
)
PHASE = histogram(
    "tfsup_recovery_phase_duration_seconds",
    "The same by phase. The phase `decided` includes the wait for room, `ready` the placement's preparation.",
    "phase",
    "cause",
    "scope",
    buckets=BUCKETS,
)
INCIDENTS = counter(
    "tfsup_incidents_total",
    "Incidents that this leader has closed, by cause, scope and outcome.",
    "cause",
    "scope",
    "outcome",
)
STEPS_LOST = counter(
    "tfsup_job_steps_lost_total", "Steps that restarts under this leader have given up.", "job_name"
)


class Recoveries:
    """Observes the incidents of one supervisor's snapshots, while it leads.

    A leader closes an incident by a write under its token. So one that was last written after its election is
    its own, and those before are some other's.
    """

    def __init__(self) -> None:
        self._token: LeaderToken | None = None
        self._seen: set[tuple[str, str, int]] = set()
        """Job, id and first revision of the incidents that were observed and are still kept."""
        self._rows = Rows()
        self._lost: dict[str, float] = {}

    def fill(self, snap: Snapshot, rows: Rows) -> None:
        """Observe what is new in a snapshot, and add all that was observed."""
        if snap.token != self._token:
            self._token, self._seen, self._rows, self._lost = snap.token, set(), Rows(), {}
        kept: set[tuple[str, str, int]] = set()
        for job in snap.jobs.values():
            for held in job.incidents.values():
                if held.value.outcome is Outcome.OPEN:
                    self._announce(held.value)
                elif held.mod_revision > snap.token.create_revision:
                    key = (job.name, held.value.id, held.create_revision)
                    kept.add(key)
                    if key not in self._seen:
                        self._observe(held.value)
        # A job that is set aside comes back with its incidents.
        self._seen = kept | {key for key in self._seen if key[0] in snap.aside}
        self._lost = {job: self._lost.get(job, 0.0) for job in (*snap.jobs, *snap.aside)}
        rows.take(self._rows)
        for name, steps in self._lost.items():
            rows.put(STEPS_LOST, steps, name)

    def _announce(self, incident: Incident) -> None:
        """Show a series at 0 before its first value: Prometheus sees no increase in a series that begins."""
        about = incident.cause.value, incident.scope.value
        self._rows.spread(RECOVERY, *about)
        self._rows.add(INCIDENTS, 0, *about, Outcome.RECOVERED.value)

    def _observe(self, incident: Incident) -> None:
        about = incident.cause.value, incident.scope.value
        self._rows.add(INCIDENTS, 1, *about, incident.outcome.value)
        self._lost[incident.job] = self._lost.get(incident.job, 0.0) + max(0, incident.lost_steps)
        if incident.outcome is Outcome.RECOVERED:
            self._rows.observe(RECOVERY, incident.total_ms / 1000, *about)
            for phase, lasted_ms in incident.phases_ms.items():
                self._rows.observe(PHASE, lasted_ms / 1000, phase, *about)
