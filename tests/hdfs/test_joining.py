"""Whom a join is asked of, and what is made of the answers: without HDFS."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from recovery.stores.hdfs_client import FileInfo
from recovery.stores.hdfs_files import NotJoined, Patience
from recovery.stores.hdfs_joining import Joiner
from recovery.stores.hdfs_threads import Threads
from supervisor.contract.errors import NotFound

MARKER = "/store/marker"
TARGET, PARTS, SIZE = "/store/d/part", ("/store/d/part.1", "/store/d/part.2"), 30
REFUSED = {"RemoteException": {"exception": "HadoopIllegalArgumentException", "message": "it is encrypted"}}
SAFE_MODE = {"RemoteException": {"exception": "SafeModeException", "message": "in safe mode"}}


class NameNode(ThreadingHTTPServer):
    """Answers as it is told, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.status: object = {"FileStatus": {"length": 41, "modificationTime": 5}}
        self.joined: tuple[int, object] = (200, "")
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        server = self.server
        assert isinstance(server, NameNode)
        server.asked.append(f"{self.command} {self.path}")
        code, body = (200, server.status) if self.command == "GET" else server.joined
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_args: object) -> None:
        """Nothing to say."""


@pytest.fixture
def namenode() -> Iterator[NameNode]:
    with NameNode() as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield server
        server.shutdown()
        serving.join()


class Files:
    """What the NameNode says over its other port."""

    def __init__(self) -> None:
        self.sizes = {MARKER: 41, TARGET: 10}

    async def info(self, path: str) -> FileInfo:
        if path not in self.sizes:
            raise NotFound(path)
        return FileInfo(path, self.sizes[path], is_dir=False, mtime_ms=5)

    def joiner(self, *addresses: str) -> Joiner:
        patience = Patience(answer_ms=2_000, call_ms=300, pause_ms=20)
        return Joiner("hdfs://test", addresses, self.info, patience, Threads())


async def test_only_who_knows_the_stores_own_file_as_it_is_joins(
    namenode: NameNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "a&b")
    assert await Files().joiner(namenode.address).works(MARKER)
    assert namenode.asked == ["GET /webhdfs/v1/store/marker?op=GETFILESTATUS&user.name=a%26b"]
    others: tuple[object, ...] = (
        {"FileStatus": {"length": 42, "modificationTime": 5}},
        {"FileStatus": {"length": 41, "modificationTime": 6}},
        {"FileStatus": {}},
        ["another service"],
    )
    for status in others:
        namenode.status = status
        assert not await Files().joiner(namenode.address).works(MARKER)


async def test_who_said_no_is_not_asked_again_at_once(namenode: NameNode) -> None:
    joiner, namenode.status = Files().joiner("127.0.0.1:1", namenode.address), "no"
    assert not await joiner.works(MARKER)
    assert not await joiner.works(MARKER)
    assert len(namenode.asked) == 1
    assert not await Files().joiner().works(MARKER)


async def test_a_join_names_its_parts_in_order(namenode: NameNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "me")
    await Files().joiner("127.0.0.1:1", namenode.address).join(TARGET, PARTS, SIZE)
    sources = "%2Fstore%2Fd%2Fpart.1%2C%2Fstore%2Fd%2Fpart.2"
    assert namenode.asked == [f"POST /webhdfs/v1/store/d/part?op=CONCAT&sources={sources}&user.name=me"]


async def test_a_join_without_a_good_answer_has_happened_if_the_size_says_so(namenode: NameNode) -> None:
    namenode.joined = (500, "lost on its way")
    files = Files()
    with pytest.raises(NotJoined, match="HTTP status 500"):
        await files.joiner(namenode.address).join(TARGET, PARTS, SIZE)
    assert len(namenode.asked) > 1, "it may have been nothing but that one answer"
    files.sizes[TARGET] = SIZE
    await files.joiner(namenode.address).join(TARGET, PARTS, SIZE)


async def test_a_refusal_is_taken_at_its_word_and_safe_mode_is_waited_for(namenode: NameNode) -> None:
    for answer, once in ((REFUSED, True), (SAFE_MODE, False)):
        namenode.asked.clear()
        namenode.joined = (403, answer)
        joiner = Files().joiner(namenode.address)
        with pytest.raises(NotJoined, match=answer["RemoteException"]["message"]):
            await joiner.join(TARGET, PARTS, SIZE)
        assert (len(namenode.asked) == 1) is once
        assert not await joiner.works(MARKER)
