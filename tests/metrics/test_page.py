"""The list of metrics in docs/metrics.md is that of the code, and names are as Prometheus wants them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from supervisor.adapters.metrics.samples import Kind, Metric
from tests.support import metrics_page

ROOT = Path(__file__).resolve().parents[2]
UNITS = ("_seconds", "_bytes", "_ratio", "_celsius", "_watts")
BOUNDED = {
    "category",
    "cause",
    "daemon",
    "directory",
    "gpu",
    "health",
    "job_name",
    "member",
    "model",
    "node",
    "operation",
    "outcome",
    "owner",
    "part",
    "phase",
    "reason",
    "scope",
    "state",
    "strategy",
    "use",
    "version",
    "xid",
}
"""Labels that may exist. Each has as many values as there are jobs, nodes or devices, or a few words."""


def test_the_page_lists_the_metrics_of_the_code() -> None:
    page = metrics_page.PAGE.read_text()
    assert page == metrics_page.filled(page), "run: python -m tests.support.metrics_page"


def test_no_name_is_used_twice() -> None:
    names = [each.name for each in metrics_page.all_metrics()]
    assert len(set(names)) == len(names) > 60


@pytest.mark.parametrize("metric", metrics_page.all_metrics(), ids=lambda metric: metric.name)
def test_a_name_has_the_prefix_its_kind_and_a_base_unit(metric: Metric) -> None:
    assert re.fullmatch(r"tfsup_[a-z][a-z0-9_]*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    if metric.kind is Kind.HISTOGRAM:
        assert metric.name.endswith("_seconds")
    assert not re.search(r"_(ms|milliseconds|minutes|mib|percent|kb)(_|$)", metric.name)
    assert metric.text.endswith(".")
    assert "|" not in metric.text
    assert set(metric.labels) <= BOUNDED


def test_each_alert_asks_for_metrics_that_there_are_and_has_its_page() -> None:
    known = {each.name for each in metrics_page.all_metrics()}
    rules = YAML(typ="safe").load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    page = metrics_page.PAGE.read_text()
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len(alerts) == 10
    for rule in alerts:
        used = set(re.findall(r"tfsup_\w+", rule["expr"]))
        assert used
        assert used <= known, rule["alert"]
        runbook = rule["annotations"]["runbook"]
        text = (ROOT / runbook).read_text()
        assert f"Alert `{rule['alert']}`" in text
        assert f"| `{rule['alert']}` |" in page
        assert runbook.removeprefix("docs/") in page
        assert set(re.findall(r"`(tfsup_\w+)", text)) <= known, runbook
