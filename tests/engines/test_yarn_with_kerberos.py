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
from supervisor.engines.engine import Pool, PoolAgent
from supervisor.engines.yarn.yarn import Yarn
from tests.engines.hadoop_tokens import MAGIC, command_lines, files, keys, pages, passwords, traces
from tests.engines.on_yarn import processes
from tests.engines.pool_shell import JOB, PoolShell, ours, wait_long
from tests.engines.suite import notes, running
from tests.support import secure_hdfs
from tests.support.secure_hdfs import CLIENT, REALM, YARN, SecureHdfs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
OTHER = f"ann@{REALM}"
RENEWED_S, LAST_S = 40, 90
"""How long a token of HDFS is good without a renewal, and in all."""
PROPERTIES = {
    "dfs.permissions.enabled": "true",
    "dfs.namenode.delegation.token.renew-interval": f"{RENEWED_S}000",
    "dfs.namenode.delegation.token.max-lifetime": f"{LAST_S}000",
}
OVER = (
    "the token by which YARN fetches its files is over; `pool scale` queues another, `pool up` where none is "
    "left: "
)


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
def secured(hdfs: SecureHdfs) -> Secured:
    caches = {name: f"FILE:{hdfs.directory}/ticket-of-{name}" for name in ("user", "administrator")}
    hdfs.ticket(caches["user"])
    hdfs.ticket(caches["administrator"], YARN)
    return Secured(hdfs.directory, **caches)


@pytest.mark.parametrize("what", ["no ticket", "an expired one", "a clock that is wrong", "another's queue"])
def test_who_may_not_is_told_what_to_do_and_nothing_is_left(
    what: str, yarn: Yarn, yarn_pool: Pool, hdfs: SecureHdfs, yarn_cluster: YarnCluster, tmp_path: Path
) -> None:
    assert pools.live(yarn) == []
    cache = tmp_path / "ticket"
    environment = yarn_cluster.environment | {"KRB5CCNAME": f"FILE:{cache}"}
    match what:
        case "no ticket":
            told = f"there is no ticket: there is no file {cache}; `kinit -c {cache}` fetches one"
        case "an expired one":
            expire(hdfs, cache)
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
        pools.start(refused, replace(yarn_pool, queue="urgent"), 2)
    refused.close()
    assert pools.live(yarn) == []
    assert processes("application_", "tfsup.yarn.Master") == []


def test_agents_run_on_when_the_ticket_has_expired(
    yarn: Yarn, yarn_pool: Pool, hdfs: SecureHdfs, yarn_cluster: YarnCluster, tmp_path: Path
) -> None:
    cache = tmp_path / "ticket"
    hdfs.ticket(str(cache))
    environment = yarn_cluster.environment | {"KRB5CCNAME": f"FILE:{cache}"}
    client = Yarn(environment)
    pools.start(client, yarn_pool, 1)
    client.close()
    [agent] = running(yarn, 1)
    noted = notes(tmp_path, [agent])
    expire(hdfs, cache)
    client = Yarn(environment)
    with pytest.raises(Refused, match=f"no ticket in {cache} is valid now"):
        client.agents("digits")
    client.close()
    assert (running(yarn, 1), notes(tmp_path, [agent])) == ([agent], noted)
    hdfs.ticket(str(cache))
    client = Yarn(environment)
    assert pools.end(client, "digits", 30) == 1
    client.close()
    assert notes(tmp_path, [agent])[agent.id].endswith("SIGUSR2")


@pytest.mark.timeout(600)
def test_an_agent_outlives_its_token_and_is_not_moved_after_it(
    yarn: Yarn, yarn_pool: Pool, yarn_cluster: YarnCluster, tmp_path: Path
) -> None:
    pools.start(yarn, yarn_pool, 2)
    began = time.monotonic()
    agents = moved, stays = running(yarn, 2)
    noted = notes(tmp_path, agents)

    # The next ApplicationMaster is on another machine, where YARN fetches its files by a renewed token.
    secure_hdfs.wait_until(began + RENEWED_S + 1)
    (master,) = processes(moved.id, "tfsup.yarn.Master")
    master.kill()
    wait_long(lambda: bool(processes(moved.id, "tfsup.yarn.Master")), "there is another one")
    wait_long(lambda: pools.live(yarn) == agents, "it has the agent")

    secure_hdfs.wait_until(began + LAST_S + 1)
    assert (running(yarn, 2), notes(tmp_path, agents)) == (agents, noted)
    try:
        yarn_cluster.decommission(moved.place)
        wait_long(lambda: notes(tmp_path, agents)[moved.id].endswith("SIGUSR2"), "it is told to move")
        wait_long(lambda: pools.live(yarn) == [stays], "it gets no container elsewhere")
        assert why(yarn, moved).startswith(OVER)
    finally:
        yarn_cluster.restore()
    pools.scale(yarn, "digits", 2)
    assert stays in running(yarn, 2)
    assert notes(tmp_path, agents)[stays.id] == stays.place


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
        with PoolShell(cluster, "yarn", yarn_cluster.variables).alone() as found:
            yield found


@pytest.mark.timeout(900)
def test_training_commits_to_hdfs_goes_on_with_a_new_token_and_shows_no_secret(
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
    queued = time.monotonic()
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

    place = str(shell.tasks()["ps:0"]["node"]).removeprefix("p.")
    seen = pages(yarn_cluster.web)
    assert any(f"{place}:" in page and "containerlogs" in page for page in seen), "agents' logs are pages"
    places = (yarn_cluster.directory / "log", hdfs.directory / "data", tmp_path)
    beside = {name: content for each in places for name, content in files(each).items()}
    beside |= {str(each): each.read_bytes() for each in hdfs.directory.glob("*.log")}
    no_secret_is_in(command_lines() | seen | beside, yarn_cluster, hdfs)
    note("no secret is where it should not be")

    # The token of an agent is over, and its ApplicationMaster dies: YARN ends the agent, and says why.
    secure_hdfs.wait_until(queued + LAST_S + 1)
    before, ident = shell.recoveries(), shell.ident(place)
    (master,) = processes(ident, "tfsup.yarn.Master")
    master.kill()
    wait_long(lambda: shell.recoveries() > before, "the agent's end is seen")
    wait_long(lambda: OVER in shell("pool", "status", "p").stdout, "it says why")
    shell("pool", "scale", "p", "2")
    shell.trains_on("an agent's token was over")
    note("an agent's token was over, and it trains")
    step = committed(shell)
    wait_long(lambda: committed(shell) > step, "commits go on")
    note("commits go on")

    shell.env["KRB5CCNAME"] = f"FILE:{tmp_path}/none"
    assert "there is no ticket" in shell("pool", "status", "p", code=6).stderr
    shell.env["KRB5CCNAME"] = yarn_cluster.variables["KRB5CCNAME"]
    shell("pool", "down", "p", "--within", "20")
    assert "application_" not in yarn_cluster.yarn("application", "-list")
    wait_long(lambda: ours(tmp_path) == [], "no process is left")
    note("all is given back")
    owners = {each.owner for each in hdfs.superuser().list_status("/user/tfsup/digits", recursive=True)}
    assert owners == {"tfsup"}


def expire(hdfs: SecureHdfs, cache: Path) -> None:
    """Have a ticket in this cache that has expired."""
    hdfs.ticket(str(cache), life="1s")
    secure_hdfs.wait_until(time.monotonic() + 2)


def no_secret_is_in(places: dict[str, bytes], yarn: YarnCluster, hdfs: SecureHdfs) -> None:
    """No place has a password of a token or a key of a keytab, but YARN's own files that are for them."""
    data = files(yarn.directory / "data")
    tokens = {name for name in data if "/nmPrivate/" in name and name.endswith(".tokens")}
    assert {name for name, content in data.items() if MAGIC in content[:4]} == tokens, "tasks find no tokens"
    secrets = [one for each in tokens for one in passwords(Path(each))]
    assert len(secrets) > 2, "there are tokens"
    secrets += [one for each in hdfs.directory.glob("*.keytab") for one in keys(each)]
    found = set(traces(secrets, data | places))
    assert tokens <= found
    # The ResourceManager's state is what another one goes on with.
    assert [each for each in found - tokens if not each.startswith(f"{yarn.directory}/data/state/")] == []


def why(yarn: Yarn, agent: PoolAgent) -> str:
    """The reason of an agent's end."""
    return next(each.reason for each in yarn.agents("digits") if each.id == agent.id)


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
