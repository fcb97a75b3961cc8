"""The firewall of a node's tasks, in networks that are the test's own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.events import Fenced, FirewallSet, Joined, LauncherGone, SpecRead
from agent.core.instructions import Launch, Note, Opening, SetFirewall
from agent.core.saved.adopt import record_of, restore
from agent.host import firewall as host_firewall
from agent.host.firewall import NftFirewall, Rule, remove, table_name
from agent.host.task_users import OneUser, UserRange
from agent.inside.processes import fence
from supervisor.adapters.files.config.agent import load_agent
from supervisor.contract.errors import Refused, UserError
from supervisor.contract.timing import FAST
from tests.agent.cluster import Job, Node
from tests.agent.core import ME, NO_SPARES, ORDER, RUNNING, SPEC, Core, only
from tests.agent.other_users import open_python, own_uid
from tests.cli.agent_config import write_config
from tests.support.etcd_server import EtcdServer

LOW = own_uid(61_400)
PORTS = (21_000, 21_999)
HERE, THERE, ELSEWHERE = "10.87.0.1", "10.87.0.2", "10.87.0.3"
CONNECT = """
import os, socket, sys
uid, address, port, source = sys.argv[1:]
if int(uid):
    os.setgid(int(uid))
    os.setuid(int(uid))
s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
s.settimeout(20)
if source:
    s.bind((source, 0))
try:
    s.connect((address, int(port)))
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""
SERVE = """
import socket, sys, time
held = [
    socket.create_server(("::", int(port)), family=socket.AF_INET6, dualstack_ipv6=True)
    for port in sys.argv[1:]
]
print("up", flush=True)
time.sleep(600)
"""
TASK = """
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
port = int(config["cluster"]["worker"][0].rpartition(":")[2])
server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("::", port))
server.listen()
found = {}
for name, other in (("own", port), *(("other", int(each)) for each in sys.argv[1:])):
    try:
        socket.create_connection(("127.0.0.1", other), 20)
        found[name] = "connected"
    except OSError as error:
        found[name] = type(error).__name__
print("FOUND" + str(len(sys.argv)) + " " + json.dumps(found), flush=True)
while True:
    print("step 1", flush=True)
    time.sleep(0.05)
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes networks")


class Network:
    """A network namespace, which ends with the test."""

    def __init__(self, stack: ExitStack) -> None:
        holder = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
        stack.callback(holder.wait)
        stack.callback(holder.kill)
        self.path = Path(f"/proc/{holder.pid}/ns/net")
        until_s = time.monotonic() + 20
        while self.path.readlink() == Path("/proc/self/ns/net").readlink():
            assert time.monotonic() < until_s
            time.sleep(0.01)
        self.pid, self.enter = holder.pid, ("nsenter", f"--net={self.path}")
        self.do("ip", "link", "set", "lo", "up")

    def do(self, *command: str, text: str = "") -> str:
        done = subprocess.run(
            [*self.enter, *command], input=text, text=True, capture_output=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve(self, stack: ExitStack, *ports: int) -> None:
        child = subprocess.Popen([*self.enter, open_python(), "-c", SERVE, *map(str, ports)], stdout=-1)
        stack.enter_context(child)
        stack.callback(child.kill)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"

    def connect(self, address: str, port: int, *, uid: int = 0, source: str = "") -> str:
        return self.do(open_python(), "-c", CONNECT, str(uid), address, str(port), source).strip()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def firewall(tmp_path: Path) -> NftFirewall:
    users = UserRange(LOW, LOW + 9, tmp_path / "ckpt", tmp_path, tmp_path)
    return NftFirewall(table_name("test-1", "n.1"), users, PORTS)


@needs_root
def test_a_task_reaches_the_tasks_of_its_job_and_no_other(stack: ExitStack, firewall: NftFirewall) -> None:
    network = Network(stack)
    network.serve(stack, 21_001, 21_002, 30_000)
    rule = Rule(
        LOW + 1, frozenset({("127.0.0.1", 21_001), ("::1", 21_001)}), frozenset({21_001}), frozenset()
    )
    for rules in ((), (rule, replace(rule, uid=LOW + 2, reach=frozenset())), (rule,)):
        network.do("nft", "-f", "-", text=firewall.text(rules))
    for address in ("127.0.0.1", "::1"):
        assert network.connect(address, 21_001, uid=LOW + 1) == "connected"
        assert network.connect(address, 21_002, uid=LOW + 1) == "ConnectionRefusedError"
        assert network.connect(address, 21_001, uid=LOW + 2) == "ConnectionRefusedError"
    assert network.connect("127.0.0.1", 30_000, uid=LOW + 2) == "connected", "no port of tasks"
    assert network.connect("127.0.0.1", 21_002) == "connected", "root is no task"


@needs_root
def test_a_tasks_port_is_reached_by_the_machines_of_its_job_alone(
    stack: ExitStack, firewall: NftFirewall
) -> None:
    here, there = Network(stack), Network(stack)
    here.do("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(there.pid))
    for network, addresses in ((here, (HERE, ELSEWHERE)), (there, (THERE,))):
        for address in addresses:
            network.do("ip", "address", "add", f"{address}/24", "dev", "eth0")
        network.do("ip", "link", "set", "eth0", "up")
    there.serve(stack, 21_001, 21_002)
    rule = Rule(LOW + 1, frozenset({(THERE, 21_001)}), frozenset({21_001}), frozenset({HERE, THERE}))
    there.do("nft", "-f", "-", text=firewall.text((rule,)))
    assert here.connect(THERE, 21_001, source=HERE) == "connected"
    assert here.connect(THERE, 21_001, source=ELSEWHERE) == "ConnectionRefusedError"
    assert here.connect(THERE, 21_002, source=ELSEWHERE) == "connected", "no task is there"
    assert there.connect(THERE, 21_001) == "connected"


@needs_root
def test_where_rules_cannot_be_kept_the_agent_does_not_start(
    firewall: NftFirewall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    firewall.check()
    nft = tmp_path / "nft"
    nft.write_text("#!/bin/sh\necho 'Error: Could not process rule: Operation not supported' >&2; exit 1\n")
    nft.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(UserError, match=r"nft: Error: Could not process rule.*deploy/get-nft.sh"):
        firewall.check()
    nft.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"cannot run nft: .*No such file.*deploy/get-nft.sh"):
        firewall.check()


class Names:
    """Hosts that can be resolved, and the tables that were set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known: dict[str, str] = {}
        self.set: list[str] = []
        monkeypatch.setattr(host_firewall, "_addresses_of", self.look_up)
        monkeypatch.setattr(host_firewall, "_nft", self.set.append)
        monkeypatch.setattr(UserRange, "of", lambda _, job: (LOW + int(job), LOW + int(job)))

    def look_up(self, host: str) -> frozenset[str]:
        return frozenset({self.known[host]} if host in self.known else ())


A = Opening("pa", "1", ("h1:21001", "h2:21001"), (21_001,))
B = Opening("pb", "2", ("h1:21002", "h3:21002"), (21_002,))


async def test_a_name_that_cannot_be_resolved_keeps_its_addresses(
    firewall: NftFirewall, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(monkeypatch)
    names.known = {"h1": HERE, "h2": THERE}
    assert await firewall.set((A,)) == FirewallSet((A,))
    names.known = {"h1": HERE, "h3": ELSEWHERE}
    assert await firewall.set((A, B)) == FirewallSet((A, B))
    assert f"{LOW + 1} . {THERE} . 21001" in names.set[-1]
    assert f"{THERE} . 21001" in names.set[-1].partition("set peers4")[2]
    assert f"{LOW + 2} . {ELSEWHERE} . 21002" in names.set[-1]


async def test_names_are_looked_up_at_the_same_time(
    firewall: NftFirewall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resolver that does not answer holds new openings up once, not once for each name."""
    Names(monkeypatch)
    both = threading.Barrier(2, timeout=4)

    def look_up(_: str) -> frozenset[str]:
        both.wait()
        return frozenset({HERE})

    monkeypatch.setattr(host_firewall, "_addresses_of", look_up)
    assert await firewall.set((A,)) == FirewallSet((A,))


async def test_a_plan_with_an_unknown_name_takes_nothing_from_others(
    firewall: NftFirewall, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(monkeypatch)
    names.known = {"h1": HERE, "h2": THERE}
    await firewall.set((A,))
    found = await firewall.set((A, B))
    assert found == FirewallSet((A, B), left_out={"pb": "cannot resolve h3"})
    assert names.set[-1] == names.set[0]
    names.known["h3"] = ELSEWHERE
    assert await firewall.set((A, B)) == FirewallSet((A, B))


async def test_a_successor_that_cannot_resolve_a_name_leaves_the_table(
    firewall: NftFirewall, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(monkeypatch)
    names.known = {"h1": HERE}
    for _ in range(2):
        with pytest.raises(Refused, match="cannot resolve h2"):
            await firewall.set((A,))
    assert not names.set
    names.known["h2"] = THERE
    assert await firewall.set((A,)) == FirewallSet((A,))


@needs_root
def test_a_former_table_that_cannot_be_removed_is_told(
    firewall: NftFirewall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    nft, command = tmp_path / "nft", f"nft delete table inet {firewall.table}"
    for said in (
        "netlink: Error: cache initialization failed: Invalid argument",
        "Error: Could not process rule: Operation not supported",
        "Error: Could not process rule: No such file or directory",
    ):
        nft.write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
        nft.chmod(0o755)
        remove(firewall.table, firewall.users)
    nft.write_text(
        "#!/bin/sh\necho 'netlink: Error: cache initialization failed: Operation not permitted' >&2; exit 1\n"
    )
    for users in (firewall.users, OneUser(LOW, LOW)):
        with pytest.raises(Refused, match=f"not permitted; .*{command}"):
            remove(firewall.table, users)
    nft.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    remove(firewall.table, OneUser(LOW, LOW))
    with pytest.raises(Refused, match=f"cannot run nft: .*{command}"):
        remove(firewall.table, firewall.users)


def test_a_firewall_without_a_user_for_each_job_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="knows jobs by their uids: write `task_user: LOW-HIGH`"):
        load_agent(write_config(tmp_path, firewall=True))
    with pytest.raises(UserError, match=r"write `docker\.user: LOW-HIGH`"):
        load_agent(write_config(tmp_path, firewall=True, runtime="docker"))


@pytest.fixture
async def node(stack: ExitStack) -> AsyncIterator[Node]:
    etcd, network = stack.enter_context(EtcdServer()), Network(stack)
    root = Path(tempfile.mkdtemp(prefix="firewall-"))
    stack.callback(shutil.rmtree, root)
    root.chmod(0o711)
    more = {"task_user": f"{LOW}-{LOW + 20}", "firewall": True}
    started = Node(etcd.endpoint, "n1", root, more, profile="default")
    started.enter = network.enter
    for name in ("work", "prog.py"):
        (root / name).chmod(0o755)
    started.config()
    (root / "locks").chmod(0o1777)
    started.start()
    yield started
    await started.close()


@needs_root
async def test_two_jobs_of_a_node_cannot_connect_to_each_other(node: Node) -> None:
    me = await node.until_joined()
    (node.root / "task.py").write_text(TASK)
    argv = (open_python(), str(node.root / "task.py"))
    server = Job(node, me, "server", argv=argv)
    report = await server.run()
    port = report.address.rpartition(":")[2]
    assert '"own": "connected"' in await node.until_printed("FOUND1")
    client = Job(node, me, "client", argv=(*argv, port))
    client.assignment = replace(client.assignment, plan_id="q1")
    uid = fence.user_of((await client.run()).pid)
    found = json.loads((await node.until_printed("FOUND2")).partition("FOUND2 ")[2].splitlines()[0])
    assert found == {"own": "connected", "other": "ConnectionRefusedError"}

    node.kill()
    assert f"{uid} . 127.0.0.1 . " in await tables(node), "the rules outlive the agent, as the tasks do"
    node.more["firewall"] = False
    node.start()
    await node.until_joined(other_than=me.incarnation)
    until_s = time.monotonic() + 20
    while await tables(node):
        assert time.monotonic() < until_s


async def tables(node: Node) -> str:
    child = await asyncio.create_subprocess_exec(
        *node.enter, "nft", "list", "ruleset", stdout=asyncio.subprocess.PIPE
    )
    return (await child.communicate())[0].decode()


def walled() -> Core:
    core = Core()
    core.state = replace(core.state, settings=replace(NO_SPARES, firewall=True))
    core.prepared()
    core.feed(FirewallSet(()))
    core.see(RUNNING, ORDER)
    core.feed(SpecRead("p1", SPEC))
    return core


def test_nothing_starts_before_the_rules_that_it_needs_are_in_force() -> None:
    core = walled()
    wanted = only(SetFirewall, core.said)[-1]
    ((opening,),) = (wanted.openings,)
    assert (opening.job_uuid, opening.addresses, opening.ports) == ("u", ("h:20000",), (20000,))
    assert not only(Launch, core.said)
    core.feed(FirewallSet(wanted.openings))
    assert len(only(Launch, core.said)) == 1


def test_a_failure_is_told_and_tried_again() -> None:
    core = walled()
    first = only(SetFirewall, core.said)
    core.feed(FirewallSet(first[-1].openings, "nft: no"))
    assert core.state.blocked(core.now_ms) == "its firewall cannot be set: nft: no"
    assert [each.event for each in only(Note, core.said)][-1] == "the firewall is not set; trying again"
    core.later(999, SpecRead("p1", SPEC))
    assert only(SetFirewall, core.said) == first
    core.later(1, SpecRead("p1", SPEC))
    assert only(SetFirewall, core.said) == [*first, first[-1]]
    core.feed(FirewallSet(first[-1].openings))
    assert core.state.blocked(core.now_ms) == ""
    assert len(only(Launch, core.said)) == 1


def test_a_plan_with_a_name_that_never_had_an_address_does_not_start() -> None:
    core = walled()
    first = only(SetFirewall, core.said)
    core.feed(FirewallSet(first[-1].openings, left_out={"p1": "cannot resolve h"}))
    assert not only(Launch, core.said)
    assert core.state.blocked(core.now_ms) == "", "other plans start"
    assert [each.event for each in only(Note, core.said)].count(
        "a plan's tasks wait: the firewall cannot resolve a host name of it yet"
    ) == 1
    core.later(999, SpecRead("p1", SPEC))
    assert only(SetFirewall, core.said) == first
    core.later(1, SpecRead("p1", SPEC))
    assert only(SetFirewall, core.said) == [*first, first[-1]]
    core.feed(FirewallSet(first[-1].openings))
    assert len(only(Launch, core.said)) == 1


def test_a_table_that_somebody_removed_is_set_again_or_the_node_takes_nothing_new() -> None:
    core = walled()
    first = only(SetFirewall, core.said)
    core.feed(FirewallSet(first[-1].openings))
    core.later(9_999, SpecRead("p1", SPEC))
    assert only(SetFirewall, core.said) == first
    core.later(1, SpecRead("p1", SPEC))
    assert only(SetFirewall, core.said) == [*first, first[-1]]
    assert core.state.blocked(core.now_ms) == ""
    core.feed(FirewallSet(first[-1].openings, "nft: no"))
    assert core.state.blocked(core.now_ms) == "its firewall cannot be set: nft: no"


def test_a_successor_sets_the_same_rules_before_it_has_read_anything() -> None:
    core = walled()
    wanted = only(SetFirewall, core.said)[-1]
    core.feed(FirewallSet(wanted.openings))
    record = record_of(core.state)
    state = restore(record, core.state.settings, "life2", "boot", core.now_ms, frozenset())
    after = Core()
    after.state, after.said = state, []
    me = replace(ME, incarnation="life2", succeeds=("life1",))
    after.feed(Joined(me, after.now_ms, adopt=True, d_ms=FAST.d_ms))
    after.see(RUNNING, ORDER)
    assert only(SetFirewall, after.said) == [wanted]


def test_rules_go_with_their_attempts() -> None:
    core = walled()
    core.feed(FirewallSet(only(SetFirewall, core.said)[-1].openings))
    core.see(replace(RUNNING, generation=2, plan_id="p2"), replace(ORDER, generation=2, plan_id="p2"))
    core.later(1_000, SpecRead("p1", None))
    assert core.state.addresses
    for launcher in list(core.state.launchers):
        core.feed(LauncherGone(launcher, "killed"), Fenced(launcher, 0))
    assert only(SetFirewall, core.said)[-1].openings == ()
    assert not core.state.addresses
