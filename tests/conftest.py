"""Settings that every test shares."""

import signal
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from chaos.dockerd import Dockerd
from chaos.hdfs import HdfsCluster
from supervisor.adapters.caller import CALLER
from supervisor.adapters.failpoints import effect
from tests.support.etcd_server import etcd_binaries
from tests.support.order import arranged

# Deadlines of hypothesis, and what it takes for slow, measure the load of the machine; pytest-timeout bounds
# each test instead. Derandomised: the same inputs on every run, so that a failure here is one everywhere.
LOADED = [HealthCheck.too_slow]
settings.register_profile(
    "test", deadline=None, derandomize=True, print_blob=True, suppress_health_check=LOADED
)
settings.register_profile(
    "full", deadline=None, max_examples=1000, print_blob=True, suppress_health_check=LOADED
)
settings.load_profile("test")


def pytest_configure() -> None:
    """A suite that a shell started in the background ignores SIGINT, and so would the programs under test."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One process takes them as they come; several, so that none of them waits long for the last."""
    worker: dict[str, int] = getattr(config, "workerinput", {})
    if worker:
        items[:] = arranged(items, worker["workercount"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which etcd releases this run could use: a machine without a current one tests less."""
    versions = []
    for binary in etcd_binaries().values():
        shown = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True).stdout
        versions.append(shown.splitlines()[0].removeprefix("etcd Version: "))
    line = "etcd on this machine: " + (", ".join(versions) or "none")
    if len(versions) < 2:
        line += "; no other release was tested (deploy/build-etcd.sh needs a recent Go)"
    terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def failpoints_are_left_as_found() -> Iterator[None]:
    """Failpoints that a test arms do not stay armed for the next test in this process."""
    yield
    assert effect("a.b") is effect("a.b"), "this test has left something installed at failpoints"


@pytest.fixture(scope="session")
def hdfs() -> Iterator[HdfsCluster]:
    """One healthy HDFS for all tests of this process, started by the first that asks for it."""
    with HdfsCluster() as cluster:
        yield cluster


@pytest.fixture
def hdfs_of_my_own() -> Iterator[HdfsCluster]:
    """An HDFS for one test, to break."""
    with HdfsCluster() as cluster:
        yield cluster


@pytest.fixture
def hdfs_ha() -> Iterator[HdfsCluster]:
    """One with two NameNodes and three JournalNodes, for one test, to break."""
    with HdfsCluster(ha=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """One healthy dockerd for all tests of this process, started by the first that asks for it."""
    with Dockerd() as daemon:
        yield daemon


@pytest.fixture
def dockerd_of_my_own() -> Iterator[Dockerd]:
    """A dockerd for one test, to break."""
    with Dockerd() as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def nobody_calls_afterwards() -> Iterator[None]:
    """The caller of one test's requests is not named in the events of the next test in this process."""
    yield
    CALLER.set(None)
