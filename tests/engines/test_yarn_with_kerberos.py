"""Pools on a YARN with Kerberos, beside an HDFS with Kerberos and permissions."""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.nvml import compile_library
from chaos.yarn import AGENT_MIB, Secured, YarnCluster
from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.local.layout import POOL
from supervisor.contract.errors import Refused
from supervisor.engines import pools
from supervisor.engines.engine import Pool
from supervisor.engines.yarn.yarn import Yarn
from tests.engines.hadoop_tokens import MAGIC, command_lines, files, keys, passwords, traces
from tests.engines.on_yarn import processes
from tests.engines.pool_shell import JOB, PoolShell, ours, wait_long
from tests.engines.suite import PROGRAM, notes, running
from tests.support import secure_hdfs
from tests.support.secure_hdfs import CLIENT, REALM, YARN, SecureHdfs

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


@pytest.fixture
def shell(
    hdfs: SecureHdfs, yarn_cluster: YarnCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PoolShell]:
    """The supervisor reads HDFS by a ticket, and the agents of the pool by their keytab."""
    monkeypatch.setenv("KRB5CCNAME", yarn_cluster.variables["KRB5CCNAME"])
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    with LocalCluster(tmp_path / "state", nodes=1, supervisors=1) as cluster:
        shared = cluster.layout.config(POOL)
        comment, _, body = shared.read_text().partition("\n")
        kerberos = {"kerberos": {"principal": CLIENT, "keytab": str(hdfs.keytab_of(CLIENT))}}
        shared.write_text(f"{comment}\n{json.dumps(json.loads(body) | {'hadoop': kerberos})}")
        found = PoolShell(cluster, "yarn", yarn_cluster.variables)
        found("cordon", "node-0", "--reason", "training is for the pool")
        yield found
        found.works("pool", "down", "p", "--now")


@pytest.mark.timeout(900)
def test_training_commits_to_hdfs_and_no_secret_is_in_a_command(
    shell: PoolShell,
    hdfs: SecureHdfs,
    yarn_cluster: YarnCluster,
    tmp_path: Path,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    began = time.monotonic()

    def note(what: str) -> None:
        record_testsuite_property(what, round(time.monotonic() - began, 1))

    shell("pool", "up", "p", "--agents", "2", "--memory", f"{AGENT_MIB}MiB")
    wait_long(lambda: len(shell.ready()) == 2, "two agents join")
    note("two agents ready")
    job = JOB + f"checkpoint: {{uri: {hdfs.uri}/user/tfsup/digits}}\n"
    (tmp_path / "job.yaml").write_text(job)
    shell("submit", str(tmp_path / "job.yaml"))
    shell.trains_on("the beginning")
    wait_long(lambda: committed(shell) > 0, "a commit")
    note("first commit")

    before = shell.recoveries()
    os.kill(int(str(shell.tasks()["worker:0"]["pid"])), signal.SIGKILL)
    wait_long(lambda: shell.recoveries() > before, "the worker's end is seen")
    shell.trains_on("a worker was killed")
    note("a worker was killed, and it trains")

    before, place = shell.recoveries(), str(shell.tasks()["ps:0"]["node"]).removeprefix("p.")
    tokens = list((yarn_cluster.directory / "data").rglob("nmPrivate/**/*.tokens"))
    secrets = [one for each in tokens for one in passwords(each)]
    assert len(secrets) > 2, "there are tokens"
    secrets += [one for each in hdfs.directory.glob("*.keytab") for one in keys(each)]
    assert traces(secrets, command_lines()) == []
    seen = {name for name, content in files(yarn_cluster.directory / "data").items() if MAGIC in content[:4]}
    assert seen == {str(each) for each in tokens}, "tasks find no tokens"
    yarn_cluster.yarn(
        "container", "-signal", yarn_cluster.container_of(shell.ident(place)), "FORCEFUL_SHUTDOWN"
    )
    wait_long(lambda: shell.recoveries() > before, "the container's end is seen")
    shell("pool", "scale", "p", "2")
    shell.trains_on("a container was killed")
    note("a container was killed, and it trains")
    step = committed(shell)
    wait_long(lambda: committed(shell) > step, "commits go on")
    note("commits go on")

    shell.env["KRB5CCNAME"] = f"FILE:{tmp_path}/none"
    told = shell("pool", "status", "p", code=6)
    assert "there is no ticket" in told.stderr
    shell.env["KRB5CCNAME"] = yarn_cluster.variables["KRB5CCNAME"]
    shell("pool", "down", "p", "--within", "20")
    assert "application_" not in yarn_cluster.yarn("application", "-list")
    wait_long(lambda: ours(tmp_path) == [], "no process is left")
    note("all is given back")
    owners = {each.owner for each in hdfs.superuser().list_status("/user/tfsup/digits", recursive=True)}
    assert owners == {"tfsup"}


def committed(shell: PoolShell) -> int:
    """The step of the job's newest commit; 0 before the first."""
    newest = shell.job()["newest_commit"]
    return int(newest["step"]) if isinstance(newest, dict) else 0


def clock_ahead_by(seconds: int, directory: Path) -> dict[str, str]:
    """The environment of programs whose wall clock is wrong."""
    library, clock = directory / "clock.so", directory / "clock"
    compile_library(ROOT / "chaos" / "wall_clock.c", library)
    clock.write_bytes(struct.pack("=q", seconds * 10**9))
    return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(clock)}
