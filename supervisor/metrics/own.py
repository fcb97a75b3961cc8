"""The metrics of one supervisor: those of its own, and the cluster's while it leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from supervisor.adapters.certificates.watch import CertificateWatch
from supervisor.adapters.metrics.daemon import Fill, Metrics
from supervisor.adapters.metrics.samples import SHORT, Rows, counter, gauge, histogram
from supervisor.contract.etcd_member import EtcdMember
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.loop.apply import Applied
from supervisor.control.loop.daemon import FENCED, ControlDaemon
from supervisor.control.loop.etcd_care import EtcdCare
from supervisor.metrics import cluster
from supervisor.metrics.incidents import Recoveries

LEADER = gauge("tfsup_leader", "1 on the supervisor that leads, 0 on others.")
LEADER_KNOWN = gauge("tfsup_leader_known", "1 while this supervisor knows of a leader.")
PROMISES = gauge("tfsup_promises", "Nodes that this supervisor has promised to leave alone without etcd.")
LOOK = histogram(
    "tfsup_leader_look_duration_seconds",
    "Time of each look of the leader, by part: to `decide`, and to `write` what it decided.",
    "part",
    buckets=SHORT,
)
ACTIONS = counter(
    "tfsup_leader_actions_total",
    "Actions of the leader by outcome. `stale`: a record had changed; `unknown`: etcd did not answer; "
    "`fenced`: another supervisor leads; `broken`: an error of this program.",
    "outcome",
)
MEMBER_UP = gauge("tfsup_etcd_member_up", "1 while a member of etcd answers, at a look every 15 s.", "member")
MEMBER_FILE = gauge("tfsup_etcd_member_file_bytes", "The size of its database file.", "member")
MEMBER_USED = gauge("tfsup_etcd_member_used_bytes", "The part of the file that holds data.", "member")
MEMBER_QUOTA = gauge(
    "tfsup_etcd_member_quota_bytes", "Its quota; what is configured, where it does not tell.", "member"
)
ETCD_FULL = gauge("tfsup_etcd_full", "1 while etcd has the alarm NOSPACE, and takes no writes.")


def add_all(
    metrics: Metrics, daemon: ControlDaemon, care: EtcdCare, watch: CertificateWatch, quota_bytes: int
) -> None:
    """Have a supervisor's metrics answered."""
    recoveries, kept = Recoveries(), metrics.kept
    for outcome in (*(each.value for each in Applied), FENCED):
        kept.put(ACTIONS, 0, outcome)

    def looked(decided_s: float, written_s: float, outcomes: Sequence[str]) -> None:
        kept.observe(LOOK, decided_s, "decide")
        kept.observe(LOOK, written_s, "write")
        for outcome in outcomes:
            kept.add(ACTIONS, 1, outcome)

    def own() -> Fill:
        service = daemon.job_service
        leads, known, promises = (
            service.snapshot() is not None,
            service.leader() is not None,
            daemon.promises(),
        )

        def fill(rows: Rows) -> None:
            rows.put(LEADER, leads)
            rows.put(LEADER_KNOWN, known)
            rows.put(PROMISES, promises)

        return fill

    daemon.looked = looked
    metrics.add(own)
    metrics.add(lambda: partial(_members, care.members, quota_bytes))
    metrics.add_certificates(watch.ends)
    for part in (cluster.fill, recoveries.fill):
        metrics.add(partial(_cluster, daemon.job_service.snapshot, part))


def _cluster(snapshot: Callable[[], Snapshot | None], part: Callable[[Snapshot, Rows], None]) -> Fill:
    """A part of what is told of the cluster, while this supervisor leads."""
    snap = snapshot()

    def fill(rows: Rows) -> None:
        if snap is not None:
            part(snap, rows)

    return fill


def _members(members: Sequence[EtcdMember], quota_bytes: int, rows: Rows) -> None:
    if members:
        rows.put(ETCD_FULL, any(each.full for each in members))
    for each in members:
        rows.put(MEMBER_UP, not each.problem or each.refused, each.endpoint)
        if not each.problem:
            rows.put(MEMBER_FILE, each.file_bytes, each.endpoint)
            rows.put(MEMBER_USED, each.used_bytes, each.endpoint)
            rows.put(MEMBER_QUOTA, each.quota_bytes or quota_bytes, each.endpoint)
