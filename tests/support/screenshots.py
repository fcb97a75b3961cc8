"""`python -m tests.support.screenshots`: pictures of every view in docs/images/, of a real cluster.

It trains the digits of examples/digits_async, kills a worker, then takes a node away, and looks meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from selenium.webdriver import Chrome

from examples.demo.job import Training, digits_job
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.views.jobs import ClusterStatus, JobView, SubmitRequest
from tests.web.browser import chromium

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs/images"
JOB = "digits"
WIDTH = 1180
WAIT_S = 240.0


def main() -> None:
    """Take them all."""
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        LocalCluster(Path(scratch), nodes=3, supervisors=2) as cluster,
    ):
        watched = Watched(cluster)
        leader = watched.leader()
        watched.submit()
        with chromium() as browser:
            browser.get(f"{leader}/jobs/{JOB}?token={watched.token}")
            _until(lambda: watched.job().newest_commit is not None and watched.stepping(), "checkpoint")
            time.sleep(10)
            watched.kill_worker()
            time.sleep(5)
            _until(watched.stepping, "step after the first recovery")
            cluster.stop_member("agent-1", signal.SIGKILL)
            _until(lambda: "recovering" in browser.page_source, "second recovery")
            since = int((time.time() - 30) * 1000)
            _take(browser, f"{leader}/jobs/{JOB}?from={since}", "job", 1_000)
            _take(browser, f"{leader}/", "cluster", 620)
            _until(lambda: watched.job().generation > 1 and watched.stepping(), "step of a new generation")
            time.sleep(3)
            _take(browser, f"{leader}/jobs/{JOB}?from={since}", "recovered", 1_700)
            for path, name in (("/jobs", "jobs"), ("/nodes/node-0", "node"), ("/events", "events")):
                _take(browser, f"{leader}{path}", name, 560)
        with chromium(dark=True) as browser:
            browser.get(f"{leader}/jobs/{JOB}?token={watched.token}")
            _take(browser, f"{leader}/jobs/{JOB}", "dark", 900)


def _take(browser: Chrome, url: str, name: str, height: int) -> None:
    browser.set_window_size(WIDTH, height)
    browser.get(url)
    _until(
        lambda: browser.execute_script("return document.getElementById('link').innerText") == "live", "live"
    )
    time.sleep(1.0)
    browser.save_screenshot(str(IMAGES / f"{name}.png"))


class Watched:
    """A cluster with the digits job, as its leader tells it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.token = cluster.layout.http_token.read_text().strip()
        training = Training(20_000, 20.0, 100, cluster.layout.state / "steps")
        self._spec = digits_job(training, cluster.layout.checkpoint_base)

    async def _ask(self) -> ClusterStatus:
        async with self._cluster.client() as client:
            return await client.status()

    async def _submit(self) -> None:
        async with self._cluster.client() as client:
            await client.submit(SubmitRequest(self._spec))

    def submit(self) -> None:
        asyncio.run(self._submit())

    def leader(self) -> str:
        """The URL of the leader's page."""
        name = asyncio.run(self._ask()).supervisors[0].supervisor
        return f"http://127.0.0.1:{self._cluster.layout.read().http[name]}"

    def job(self) -> JobView:
        return asyncio.run(self._ask()).jobs[0]

    def stepping(self) -> bool:
        """Whether all tasks make steps."""
        return all(
            task.state == "running" and task.rate > 0 for task in self.job().tasks if task.role != "ps"
        )

    def kill_worker(self) -> None:
        (pid,) = [task.pid for task in self.job().tasks if (task.role, task.index) == ("worker", 0)]
        os.kill(pid, signal.SIGKILL)


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"there was no {what}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
