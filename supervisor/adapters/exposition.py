"""Writes metrics in Prometheus' text format, by its client library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from supervisor.adapters.metrics import Kind, Rows

_PROCESS = ProcessCollector(registry=None)


def render(rows: Rows) -> bytes:
    """The text of these samples, and of this process's processor time, memory and files."""
    return generate_latest(_Families(rows))


class _Families:
    """Takes the place of a registry. Each family is made when it is written, and can go after that."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def collect(self) -> Iterable[Metric]:
        yield from _families(self._rows)
        yield from _PROCESS.collect()


def _families(rows: Rows) -> Iterator[Metric]:
    for metric, values in rows.values.items():
        made = GaugeMetricFamily if metric.kind is Kind.GAUGE else CounterMetricFamily
        family = made(metric.name, metric.text, labels=metric.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
        yield family
    for metric, spreads in rows.spreads.items():
        histogram = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
        limits = [*(str(float(each)) for each in metric.buckets), "+Inf"]
        for labels, spread in spreads.items():
            counts = zip(limits, accumulate(spread.counts), strict=True)
            histogram.add_metric(labels, [(limit, float(count)) for limit, count in counts], spread.total)
        yield histogram
