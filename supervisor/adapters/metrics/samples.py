"""Metrics, and their samples: what `daemon` collects and `exposition` writes."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum

SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Limits of the buckets for what takes milliseconds, in seconds."""
LONG = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""The same for what takes seconds or minutes."""


class Kind(Enum):
    """The kinds of metrics that there are."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A metric, as docs/metrics.md lists it. `buckets`: of a histogram."""

    kind: Kind
    name: str
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def gauge(name: str, text: str, *labels: str) -> Metric:
    """A value that goes up and down."""
    return Metric(Kind.GAUGE, name, text, labels)


def counter(name: str, text: str, *labels: str) -> Metric:
    """A number that only grows, until its daemon ends or another supervisor leads."""
    return Metric(Kind.COUNTER, name, text, labels)


def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
    """A distribution of durations."""
    return Metric(Kind.HISTOGRAM, name, text, labels, buckets)


@dataclass(slots=True)
class Spread:
    """The durations that were seen: how many in each bucket, the last one without a limit, and their sum."""

    counts: list[int]
    total: float = 0.0

    def copy(self) -> Spread:
        """The same, which changes no more."""
        return Spread(list(self.counts), self.total)


@dataclass(slots=True)
class Rows:
    """Samples: for each set of labels of a metric a value, or a spread."""

    values: dict[Metric, dict[tuple[str, ...], float]] = field(default_factory=dict)
    spreads: dict[Metric, dict[tuple[str, ...], Spread]] = field(default_factory=dict)

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a value."""
        assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}"
        self.values.setdefault(metric, {})[labels] = value

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Add to a value, which is 0 at first."""
        self.put(metric, self.get(metric, *labels) + value, *labels)

    def get(self, metric: Metric, *labels: str) -> float:
        """A value; 0 if there is none."""
        return self.values.get(metric, {}).get(labels, 0.0)

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        """Add a duration to a histogram."""
        spread = self.spread(metric, *labels)
        spread.counts[bisect_left(metric.buckets, seconds)] += 1
        spread.total += seconds

    def spread(self, metric: Metric, *labels: str) -> Spread:
        """A histogram, which is empty at first."""
        assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}"
        known = self.spreads.setdefault(metric, {})
        if labels not in known:
            known[labels] = Spread([0] * (len(metric.buckets) + 1))
        return known[labels]

    def take(self, other: Rows) -> None:
        """Take over the samples of others as they are now."""
        for metric, values in other.values.items():
            self.values.setdefault(metric, {}).update(values)
        for metric, spreads in other.spreads.items():
            copies = {labels: each.copy() for labels, each in spreads.items()}
            self.spreads.setdefault(metric, {}).update(copies)
