"""Writes metrics in Prometheus' text format, by its client library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import cast

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import generate_latest
from prometheus_client.samples import Sample

from supervisor.adapters.metrics.samples import Metric, Rows, Spread

_PROCESS = ProcessCollector(registry=None)


def render(rows: Rows) -> bytes:
    """The text of these samples, and of this process's processor time, memory and files."""
    return generate_latest(_Families(rows))


class _Families:
    """Takes the place of a registry.

    Each sample is made when it is written, and can go after that. Thousands that live for a moment would have
    Python look for garbage among all that a leader knows.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def collect(self) -> Iterable[Family]:
        for metric, values in self._rows.values.items():
            yield _family(metric, _values(metric, values))
        for metric, spreads in self._rows.spreads.items():
            yield _family(metric, _buckets(metric, spreads))
        yield from _PROCESS.collect()


def _family(metric: Metric, samples: Iterator[Sample]) -> Family:
    family = Family(metric.name.removesuffix("_total"), metric.text, metric.kind.value)
    family.samples = cast("list[Sample]", samples)
    return family


def _values(metric: Metric, values: dict[tuple[str, ...], float]) -> Iterator[Sample]:
    for labels, value in values.items():
        yield Sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)


def _buckets(metric: Metric, spreads: dict[tuple[str, ...], Spread]) -> Iterator[Sample]:
    limits = [*(str(each) for each in metric.buckets), "+Inf"]
    for labels, spread in spreads.items():
        named = dict(zip(metric.labels, labels, strict=True))
        for limit, count in zip(limits, accumulate(spread.counts), strict=True):
            yield Sample(f"{metric.name}_bucket", {**named, "le": limit}, count)
        yield Sample(f"{metric.name}_count", named, sum(spread.counts))
        yield Sample(f"{metric.name}_sum", named, spread.total)
