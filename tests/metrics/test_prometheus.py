"""Alerts and dashboards on a real cluster, by a real Prometheus and a real Alertmanager."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.contract.boundaries import Put
from tests.metrics.site import Site, old_certificate, site
from tests.support import dashboards
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
MIB = 1 << 20


def metrics_at(port: int, token: str) -> bytes:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        found: bytes = answer.read()
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site")) as found:
        yield found


@pytest.fixture(scope="module")
def trained(running: Site) -> str:
    """A job that trains, has committed, and has recovered once; and a GPU that has reported an XID."""
    task = running.submit("trains", "train")
    running.cluster.until("training", lambda: running.cluster.gpu_of(task))
    running.prometheus.until_series('tfsup_job_committed_step{job_name="trains"} > 0')
    pid = json.loads(running.cluster.ask("status", "trains", "--output", "json"))["jobs"][0]["tasks"][0][
        "pid"
    ]
    running.cluster.nvml[1].set(0, util=93, temp=71, power=512_000)
    running.cluster.nvml[1].event(0, 13)
    running.cluster.ask("signal", task, "KILL")
    assert pid
    running.prometheus.until_series('tfsup_incidents_total{outcome="recovered", cause!="submitted"} > 0')
    return task


@pytest.mark.parametrize("board", dashboards.DASHBOARDS, ids=lambda board: board.name)
def test_each_query_of_the_dashboards_has_a_series(
    running: Site, trained: str, board: dashboards.Dashboard
) -> None:
    del trained
    written = json.loads((dashboards.DIRECTORY / f"{board.name}.json").read_text())
    assert written == json.loads(dashboards.render(board)), "run: python -m tests.support.dashboards"
    expressions = [target["expr"] for panel in written["panels"] for target in panel["targets"]]
    assert expressions
    for expression in expressions:
        asked = (
            expression.replace("$__rate_interval", "1m").replace("$job", "trains").replace("$instance", ".*")
        )
        assert "$" not in asked
        running.prometheus.until_series(asked)
    for variable in written["templating"]["list"][1:]:
        metric, label = re.findall(r"label_values\((\w+), (\w+)\)", variable["query"])[0]
        assert running.prometheus.series(f'{metric}{{{label}!=""}}')


def test_the_cluster_is_told_by_its_leader_alone_and_every_daemon_tells_of_itself(running: Site) -> None:
    running.prometheus.until_series("sum(tfsup_leader) == 1 and count(tfsup_leader) == 2")
    running.prometheus.until_series("count(count by (instance) (tfsup_nodes)) == 1")
    running.prometheus.until_series("tfsup_nodes and on (instance) tfsup_leader == 1")
    running.prometheus.until_series('count(tfsup_build_info{daemon="agent"}) == 2')
    running.prometheus.until_series("sum(tfsup_collector_failures_total) == 0")
    layout = running.cluster.local.layout
    for port in layout.read().http.values():
        text = metrics_at(port, layout.http_token.read_text().strip())
        # It finds fault with names that are not as Prometheus has them.
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_job_that_fails_is_told_to_a_receiver(running: Site) -> None:
    running.submit("fails", "fail", restart={"max": 2, "backoff": "50ms"})
    told = running.prometheus.until_received("TfsupJobFailed")
    assert told["labels"]["job_name"] == "fails"
    assert told["labels"]["cluster"] == "local"
    assert told["annotations"]["summary"] == "Job fails has failed."
    again = running.prometheus.until_received("TfsupRestartsWithoutProgress")
    assert again["labels"]["job_name"] == "fails"


@pytest.mark.slow
def test_a_job_that_stands_still_is_told(running: Site) -> None:
    running.submit("stalls", "stall", progress={"hangs": False})
    assert running.prometheus.until_received("TfsupNoProgress")["labels"]["job_name"] == "stalls"


@pytest.mark.slow
def test_a_store_that_is_away_and_the_saves_that_wait_for_it_are_told(running: Site, trained: str) -> None:
    del trained
    store = running.directory / "store-trains"
    store.rename(running.directory / "away")
    try:
        assert running.prometheus.until_received("TfsupCommitLag")["labels"]["job_name"] == "trains"
        assert running.prometheus.until_received("TfsupStoreAway")["labels"]["cluster"] == "local"
    finally:
        (running.directory / "away").rename(store)


@pytest.mark.slow
def test_a_quarantined_gpu_is_told(running: Site, trained: str) -> None:
    uuid = running.cluster.gpu_of(trained)
    nvml, index = running.cluster.scripted(uuid)
    view = running.cluster.find(uuid)
    assert view is not None
    nvml.event(index, 48)
    labels = running.prometheus.until_received("TfsupGpuQuarantined")["labels"]
    assert (labels["node"], labels["gpu"]) == (view.node, str(view.index))


@pytest.mark.slow
def test_a_certificate_that_runs_out_is_told(running: Site) -> None:
    running.configure("supervisor-1", tls=old_certificate(running.directory))
    told = running.prometheus.until_received("TfsupCertificateEnds")
    assert told["labels"]["use"] == "supervisor:supervisor-1"


@pytest.mark.slow
def test_an_etcd_that_fills_is_told(running: Site) -> None:
    layout = running.cluster.local.layout

    async def fill() -> None:
        etcd = EtcdCoordination([layout.etcd_endpoint], "other", rpc_deadline_ms=5_000, silence_ms=5_000)
        for number in range(8):
            await etcd.txn((), [Put(f"events/{number:010}", bytes(MIB // 2))])
        await etcd.close()

    asyncio.run(fill())
    for name in ("supervisor-0", "supervisor-1"):
        running.configure(name, etcd_quota="4MiB")
    assert running.prometheus.until_received("TfsupEtcdSpace")["labels"]["cluster"] == "local"


@pytest.mark.slow
def test_a_lost_node_is_told(running: Site) -> None:
    running.cluster.local.stop_member("agent-1", signal.SIGKILL)
    assert running.prometheus.until_received("TfsupNodeLost")["labels"]["node"] == "node-1"
    running.cluster.local.start_member("agent-1")


@pytest.mark.slow
def test_a_cluster_that_nobody_leads_is_told(running: Site) -> None:
    for name in ("supervisor-0", "supervisor-1"):
        running.cluster.local.stop_member(name)
    running.prometheus.until_received("TfsupNoLeader")
    for name in ("supervisor-0", "supervisor-1"):
        running.cluster.local.start_member(name)
    wait_until(lambda: bool(running.prometheus.series("tfsup_leader == 1")))
