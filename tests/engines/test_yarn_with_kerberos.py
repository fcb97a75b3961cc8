"""Pools on a YARN with Kerberos, beside an HDFS with Kerberos and permissions."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.nvml import compile_library
from chaos.yarn import AGENT_MIB, Secured, YarnCluster
from supervisor.contract.errors import Refused
from supervisor.engines import pools
from supervisor.engines.engine import Pool
from supervisor.engines.yarn.yarn import Yarn
from tests.engines.on_yarn import processes
from tests.engines.suite import PROGRAM, notes, running
from tests.support import secure_hdfs
from tests.support.secure_hdfs import REALM, YARN, SecureHdfs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
OTHER = f"ann@{REALM}"
PROPERTIES = {"dfs.permissions.enabled": "true"}


@pytest.fixture(scope="module")
def hdfs() -> Iterator[SecureHdfs]:
    """Each user has a home directory that nobody else may pass."""
    with SecureHdfs(PROPERTIES) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRB5_CONFIG", made.environment["KRB5_CONFIG"])
        patch.setenv("KRB5CCNAME", f"FILE:{made.directory}/nobody")
        made.add(OTHER)
        for user in ("tfsup", "ann"):
            made.give(f"/user/{user}", user)
        made.give("/tmp", "hdfs", 0o1777)
        yield made


@pytest.fixture(scope="module")
def yarn_cluster(hdfs: SecureHdfs) -> Iterator[YarnCluster]:
    caches = {name: f"FILE:{hdfs.directory}/ticket-of-{name}" for name in ("user", "administrator")}
    hdfs.ticket(caches["user"])
    hdfs.ticket(caches["administrator"], YARN)
    with YarnCluster(Secured(hdfs.directory, **caches)) as found:
        yield found


@pytest.fixture
def engine(yarn_cluster: YarnCluster) -> Iterator[Yarn]:
    found = Yarn(yarn_cluster.environment)
    yield found
    for name in {each.pool for each in pools.live(found)}:
        pools.end(found, name, 0)
    found.close()


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    (tmp_path / "agent.py").write_text(PROGRAM)
    command = ("python3", str(tmp_path / "agent.py"), str(tmp_path))
    return Pool(name="digits", command=command, directory=str(tmp_path), memory_mib=AGENT_MIB)


@pytest.mark.parametrize("what", ["no ticket", "an expired one", "a clock that is wrong", "another's queue"])
def test_who_may_not_is_told_what_to_do_and_nothing_is_left(
    what: str, engine: Yarn, pool: Pool, hdfs: SecureHdfs, yarn_cluster: YarnCluster, tmp_path: Path
) -> None:
    assert pools.live(engine) == []
    cache = tmp_path / "ticket"
    environment = yarn_cluster.environment | {"KRB5CCNAME": f"FILE:{cache}"}
    match what:
        case "no ticket":
            told = f"there is no ticket: there is no file {cache}; `kinit -c {cache}` fetches one"
        case "an expired one":
            hdfs.ticket(str(cache), life="1s")
            secure_hdfs.wait_until(time.monotonic() + 2)
            told = f"no ticket in {cache} is valid now"
        case "a clock that is wrong":
            hdfs.ticket(str(cache))
            environment |= clock_ahead_by(600, tmp_path)
            told = "Clock skew too great"
        case _:
            hdfs.ticket(str(cache), OTHER)
            told = "ann does not have permission to submit"
    refused = Yarn(environment)
    with pytest.raises(Refused, match=told):
        pools.start(refused, replace(pool, queue="urgent"), 2)
    refused.close()
    assert pools.live(engine) == []
    assert processes("application_", "tfsup.yarn.Master") == []


def test_agents_run_on_when_the_ticket_has_expired(
    engine: Yarn, pool: Pool, hdfs: SecureHdfs, yarn_cluster: YarnCluster, tmp_path: Path
) -> None:
    cache, life_s = tmp_path / "ticket", 25
    hdfs.ticket(str(cache), life=f"{life_s}s")
    expires = time.monotonic() + life_s + 1
    environment = yarn_cluster.environment | {"KRB5CCNAME": f"FILE:{cache}"}
    client = Yarn(environment)
    pools.start(client, pool, 1)
    client.close()
    [agent] = running(engine, 1)
    noted = notes(tmp_path, [agent])
    secure_hdfs.wait_until(expires)
    client = Yarn(environment)
    with pytest.raises(Refused, match=f"no ticket in {cache} is valid now"):
        client.agents("digits")
    client.close()
    assert (running(engine, 1), notes(tmp_path, [agent])) == ([agent], noted)
    hdfs.ticket(str(cache))
    client = Yarn(environment)
    assert pools.end(client, "digits", 30) == 1
    client.close()
    assert notes(tmp_path, [agent])[agent.id].endswith("SIGUSR2")


def clock_ahead_by(seconds: int, directory: Path) -> dict[str, str]:
    """The environment of programs whose wall clock is wrong."""
    library, clock = directory / "clock.so", directory / "clock"
    compile_library(ROOT / "chaos" / "wall_clock.c", library)
    clock.write_bytes(struct.pack("=q", seconds * 10**9))
    return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(clock)}
