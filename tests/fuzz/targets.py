"""All that reads what a task, a client or another node has written: what it may say of any bytes at all.

Each target takes bytes to the end of what a daemon does with them: it reads them, and where that works it
decides by them and writes down what it has decided.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from agent.checkpoints import saves
from agent.code import unpack
from agent.core.events import LauncherSaid, Tick
from agent.core.instructions import Report, Say
from agent.core.saved import adopt
from agent.core.step import step
from agent.inside import protocol
from agent.inside.launcher.mask import MASK, Masker
from agent.logs.counts import Counts, count_of
from agent.logs.patterns import Matcher
from agent.logs.raised import parse as parse_raised
from agent.runtimes.launcher_log import words
from chaos.bundles import bundle, entry, header, plain, strings, table
from recovery.commit.verify import verify_files
from recovery.formats.bundle import read_index
from recovery.formats.manifest import Manifest, ManifestFile, encode_manifest, parse_manifest
from recovery.formats.meta_graph import tf_version
from recovery.formats.saved_model import check_graph
from recovery.formats.tf_files import parse_state
from recovery.io.trees import remove_tree
from recovery.logs.segments import Segment, Span, decode_segment, encode_segment
from recovery.models import index as models
from recovery.outputs.index import OutputFile, OutputIndex, Piece, encode_index, parse_index
from recovery.policy.logs import bounded, last_words, raised, with_beginning
from supervisor.adapters.files.jobfile import load_job_file
from supervisor.adapters.neutral import one_line
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import KeyValue
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import ClusterSpec, JobPhase, JobSwitch, RoleAddresses
from supervisor.contract.errors import BadCheckpoint, IncompatibleRecord, NewerRelease, Refused, UserError
from supervisor.contract.job.bounds import objections
from supervisor.contract.job.environment import read_lock
from supervisor.contract.job.file_pattern import compile_pattern
from supervisor.contract.job.placeholders import fill, fill_earlier, problems
from supervisor.contract.job.spec import JobIntent, JobRecord, RoleSpec
from supervisor.contract.job.step_pattern import compile_step_pattern
from supervisor.contract.observed import (
    MOST_NOTICES,
    Beat,
    Exit,
    ExitReason,
    GpuBeat,
    Notice,
    SaverBeat,
    Sign,
    TaskBeat,
)
from supervisor.contract.timing import FAST
from supervisor.contract.views.jobs import SubmitRequest
from supervisor.control.decide.jobs.admission import check_spec
from supervisor.control.decide.jobs.sizes import check_sizes
from supervisor.control.decide.parking import JOB_PARKED
from supervisor.control.decide.plan import Action, Decision
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.decide.snapshot import BeatSeen
from supervisor.control.decide.view import View
from tests.agent.core_machine import ROLES, CoreMachine
from tests.control.world import World
from tests.support.builders import job_spec
from tests.support.sinks import ListSink

OURS = frozenset({keys.LEADER, keys.CLUSTER, keys.CLAIMS, keys.TIME})


@dataclass(frozen=True, slots=True)
class Target:
    """Something that reads bytes.

    Attributes:
        seeds: what it reads every day.
        read: given a directory to work in.
        says: the errors that it declares.
        weight: its share of the cases; those that take longer get fewer.
        is_json: the seeds are.
        most_s: processor time of one case. A loop that holds up for longer misses beats.
    """

    name: str
    seeds: Callable[[], tuple[bytes, ...]]
    read: Callable[[bytes, Path], object]
    says: tuple[type[Exception], ...] = ()
    weight: int = 4
    is_json: bool = False
    most_s: float = 0.1


@cache
def world() -> World:
    return World(replace(job_spec(), templated=True)).start()


@cache
def entries() -> tuple[KeyValue, ...]:
    return tuple(world().store.select(""))


@cache
def beats() -> dict[str, BeatSeen]:
    """The last beat of each node, by node."""
    nodes = world().snapshot().nodes
    return {name: node.beat for name, node in nodes.items() if node.beat is not None}


def record(data: bytes, _: Path) -> None:
    """Any record that a peer sends: what is read can be written again, and read."""
    name = data[:200].partition(b'"record": "')[2].partition(b'"')[0].decode(errors="replace")
    kinds = {family.record for family in keys.FAMILIES}
    for kind in [each for each in kinds if each.__name__ == name] or [Beat]:
        found: object = codec.decode(kind, data)
        assert codec.decode(kind, codec.encode(found)) == found


def submitted(data: bytes, _: Path) -> None:
    """A job from a client that checks nothing: what is accepted can be recorded and decided on."""
    request = codec.decode(SubmitRequest, data)
    check_spec(request.spec)
    assert not list(objections(request.spec))
    check_sizes(world().snapshot(), request.spec)
    name = request.spec.name
    values = {
        keys.job_record(name): JobRecord(request.spec, "uuid", 0),
        keys.intent(name): JobIntent(),
        keys.switch(name): JobSwitch(name, "uuid", JobPhase.WAITING, 0),
    }
    for decision in decide({key: codec.encode(value) for key, value in values.items()}, alone=True):
        assert not isinstance(decision, Action) or decision.kind != JOB_PARKED, decision.text


def masked(data: bytes, _: Path) -> None:
    """The output of a task with a secret: the first line is the value."""
    value, _newline, output = data.partition(b"\n")
    text = value.decode(errors="replace")
    masker = Masker([text])
    half = len(output) // 2
    shown = masker.feed(output[:half]) + masker.feed(output[half:]) + masker.end()
    assert not masker.patterns or text.encode().strip() not in shown.replace(MASK, b"\xff")


def stored(data: bytes, directory: Path) -> None:
    """A record in etcd, whoever wrote it: the leader decides on all that is not about it."""
    at, _, value = data.partition(b"\n")
    key = entries()[int(at) % len(entries())].key if at.isdigit() and len(at) < 9 else "jobs/odd"
    try:
        decide({key: value})
    except IncompatibleRecord as error:
        if not _may_end(key, error):
            raise


def stored_values(data: bytes, directory: Path) -> None:
    """The same, of records that are JSON, under keys that may be odd."""
    try:
        body = json.loads(data)
        key, value = str(body["key"]), json.dumps(body["record"]).encode()
    except (ValueError, KeyError, TypeError):
        return
    try:
        decide({key: value})
    except IncompatibleRecord as error:
        if not _may_end(key, error):
            raise


def _may_end(key: str, error: IncompatibleRecord) -> bool:
    """Whether a leader may end for a record that it cannot read: its own, or of a newer leader."""
    known = keys.known_family(key)
    newer = isinstance(error, NewerRelease)
    return known is not None and (known.prefix in OURS or (newer and known.writer is keys.Writer.LEADER))


def beaten(data: bytes, _: Path) -> None:
    """A beat, with anything in it about the tasks of its node: no job is parked for it."""
    beat = codec.decode(Beat, data)
    tasks, savers = {each.attempt: each for each in beat.tasks}, {each.job: each for each in beat.savers}
    gpus = {each.uuid: each for each in beat.gpus}
    notices = beat.notices[:MOST_NOTICES]
    seen = BeatSeen(
        world().now_ms, tasks, savers, beat.spares, gpus, True, beat.unread_ms, beat.blocked, notices
    )
    for decision in decide({}, seen=(beat.node, beat.incarnation, seen)):
        assert not isinstance(decision, Action) or decision.kind != JOB_PARKED, decision.text


def decide(
    values: Mapping[str, bytes], *, alone: bool = False, seen: tuple[str, str, BeatSeen] | None = None
) -> list[Decision]:
    """The decisions of a leader that finds these records in etcd, now and a minute later.

    `alone`: there is no other job. `seen`: a node and its incarnation, and what it has said last.
    """
    given = world()
    view = View(FAST)
    revision = given.store.revision + 1
    changed = [KeyValue(key, value, revision, revision) for key, value in values.items()]
    others = [each for each in entries() if each.key not in values]
    if alone:
        others = [each for each in others if "job" not in keys.family(each.key).shape]
    view.apply([*others, *changed], revision, given.now_ms)
    for node, beat in beats().items():
        view.beat(node, f"i{node[1:]}", beat)
    if seen is not None:
        view.beat(*seen)
    found: list[Decision] = []
    for now_ms in (given.now_ms, given.now_ms + 60_000):
        found += reconcile(view.snapshot(now_ms, now_ms, given.since_ms, given.token))
    return found


class Running(CoreMachine):
    """An agent whose attempts run."""

    def spec(self) -> ClusterSpec:
        ports = {name: hold.port for name, hold in self.state.holds.items()}
        roles = tuple(
            RoleAddresses(role, tuple(f"h:{port}" for name, port in ports.items() if f".{role}." in name))
            for role, _ in ROLES
        )
        return ClusterSpec("job", self.switch.generation, self.switch.plan_id, roles)


@cache
def machine() -> CoreMachine:
    found = Running()
    found.begin(5)
    found.settle(6)
    assert all(each.pid for each in found.state.attempts.values()), "its attempts do not run"
    return found


def said(data: bytes, _: Path) -> None:
    """A message of a launcher: its agent takes it in, and can write etcd, its disk and the answer."""
    message = protocol.decode(data)
    if message is None:
        return
    state, now_ms = machine().state, machine().now_ms
    for launcher_id in state.launchers:
        after, out = step(state, [LauncherSaid(launcher_id, message)], now_ms)
        for ms in (1, 60_000):
            after, more = step(after, [Tick()], now_ms + ms)
            out += more
        codec.encode(adopt.record_of(after))
        for each in out:
            if isinstance(each, Say):
                protocol.encode(each.message)
            elif isinstance(each, Report):
                codec.encode(each.record)


def printed(data: bytes, directory: Path) -> None:
    """Lines of output, by the built-in formats and by patterns."""
    lines = [line[:2048] for line in data.split(b"\n")[:50]]
    counts = Counts()
    for line in lines:
        count = count_of(line)
        if count is not None:
            counts.take(count, line)
    matcher = Matcher((r"step[ =](\d+)", r"(\d+)/"), ListSink(), watch_nan=True)
    matcher.take(lines)
    for each in (counts, matcher.counts):
        codec.encode(
            Beat(1, "n", "i", 1, (TaskBeat("a", step=each.step, first_step=each.first, said=each.said),))
        )
    codec.encode(Beat(1, "n", "i", 1, (TaskBeat("a", saves=saves.parse(data)),)))
    tail = data.decode(errors="replace")
    noted = bounded(parse_raised(data) or raised(tail))
    last_words(with_beginning(tail, noted), noted)
    codec.encode(Exit(ExitReason.EXIT, 1, None, 0, confirmed_dead=True, raised=noted))


def launcher_log(data: bytes, _: Path) -> None:
    """A launcher's output reaches operators as a short line that steers no terminal."""
    told = words(data)
    assert told == one_line(told)
    assert len(told) < 500


def patterned(data: bytes, _: Path) -> None:
    """Patterns of a job, and placeholders in its words."""
    text = data.decode(errors="surrogateescape")
    values = {"worker_hosts": "h:1,h:2", "task_id": "0"}
    fill(text, values), fill_earlier(text, values), list(problems(text, frozenset(values)))
    any(objections(replace(job_spec((RoleSpec("worker", 20, ("python", text)),)), templated=True)))
    try:
        compile_pattern(text).fullmatch("a" * 250 + "-12.keras")
    except UserError:
        pass
    compiled = compile_step_pattern(text)
    Matcher((compiled.pattern.decode(),), ListSink()).take([b"a" * 2048, b"step 12", b"ab" * 1000])


def job_file(data: bytes, directory: Path) -> None:
    path = directory / "job.yaml"
    path.write_bytes(data)
    try:
        spec = load_job_file(path, checkpoint_base="file:///c").spec
        codec.decode(SubmitRequest, codec.encode(SubmitRequest(spec)))
    finally:
        path.unlink()


def lock(data: bytes, _: Path) -> None:
    """A lock file of a job's environment. What is written for pip reads as the same."""
    found = read_lock(data)
    assert read_lock("\n".join(each.text for each in found).encode()) == found


def manifest(data: bytes, _: Path) -> None:
    found = parse_manifest(data)
    assert parse_manifest(encode_manifest(found)) == found


def index(data: bytes, _: Path) -> None:
    found = parse_index(data)
    assert parse_index(encode_index(found)) == found


def log_segment(data: bytes, _: Path) -> None:
    for raw in (data, zlib.compress(data)):
        try:
            found = decode_segment(raw)
        except IncompatibleRecord:
            continue
        size = len(found.data)
        assert all(0 <= at <= size for at, _ in found.times_of(0, size))
        assert decode_segment(encode_segment(found)) == found


def state_files(data: bytes, _: Path) -> None:
    parse_state(data.decode(errors="replace"))
    tf_version("a.meta", data)
    tf_version("saved_model.pb", data)


def rows(data: bytes, _: Path) -> None:
    """An index of a bundle with right checksums: its header, and any rows in it."""
    first, *parts = data.split(b"|row|")
    pairs = {b"": first} | {each[:3]: each[3:] for each in parts}
    read_index(table(sorted(pairs.items())))


def raw_index(data: bytes, _: Path) -> None:
    read_index(data)


def archive(ending: str) -> Callable[[bytes, Path], None]:
    def read(data: bytes, directory: Path) -> None:
        path = directory / f"m{ending}"
        path.write_bytes(data)
        try:
            verify_files(directory, "", [path.name])
        finally:
            path.unlink()

    return read


def code(data: bytes, directory: Path) -> None:
    """A tar archive; the checksums of its headers are mended."""
    mended = bytearray(data)
    for at in range(0, len(mended) - 511, 512):
        if mended[at + 257 : at + 262] == b"ustar":
            mended[at + 148 : at + 156] = b" " * 8
            mended[at + 148 : at + 156] = b"%06o\0 " % sum(mended[at : at + 512])
    _unpacked(gzip.compress(bytes(mended), 1), directory)


def packed(data: bytes, directory: Path) -> None:
    _unpacked(data, directory)


def _unpacked(data: bytes, directory: Path) -> None:
    try:
        found = unpack.unpack(data, directory / "target")
        assert unpack.from_json(unpack.to_json(found)) == found
    finally:
        remove_tree(directory / "target")


def noted(data: bytes, _: Path) -> None:
    unpack.from_json(data.decode(errors="replace"))


@cache
def _tar() -> tuple[bytes, ...]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, link in (
            ("d", tarfile.DIRTYPE, ""),
            ("d/train.py", tarfile.REGTYPE, ""),
            ("é" * 60 + "/file", tarfile.REGTYPE, ""),
            ("link", tarfile.SYMTYPE, "d/train.py"),
            ("d/up", tarfile.SYMTYPE, "../link"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, 700 if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"x" * 700))
    return (out.getvalue(),)


def _zip(kind: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as file:
        for number in range(3):
            file.writestr(f"member-{number}", b"content %d " % number * 50)
    return out.getvalue()


def _manifest() -> tuple[bytes, ...]:
    ref, crc = CheckpointRef(1, 7), "0000abcd"
    names = ("ckpt-7.data-00000-of-00001", "ckpt-7.index")
    files = tuple(ManifestFile(name, 10, crc) for name in names)
    return (encode_manifest(Manifest("uuid", "digits", ref, None, "n1", "i", "ckpt-7", 1, files)),)


def _index() -> tuple[bytes, ...]:
    file = OutputFile(10, 1, "v", (Piece("0000000001", 0, 10, 7),))
    return (encode_index(OutputIndex("uuid", "worker.0", 1, {"a/b": file})),)


def _models() -> tuple[bytes, ...]:
    version = models.ModelVersion(
        version=1,
        id="g1.1-a",
        digest="d",
        source="export/1",
        member="chief.0",
        check="load",
        size=1,
        job_uuid="uuid",
        generation=1,
        attempt=1,
        taken_ms=1,
    )
    return (models.encode_index(models.ModelIndex(model="m", last=1, versions=(version,), labels={"a": 1})),)


def model_index(data: bytes, _: Path) -> None:
    """The index of a model, which whoever writes to the store may have written."""
    models.parse_index(data)


def _saved_models() -> tuple[bytes, ...]:
    return (b"\x08\x01\x12\x0b\x0a\x05\x2a\x032.2\x12\x02\x22\x00",)


def saved_model(data: bytes, _: Path) -> None:
    """A program's saved_model.pb."""
    check_graph(lambda at, size: data[at : at + size], len(data))


def _segment() -> tuple[bytes, ...]:
    made = encode_segment(Segment("n0", b"step 1\nstep 2\n", (Span(0, 7, 0, 14),), ((0, 1), (7, 2))))
    return made, zlib.decompress(made)


@cache
def _records() -> tuple[bytes, ...]:
    more = (Beat(1, "n0", "i0", 1, (TaskBeat("digits/worker:0@1.1", 7, rate=0.5),)),)
    return tuple(json.dumps(json.loads(each)).encode() for each in [*map(codec.encode, more), *_values()])


def _values() -> list[bytes]:
    return [each.value for each in entries()]


@cache
def _stored() -> tuple[bytes, ...]:
    return tuple(b"%d\n%s" % (at, value) for at, value in enumerate(_values()))


@cache
def _beats() -> tuple[bytes, ...]:
    signs = (Sign("cpu", 5), Sign("output", 7))
    notice = Notice("digits", "uuid", "work_kept", "n0 /a (1, 2)", "kept")
    found = []
    for number, (node, seen) in enumerate(sorted(beats().items())):
        tasks = tuple(replace(each, rate=0.5, pace=2.0, signs=signs) for each in seen.tasks.values())
        savers = (*seen.savers.values(), SaverBeat("digits", 1))
        gpus = (GpuBeat("GPU-1"),)
        beat = Beat(1, node, f"i{number}", 7, tasks, savers, ("digits",), gpus, notices=(notice,))
        found.append(codec.encode(beat))
    return tuple(found)


@cache
def _stored_values() -> tuple[bytes, ...]:
    return tuple(
        json.dumps({"key": each.key, "record": json.loads(each.value)}).encode() for each in entries()
    )


@cache
def _messages() -> tuple[bytes, ...]:
    state = machine().state
    attempt = next(str(each.id) for each in state.attempts.values())
    hold = next(iter(state.holds), "r")
    launcher = next(iter(state.launchers))
    running = protocol.RunningAttempt(attempt, 101, 1, 20_001, "i", secrets={"T": "Abcdefgh-1"})
    exited = protocol.Exited(attempt, 1, None, 5, "exit", True, 0, "detail", 20_001, 9)
    held = (protocol.HeldPort(hold, 20_001),)
    hello = protocol.Hello(1, launcher, "job", 101, 1, "boot", True, held, running, (exited,))
    plain_ones = (
        protocol.Warm(5, "no module"),
        protocol.Reserved(hold, 20_001),
        protocol.ReserveFailed(hold, "taken"),
        protocol.Started(attempt, 101, 1, 5, True, "2.21.0", True),
        protocol.StartFailed(attempt, "cannot start: no"),
        protocol.Pull(5, "life1", attempt),
    )
    return tuple(map(protocol.encode, (hello, exited, *plain_ones)))


def _bundle() -> tuple[bytes, ...]:
    tensors = {b"w": plain(1, [2], b"12345678"), b"s": strings([2], [b"a", b"bc"])}
    return tuple(data for name, data in bundle("b", [tensors]).items() if name.endswith(".index"))


@cache
def _job_files() -> tuple[bytes, ...]:
    found = sorted(Path(__file__).parents[2].glob("examples/*/*.yaml"))
    return tuple(each.read_bytes() for each in found)


OUTPUT = (
    b"step 12\nglobal_step/sec: 5\nEpoch 3/10\n 12/100 [==>...] - loss: 0.5\n",
    b"I0000 step = 1,200, loss = nan\nINFO:tensorflow:global step 7: loss = 0.1\n",
    b'{"places": [{"directory": "/a", "inside": 1, "count": 2}], "version": 1}',
)
MASKED = (b"Abcdefgh-1\nstep 1\nAbcdefgh-1, Abcdefgh\n", b"abcdabcd\nabcdabcdabcdabcd abcdabc")
WORDS = (
    b"step[ =](\\d+)",
    b"--workers={worker_hosts}",
    b"backup/m-{step}-*.keras",
    b"{{literal}}",
    b"([0-9,]+)/s",
)


def _rows() -> tuple[bytes, ...]:
    tensors = {b"w  ": plain(1, [2], b"12345678"), b"s  ": strings([2], [b"a", b"bc"])}
    found = [name + entry(value, 0, 0) for name, value in tensors.items()]
    return (b"|row|".join([header(1), *found]),)


@cache
def _request() -> tuple[bytes, ...]:
    return (codec.encode(SubmitRequest(replace(job_spec(), templated=True))),)


def _output() -> tuple[bytes, ...]:
    return OUTPUT


def _words() -> tuple[bytes, ...]:
    return WORDS


def _state_files() -> tuple[bytes, ...]:
    return b'model_checkpoint_path: "ckpt-7"\n', b"\x0a\x20" + b"\x2a\x062.21.0" * 4


def _zips() -> tuple[bytes, ...]:
    return _zip(zipfile.ZIP_STORED), _zip(zipfile.ZIP_DEFLATED)


def _hdf5() -> tuple[bytes, ...]:
    return (b"\x89HDF\r\n\x1a\n" + bytes(92),)


def _json() -> tuple[bytes, ...]:
    return (b'{"a": [1, 2.5, "x"]}',)


def _packed() -> tuple[bytes, ...]:
    return (gzip.compress(_tar()[0], mtime=0),)


def _note() -> tuple[bytes, ...]:
    return (b'{"a": ["file", "00", true]}',)


def _locks() -> tuple[bytes, ...]:
    hashed = f"--hash=sha256:{'a' * 64}"
    text = f"# made\na==1 \\\n    {hashed} \\\n    {hashed}\n    # via b\n"
    text += f"b[x]==2 ; python_version > '3' {hashed}\n"
    return (text.encode(), b"-r x\na>=1\n")


DAMAGED, REFUSED = (BadCheckpoint,), (Refused, OSError)
UNREAD = (IncompatibleRecord,)
TARGETS = (
    Target("record", _records, record, UNREAD, 8),
    Target("values of a record", _records, record, UNREAD, 8, is_json=True),
    Target("submitted", _request, submitted, (IncompatibleRecord, UserError), 1),
    Target("values submitted", _request, submitted, (IncompatibleRecord, UserError), 2, is_json=True),
    Target("stored", _stored, stored, UNREAD, 1),
    Target("beats", _beats, beaten, UNREAD, 1),
    Target("values of a beat", _beats, beaten, UNREAD, 2, is_json=True),
    Target("values stored", _stored_values, stored_values, (), 2, is_json=True),
    Target("launcher", _messages, said, (protocol.ProtocolError,), 4),
    Target("values of a launcher", _messages, said, (protocol.ProtocolError,), 4, is_json=True),
    Target("output", _output, printed, (), 4),
    Target("log of a launcher", _output, launcher_log, (), 2),
    Target("masked output", lambda: MASKED, masked),
    Target("patterns", _words, patterned, (UserError,), 2),
    Target("job file", _job_files, job_file, (UserError,), 1, most_s=5),
    Target("lock", _locks, lock, (UserError,), 4),
    Target("manifest", _manifest, manifest, (BadCheckpoint, IncompatibleRecord), 4),
    Target("values of a manifest", _manifest, manifest, (BadCheckpoint, IncompatibleRecord), 4, is_json=True),
    Target("outputs", _index, index, UNREAD, 4),
    Target("values of outputs", _index, index, UNREAD, 4, is_json=True),
    Target("models", _models, model_index, UNREAD, 4),
    Target("values of models", _models, model_index, UNREAD, 4, is_json=True),
    Target("saved model", _saved_models, saved_model, DAMAGED, 4),
    Target("stored log", _segment, log_segment, (), 4),
    Target("state files", _state_files, state_files),
    Target("bundle", _bundle, raw_index, DAMAGED, 4),
    Target("rows of a bundle", _rows, rows, DAMAGED, 4),
    Target("keras", _zips, archive(".keras"), DAMAGED, 3),
    Target("h5", _hdf5, archive(".h5"), DAMAGED, 2),
    Target("json", _json, archive(".json"), DAMAGED, 2),
    Target("code", _tar, code, REFUSED, 1),
    Target("packed code", _packed, packed, REFUSED, 2),
    Target("unpacked code", _note, noted, (), 2),
)
