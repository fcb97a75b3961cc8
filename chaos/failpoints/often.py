"""The same again and again, for minutes: until records of it are forgotten."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from chaos.cluster import CommandFailed
from chaos.failpoints import beside
from chaos.faults.operator import Operator
from chaos.faults.scene import Scene
from supervisor.control.decide.jobs.incidents import KEPT_EVENTS, KEPT_INCIDENTS

MOST_S = 400.0


def restarts(scene: Scene) -> None:
    """An operator restarts another job's task more often than incidents are kept."""
    with beside.trains_on(scene) as other:
        until_s = time.monotonic() + MOST_S
        for _ in range(KEPT_INCIDENTS + 2):
            before = other.task("worker.0")
            other.job.operator.ctl("restart", f"{other.job.name}/worker:0")
            other.successor(before, beside.DONE_S)
            if time.monotonic() > until_s:
                return


def cordons(scene: Scene) -> None:
    """Two operators cordon a node and take it back, more often than events are kept; some are refused."""
    node = scene.task("worker.0").node
    until_s = time.monotonic() + MOST_S

    def insist(operator: Operator) -> None:
        for _ in range(KEPT_EVENTS // 2):
            for word in ("cordon", "uncordon"):
                with suppress(CommandFailed):
                    operator.ctl(word, node)
            if time.monotonic() > until_s:
                return

    with Operator(scene.cluster) as one, Operator(scene.cluster) as two, ThreadPoolExecutor(2) as both:
        for done in [both.submit(insist, operator) for operator in (one, two)]:
            done.result()
