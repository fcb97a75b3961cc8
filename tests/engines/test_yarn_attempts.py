"""A real YARN whose parts fail: an application has one agent, and a pool that has ended leaves no file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hdfs_native import Client

from chaos.yarn import PLACES, YarnCluster
from supervisor.contract.errors import Refused
from supervisor.engines import pools
from supervisor.engines.engine import Pool
from supervisor.engines.yarn.yarn import Yarn
from tests.engines.on_yarn import directories, processes, staged
from tests.engines.pool_shell import wait_long
from tests.engines.suite import notes, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def yarn_cluster() -> Iterator[YarnCluster]:
    with YarnCluster(gpus=True) as found:
        yield found


@pytest.fixture(scope="module")
def hdfs(yarn_cluster: YarnCluster) -> Client:
    return Client(config_dir=str(yarn_cluster.directory / "client"))


def test_an_agent_that_ends_while_there_is_no_application_master_is_not_replaced(
    yarn: Yarn, yarn_pool: Pool, tmp_path: Path
) -> None:
    pools.start(yarn, yarn_pool, 1)
    [agent] = running(yarn, 1)
    notes(tmp_path, [agent])
    (master,) = processes(agent.id, "tfsup.yarn.Master")
    (program,) = processes(agent.id, "agent.py")
    master.kill()
    program.terminate()
    wait_long(lambda: not pools.live(yarn), "the application ends")
    assert notes(tmp_path, [agent])[agent.id] == f"{agent.place} SIGTERM", "there was no second one"
    assert yarn.agents("digits")[-1].word == "SUCCEEDED"


def test_an_application_has_one_agent_after_its_master_and_yarns_have_failed_together(
    yarn: Yarn, yarn_pool: Pool, yarn_cluster: YarnCluster, tmp_path: Path
) -> None:
    pools.start(yarn, yarn_pool, 1)
    [agent] = running(yarn, 1)
    notes(tmp_path, [agent])
    (master,) = processes(agent.id, "tfsup.yarn.Master")
    (first,) = processes(agent.id, "agent.py")
    daemon = f"nodemanager{PLACES.index(agent.place)}"
    yarn_cluster.script("freeze", daemon)
    try:
        yarn_cluster.script("kill", "resourcemanager")
        master.kill()
        yarn_cluster.script("start", "resourcemanager")
        # The next ApplicationMaster hears of no agent before that NodeManager has registered.
        wait_long(lambda: notes(tmp_path, [agent])[agent.id] != agent.place, "another agent has begun")
    finally:
        yarn_cluster.script("thaw", daemon)
    wait_long(lambda: processes(agent.id, "agent.py") == [first], "the second is ended, and the first runs")
    wait_long(lambda: pools.live(yarn) == [agent], "it is the one that YARN counts")
    assert notes(tmp_path, [agent])[agent.id].endswith("SIGTERM")


def test_agents_know_their_racks(yarn: Yarn, yarn_pool: Pool, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.mkdir()
    program = f"""
import pathlib, signal, sys
rack = [each for each in sys.argv if each.startswith("rack=")]
pathlib.Path("{words}", sys.argv[sys.argv.index("--place") + 1]).write_text(" ".join(rack))
signal.pause()
"""
    pools.start(yarn, replace(yarn_pool, command=("python3", "-c", program)), 3)
    wait_long(lambda: {each.name for each in words.iterdir()} == set(PLACES), "three have begun")
    wait_long(
        lambda: [(words / each).read_text() for each in PLACES] == ["rack=east/r1", "rack=east/r2", ""],
        "two know a rack",
    )


def test_agents_with_gpus_are_where_gpus_are_and_no_more_of_them(
    yarn: Yarn, yarn_pool: Pool, tmp_path: Path
) -> None:
    program = f"import os, signal; open('{tmp_path}/gpus', 'a').write(os.environ['CUDA_VISIBLE_DEVICES'])"
    wanted = replace(
        yarn_pool, command=("python3", "-c", f"{program}; signal.pause()"), gpus="1", memory_mib=256
    )
    with pytest.raises(Refused, match="an agent asks for more than YARN gives to one container"):
        pools.start(yarn, replace(wanted, gpus="2"), 1)
    pools.start(yarn, wanted, 2)
    wait_long((tmp_path / "gpus").exists, "one has begun")
    [agent] = running(yarn, 1)
    assert agent.place == PLACES[0]
    wait_long(lambda: {each.word for each in pools.live(yarn)} == {"RUNNING", "WAITING"}, "one waits")
    yarn.notify([agent.id])
    wait_long(lambda: (tmp_path / "gpus").read_text() == "00", "the other has the GPU now")


def test_agents_are_on_machines_that_have_their_label(
    yarn: Yarn, yarn_pool: Pool, yarn_cluster: YarnCluster
) -> None:
    with pytest.raises(Refused, match="labelExpression of resource request=nowhere"):
        pools.start(yarn, replace(yarn_pool, constraint="nowhere"), 1)
    yarn_cluster.yarn("rmadmin", "-addToClusterNodeLabels", "fast(exclusive=false)")
    yarn_cluster.yarn("rmadmin", "-replaceLabelsOnNode", f"{PLACES[2]}=fast")
    try:
        pools.start(yarn, replace(yarn_pool, constraint="fast", memory_mib=256), 1)
        pools.scale(yarn, "digits", 2)
        assert [each.place for each in running(yarn, 2)] == [PLACES[2]] * 2
    finally:
        pools.end(yarn, "digits", 0)
        yarn_cluster.yarn("rmadmin", "-replaceLabelsOnNode", f"{PLACES[2]}=")


def test_a_queue_that_is_stopped_refuses_in_yarns_words(yarn: Yarn, yarn_pool: Pool, hdfs: Client) -> None:
    with pytest.raises(Refused, match=r"root\.stopped is STOPPED. Cannot accept submission of application"):
        pools.start(yarn, replace(yarn_pool, queue="stopped"), 1)
    assert pools.live(yarn) == []
    assert staged(hdfs) == set(), "its files are gone again"


def test_the_files_of_a_pool_go_when_it_ends_and_no_others(
    yarn: Yarn, yarn_pool: Pool, yarn_cluster: YarnCluster, hdfs: Client
) -> None:
    pools.start(yarn, yarn_pool, 1)
    pools.start(yarn, replace(yarn_pool, name="other"), 1)
    running(yarn, 2)
    ours = staged(hdfs)
    assert {each.partition("-")[0] for each in ours} == {"digits", "other"}
    pools.scale(yarn, "digits", 2)
    running(yarn, 3)
    assert staged(hdfs) == ours
    other_user = Yarn({**yarn_cluster.environment, "HADOOP_USER_NAME": "somebody"})
    other_user.forget("digits")
    other_user.close()
    yarn.forget("digits")
    assert staged(hdfs) == ours, "they run"
    pools.end(yarn, "digits", 30)
    yarn.forget("digits")
    (other,) = directories(hdfs)
    assert {other.name} == {each for each in ours if each.startswith("other-")}
    # Files of a killed client go when a pool comes up. Young ones stay: another client may be copying them.
    left, young = (str(other.with_name(name)) for name in ("left-1", "young-1"))
    for each in (left, young):
        hdfs.mkdirs(each)
    hdfs.set_times(left, 1, 1)
    pools.start(yarn, yarn_pool, 1)
    names = {each.partition("-")[0] for each in staged(hdfs)}
    assert names == {"digits", "other", "young"}
    for name in ("digits", "other"):
        pools.end(yarn, name, 0)
        yarn.forget(name)
    assert staged(hdfs) == {"young-1"}
    hdfs.delete(young, recursive=True)
