"""The path of a daemon's HTTP door at which Prometheus reads its metrics."""

from __future__ import annotations

from supervisor.adapters.metrics.daemon import Metrics
from supervisor.wire.http import Answer, Asked, Route

KIND = "text/plain; version=0.0.4; charset=utf-8"


def metrics_route(metrics: Metrics) -> Route:
    """`/metrics`, for whoever may view the cluster."""

    async def answer(_asked: Asked) -> Answer:
        return Answer(await metrics.answer(), KIND)

    return Route("/metrics", "Http.Metrics", answer)
