"""Real daemons over scripted GPUs: tasks get them, leave them after a fault, and operators see it all."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.nvml.cluster import DEEDS, Cluster, Deed, gpu_cluster, measure


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with gpu_cluster(tmp_path_factory.mktemp("gpus")) as found:
        yield found


def test_a_task_sees_the_gpu_that_it_was_given_and_leaves_it_after_a_fault(cluster: Cluster) -> None:
    task, nvml, index, before = cluster.train("faulty")
    assert f"sees {before.uuid}" in cluster.ask("tail", task)
    nvml.event(index, 48)
    seen: list[str] = []

    def moved() -> bool:
        seen.append(cluster.gpu_of(task))
        return seen[-1] not in {"", before.uuid}

    cluster.until("another GPU", moved)
    after = seen[-1]
    assert f"sees {after}" in cluster.ask("tail", task)
    told = {each.uuid: each for each in cluster.gpus()}
    assert (told[before.uuid].state, told[before.uuid].action) == ("quarantined", "reset_gpu")
    assert "XID 48" in told[before.uuid].reason
    assert told[after].state == "ok"
    assert "XID 48" in cluster.ask("explain", "faulty")
    shown = json.loads(cluster.ask("gpus", before.node, "--output", "json"))
    assert [each["state"] for each in shown["gpus"] if each["uuid"] == before.uuid] == ["quarantined"]
    cluster.repair("faulty", before)


def test_what_gpus_do_is_shown(cluster: Cluster) -> None:
    cluster.nvml[0].set(0, used=2 << 30, util=93, temp=71, power=512_000, throttle=0x41, procs="4000000:5")

    def told() -> bool:
        load = cluster.gpus("node-0")[0].load
        return load is not None and (load.utilisation, load.throttle, load.others) == (93, 0x40, 1)

    cluster.until("load", told)
    line = next(line for line in cluster.ask("gpus").splitlines() if cluster.nvml[0].uuids[0] in line)
    assert "2.0 GiB (1 others' processes)" in line
    assert "93%" in line
    assert "71 C, throttled" in line
    load = cluster.gpus("node-0")[0].load
    assert load is not None
    assert (load.power_mw, load.memory_used, load.ours) == (512_000, 2 << 30, 0)


def test_what_operators_are_shown_when_nvml_is_silent(cluster: Cluster) -> None:
    cluster.nvml[0].rule("hang *")
    cluster.until("unknown", lambda: cluster.states("node-0") == ["unknown"] * 2)
    assert "node-0: NVML has not answered for" in cluster.ask("gpus")
    assert cluster.states("node-1") == ["ok"] * 2
    cluster.nvml[0].rule()
    cluster.until("known", lambda: cluster.states("node-0") == ["ok"] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.name)
def test_every_class_of_fault_is_acted_on(cluster: Cluster, deed: Deed) -> None:
    measure(cluster, deed, f"job-{DEEDS.index(deed)}")
