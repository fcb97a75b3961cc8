"""Values of one job, as a client that checks nothing could record them: its agent and its neighbour go on."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agent.inside import protocol
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete, Put
from supervisor.contract.desired import ClusterRecord
from supervisor.contract.observed import ExitReason
from supervisor.contract.timing import FAST
from tests.agent.cluster import Job, Node, is_alive
from tests.support.etcd_server import EtcdServer

NUMBERS = itertools.count(1)
DIGITS = """\
import time
print("step 1", flush=True)
print("step " + "9" * 400, flush=True)
print("step 1" + "0" * 12, flush=True)
while True:
    print("step 7", flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
async def node(etcd: EtcdServer) -> AsyncIterator[Node]:
    node = Node(etcd.endpoint, name=f"hostile{next(NUMBERS)}")
    yield node
    await node.close()


def lives(node: Node) -> bool:
    return node.process is not None and node.process.poll() is None


async def logged(node: Node, text: str) -> bool:
    async def look() -> bool | None:
        return text in node.log or None

    return await node.until(look)


async def test_one_jobs_values_end_neither_its_agent_nor_its_neighbour(node: Node) -> None:
    node.start()
    me = await node.until_joined()
    (node.root / "digits.py").write_text(DIGITS)
    victim = Job(node, me, name="victim")
    running = await victim.run()

    # Patterns that do not compile, and numbers of 400 digits in the output.
    digits = Job(node, me, "digits", (sys.executable, str(node.root / "digits.py")))
    patterns = (r"(a{4294967296})", "(" * 2000, "(\ud800)", r"step (\d+)")
    digits.assignment = replace(digits.assignment, plan_id="p2", step_patterns=patterns)
    await digits.run()
    await logged(node, "step pattern is not valid")

    # A command that is small until its placeholders are filled in.
    large = Job(node, me, "large", (sys.executable, "-c", "pass", "{worker_hosts}" * 3500))
    large.assignment = replace(large.assignment, plan_id="p3", templated=True)
    prepared = await large.prepare()
    await large.stage()
    await large.flip(*[prepared.address] * 20)
    ended = await large.exited()
    assert ended.exit is not None
    assert ended.exit.reason is ExitReason.START_FAILED
    assert "too long" in ended.exit.detail

    # Records that cannot be read: the last version of an order counts.
    order = keys.assignment(node.name, digits.task, digits.assignment.plan_id)
    raw = codec.encode(replace(digits.assignment, attempt=2))
    await node.do(Put(order, raw.replace(b'"attempt":2', b'"attempt":' + b"9" * 400)))
    await logged(node, "record in etcd cannot be read")
    await node.do(Put(keys.assignment(node.name, replace(digits.task, index=1), "p2"), b"[]"))
    await node.do(Put(keys.spare(node.name, "digits"), b"\xff"))
    await node.do(Put(keys.switch("nobody"), json.dumps({"v": 1, "record": "JobSwitch"}).encode()))
    found = await digits.report("running")
    assert found is not None
    assert is_alive(found)

    assert lives(node), node.log
    assert (await node.incarnation()) == me
    assert is_alive(running)
    assert "Traceback" not in node.log


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"exited","attempt":"a","code":1,"signal":null,"at_ms":1' + b"0" * 400,
        b'{"type":"pull","stamp_ms":1e999}',
        b'{"type":"pull","stamp_ms":9223372036854775807}',
        b'{"type":"warm","preload_ms":NaN}',
        b"[" * 100_000,
        b'{"type":"hello","reservations":[{"reservation":"x","port":1e5}]}',
    ],
)
def test_what_a_launcher_must_not_say_is_an_error_of_the_protocol(line: bytes) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.decode(line)


def test_half_a_character_of_a_launcher_becomes_a_question_mark() -> None:
    message = protocol.decode(b'{"type":"start_failed","attempt":"a","reason":"no \\udcff"}')
    assert message == protocol.StartFailed("a", "no ?")


async def test_an_unreadable_mark_vouches_for_nothing_and_ends_nobody(node: Node) -> None:
    node.start()
    me = await node.until_joined()
    key = keys.lost(node.name, me.incarnation)
    await node.do(Put(key, b'{"v":1,"record":"LostMark","node":7}'))
    await logged(node, "cannot read etcd; trying again")
    await node.do(Delete(key))
    written = node.log.count("cannot read etcd; trying again")
    await node.put(keys.CLUSTER, ClusterRecord("c", "fast", FAST.d_ms, uuid="u"))
    await node.do(Put(keys.CLUSTER, b"{}"))

    async def failed_again() -> bool | None:
        return node.log.count("cannot read etcd; trying again") > written or None

    await node.until(failed_again)
    assert lives(node), node.log
