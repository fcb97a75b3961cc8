"""A cluster of nodes on this machine: what is lost with a node, what its network does, what is left."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from chaos.cluster import Cluster, CommandFailed, Node, Shape
from chaos.cluster.cluster import cannot_isolate, temporary
from chaos.cluster.etcd_reader import EtcdReader
from chaos.cluster.network import Unavailable
from chaos.cluster.program import REPOSITORY
from chaos.cluster.programs import AUDIT
from chaos.machine import kernel, power_switch

ETCD_ALONE = Shape(etcd=3, supervisors=0, agents=0)
PATIENCE_S = 60.0
ROTATIONS = 20
MACHINE_UP_S = time.clock_gettime(time.CLOCK_BOOTTIME)


def eventually(done: Callable[[], bool], what: str) -> None:
    """Wait until it is done; ask again where nothing answers yet."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if done():
                return
            why = ""
        except (OSError, CommandFailed) as error:
            why = f": {error}"
        assert time.monotonic() < deadline, what + why
        time.sleep(0.02)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def said(cluster: Cluster, node: str, *argv: str) -> str:
    command = cluster.nodes[node].inside(*argv)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def etcd() -> Iterator[Cluster]:
    assert not cannot_isolate(), cannot_isolate()
    with temporary(ETCD_ALONE) as cluster:
        yield cluster


@pytest.fixture
def healed(etcd: Cluster) -> Iterator[Cluster]:
    yield etcd
    etcd.network.heal()
    for node in etcd.nodes.values():
        if not node.on:
            node.power_on()
        node.thaw()
    eventually(lambda: answers(etcd), "etcd is whole again")


def states_of_nodes(cluster: Cluster) -> list[str]:
    told = cluster.ctl("nodes")
    assert isinstance(told, dict)
    return [str(node["state"]) for node in told["nodes"]]


def inode(path: str | Path) -> int:
    return Path(path).stat().st_ino


def answers(cluster: Cluster, member: EtcdReader | None = None) -> bool:
    try:
        (member or cluster.etcd()).read("x")
    except OSError:
        return False
    return True


class TestNodes:
    def test_each_is_a_machine_of_its_own(self, etcd: Cluster) -> None:
        boots = {said(etcd, name, "cat", "/proc/sys/kernel/random/boot_id") for name in etcd.nodes}
        assert boots == {node.boot_id for node in etcd.nodes.values()}
        assert len(boots) == len(etcd.nodes)
        for name, node in etcd.nodes.items():
            assert said(etcd, name, "hostname") == name
            assert node.address in said(etcd, name, "ip", "-4", "address", "show", "eth0")
            assert node.daemons["etcd"].pid in node.pids()

    def test_one_that_loses_its_power_says_nothing(self, healed: Cluster) -> None:
        victim, other = healed.nodes["etcd-0"], healed.nodes["etcd-1"]
        pids = [*victim.pids(), victim.pid]
        peers = f"ss -Htn state established dst {victim.address}"
        eventually(lambda: said(healed, "etcd-1", *peers.split()) != "", "the two talk to each other")
        victim.power_off()
        assert not victim.on
        assert victim.pids() == []
        assert not [pid for pid in pids if alive(pid)]
        assert said(healed, "etcd-1", *peers.split()) != "", "a connection was closed"
        eventually(lambda: answers(healed), f"{other.name} and the third are a majority")

    def test_its_power_switch_works_on_a_frozen_one_too(self, healed: Cluster, tmp_path: Path) -> None:
        node, program = healed.nodes["etcd-1"], tmp_path / power_switch.PROGRAM
        program.write_text(power_switch.script())
        program.chmod(0o755)

        def switch(action: str) -> int:
            options = f"machine={healed.root}/machine.sock\nplug={node.name}\naction={action}\n"
            env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
            return subprocess.run([program], input=options, text=True, env=env, check=False).returncode

        assert switch("status") == power_switch.DONE
        (node.home / power_switch.BROKEN).touch()
        assert switch("off") == power_switch.FAILED
        (node.home / power_switch.BROKEN).unlink()
        pids = [*node.pids(), node.pid]
        node.freeze()
        assert switch("off") == power_switch.DONE
        assert not [pid for pid in pids if alive(pid)]
        assert switch("status") == power_switch.IS_OFF
        node.power_off()
        node.power_on()
        assert switch("status") == power_switch.DONE

    def test_a_reboot_changes_the_boot_id_and_keeps_the_disk(self, healed: Cluster) -> None:
        node = healed.nodes["etcd-2"]
        before, pids = node.boot_id, node.pids()
        (node.root / "state" / "kept").write_text("kept")
        (node.root / "tmp" / "lost").write_text("lost")
        node.reboot()
        assert said(healed, "etcd-2", "cat", "/proc/sys/kernel/random/boot_id") == node.boot_id != before
        assert (node.root / "state" / "kept").read_text() == "kept"
        assert not (node.root / "tmp" / "lost").exists()
        assert not [pid for pid in pids if alive(pid)]
        assert healed.network.round_trip_ms("etcd-0", "etcd-2", timeout_s=20) is not None

    def test_a_frozen_one_stands_still_and_can_lose_its_power(self, healed: Cluster) -> None:
        node = healed.nodes["etcd-1"]
        assert node.cgroup is not None
        node.freeze()
        assert "frozen 1" in (node.cgroup / "cgroup.events").read_text()
        assert healed.network.round_trip_ms("etcd-0", "etcd-1", timeout_s=20) is not None, (
            "its network still answers"
        )
        node.thaw()
        assert "frozen 0" in (node.cgroup / "cgroup.events").read_text()
        node.freeze()
        node.power_off()
        assert node.pids() == []

    def test_a_daemon_that_is_killed_stays_dead_and_one_that_ends_does_not(self, healed: Cluster) -> None:
        daemon = healed.nodes["etcd-0"].daemons["etcd"]
        daemon.kill()
        daemon.wait_gone()
        assert daemon.last_exit == "SIGKILL"
        daemon.start()
        pid = daemon.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: daemon.pid not in (None, pid), "it is started again")


class TestNetwork:
    def test_a_cut_goes_one_way_or_both(self, healed: Cluster) -> None:
        network = healed.network
        assert network.round_trip_ms("etcd-0", "etcd-1", timeout_s=20) is not None
        network.cut("etcd-0", "etcd-1", one_way=True)
        assert network.round_trip_ms("etcd-0", "etcd-1", timeout_s=0.3) is None
        assert network.dropped()["etcd-0>etcd-1"] > 0
        assert set(network.dropped()) == {"etcd-0>etcd-1"}
        network.join("etcd-0", "etcd-1")
        assert network.round_trip_ms("etcd-0", "etcd-1", timeout_s=20) is not None

    def test_an_isolated_node_reaches_only_those_that_are_named(self, healed: Cluster) -> None:
        network = healed.network
        network.isolate("etcd-0", but=["etcd-2"])
        assert network.round_trip_ms("etcd-0", "etcd-1", timeout_s=0.3) is None
        assert network.round_trip_ms("operator", "etcd-0", timeout_s=0.3) is None
        assert network.round_trip_ms("etcd-0", "etcd-2", timeout_s=20) is not None
        healed.nodes["etcd-0"].reboot()
        assert network.round_trip_ms("etcd-1", "etcd-0", timeout_s=0.3) is None, "a cut outlives a reboot"

    def test_a_long_link_is_long_each_way_but_to_those_spared(self, healed: Cluster) -> None:
        network = healed.network
        network.delay("etcd-0", 150, but=["etcd-2"])
        slow = network.round_trip_ms("etcd-0", "etcd-1", timeout_s=20)
        assert slow is not None
        assert slow >= 300
        eventually(lambda: (network.round_trip_ms("etcd-0", "etcd-2") or 999) < 150, "a spared one is near")
        network.delay("etcd-0", 0)
        eventually(lambda: (network.round_trip_ms("etcd-0", "etcd-1") or 999) < 150, "it is near again")

    def test_a_narrow_link_holds_packets_up(self, healed: Cluster) -> None:
        healed.network.bandwidth("etcd-0", 200_000)
        large = base64.b64encode(bytes(100_000)).decode()
        put: dict[str, object] = {"key": "eA==", "value": large}
        client = healed.etcd(timeout_s=20)
        # The narrow one may lose the lead over it, and with it what it was asked for.
        eventually(
            lambda: bool(client.post("/v3/kv/put", put)) and healed.network.held_up("etcd-0") > 0,
            "the others' copy comes later",
        )

    def test_a_lossy_link_loses_packets(self, healed: Cluster) -> None:
        healed.network.loss("etcd-0", 0.2)
        eventually(lambda: healed.network.dropped()["etcd-0 loss"] > 0, "packets are lost")


class TestDisk:
    def test_a_full_one_takes_nothing_until_it_has_room(self, healed: Cluster) -> None:
        node = healed.nodes["etcd-0"]
        node.daemons["etcd"].kill()
        node.daemons["etcd"].wait_gone()
        node.fill_disk()
        with pytest.raises(OSError, match="No space left"):
            (node.root / "state" / "more").write_bytes(bytes(1 << 16))
        node.free_disk()
        (node.root / "state" / "more").write_bytes(bytes(1 << 16))
        node.daemons["etcd"].start()

    def test_a_slow_one_takes_its_time_to_keep_what_it_is_given(self, healed: Cluster) -> None:
        node = healed.nodes["etcd-2"]
        daemon = node.daemons["etcd"]
        daemon.kill()
        daemon.wait_gone()
        daemon.start(slow=True)
        member = replace(healed.etcd(timeout_s=20), endpoints=(f"{node.address}:2379",))
        eventually(lambda: answers(healed, member), "the member is back")
        assert node.syncs_held_up() == 0
        node.slow_disk(0.2)
        put: dict[str, object] = {"key": "eA==", "value": "eA=="}
        eventually(lambda: bool(member.post("/v3/kv/put", put)) and node.syncs_held_up() > 0, "it is slow")
        node.slow_disk(0)
        assert daemon.pid in node.pids()

    def test_a_read_only_one_refuses_on_the_node_itself(self, healed: Cluster) -> None:
        node = healed.nodes["etcd-1"]
        touch = node.inside("touch", "/srv/state/more")
        node.make_read_only()
        done = subprocess.run(touch, capture_output=True, text=True, check=False)
        assert "Read-only file system" in done.stderr
        node.make_writable()
        subprocess.run(touch, check=True)


class TestWhole:
    def test_daemons_come_up_and_a_lost_leader_is_replaced(self) -> None:
        with temporary(Shape(etcd=1, supervisors=2, agents=1, clocks=True, own_uptime=True)) as cluster:
            files = [Path(f"/proc/{pid}/timens_offsets") for pid in cluster.nodes["node-0"].pids()]
            offsets = {int(line.split()[1]) for each in files for line in each.read_text().splitlines()}
            assert max(offsets) <= -int(MACHINE_UP_S)
            self.the_wall_clock_can_be_set(cluster.nodes["node-0"])
            assert not cluster.missing
            eventually(lambda: states_of_nodes(cluster) == ["ready"], "the node is ready")
            self.requests_are_audited(cluster)
            first = ""

            def somebody_leads() -> bool:
                nonlocal first
                first = cluster.leader()
                return first != ""

            eventually(somebody_leads, "somebody leads")
            self.a_caller_is_shut_out(cluster)
            self.etcd_has_users(cluster)
            cluster.nodes[first].power_off()
            eventually(lambda: states_of_nodes(cluster) == ["ready"], "another one leads")
            self.a_job_runs(cluster)

    def requests_are_audited(self, cluster: Cluster) -> None:
        disks = cluster.programs.disks
        told = [said(cluster, name, "cat", str(disks[name] / AUDIT)) for name in ("sup-0", "sup-1")]
        lines = [json.loads(line) for line in "\n".join(told).splitlines() if line]
        completed = [line for line in lines if line["stage"] == "completed" and line["result"] == "ok"]
        assert {line["by"] for line in completed} == {"user:operator"}
        assert "Control.Nodes" in {line["method"] for line in completed}
        assert said(cluster, "node-0", "stat", "-c", "%a", str(disks["node-0"] / AUDIT)) == "600"

    def a_caller_is_shut_out(self, cluster: Cluster) -> None:
        """By SIGHUP, and let in again."""
        for denied, lets_in in (["user:operator"], False), ([], True):
            for name in ("sup-0", "sup-1"):
                file = cluster.programs.client.with_name(f"{name}.yaml")
                file.write_text(json.dumps({**json.loads(file.read_text()), "denied": denied}))
                pid = cluster.nodes[name].daemons["supervisor"].pid
                assert pid is not None
                os.kill(pid, signal.SIGHUP)
            eventually(partial(self.is_let_in, cluster, lets_in=lets_in), f"denied: {denied}")

    def is_let_in(self, cluster: Cluster, *, lets_in: bool) -> bool:
        """Whether a command goes as it should now."""
        try:
            cluster.ctl("nodes")
        except CommandFailed as error:
            return "is shut out" in str(error) and not lets_in
        return lets_in

    def etcd_has_users(self, cluster: Cluster) -> None:
        holders = ("supervisor:sup-0", "supervisor:sup-1", "agent:node-0")
        where = ("--supervisor-config", str(cluster.programs.client.with_name("sup-0.yaml")))
        cluster.ctl("etcd", "setup", "--enable", *holders, *where)
        assert cluster.ctl("etcd", "check", *holders, *where) == {"missing": [], "enabled": True}

    def a_job_runs(self, cluster: Cluster) -> None:
        body = {
            "name": "plain",
            "strategy": "plain",
            "roles": {"worker": {"count": 1}},
            "command": ["sh", "-c", "echo step 1"],
        }
        file = cluster.root / "job.yaml"
        file.write_text(json.dumps(body))
        cluster.ctl("submit", str(file))
        assert cluster.ctl("wait", "plain", "--for", "succeeded", timeout_s=120)

    def the_wall_clock_can_be_set(self, node: Node) -> None:
        daemon = node.daemons["agent"]
        assert daemon.pid in node.clock_readers()
        here = dt.datetime.now(dt.UTC)
        node.set_clock(7200)
        daemon.kill()
        daemon.wait_gone()
        daemon.log.write_text("")
        daemon.start()
        eventually(lambda: bool(daemon.log.read_text()), "it says something")
        said = dt.datetime.fromisoformat(daemon.log.read_text().split()[0])
        assert said - here > dt.timedelta(hours=1.9)
        node.set_clock(0)

    def test_without_root_nodes_are_process_trees_on_the_loopback(self) -> None:
        with temporary(ETCD_ALONE, isolated=False) as cluster:
            assert set(cluster.missing) == {"network", "boot", "disk", "clock"}
            with pytest.raises(Unavailable, match="without root"):
                cluster.network.cut("etcd-0", "etcd-1")
            node = cluster.nodes["etcd-0"]
            pids = [*node.pids(), node.pid]
            assert len(pids) == 2
            node.freeze()
            node.thaw()
            node.power_off()
            assert not [pid for pid in pids if alive(pid)]
            eventually(lambda: answers(cluster), "two of three are a majority")
            node.power_on()
            pids = [pid for each in cluster.nodes.values() for pid in each.pids()]
            assert len(pids) == 3
        assert not [pid for pid in pids if alive(pid)]


OWNER = """
import sys, time
from chaos.cluster import Cluster, Shape
from pathlib import Path
with Cluster(Path(sys.argv[1]), Shape(etcd=1, supervisors=0, agents=0)) as cluster:
    node = cluster.nodes["etcd-0"]
    cluster.network.delay("etcd-0", 1)
    print(node.pid, *node.pids(), node.cgroup.parent, flush=True)
    time.sleep(600)
"""


class TestNothingIsLeft:
    def test_after_its_owner_was_killed(self) -> None:
        with tempfile.TemporaryDirectory(prefix=f"tfchaos-{os.getpid()}-") as root:
            owner = subprocess.Popen(
                [sys.executable, "-c", OWNER, root],
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            assert owner.stdout is not None
            *numbers, cgroup = owner.stdout.readline().split()
            pids = [int(number) for number in numbers]
            with contextlib.ExitStack() as held:
                # Held open, their numbers are not given to the namespaces of others meanwhile.
                for kind in ("net", "mnt", "pid", "uts"):
                    held.enter_context(Path(f"/proc/{pids[0]}/ns/{kind}").open())
                spaces = {kind: inode(f"/proc/{pids[0]}/ns/{kind}") for kind in ("net", "mnt", "pid", "uts")}
                owner.kill()
                owner.wait()
                owner.stdout.close()
                eventually(lambda: not [pid for pid in pids if alive(pid)], "its processes are gone")
                eventually(lambda: not Path(cgroup).exists(), "its cgroups are gone")
                eventually(lambda: not using(spaces), "nobody is in its namespaces")
            assert root not in Path("/proc/self/mounts").read_text()

    def test_after_an_orderly_end(self) -> None:
        with temporary(Shape(etcd=1, supervisors=0, agents=0)) as cluster:
            node, root = cluster.nodes["etcd-0"], cluster.root
            pids = [*node.pids(), node.pid]
            assert node.cgroup is not None
            cgroup = node.cgroup.parent
        assert not [pid for pid in pids if alive(pid)]
        assert not cgroup.exists()
        assert not root.exists()

    def test_a_network_is_entered_and_left(self, etcd: Cluster) -> None:
        ours = inode("/proc/thread-self/ns/net")
        with etcd.entered():
            assert inode("/proc/thread-self/ns/net") != ours
        assert inode("/proc/thread-self/ns/net") == ours
        with kernel.network_of(None):
            assert inode("/proc/thread-self/ns/net") == ours


def using(spaces: dict[str, int]) -> list[str]:
    """Processes that are in one of these namespaces."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        for kind, number in spaces.items():
            try:
                if inode(process / "ns" / kind) == number:
                    found.append(f"{process.name} {kind}")
            except OSError:
                continue
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_certificates_are_replaced_under_a_job() -> None:
    """All of them, etcd's too, while commands run: no task is restarted, and no command fails."""
    body = {
        "name": "counting",
        "strategy": "plain",
        "roles": {"worker": {"count": 2}},
        "command": ["sh", "-c", "n=0; while true; do n=$((n + 1)); echo step $n; sleep 0.2; done"],
    }
    with temporary(Shape(etcd=3, supervisors=2, agents=2)) as cluster:
        eventually(lambda: states_of_nodes(cluster) == ["ready", "ready"], "the nodes are ready")
        file = cluster.root / "job.yaml"
        file.write_text(json.dumps(body))
        cluster.ctl("submit", str(file))
        cluster.ctl("wait", "counting", "--for", "step=2", timeout_s=120)
        before = attempts_of(cluster)
        for _ in range(ROTATIONS):
            cluster.renew_certificates()
            # Connections that are made anew have the new ones: of agents' readers, supervisors and commands.
            assert cluster.ctl("tail", "counting/worker:0")
            assert attempts_of(cluster) == before
        # Those of etcd are made anew when a member comes back.
        for name in ("etcd-0", "etcd-1", "etcd-2"):
            node = cluster.nodes[name]
            daemon = node.daemons["etcd"]
            daemon.kill()
            daemon.wait_gone()
            daemon.start()
            endpoint = next(each for each in cluster.programs.endpoints() if node.address in each)
            alone = replace(cluster.etcd(), endpoints=(endpoint,))
            eventually(partial(answers, cluster, alone), f"{name} answers")
            cluster.renew_certificates()
        eventually(lambda: states_of_nodes(cluster) == ["ready", "ready"], "the nodes are ready")
        assert attempts_of(cluster) == before
        lines = [cluster.nodes[f"node-{n}"].daemons["agent"].log.read_text() for n in (0, 1)]
        assert all("certificate read again" in each for each in lines)


def attempts_of(cluster: Cluster) -> list[tuple[str, str, int]]:
    """The job's tasks, with their states and attempts."""
    told = cluster.ctl("status", "counting")
    assert isinstance(told, dict)
    return [(task["task"], task["state"], task["attempt"]) for task in told["jobs"][0]["tasks"]]
