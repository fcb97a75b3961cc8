"""`python -m benchmarks.beating`: what a node's beat costs its agent's link and a supervisor.

A supervisor that follows another one takes in the beats of nodes, each of which has so many tasks. The tasks
of a node all step between two beats, or none does; parameter servers never step, nor save. The supervisor is
the real one, over an etcd in memory; the nodes are the real links of agents, in a process of their own.
Printed are the processor time of both sides for each beat, and the bytes of one, once the streams are open.
With `--before REV` both sides are that revision's in turn with today's. JSON on standard output, progress on
standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.support.figures import machine
from benchmarks.support.revision import in_turns

HERE = Path(__file__).resolve()
NODES = 50
EVERY_S = 0.1
WARM_UP_S, MEASURE_S = 1.5, 5.0
KINDS = ["0", "1 quiet", "1 stepping", "16 quiet", "16 stepping", "16 serving"]
STARTED_MS = 600_000


class Node:
    """A node and its beats. Its clock is the beat's number."""

    def __init__(self, name: str, kind: str) -> None:
        self._observed: Any = importlib.import_module("supervisor.contract.observed")
        tasks, _, how = kind.partition(" ")
        self.name = name
        self._tasks, self._seq = int(tasks), 0
        self._steps, self._trains = how == "stepping", how != "serving"

    def beat(self) -> object:
        """The next beat."""
        self._seq += 1
        beat = self._observed.Beat
        tasks = tuple(self._task(index) for index in range(self._tasks))
        savers = (self._observed.SaverBeat("digits", 3),) if tasks else ()
        protocol = self._observed.LINK_PROTOCOL
        life = f"life-{self.name}"
        made: object = beat(protocol, self.name, life, self._seq, tasks, savers, unread_ms=self._seq % 7)
        return made

    def _task(self, index: int) -> object:
        """A worker of which all is known, or a server of parameters."""
        passed_ms = self._seq * 1_000
        if not self._trains:
            work = self._observed.Sign("cpu", 1_200 + passed_ms % 5_000, 5_000)
            served: object = self._observed.TaskBeat(
                f"digits/ps:{index}@3.1", signs=(work,), silent_ms=STARTED_MS + passed_ms
            )
            return served
        age_ms = 400 + self._seq % 9 if self._steps else 1_000 + passed_ms
        sign, pace = self._observed.Sign, self._observed.Pace(every_ms=60_000, cost_ms=120)
        signs = (
            sign("step", age_ms, 900),
            sign("output", age_ms, 900),
            sign("save", 20_000 + passed_ms, 61_000),
            sign("cpu", 1_200 + passed_ms % 5_000 if self._steps else 1_200 + passed_ms, 5_000),
            sign("files", 33_000 + passed_ms, -1),
        )
        trains: object = self._observed.TaskBeat(
            attempt=f"digits/worker:{index}@3.1",
            step=1_000 + 2 * self._seq if self._steps else 1_000,
            step_age_ms=age_ms,
            first_step=17,
            first_step_age_ms=STARTED_MS + passed_ms,
            rate=2.0 + self._seq % 3 / 100 if self._steps else 0.0,
            slowest_ms=900,
            pace=2.1 + self._seq % 5 / 100 if self._steps else 0.0,
            saves=self._observed.Saves(12, watched=True, pace=pace),
            signs=signs,
            silent_ms=age_ms,
            said=f"epoch 2, step {self._seq if self._steps else 1}",
        )
        return trains


async def _serve(socket: str) -> None:
    """Follow a leader that is not there, and take in beats; a line on standard input asks for the figures."""
    take: Any = importlib.import_module
    memory, control = take("supervisor.adapters.etcd.memory"), take("supervisor.control.loop.daemon")
    codec, keys = take("supervisor.contract.codec"), take("supervisor.contract.keys")
    desired, observed = take("supervisor.contract.desired"), take("supervisor.contract.observed")
    timing = take("supervisor.contract.timing").DEFAULT
    boundaries, server = take("supervisor.contract.boundaries"), take("supervisor.api.server")
    config = take("supervisor.adapters.files.config.supervisor").SupervisorConfig.model_construct(
        cluster="c", id="s1", listen=f"unix:{socket}", insecure=False, token="", tls=None, users={}, denied=[]
    )
    sink = take("supervisor.adapters.telemetry").get_logger("s1")
    coordination = memory.MemoryCoordination(memory.MemoryStore())
    records = {keys.LEADER: desired.LeaderRecord("s0", "unix:/s0", 1)}
    for index in range(NODES):
        node, offer = f"n{index}", observed.NodeResources(4.0, 1 << 33)
        records[keys.node(node)] = observed.Incarnation(
            node, f"life-{node}", "boot", timing.d_ms, "127.0.0.1", "", 20_000, 29_999, 1, offer
        )
    for key, record in records.items():
        await coordination.txn((), [boundaries.Put(key, codec.encode(record))])
    daemon = control.ControlDaemon(
        control.ControlSettings("s1", "c", f"unix:{socket}", 1, timing),
        coordination,
        lambda _uri: None,
        take("supervisor.adapters.clock").BootClock(),
        sink,
        lambda: "id",
    )
    count = 0

    def on_beat(beat: object) -> None:
        nonlocal count
        count += 1
        daemon.on_beat(beat)

    api = await server.serve_api(daemon.job_service, on_beat, config)
    running = asyncio.create_task(daemon.run())
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps([count, time.process_time()]), flush=True)
    running.cancel()
    await api.close()


async def _beat(socket: str, kind: str) -> None:
    """The nodes: each beats; a line on standard input asks for the figures."""
    take: Any = importlib.import_module
    link, guard = take("agent.link"), take("supervisor.wire.rpc").Guard()
    sink = take("supervisor.adapters.telemetry").get_logger("nodes")
    nodes = [Node(f"n{index}", kind) for index in range(NODES)]
    codec, written = take("supervisor.contract.codec"), [0]
    encode = codec.encode

    def counted(record: object, **options: object) -> bytes:
        raw: bytes = encode(record, **options)
        written[0] += len(raw)
        return raw

    codec.encode = counted
    links = [link.GrpcLinks((f"unix:{socket}",), guard, sink) for _ in nodes]
    for each in links:
        await each.open(lambda _event: None)
    made_s, count = 0.0, 0
    asked = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    while True:
        for node, each in zip(nodes, links, strict=True):
            began_s = time.process_time()
            beat = node.beat()
            made_s += time.process_time() - began_s
            each.send(beat)
            count += 1
            await asyncio.sleep(EVERY_S / NODES)
        if asked.done():
            if not asked.result():
                break
            print(json.dumps([count, time.process_time() - made_s, written[0]]), flush=True)
            asked = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    for each in links:
        await each.close()


def _start(tree: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{HERE.parents[1]}"}
    return subprocess.Popen(
        [sys.executable, "-P", str(HERE), *words],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _ask(process: subprocess.Popen[str]) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    found: list[float] = json.loads(process.stdout.readline())
    return found


def _measure(tree: Path, kind: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="beating-") as directory:
        socket = f"{directory}/s"
        supervisor = _start(tree, "--serve", socket)
        assert supervisor.stdout is not None
        supervisor.stdout.readline()
        nodes = _start(tree, "--beat", socket, "--kind", kind)
        both = {"supervisor": supervisor, "agents": nodes}
        time.sleep(WARM_UP_S)
        before = {name: _ask(each) for name, each in both.items()}
        time.sleep(MEASURE_S)
        after = {name: _ask(each) for name, each in both.items()}
        for each in (nodes, supervisor):
            assert each.stdin is not None
            each.stdin.close()
            each.wait(20)
    found: dict[str, object] = {"tasks": kind, "beats": after["supervisor"][0] - before["supervisor"][0]}
    for name in both:
        beats, used_s, *written = (now - then for now, then in zip(after[name], before[name], strict=True))
        found[f"{name}_us"] = round(used_s / beats * 1e6)
        if written:
            found["bytes"] = round(written[0] / beats)
    return found


def main() -> int:
    """Parse the flags, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.beating", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--before", help="a revision that is measured, too")
    parser.add_argument("--blocks", type=int, default=1, help="runs of each revision (%(default)s)")
    parser.add_argument("--kinds", nargs="+", default=KINDS, help=f"tasks of a node ({', '.join(KINDS)})")
    for word in ("--serve", "--beat", "--kind"):
        parser.add_argument(word, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.serve or flags.beat:
        asyncio.run(_serve(flags.serve) if flags.serve else _beat(flags.beat, flags.kind))
        return 0
    about, found = machine(), dict[str, list[object]]()
    for name, tree in in_turns(flags.before, flags.blocks):
        for kind in flags.kinds:
            print(f"{name}: {kind}", file=sys.stderr, flush=True)
            found.setdefault(name, []).append(_measure(tree, kind))
    settings = {"before": flags.before, "nodes": NODES, "every_s": EVERY_S}
    document = {"benchmark": "beating", "machine": about, "settings": settings, "beats": found}
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
