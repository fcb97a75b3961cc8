"""Requests of a client that checks nothing, with the certificate of user mallory, who may submit jobs.

Each tells what it has tried, a line each: `denied:`, `done:` or `GOT IN:`, as the programs of jobs do.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.adapters.files.config.client import load_client
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete, Put
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.code import CHUNK_BYTES, CodePart
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.job.spec import CheckpointSpec, JobSpec, RoleSpec, Strategy
from supervisor.contract.observed import Beat
from supervisor.contract.promise import PromiseRequest
from supervisor.contract.views.checkpoints import AdoptRequest, CollectRequest, ImportRequest, VerifyRequest
from supervisor.contract.views.jobs import (
    EventsRequest,
    ExecRequest,
    JobRequest,
    OutputPlace,
    OutputsRequest,
    PinRequest,
    ReadRequest,
    RestartRequest,
    SignalRequest,
    StopRequest,
    SubmitMode,
    SubmitRequest,
    TailRequest,
)
from supervisor.contract.views.nodes import CordonRequest, DismissRequest, UncordonRequest
from supervisor.wire.rpc import Guard
from supervisor.wire.tfsup_pb2 import Record

_ANSWER_S = 20.0
_STREAMS = 300
_PROTOCOL = 1


@dataclass(slots=True)
class Raw:
    """A client. `site`: what an attacker may know of the cluster, as jobs have it in `site.json`."""

    guard: Guard
    supervisor: str
    site: Mapping[str, str]
    base: str
    lines: list[str] = field(default_factory=list)

    @property
    def victim(self) -> str:
        """The job that is attacked."""
        return self.site["victim"]

    async def tried(self, what: str, method: str, request: object, address: str = "") -> None:
        """A call that must be refused. `request`: a record, or the bytes that stand for one."""
        answer = await self.answer(method, request, address)
        self.lines.append(f"denied: {what}: {answer[1]}" if answer[0] else f"GOT IN: {what}: {answer[1]}")

    async def done(self, what: str, method: str, request: object) -> None:
        """A call that may be granted."""
        self.lines.append(f"done: {what}: {(await self.answer(method, request))[1]}")

    async def answer(self, method: str, request: object, address: str = "") -> tuple[bool, str]:
        """Whether it was refused, and the answer; the first one of a stream."""
        body = request if isinstance(request, bytes) else codec.encode(request)
        async with self.guard.channel(address or self.supervisor) as channel:
            try:
                call = channel.stream_stream(
                    f"/tfsup.v1.{method}",
                    request_serializer=Record.SerializeToString,
                    response_deserializer=Record.FromString,
                )(_one(body), timeout=_ANSWER_S, metadata=self.guard.metadata())
                async for reply in call:
                    return False, reply.json.decode(errors="replace")[:200]
            except grpc.aio.AioRpcError as error:
                return True, f"{error.code().name}: {error.details()}"[:300]
        return True, "no answer at all"

    def job(self, name: str, **changes: object) -> dict[str, object]:
        """A request to submit a small job, as JSON; `changes` are fields of the job."""
        role = RoleSpec("worker", 1, ("sh", "-c", "echo step 1"))
        checkpoint = CheckpointSpec(f"{self.base}/{name}")
        spec = JobSpec(name, Strategy.PLAIN, (role,), checkpoint, "/tmp", templated=True)
        body: dict[str, object] = json.loads(codec.encode(SubmitRequest(spec)))
        found = body["spec"]
        assert isinstance(found, dict)
        found |= changes
        return body

    async def submit(self, what: str, body: Mapping[str, object]) -> None:
        """A job that must be refused."""
        await self.tried(what, "Control/Submit", json.dumps(body).encode())


async def _one(body: bytes) -> AsyncIterator[Record]:
    yield Record(json=body)


Calls = Callable[[Raw], Awaitable[None]]
_FOUND: dict[str, Calls] = {}


def _call(function: Calls) -> Calls:
    _FOUND[function.__name__] = function
    return function


@_call
async def act_on_it(raw: Raw) -> None:
    job, task = raw.victim, f"{raw.victim}/worker:0"
    await raw.tried("stop", "Control/Stop", StopRequest(job))
    await raw.tried("start", "Control/Start", JobRequest(job))
    await raw.tried("restart", "Control/Restart", RestartRequest(job))
    await raw.tried("restart a task", "Control/Restart", RestartRequest(job, "worker.0"))
    await raw.tried("release", "Control/Release", JobRequest(job))
    await raw.tried("signal", "Control/Signal", SignalRequest(task, 9))
    await raw.tried("signal by another's name", "Control/Signal", SignalRequest(task, 9, by="user:operator"))


@_call
async def run_in_it(raw: Raw) -> None:
    for task in ("worker:0", "worker.0", "worker:00", "worker:0@1.1", "../victim/worker:0"):
        request = ExecRequest(f"{raw.victim}/{task}", ("id",), 1000)
        await raw.tried(f"exec in {task}", "Control/Exec", request)


@_call
async def delete_it(raw: Raw) -> None:
    await raw.tried("delete", "Control/Delete", JobRequest(raw.victim))
    for mode in SubmitMode:
        body = raw.job(raw.victim) | {"mode": mode.value}
        await raw.submit(f"take its name, {mode.value}", body)


@_call
async def take_its_checkpoints(raw: Raw) -> None:
    ref = CheckpointRef(1, 5)
    job = raw.victim
    await raw.tried("pin", "Control/Pin", PinRequest(job, ref))
    await raw.tried("unpin", "Control/Pin", PinRequest(job, ref, pinned=False))
    await raw.tried("collect", "Control/CollectCheckpoints", CollectRequest(job))
    await raw.tried("place an import", "Control/PlaceImport", ImportRequest(job, 9))
    await raw.tried("import", "Control/AdoptImport", AdoptRequest(job, "x"))
    await raw.tried("rebuild", "Control/RebuildRecords", JobRequest(job))
    await raw.tried("have it read", "Control/VerifyCheckpoints", VerifyRequest(job))
    await raw.tried("restart from", "Control/Restart", RestartRequest(job, from_ref=ref))


@_call
async def import_from_elsewhere(raw: Raw) -> None:
    job = raw.site["mallory_job"]
    for path in ("/etc", "../../alice/victim", "../victim", f"{raw.base}/../alice/victim", "", ".", "a\0b"):
        await raw.tried(f"import {path!r}", "Control/AdoptImport", AdoptRequest(job, path))


@_call
async def use_its_directory(raw: Raw) -> None:
    store = raw.base.removesuffix("/mallory")
    for uri in (
        raw.site["victim_uri"],
        f"{raw.base}/../alice/victim",
        f"{raw.base}/%2e%2e/alice/victim",
        f"{raw.base}/./../alice/victim",
        f"{store}/mallory2/x",
        store,
        f"{store}/",
        "file:///etc",
        "hdfs://127.0.0.1:1/x",
    ):
        await raw.submit(f"a job at {uri}", raw.job("thief", checkpoint={"uri": uri}))


@_call
async def drain_its_node(raw: Raw) -> None:
    node = raw.site["node"]
    await raw.tried("cordon", "Control/Cordon", CordonRequest(node, "x"))
    await raw.tried("drain", "Control/Cordon", CordonRequest(node, "x", drain=True))
    await raw.tried("uncordon", "Control/Uncordon", UncordonRequest(node))
    await raw.tried("dismiss", "Control/Dismiss", DismissRequest(node, "x"))


@_call
async def speak_as_the_agent(raw: Raw) -> None:
    node = raw.site["node"]
    await raw.tried("a beat", "Link/Beats", Beat(_PROTOCOL, node, "0" * 32, 1))
    await raw.tried("a promise", "Link/Promise", PromiseRequest(_PROTOCOL, node, "0" * 32, 1))


@_call
async def speak_as_a_supervisor(raw: Raw) -> None:
    agent, task = raw.site["agent"], f"{raw.victim}/worker:0"
    await raw.tried("exec", "Node/Exec", ExecRequest(task, ("id",), 1000, by="user:operator"), agent)
    await raw.tried("signal", "Node/Signal", SignalRequest(task, 9, by="user:operator"), agent)
    place = OutputPlace("../../agent.json", 0, 0)
    await raw.tried("read", "Node/Read", ReadRequest("..", place, 100), agent)
    await raw.tried("list", "Node/Outputs", OutputsRequest("../..", task), agent)


@_call
async def write_to_etcd(raw: Raw) -> None:
    assert raw.guard.tls is not None
    etcd = EtcdCoordination(
        [raw.site["etcd"]], "chaos", rpc_deadline_ms=5000, silence_ms=5000, tls=raw.guard.tls
    )
    switch, node = keys.switch(raw.victim), keys.node(raw.site["node"])
    try:
        for what, op in (
            ("move its switch", Put(switch, b"{}")),
            ("remove its switch", Delete(switch)),
            ("be its node", Put(node, b"{}")),
            ("lead", Put("leader", b"{}")),
        ):
            try:
                await etcd.txn((), [op])
                raw.lines.append(f"GOT IN: {what}")
            except TfSupervisorError as error:
                raw.lines.append(f"denied: {what}: {error}")
        try:
            found = await etcd.get(switch)
            raw.lines.append(f"GOT IN: read its switch: {found}")
        except TfSupervisorError as error:
            raw.lines.append(f"denied: read its switch: {error}")
    finally:
        await etcd.close()


@_call
async def names_of_paths(raw: Raw) -> None:
    for name in (
        "../../etc/passwd",
        "victim/../x",
        ".",
        "..",
        "",
        "a/b",
        "a\0b",
        "a\nb",
        "\ud800",
        "x" * 5000,
        "ｖictim",
    ):
        await raw.submit(f"a job {name[:20]!r}", raw.job(name))
        body = json.dumps({"v": 1, "record": "TailRequest", "task": f"{name}/worker:0"}).encode()
        await raw.tried(f"output of {name[:20]!r}", "Control/Tail", body)
    for task in (
        "victim/../../x:0",
        "victim/worker:-1",
        "victim/worker:99999999999999999999",
        "victim",
        "/:0",
    ):
        await raw.tried(f"output of {task}", "Control/Tail", TailRequest(task))


@_call
async def no_json(raw: Raw) -> None:
    for what, body in (
        ("nothing", b""),
        ("no UTF-8", b"\xff\xfe"),
        ("deep lists", b"[" * 200_000),
        ("deep objects", b'{"a":' * 100_000),
        ("another record", codec.encode(JobRequest("x"))),
        ("a newer release", b'{"v": 2, "record": "SubmitRequest"}'),
        ("a version of 4,000 digits", b'{"v": ' + b"9" * 4000 + b', "record": "SubmitRequest"}'),
        ("NaN", json.dumps(raw.job("nan", restart={"max_restarts": float("nan")})).encode()),
        ("1e999", json.dumps(raw.job("inf")).replace('"count": 1', '"count": 1e999').encode()),
        ("half a character", json.dumps(raw.job("half", workdir="/\ud800")).encode()),
        ("one field a million times", b'{"v":1,' + b'"a":1,' * 150_000 + b'"record":"SubmitRequest"}'),
    ):
        await raw.tried(what, "Control/Submit", body)


@_call
async def large_messages(raw: Raw) -> None:
    for mib in (2, 32):
        await raw.tried(f"{mib} MiB", "Control/Submit", b" " * (mib << 20))
        await raw.tried(f"{mib} MiB of a beat", "Link/Beats", b" " * (mib << 20))


@_call
async def many_streams(raw: Raw) -> None:
    """As many as there may be; what is refused is one more, not another user."""
    body = Record(json=codec.encode(EventsRequest(follow=True)))
    refused = 0
    async with raw.guard.channel(raw.supervisor) as channel:
        calls = [
            channel.unary_stream(
                "/tfsup.v1.Control/Events",
                request_serializer=Record.SerializeToString,
                response_deserializer=Record.FromString,
            )(body, metadata=raw.guard.metadata())
            for _ in range(_STREAMS)
        ]
        for call in calls:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await call.read()
            except grpc.aio.AioRpcError as error:
                refused += 1
                raw.lines.append(f"denied: one more: {error.details()}"[:200])
            except TimeoutError:
                refused += 1
        for call in calls:
            call.cancel()
    if not refused:
        raw.lines.append(f"GOT IN: {_STREAMS} streams")
    del raw.lines[1:]


@_call
async def many_connections(raw: Raw) -> None:
    """TCP connections that never say anything, and one that asks meanwhile."""
    host, _, port = raw.supervisor.rpartition(":")
    writers = []
    with suppress(OSError):
        for _ in range(2000):
            async with asyncio.timeout(_ANSWER_S):
                writers.append((await asyncio.open_connection(host, int(port)))[1])
    refused, said = await raw.answer("Control/Nodes", JobRequest())
    raw.lines.append(f"{'GOT IN: nobody else is answered' if refused else 'denied: keep others out'}: {said}")
    for writer in writers:
        writer.close()


@_call
async def beyond_the_bounds(raw: Raw) -> None:
    role = {"name": "worker", "count": 1, "command": ["true"]}
    huge = 10**400
    for what, changes in (
        ("a count below 0", {"roles": [role | {"count": -1}]}),
        ("10^400 tasks", {"roles": [role | {"count": huge}]}),
        ("1,001 tasks", {"roles": [role | {"count": 1001}]}),
        ("101 roles", {"roles": [role | {"name": f"r{n}"} for n in range(101)]}),
        ("a role named ../x", {"roles": [role | {"name": "../x"}]}),
        ("5,000 words", {"roles": [role | {"command": ["x"] * 5000}]}),
        ("a command that grows 1,000 times", {"roles": [role | {"command": ["{worker_hosts}" * 3500]}]}),
        ("2,000 variables", {"env": {f"A{n}": "" for n in range(2000)}}),
        ("a variable with NUL", {"env": {"A": "a\0b"}}),
        ("a variable named A=B", {"env": {"A=B": ""}}),
        ("negative memory", {"roles": [role | {"resources": {"memory_bytes": -1}}]}),
        ("10^30 CPUs", {"roles": [role | {"resources": {"cpus": 1e30}}]}),
        ("a back-off of 10^18 ms", {"restart": {"backoff_ms": 10**18}}),
        ("keep 1", {"checkpoint": {"uri": f"{raw.base}/x", "keep": 1}}),
        ("a pattern that does not compile", {"progress": {"patterns": ["(a{4294967296})"]}}),
        ("counts inside counts", {"progress": {"patterns": ["((?:(?:a{1000}){1000}){1000})"]}}),
        ("2,000 parentheses", {"progress": {"patterns": ["(" * 2000]}}),
        ("to work in /proc", {"workdir": "/proc/self/cwd"}),
        ("to work in /dev by dots", {"workdir": "/tmp/../dev/shm"}),
        ("a relative directory", {"workdir": "tmp"}),
        ("an unknown cause", {"restart": {"rules": {"x": "restart"}}}),
        ("code that nobody has", {"code": {"digest": "0" * 64, "size": 10}}),
        ("code by a path", {"code": {"digest": "../../../etc/passwd", "size": 10}}),
        ("code of 10^15 bytes", {"code": {"digest": "0" * 64, "size": 10**15}}),
        ("a module named by a path", {"preload": ["../x"]}),
    ):
        await raw.submit(what, raw.job("beyond", **changes))


@_call
async def ask_for_the_machine(raw: Raw) -> None:
    """Containers that have what is not theirs."""
    for what, container in (
        ("its root", {"mounts": [{"source": "/", "target": "/host"}]}),
        ("its processes", {"mounts": [{"source": "/proc", "target": "/host"}]}),
        ("another container's network", {"network": "container:victim"}),
        ("an option for an image", {"image": "--privileged"}),
        ("an option for a Python", {"python": "-c"}),
        ("real-time priority", {"ulimits": [{"name": "rtprio", "soft": 99, "hard": 99}]}),
        ("processes without end", {"pids": -1}),
        ("another loader", {"mounts": [{"source": "/tmp", "target": "/etc/ld.so.preload"}]}),
    ):
        await raw.submit(what, raw.job("greedy", container=container))
    for name in ("LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "TF_CONFIG", "TFSUP_MARKER", "CHECKPOINT_DIR"):
        await raw.submit(name, raw.job("greedy", container={}, env={name: "x"}))


async def _upload(raw: Raw, data: bytes, digest: str = "") -> tuple[bool, str]:
    digest = digest or hashlib.sha256(data).hexdigest()
    answer = (True, "nothing was sent")
    for index, start in enumerate(range(0, len(data), CHUNK_BYTES)):
        piece = base64.b64encode(data[start : start + CHUNK_BYTES]).decode()
        answer = await raw.answer("Control/PutCode", CodePart(digest, len(data), index, piece))
        if answer[0]:
            return answer
    return answer


@_call
async def code_under_a_wrong_name(raw: Raw) -> None:
    data = gzip.compress(b"x" * 100, mtime=0)
    refused, said = await _upload(raw, data, "1" * 64)
    complete = not refused and '"complete":true' in said
    raw.lines.append(f"{'GOT IN' if complete else 'denied'}: another archive by this digest: {said}")
    for what, part in (
        ("a digest that is a path", CodePart("../../x", 10, 0, "")),
        ("10^12 bytes", CodePart("0" * 64, 10**12, 0, "")),
        ("part -1", CodePart("0" * 64, 10, -1, "")),
        ("part 10^9", CodePart("0" * 64, 10, 10**9, "")),
        ("no base64", CodePart("0" * 64, 10, 0, "!!")),
        ("too much in a part", CodePart("0" * 64, 10, 0, base64.b64encode(b"x" * 500_000).decode())),
    ):
        await raw.tried(what, "Control/PutCode", part)


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue(), mtime=0)


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", **pax: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.pax_headers = kind, target, pax
    info.mode = 0o6777
    return info


_ARCHIVES: dict[str, Callable[[], bytes]] = {
    "dots": lambda: _tar((_member("../../../canary/planted"), b"x")),
    "absolute": lambda: _tar((_member("/srv/canary/planted"), b"x")),
    "pax": lambda: _tar((_member("a", path="../../../canary/planted"), b"x")),
    "link": lambda: _tar((_member("a", tarfile.SYMTYPE, "/etc/shadow"), b"")),
    "through": lambda: _tar(
        (_member("d", tarfile.SYMTYPE, "/srv/canary"), b""), (_member("d/planted"), b"x")
    ),
    "hard": lambda: _tar((_member("a", tarfile.LNKTYPE, "/etc/shadow"), b"")),
    "device": lambda: _tar((_member("a", tarfile.BLKTYPE), b"")),
    "fifo": lambda: _tar((_member("attack.py", tarfile.FIFOTYPE), b"")),
    "bomb": lambda: gzip.compress(bytes(400 << 20), 1, mtime=0),
    "noise": lambda: gzip.compress(b"\xff" * 5000, mtime=0),
    "cut": lambda: _tar((_member("a"), b"x" * 5000))[:-40],
}


async def _ship(raw: Raw, kind: str) -> None:
    """Upload the archive, and submit the job `code_KIND` with it."""
    data = await asyncio.to_thread(_ARCHIVES[kind])
    refused, said = await _upload(raw, data)
    raw.lines.append(f"done: upload: {said}")
    if not refused:
        code = {"digest": hashlib.sha256(data).hexdigest(), "size": len(data)}
        await raw.done("submit", "Control/Submit", json.dumps(raw.job(f"code-{kind}", code=code)).encode())


async def call(name: str, config_path: Path, site: Mapping[str, str]) -> list[str]:
    """Make the requests of this name; what came of them."""
    config = load_client(config_path)
    guard = Guard(config.tls_files(), config.token, config.insecure)
    raw = Raw(guard, config.supervisors[0], site, config.checkpoint_base or "")
    if name.startswith("ship:"):
        await _ship(raw, name.removeprefix("ship:"))
    else:
        await _FOUND[name](raw)
    return raw.lines
