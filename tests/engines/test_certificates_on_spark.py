"""A pool with certificates on a real Spark: supervisors issue them, or each node has its own from files."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from chaos.spark import SparkCluster
from tests.engines.certified import ENDS, Site, run
from tests.engines.pool_shell import LONG_S, wait_long
from tests.engines.spark_shell import DRIVER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NODES = tuple(f"train.{socket.gethostname()}{end}" for end in ("", ".2"))


@pytest.fixture
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        # Paths of sockets are short.
        made = Site(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfsup-c-"))))
        etcd = stack.enter_context(made.make())
        stack.callback(made.close)
        made.start(etcd)
        wait_long(lambda: made.ctl("nodes").exception is None, "a supervisor leads")
        yield made


def name_files(site: Site) -> None:
    """Make a certificate for each node, and have the file that agents share name them."""
    run("certs", "issue", str(site.tls), *(f"agent:{each},127.0.0.1" for each in NODES))
    admin = ("--cert", str(site.tls / "etcdctl-admin.pem"), "--supervisor-config", str(site.root / "s0.yaml"))
    run("etcd", "setup", *admin, *(f"agent:{each}" for each in NODES))
    path = site.root / "pool.yaml"
    shared = json.loads(path.read_text())
    for part in (shared, shared["etcd"]):
        part["tls"] |= {each: str(site.tls / f"agent-{{node}}.{end}") for each, end in ENDS}
    path.write_text(json.dumps(shared))


@contextmanager
def driving(site: Site, spark: SparkCluster) -> Iterator[subprocess.Popen[bytes]]:
    """A driver whose pool of two agents runs the site's job."""
    (site.root / "job.yaml").write_text((site.root / "job.yaml").read_text().replace("count: 1", "count: 2"))
    pool = {"name": "train", "config": site.root / "client.yaml", "agent_config": site.root / "pool.yaml"}
    words = [word for name, value in pool.items() for word in ("--pool", f"{name}={value}")]
    with (site.root / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, str(DRIVER), spark.master, str(site.root / "job.yaml"), "--agents", "2", *words],
            env=spark.environment,
            cwd=site.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield driver
    finally:
        driver.kill()
        driver.wait()


@pytest.mark.parametrize("issued", [True, False], ids=["issued", "from-files"])
def test_agents_with_certificates_run_jobs(site: Site, *, issued: bool) -> None:
    if not issued:
        name_files(site)
    with SparkCluster(site.root / "spark", ("w1", "w2"), cores=2) as spark, driving(site, spark) as driver:
        wait(site, lambda: states(site) == {"running"}, "both tasks run")
        assert {each["node"] for each in tasks(site)} == set(NODES)
        before, pids = certificates(site), [each["pid"] for each in tasks(site)]
        if issued:
            wait(site, lambda: not before.items() & certificates(site).items(), "all are renewed")
        step = job(site)["step"]
        wait(site, lambda: job(site)["step"] > step + 20, "it trains on")
        assert [each["pid"] for each in tasks(site)] == pids
        driver.send_signal(signal.SIGINT)
        assert driver.wait(LONG_S) == 0, told(site)
        assert "pool train has ended; Spark has everything back" in told(site)
        assert len(before) == (len(NODES) if issued else 0)


def wait(site: Site, condition: Callable[[], bool], what: str) -> None:
    """As wait_long; a failure shows the driver's output."""
    try:
        wait_long(condition, what)
    except AssertionError as error:
        raise AssertionError(f"{what}; the driver's output ends with:\n{told(site)}") from error


def told(site: Site) -> str:
    return (site.root / "driver.log").read_text(errors="replace")[-3000:]


def job(site: Site) -> dict[str, Any]:
    return site.json("status", "count")["jobs"][0]


def tasks(site: Site) -> list[dict[str, Any]]:
    """The tasks of the job; none before it is there."""
    if site.ctl("status", "count").exception is not None:
        return []
    found: list[dict[str, Any]] = job(site)["tasks"]
    return found


def states(site: Site) -> set[str]:
    return {each["state"] for each in tasks(site)}


def certificates(site: Site) -> dict[str, bytes]:
    """The certificates that nodes have of supervisors."""
    found = (site.root / "agents" / node / "certificate.pem" for node in NODES)
    return {str(each): each.read_bytes() for each in found if each.exists()}
