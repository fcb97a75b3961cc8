"""The dashboards of deploy/grafana, as made from the panels that are listed here.

`python -m tests.support.dashboards` writes them. `tests/metrics/test_prometheus.py` holds the two together,
and asks a real Prometheus each panel's queries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parents[2] / "deploy/grafana"
WIDTH, HEIGHT = 24, 7
JOB = 'job_name=~"$job"'
RATE = "[$__rate_interval]"
OF_DAEMON = "* on (instance) group_left (daemon) tfsup_build_info"
HERE = 'instance=~"$instance"'


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. `queries`: expression -> legend. `unit` is Grafana's. `kind` is a plugin of Grafana."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard. `variables`: name -> the query for its values."""

    name: str
    title: str
    variables: dict[str, str]
    panels: tuple[Panel, ...]


def quantile(share: float, metric: str, by: str) -> str:
    """A quantile of a histogram, over the interval of the graph."""
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{RATE})))"


def mean(metric: str, by: str = "", where: str = "") -> str:
    """The mean of a histogram, over the interval of the graph."""
    grouped = f" by ({by})" if by else ""
    parts = (f"sum{grouped} (rate({metric}_{part}{{{where}}}{RATE}))" for part in ("sum", "count"))
    return " / ".join(parts)


CLUSTER = Dashboard(
    "cluster",
    "tf-supervisor: cluster",
    {},
    (
        Panel("Leader", {"sum(tfsup_leader)": "leaders"}, kind="stat", width=4),
        Panel("Jobs", {"sum by (phase) (tfsup_jobs) > 0": "{{phase}}"}, kind="stat", width=8),
        Panel("Nodes", {"sum by (state) (tfsup_nodes) > 0": "{{state}}"}, kind="stat", width=6),
        Panel("GPUs", {"sum by (health) (tfsup_gpus) > 0": "{{health}}"}, kind="stat", width=6),
        Panel("Jobs by phase", {"sum by (phase) (tfsup_jobs)": "{{phase}}"}),
        Panel("Tasks by state", {"sum by (state) (tfsup_tasks)": "{{state}}"}),
        Panel("Nodes by state", {"sum by (state) (tfsup_nodes)": "{{state}}"}),
        Panel("Training speed", {"sum by (job_name) (tfsup_job_steps_per_second)": "{{job_name}}"}, "none"),
        Panel(
            "Time since the last step",
            {"max by (job_name) (tfsup_job_last_step_age_seconds)": "{{job_name}}"},
            "s",
        ),
        Panel(
            "Steps that a lost node would cost",
            {"max by (job_name) (tfsup_job_step - tfsup_job_committed_step)": "{{job_name}}"},
        ),
        Panel(
            "Recovery time, median",
            {
                quantile(0.5, "tfsup_recovery_duration_seconds", "cause, scope"): "{{cause}}, {{scope}}",
            },
            "s",
        ),
        Panel(
            "Recovery time by phase, on average",
            {mean("tfsup_recovery_phase_duration_seconds", "phase"): "{{phase}}"},
            "s",
        ),
        Panel("Incidents", {"sum by (cause, outcome) (tfsup_incidents_total)": "{{cause}}, {{outcome}}"}),
        Panel("Age of nodes' beats", {"max by (node) (tfsup_node_beat_age_seconds)": "{{node}}"}, "s"),
        Panel(
            "The leader's looks, 99 %",
            {quantile(0.99, "tfsup_leader_look_duration_seconds", "part"): "{{part}}"},
            "s",
        ),
        Panel(
            "The leader's actions",
            {f"sum by (outcome) (rate(tfsup_leader_actions_total{RATE}))": "{{outcome}}"},
        ),
        Panel(
            "Requests to etcd, 99 %",
            {quantile(0.99, "tfsup_etcd_request_duration_seconds", "operation"): "{{operation}}"},
            "s",
        ),
        Panel(
            "Failed requests",
            {
                f"sum(rate(tfsup_etcd_request_failures_total{RATE})) or vector(0)": "etcd",
                f"sum(rate(tfsup_store_request_failures_total{RATE})) or vector(0)": "stores",
            },
        ),
        Panel(
            "Room in etcd",
            {
                "max by (member) (tfsup_etcd_member_file_bytes)": "{{member}}, file",
                "max by (member) (tfsup_etcd_member_used_bytes)": "{{member}}, in use",
                "max by (member) (tfsup_etcd_member_quota_bytes)": "{{member}}, quota",
            },
            "bytes",
        ),
        Panel(
            "Processors of daemons",
            {f"rate(process_cpu_seconds_total{RATE}) {OF_DAEMON}": "{{daemon}} {{instance}}"},
            "percentunit",
        ),
        Panel(
            "Memory of daemons",
            {f"process_resident_memory_bytes {OF_DAEMON}": "{{daemon}} {{instance}}"},
            "bytes",
        ),
        Panel("Paused", {"sum(tfsup_paused)": "cluster", "sum(tfsup_job_paused)": "jobs"}),
        Panel("Promises", {"sum(tfsup_promises)": "nodes that are left alone without etcd"}),
    ),
)

JOBS = Dashboard(
    "job",
    "tf-supervisor: job",
    {"job": "label_values(tfsup_job_info, job_name)"},
    (
        Panel("Phase", {f"tfsup_job_phase{{{JOB}}}": "{{phase}}"}, kind="stat", width=6),
        Panel(
            "Step",
            {f"tfsup_job_step{{{JOB}}}": "newest", f"tfsup_job_committed_step{{{JOB}}}": "committed"},
            kind="stat",
            width=6,
        ),
        Panel("Generation", {f"tfsup_job_generation{{{JOB}}}": "{{job_name}}"}, kind="stat", width=4),
        Panel(
            "Restarts without progress",
            {
                f"tfsup_job_restarts_without_progress{{{JOB}}}": "used",
                f"tfsup_job_restarts_without_progress_allowed{{{JOB}}}": "allowed",
            },
            kind="stat",
        ),
        Panel(
            "Steps", {f"tfsup_job_step{{{JOB}}}": "newest", f"tfsup_job_committed_step{{{JOB}}}": "committed"}
        ),
        Panel("Steps per second", {f"tfsup_job_steps_per_second{{{JOB}}}": "{{job_name}}"}, "none"),
        Panel("Time since the last step", {f"tfsup_job_last_step_age_seconds{{{JOB}}}": "{{job_name}}"}, "s"),
        Panel("Tasks", {f"sum by (state) (tfsup_job_tasks{{{JOB}}})": "{{state}}"}),
        Panel("Goodput", {f"tfsup_job_goodput_ratio{{{JOB}}}": "{{job_name}}"}, "percentunit"),
        Panel("What its time was spent on", {f"tfsup_job_spent_seconds{{{JOB}}}": "{{category}}"}, "s"),
        Panel("Restarts", {f"tfsup_job_restarts_total{{{JOB}}}": "{{cause}}"}),
        Panel("Lost steps", {f"tfsup_job_steps_lost_total{{{JOB}}}": "{{job_name}}"}),
        Panel("Since the newest commit", {f"tfsup_job_commit_lag_seconds{{{JOB}}}": "{{job_name}}"}, "s"),
        Panel(
            "A save waits",
            {
                f"tfsup_job_save_waiting_seconds{{{JOB}}}": "waits",
                f"tfsup_job_save_waiting_bound_seconds{{{JOB}}}": "bound",
                f"tfsup_job_commit_trouble_seconds{{{JOB}}}": "trouble",
            },
            "s",
        ),
        Panel("Skipped saves", {f"tfsup_job_saves_skipped_total{{{JOB}}}": "{{job_name}}"}),
    ),
)

NODES = Dashboard(
    "node",
    "tf-supervisor: nodes and GPUs",
    {"instance": "label_values(tfsup_agent_registered, instance)"},
    (
        Panel("Attempts", {f"sum by (state) (tfsup_agent_attempts{{{HERE}}})": "{{state}}"}),
        Panel(
            "Launchers",
            {
                f"sum by (state) (tfsup_agent_launchers{{{HERE}}})": "{{state}}",
                f"sum(tfsup_agent_spare_launchers{{{HERE}}})": "in reserve",
            },
        ),
        Panel(
            "Time left without etcd",
            {f"tfsup_agent_time_left_seconds{{{HERE}}}": "{{instance}}"},
            "s",
        ),
        Panel(
            "Free room on disks",
            {f"tfsup_agent_disk_free_bytes{{{HERE}}}": "{{instance}} {{directory}}"},
            "bytes",
        ),
        Panel("Free memory", {f"tfsup_agent_memory_free_bytes{{{HERE}}}": "{{instance}}"}, "bytes"),
        Panel(
            "Bases that are brought here",
            {
                f"sum(tfsup_agent_stagings{{{HERE}}})": "now",
                f"sum(tfsup_agent_stage_duration_seconds_count{{{HERE}}})": "so far",
            },
        ),
        Panel(
            "Commits, on average",
            {mean("tfsup_agent_commit_duration_seconds", where=HERE): "time"},
            "s",
        ),
        Panel(
            "The store's requests, on average",
            {mean("tfsup_store_request_duration_seconds", "operation", HERE): "{{operation}}"},
            "s",
        ),
        Panel("A kill", {f"tfsup_agent_kill_duration_seconds{{{HERE}}}": "{{instance}}"}, "s"),
        Panel(
            "Health of GPUs",
            {f"sum by (health) (tfsup_gpu_health{{{HERE}}})": "{{health}}"},
        ),
        Panel(
            "Work of GPUs",
            {f"tfsup_gpu_utilization_ratio{{{HERE}}}": "{{instance}} {{gpu}}"},
            "percentunit",
        ),
        Panel(
            "Temperature",
            {f"tfsup_gpu_temperature_celsius{{{HERE}}}": "{{instance}} {{gpu}}"},
            "celsius",
        ),
        Panel("Power", {f"tfsup_gpu_power_watts{{{HERE}}}": "{{instance}} {{gpu}}"}, "watt"),
        Panel(
            "Memory of GPUs",
            {f"tfsup_gpu_memory_used_bytes{{{HERE}}}": "{{instance}} {{gpu}}"},
            "bytes",
        ),
        Panel(
            "Faults of GPUs",
            {
                f"tfsup_gpu_faults_total{{{HERE}}}": "{{instance}} {{gpu}}, faults",
                f"tfsup_gpu_ecc_errors_total{{{HERE}}}": "{{instance}} {{gpu}}, ECC errors",
                f"sum by (xid) (tfsup_gpu_xids_total{{{HERE}}}) or vector(0)": "XID {{xid}}",
            },
        ),
    ),
)

DASHBOARDS = (CLUSTER, JOBS, NODES)


def render(board: Dashboard) -> str:
    """The JSON of a dashboard that Grafana imports."""
    source = {"type": "prometheus", "uid": "${source}"}
    choice = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    variables: list[dict[str, object]] = [
        {
            "name": name,
            "type": "query",
            "datasource": source,
            "query": query,
            "refresh": 2,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "sort": 1,
        }
        for name, query in board.variables.items()
    ]
    body = {
        "uid": f"tfsup-{board.name}",
        "title": board.title,
        "tags": ["tf-supervisor"],
        "schemaVersion": 36,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [choice, *variables]},
        "panels": [*_panels(board.panels, source)],
    }
    return json.dumps(body, indent=2) + "\n"


def _panels(panels: Iterable[Panel], source: dict[str, str]) -> Iterable[dict[str, object]]:
    left, top = 0, 0
    for number, panel in enumerate(panels, 1):
        if left + panel.width > WIDTH:
            left, top = 0, top + HEIGHT
        yield {
            "id": number,
            "title": panel.title,
            "type": panel.kind,
            "datasource": source,
            "gridPos": {"h": HEIGHT, "w": panel.width, "x": left, "y": top},
            "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + place), "datasource": source, "expr": expr, "legendFormat": legend}
                for place, (expr, legend) in enumerate(panel.queries.items())
            ],
        }
        left += panel.width


def main() -> None:
    """Write all of them."""
    DIRECTORY.mkdir(exist_ok=True)
    for board in DASHBOARDS:
        (DIRECTORY / f"{board.name}.json").write_text(render(board))


if __name__ == "__main__":
    main()
