"""The code on a node: unpacked once, whole or not at all, and nowhere but in its own directory."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import os
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent.code import unpack
from agent.code.store import KEPT_UNUSED, NodeCode
from agent.core.events import BroughtIn, Event
from agent.core.instructions import BringIn
from agent.effects import Effects
from recovery.stores.allowed import AllowedStores
from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryCheckpointStore, MemoryDisk, Moment, no_fault
from recovery.stores.open import CODE_THREADS, Stores
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.adapters.files.code_archive import pack
from supervisor.adapters.files.jobfile import CodeSource
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete, KeyValue
from supervisor.contract.code import CHUNK_BYTES, CodeChunk, StoredCode
from supervisor.contract.errors import BadArchive, NotFound, Refused, StoreUnreachable, Unreachable, UserError
from supervisor.contract.job.spec import CodeRef
from supervisor.control.decide.plan import put
from tests.agent.core import NO_SPARES
from tests.agent.daemon import Agent, registered
from tests.support.sinks import ListSink
from tests.support.waiting import until


class Counting(MemoryCoordination):
    """Counts the chunks that are asked for."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, rpc_deadline_ms=50)
        self.reads = 0
        self.asked_twice = asyncio.Event()

    async def get(self, key: str) -> KeyValue | None:
        self.reads += 1
        if self.reads > 1:
            self.asked_twice.set()
        return await super().get(key)


STORE = "file:///mnt/code"


class Site:
    """A node's disk and the etcd that it fetches from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.etcd = MemoryStore()
        self.coordination = Counting(self.etcd)
        self.store = MemoryCheckpointStore(MemoryDisk(prepared=True))
        self.sink = ListSink()
        self.code = self.again()

    def again(self) -> NodeCode:
        """Another life of the agent."""
        return NodeCode(self.root / "code", self.coordination, self.open_store, self.sink)

    def open_store(self, uri: str) -> MemoryCheckpointStore:
        assert uri == STORE
        return self.store

    def upload(self, data: bytes, digest: str = "") -> CodeRef:
        ref = CodeRef(digest or hashlib.sha256(data).hexdigest(), len(data))
        for index in range(0, len(data), CHUNK_BYTES):
            text = base64.b64encode(data[index : index + CHUNK_BYTES]).decode()
            op = put(keys.chunk(ref.digest, index // CHUNK_BYTES), CodeChunk(text))
            assert self.etcd.commit([], [op], []).succeeded
        return ref

    def to_store(self, ref: CodeRef) -> StoredCode:
        """Move an archive from etcd to the store of code."""
        stored = StoredCode(STORE, f"us/{ref.digest}.id1")
        chunks = self.etcd.select(keys.chunks_of(ref.digest))
        for index, found in enumerate(chunks):
            data = base64.b64decode(codec.decode(CodeChunk, found.value).data)
            self.store.disk.files[stored.chunk(index)] = data
        removals = [Delete(found.key) for found in chunks[1:]]
        named = put(keys.chunk(ref.digest, 0), CodeChunk("", stored))
        assert self.etcd.commit([], [named, *removals], []).succeeded
        return stored

    def ship(self, name: str = "one", size: int = 100) -> CodeRef:
        """Upload a small program."""
        source = self.root / "source" / name
        (source / "lib").mkdir(parents=True)
        (source / "train.py").write_text(f"print({name!r})\n")
        (source / "run.sh").write_text("#!/bin/sh\n")
        (source / "run.sh").chmod(0o755)
        (source / "lib" / "data.bin").write_bytes(os.urandom(size))
        (source / "lib" / "link").symlink_to("../train.py")
        return self.upload(pack(CodeSource(str(source), (), "job.yaml:1: code")).data)

    def names(self) -> set[str]:
        return {path.name for path in (self.root / "code").iterdir()}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_it_is_unpacked_as_it_was_packed_and_read_only(site: Site) -> None:
    ref = site.ship("one", 3 * CHUNK_BYTES)
    where = Path(await site.code.ensure(ref))
    assert str(where) == site.code.directory(ref)
    source = site.root / "source" / "one"
    for path in source.rglob("*"):
        copy = where / path.relative_to(source)
        assert copy.is_symlink() == path.is_symlink()
        assert copy.is_dir() or copy.read_bytes() == path.read_bytes()
    modes = {
        path.name: stat.S_IMODE(path.lstat().st_mode) for path in where.rglob("*") if not path.is_symlink()
    }
    assert modes == {
        "train.py": 0o444,
        "run.sh": 0o555,
        "lib": 0o555,
        "data.bin": 0o444,
        "__pycache__": 0o755,
    }
    assert stat.S_IMODE(where.stat().st_mode) == 0o555


async def test_many_tasks_at_once_fetch_it_once(site: Site) -> None:
    ref = site.ship()
    found = await asyncio.gather(*(site.code.ensure(ref) for _ in range(8)))
    assert len(set(found)) == 1
    assert site.coordination.reads == 1
    await site.again().ensure(ref)
    assert site.coordination.reads == 1


Damage = Callable[[Path], object]


def rewrite(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(bytes(len(path.read_bytes())))


@pytest.mark.parametrize(
    "damage",
    [
        lambda tree: rewrite(tree / "train.py"),
        lambda tree: (tree / "train.py").unlink(),
        lambda tree: (tree / "run.sh").chmod(0o444),
        lambda tree: ((tree / "lib" / "link").unlink(), (tree / "lib" / "link").symlink_to("/etc")),
        lambda tree: ((tree / "train.py").unlink(), (tree / "train.py").mkdir()),
        lambda tree: tree.rename(tree.with_name("elsewhere")),
        lambda tree: tree.with_name(f"{tree.name}.manifest").unlink(),
        lambda tree: tree.with_name(f"{tree.name}.manifest").write_text('{"train.py": ['),
    ],
)
async def test_a_damaged_copy_is_found_and_replaced(site: Site, damage: Damage) -> None:
    ref = site.ship()
    tree = Path(await site.code.ensure(ref))
    tree.chmod(0o755)
    (tree / "lib").chmod(0o755)
    damage(tree)
    await site.again().ensure(ref)
    assert site.coordination.reads == 2
    assert (tree / "train.py").read_text() == "print('one')\n"
    assert os.access(tree / "run.sh", os.X_OK)
    assert str((tree / "lib" / "link").readlink()) == "../train.py"


async def test_a_task_that_runs_in_a_damaged_copy_keeps_its_directory(site: Site) -> None:
    ref = site.ship()
    tree = Path(await site.code.ensure(ref))
    directory = os.open(tree, os.O_RDONLY)
    try:
        rewrite(tree / "train.py")
        await site.code.ensure(ref)
        assert (Path(f"/proc/self/fd/{directory}") / "lib").is_dir()
        await site.code.keep(frozenset({ref.digest}))
        assert (Path(f"/proc/self/fd/{directory}") / "lib").is_dir()
    finally:
        os.close(directory)
    await site.code.keep(frozenset())
    assert site.names() == {ref.digest, f"{ref.digest}.manifest"}


async def test_bytecode_may_be_written_and_is_no_damage(site: Site) -> None:
    ref = site.ship()
    tree = Path(await site.code.ensure(ref))
    (tree / "__pycache__" / "train.cpython-311.pyc").write_bytes(b"x")
    await site.again().ensure(ref)
    assert site.coordination.reads == 1


async def test_what_a_crash_has_left_is_in_nobodys_way(site: Site) -> None:
    ref = site.ship()
    left = site.root / "code" / f"{ref.digest}.tmp"
    (left / "deep").mkdir(parents=True)
    (left / "deep").chmod(0o555)
    tree = Path(await site.code.ensure(ref))
    assert not left.exists()
    assert not (tree / "deep").exists()


async def test_what_a_crash_has_left_goes_though_its_code_is_in_use(site: Site) -> None:
    ref = site.ship()
    await site.code.ensure(ref)
    left = site.root / "code" / f"{ref.digest}.tmp"
    (left / "deep").mkdir(parents=True)
    (left / "deep").chmod(0o555)
    left.with_name(f"{ref.digest}.tmp.manifest").write_text("{")
    await site.code.keep(frozenset({ref.digest}))
    assert site.names() == {ref.digest, f"{ref.digest}.manifest"}


async def test_what_is_being_unpacked_is_not_swept(site: Site) -> None:
    ref = site.ship()
    (site.root / "code").mkdir()
    begun = site.root / "code" / f"{ref.digest}.tmp"
    begun.mkdir()
    async with site.code._lock_of(ref.digest):
        sweeping = asyncio.create_task(site.code.keep(frozenset()))
        _, waits = await asyncio.wait([sweeping], timeout=0.2)
        assert waits
        assert begun.is_dir()
    await sweeping
    assert not begun.exists()


async def test_etcd_without_the_code_or_with_other_code_is_an_error_that_says_so(site: Site) -> None:
    ref = site.ship()
    assert site.etcd.commit([], [Delete(keys.chunk(ref.digest, 0))], []).succeeded
    with pytest.raises(NotFound, match="not in etcd any more; submit the job again"):
        await site.code.ensure(ref)
    false = site.upload(b"something else", "0" * 64)
    with pytest.raises(Refused, match="has not the digest 000000000000"):
        await site.code.ensure(false)
    assert not (site.root / "code").exists()


async def test_what_cannot_be_unpacked_leaves_nothing_on_the_disk(site: Site) -> None:
    archive = tarball(member("a", data=b"x"), member("../evil"))
    ref = site.upload(archive, hashlib.sha256(archive).hexdigest())
    with pytest.raises(BadArchive, match="evil"):
        await site.code.ensure(ref)
    assert site.names() == set()


async def test_that_it_can_be_unpacked_nowhere_is_told_apart_from_that_it_is_not_here(site: Site) -> None:
    agent, events = Agent(), list[Event]()
    archive = tarball(member("a"))[:-9]
    cut, gone = site.upload(archive, hashlib.sha256(archive).hexdigest()), CodeRef("1" * 64, 10)
    async with registered(agent) as daemon:
        assert daemon._membership is not None
        outside = replace(agent.outside(), code=site.code)
        effects = Effects(NO_SPARES, outside, events.append, daemon._membership)
        await effects._bring_in(BringIn("p1", cut))
        await effects._bring_in(BringIn("p2", gone))
    assert [(each.unknown, each.hopeless) for each in events if isinstance(each, BroughtIn)] == [
        (False, True),
        (False, False),
    ]


async def test_a_slow_etcd_is_asked_again_and_not_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = site.ship()
    site.coordination.disconnect()
    asking = asyncio.create_task(site.code.ensure(ref))
    async with asyncio.timeout(30):
        await site.coordination.asked_twice.wait()
    site.coordination.reconnect()
    assert Path(await asking).is_dir()
    monkeypatch.setattr("agent.code.store.FETCH_S", 0.1)
    site.coordination.disconnect()
    other = site.ship("other")
    with pytest.raises(Unreachable, match=r"0 of \d+ bytes of code came from etcd in 0\.1 s"):
        await site.code.ensure(other)


async def test_an_archive_in_the_store_of_code_is_the_same(site: Site) -> None:
    ref = site.ship("one", 3 * CHUNK_BYTES)
    site.to_store(ref)
    where = Path(await site.code.ensure(ref))
    source = site.root / "source" / "one" / "lib" / "data.bin"
    assert (where / "lib" / "data.bin").read_bytes() == source.read_bytes()
    assert site.coordination.reads == 1, "etcd holds its place alone"
    site.store.disk.files.clear()
    await site.again().ensure(ref)


async def test_a_store_that_is_away_is_no_failure_and_its_reason_is_told(site: Site) -> None:
    ref = site.ship()
    site.to_store(ref)

    async def away(_operation: str, _path: str, _moment: Moment) -> None:
        raise StoreUnreachable("no NameNode answers")

    site.store.hook = away
    with pytest.raises(StoreUnreachable, match="no NameNode answers"):
        await site.code.ensure(ref)
    site.store.hook = no_fault
    assert Path(await site.code.ensure(ref)).is_dir()


async def test_a_store_that_hangs_is_not_asked_again_before_its_thread_has_returned(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled call frees no thread of a file system that hangs."""
    ref = site.ship()
    site.to_store(ref)
    back, asked = asyncio.Event(), 0

    async def hang(_operation: str, _path: str, _moment: Moment) -> None:
        nonlocal asked
        asked += 1
        while not back.is_set():
            with suppress(asyncio.CancelledError):
                await back.wait()

    site.store.hook = hang
    monkeypatch.setattr("agent.code.store.FETCH_S", 0.05)
    with pytest.raises(Unreachable, match=r"0 of \d+ bytes of code came from file:///mnt/code in 0\.05 s"):
        await site.code.ensure(ref)
    for _ in range(20):
        with pytest.raises(Unreachable, match="file:///mnt/code has not answered since the last try"):
            await site.code.ensure(ref)
    assert asked == 1
    monkeypatch.undo()
    site.store.hook = no_fault
    back.set()
    await until(lambda: ref.digest not in site.code._reading)
    assert Path(await site.code.ensure(ref)).is_dir()


async def test_a_store_of_code_that_hangs_holds_up_no_other_store(tmp_path: Path) -> None:
    back, started = threading.Event(), threading.Semaphore(0)
    shared = ThreadPoolExecutor(2)
    stores = Stores(executor=shared)

    def hang(_: object) -> None:
        started.release()
        back.wait(60)

    hanging = stores.open_code((tmp_path / "hanging").as_uri())
    assert isinstance(hanging, LocalStore)
    waiting = [asyncio.ensure_future(hanging._run(hang)) for _ in range(4 * CODE_THREADS)]
    try:
        for _ in range(CODE_THREADS):
            assert await asyncio.to_thread(started.acquire, timeout=30)
        for open_store, name in ((stores.open, "checkpoints"), (stores.open_code, "other")):
            (tmp_path / name).mkdir(mode=0o700)
            other = open_store((tmp_path / name).as_uri())
            async with asyncio.timeout(30):
                await other.prepare()
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not started.acquire(blocking=False), "calls that were given up take no more threads"
    finally:
        back.set()
        shared.shutdown()


HANGS = """
import asyncio, sys, threading
from recovery.stores.open import Stores

async def main() -> None:
    store = Stores().open_code(sys.argv[1])
    started = threading.Event()
    asked = asyncio.ensure_future(store._run(lambda _: (started.set(), threading.Event().wait())))
    await asyncio.to_thread(started.wait)
    asked.cancel()
    print("hangs")

asyncio.run(main())
"""


def test_a_daemon_whose_store_of_code_hangs_can_end(tmp_path: Path) -> None:
    """Otherwise none could be restarted before the store is back."""
    command = [sys.executable, "-c", HANGS, tmp_path.as_uri()]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert ended.stdout == "hangs\n"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("another", r"the code in file:///mnt/code has not the digest [0-9a-f]{12}; submit the job again"),
        ("shorter", "has not the digest"),
        ("longer", "chunk 1 .* in file:///mnt/code is damaged; submit the job again: .* is larger than"),
        ("missing", "is not in file:///mnt/code any more; submit the job again"),
    ],
)
async def test_what_others_do_to_the_store_is_refused_with_the_reason(
    site: Site, damage: str, told: str
) -> None:
    ref = site.ship("one", 2 * CHUNK_BYTES)
    name = site.to_store(ref).chunk(1)
    files = site.store.disk.files
    data = files.pop(name)
    changed = {"another": bytes(len(data)), "shorter": data[:-1], "longer": data + bytes(CHUNK_BYTES)}
    if damage != "missing":
        files[name] = changed[damage]
    with pytest.raises((Refused, NotFound), match=told):
        await site.code.ensure(ref)
    assert not Path(site.code.directory(ref)).exists()


async def test_a_store_that_the_agent_may_not_use_is_refused_with_what_to_do(site: Site) -> None:
    ref = site.ship()
    site.to_store(ref)
    stores = Stores(allowed=AllowedStores(("file:///data",)))
    code = NodeCode(site.root / "code", site.coordination, stores.open, site.sink)
    with pytest.raises(Refused, match=r"the store of code cannot be read here: .*add it to their `stores:`"):
        await code.ensure(ref)


async def test_a_digest_cannot_lead_out_of_the_directory(site: Site) -> None:
    for digest in ("../../etc", "", "A" * 64):
        with pytest.raises(UserError):
            site.code.directory(CodeRef(digest, 1))


async def test_what_is_not_in_use_goes_but_for_the_last_few(site: Site) -> None:
    refs = [site.ship(f"p{number}") for number in range(KEPT_UNUSED + 3)]
    for ref in refs:
        await site.code.ensure(ref)
    used = refs[0].digest
    await site.code.keep(frozenset({used}))
    left = {used, *(ref.digest for ref in refs[-KEPT_UNUSED:])}
    assert site.names() == left | {f"{digest}.manifest" for digest in left}
    await site.code.ensure(refs[1])
    assert (Path(site.code.directory(refs[1])) / "train.py").is_file()


def member(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(data), link
    return info, data


def extended(kind: bytes = tarfile.REGTYPE, **headers: str) -> tuple[tarfile.TarInfo, bytes]:
    """A member that says more of itself in a header of its own."""
    info, data = member("a", kind, link="b" if kind == tarfile.SYMTYPE else "")
    info.pax_headers = {key.replace("__", "."): value for key, value in headers.items()}
    return info, data


def headers_of_headers(count: int) -> bytes:
    info, _ = member("././@PaxHeader", tarfile.XHDTYPE, bytes(512))
    block = info.tobuf(tarfile.USTAR_FORMAT) + b"12 path=abc\n".ljust(512, b"\0")
    return gzip.compress(block * count, mtime=0)


def tarball(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue(), mtime=0)


def raw_header(kind: bytes, body: bytes, **more: object) -> bytes:
    """A header of any kind and what follows it, as no writer of archives would make it."""
    info, _ = member(str(more.get("name", "a")), kind, body)
    info.size = int(str(more.get("size", len(body))))
    return info.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % 512)


def raw(*blocks: bytes) -> bytes:
    return gzip.compress(b"".join(blocks) + bytes(1024), mtime=0)


A_FILE = raw_header(tarfile.REGTYPE, b"x")
PAX = {
    "digits without end": b"1" * 16_384,
    "a length without a record": b"9999999 path=b\n",
    "a length of nothing": b"0 path=b\n",
    "a record without a newline": b"10 path=abc",
    "a record beyond the header": b"99 path=b\n",
    "another character set": b"24 hdrcharset=ISO-IR 1\n",
    "a size that is none": b"10 size=x\n",
    "a size of thousands of digits": b"5011 size=" + b"9" * 5000 + b"\n",
    "a name that is not UTF-8": b"10 path=\xff\n",
}
HOSTILE = {
    **{name: raw(raw_header(tarfile.XHDTYPE, body), A_FILE) for name, body in PAX.items()},
    "a global header": raw(raw_header(tarfile.XGLTYPE, b"10 path=b\n"), A_FILE),
    "a long header": raw(raw_header(tarfile.XHDTYPE, b"17000 path=" + b"a" * 16_988 + b"\n"), A_FILE),
    "a header at the end": raw(raw_header(tarfile.XHDTYPE, b"10 path=b\n")),
    "GNU's long name": raw(raw_header(tarfile.GNUTYPE_LONGNAME, b"b" * 600), A_FILE),
    "GNU's sparse file": raw(raw_header(tarfile.GNUTYPE_SPARSE, b"x")),
    "longer than the archive": raw(raw_header(tarfile.REGTYPE, b"x", size=1 << 20)),
    "a directory with content": raw(raw_header(tarfile.DIRTYPE, b"x")),
    "a deep path": tarball(member("d/" * 64 + "a")),
    "a long path": tarball(member("d" * 250 + "/" + "d" * 250 + "/" + "d" * 250 + "/" + "d" * 280)),
    "a long name": tarball(member("d" * 256)),
    "a link to nothing": tarball(member("a", tarfile.SYMTYPE)),
    "a long link": tarball(member("a", tarfile.SYMTYPE, link="./" * 600)),
    "absolute": tarball(member("/etc/evil")),
    "parent": tarball(member("../evil")),
    "parent inside": tarball(member("a/../../evil")),
    "not normal": tarball(member("./a")),
    "twice": tarball(member("a"), member("a")),
    "twice, once a link": tarball(member("a", tarfile.SYMTYPE, link="/etc"), member("a")),
    "link outside": tarball(member("a", tarfile.SYMTYPE, link="..")),
    "link outside by another": tarball(
        member("k/x"),
        member("k/up", tarfile.SYMTYPE, link="."),
        member("l", tarfile.SYMTYPE, link="k/up/../.."),
    ),
    "pipe": tarball(member("pipe", tarfile.FIFOTYPE)),
    "hard link": tarball(member("hard", tarfile.LNKTYPE, link="/etc/passwd")),
    "cut off": tarball(member("a"))[:-9],
    "longer": tarball(member("a")) + b"more",
    "NUL in a name": tarball(extended(path="a\0b")),
    "NUL in a link": tarball(extended(tarfile.SYMTYPE, linkpath="a\0b")),
    "a map that is none": tarball(extended(GNU__sparse__map="0,x")),
    "sparse": tarball(extended(GNU__sparse__map="0,0", GNU__sparse__size=str(200 << 20))),
    "headers without end": headers_of_headers(2000),
    "a file as a directory": tarball(member("a"), member("a/b/c")),
    "a file for bytecode": tarball(member("a.py"), member("__pycache__")),
    "no gzip": b"no archive",
    "no tar": gzip.compress(b"no tar" * 1000, mtime=0),
}


@pytest.mark.parametrize("archive", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_archive_is_refused_at_once(tmp_path: Path, archive: bytes) -> None:
    began_s = time.thread_time()
    with pytest.raises(BadArchive):
        unpack.unpack(archive, tmp_path / "target")
    assert time.thread_time() - began_s < 0.1
    assert {path.name for path in tmp_path.iterdir()} == {"target"}


def test_files_are_never_written_through_a_link(tmp_path: Path) -> None:
    """A link and a file below it: the file comes first, and the link finds its place taken."""
    (tmp_path / "outside").mkdir()
    archive = tarball(member("a", tarfile.SYMTYPE, link="../outside"), member("a/evil", data=b"x"))
    with pytest.raises(BadArchive, match="below the link a"):
        unpack.unpack(archive, tmp_path / "target")
    assert list((tmp_path / "outside").iterdir()) == []


def test_links_are_never_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    archive = tarball(
        member("a", tarfile.SYMTYPE, link="../outside"), member("a/evil", tarfile.SYMTYPE, link="x")
    )
    with pytest.raises(BadArchive, match="below the link a"):
        unpack.unpack(archive, tmp_path / "target")
    assert list((tmp_path / "outside").iterdir()) == []


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MAX_UNPACKED_BYTES", 1 << 20)
    monkeypatch.setattr(unpack, "MAX_FILES", 10)
    with pytest.raises(BadArchive, match="unpacks to more"):
        unpack.unpack(tarball(member("zeros", data=bytes(2 << 20))), tmp_path / "one")
    with pytest.raises(BadArchive, match="more than 10 members"):
        unpack.unpack(tarball(*(member(str(number)) for number in range(11))), tmp_path / "two")


def test_a_thousand_odd_headers_hold_no_other_thread_up(tmp_path: Path) -> None:
    """`tarfile` takes quadratic time for each, with the interpreter's lock (CVE-2024-6232)."""
    record = b"16000 comment=".ljust(15_999, b"1") + b"\n"
    odd = raw_header(tarfile.XHDTYPE, record)
    archive = raw(*(odd + raw_header(tarfile.REGTYPE, b"", name=f"a{number}") for number in range(1000)))
    began_s = time.thread_time()
    assert len(unpack.unpack(archive, tmp_path / "target")) == 1000
    assert time.thread_time() - began_s < 5


def test_links_that_take_too_long_to_follow_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "_LINKS_S", -1.0)
    with pytest.raises(BadArchive, match="take too long"):
        unpack.unpack(tarball(member("a", tarfile.SYMTYPE, link="b"), member("b")), tmp_path / "target")


def test_long_names_and_all_kinds_come_out_as_they_went_in(tmp_path: Path) -> None:
    deep = "d" * 100 + "/" + "\u00fc" * 60
    archive = tarball(
        member("d" * 100, tarfile.DIRTYPE),
        member(deep, data=b"x" * 1000),
        member("link", tarfile.SYMTYPE, link=deep),
        extended(path="\u4e2d", mtime="1.5", uname="me"),
        member("empty"),
    )
    found = unpack.unpack(archive, tmp_path / "target")
    assert {path: entry.kind for path, entry in found.items()} == {
        "d" * 100: "directory",
        deep: "file",
        "link": "link",
        "\u4e2d": "file",
        "empty": "file",
    }
    assert (tmp_path / "target" / "link").read_bytes() == b"x" * 1000
