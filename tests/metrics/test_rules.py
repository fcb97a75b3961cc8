"""The rules and the example configuration of deploy/prometheus, by Prometheus' own tools."""

from __future__ import annotations

import subprocess
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parents[2] / "deploy/prometheus"


def promtool(*arguments: str) -> str:
    done = subprocess.run(
        ["promtool", *arguments], cwd=DIRECTORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_well_formed() -> None:
    assert "SUCCESS: 10 rules found" in promtool("check", "rules", "alerts.yaml")


def test_each_alert_fires_when_it_should_and_not_before() -> None:
    promtool("test", "rules", "alerts.test.yaml")


def test_the_example_is_a_configuration() -> None:
    assert "SUCCESS" in promtool("check", "config", "--syntax-only", "prometheus.yaml")
