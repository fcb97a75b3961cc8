"""Whom a join is asked of, and what is made of the answers: without HDFS."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from recovery.stores.hdfs_files import FileInfo, NotJoined, Patience
from recovery.stores.hdfs_joining import REFUSED_S, SILENT_S, Joiner
from recovery.stores.hdfs_threads import Threads
from supervisor.contract.errors import NotFound
from tests.support.namenode_web import Door, opened
from tests.support.sinks import ListSink

MARKER = "/store/marker"
TARGET, PARTS, SIZE = "/store/d/part", ("/store/d/part.1", "/store/d/part.2"), 30
REFUSED = {"RemoteException": {"exception": "HadoopIllegalArgumentException", "message": "it is encrypted"}}
SAFE_MODE = {"RemoteException": {"exception": "SafeModeException", "message": "in safe mode"}}


def status(length: object, changed_ms: object) -> dict[str, object]:
    return {"FileStatus": {"length": length, "modificationTime": changed_ms}}


def answer(body: object, code: int = 200) -> tuple[int, bytes]:
    return code, json.dumps(body).encode()


@pytest.fixture
def namenode() -> Iterator[Door]:
    with opened() as server:
        server.instead = {"GET": answer(status(41, 5)), "POST": answer("")}
        yield server


class Files:
    """The answers of the NameNode's HTTP port."""

    def __init__(self) -> None:
        self.sizes = {MARKER: 41, TARGET: 10}
        self.sink = ListSink()

    @property
    def told(self) -> list[tuple[object, object]]:
        """Why, and for how many seconds, files go in one piece."""
        return [(fields["reason"], fields["again_in_s"]) for _, _, fields in self.sink.lines]

    async def info(self, path: str) -> FileInfo:
        if path not in self.sizes:
            raise NotFound(path)
        return FileInfo(path, self.sizes[path], is_dir=False, mtime_ms=5)

    def joiner(self, *addresses: str) -> Joiner:
        patience = Patience(answer_ms=2_000, call_ms=300, pause_ms=20)
        return Joiner("hdfs://test", addresses, self.info, patience, Threads(), self.sink)


async def test_only_who_knows_the_stores_own_file_as_it_is_joins(
    namenode: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "a&b")
    assert await Files().joiner(namenode.address).works(MARKER)
    assert namenode.asked == [("GET", "/webhdfs/v1/store/marker?op=GETFILESTATUS&user.name=a%26b")]
    others: tuple[object, ...] = (status(42, 5), status(41, 6), {"FileStatus": {}}, ["another service"])
    for other in others:
        namenode.instead["GET"] = answer(other)
        files = Files()
        assert not await files.joiner(namenode.address).works(MARKER)
        ((reason, again_in_s),) = files.told
        assert (namenode.address in str(reason), again_in_s) == (True, SILENT_S)


async def test_who_said_no_is_not_asked_again_at_once(namenode: Door) -> None:
    files = Files()
    joiner = files.joiner("127.0.0.1:1", namenode.address)
    namenode.instead["GET"] = answer("no")
    assert not await joiner.works(MARKER)
    assert not await joiner.works(MARKER)
    assert len(namenode.asked) == 1
    reasons = f"127.0.0.1:1 refuses connections; {namenode.address} speaks no WebHDFS"
    assert files.told == [(reasons, SILENT_S)]
    assert not await files.joiner().works(MARKER)
    assert len(files.told) == 1, "who has no HTTP port by design hears nothing of it"


async def test_a_join_names_its_parts_in_order(namenode: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "me")
    await Files().joiner("127.0.0.1:1", namenode.address).join(TARGET, PARTS, SIZE)
    sources = "%2Fstore%2Fd%2Fpart.1%2C%2Fstore%2Fd%2Fpart.2"
    path = f"/webhdfs/v1/store/d/part?op=CONCAT&sources={sources}&user.name=me"
    assert namenode.asked == [("POST", path)]


async def test_a_join_without_a_good_answer_has_happened_if_the_size_says_so(namenode: Door) -> None:
    namenode.instead["POST"] = answer("lost on its way", 500)
    files = Files()
    with pytest.raises(NotJoined, match="HTTP status 500"):
        await files.joiner(namenode.address).join(TARGET, PARTS, SIZE)
    assert len(namenode.asked) > 1, "it may have been nothing but that one answer"
    files.sizes[TARGET] = SIZE
    await files.joiner(namenode.address).join(TARGET, PARTS, SIZE)


async def test_a_refusal_is_taken_at_its_word_and_safe_mode_is_waited_for(namenode: Door) -> None:
    for told, once, rest_s in ((REFUSED, True, REFUSED_S), (SAFE_MODE, False, SILENT_S)):
        namenode.asked.clear()
        namenode.instead["POST"] = answer(told, 403)
        files = Files()
        joiner = files.joiner(namenode.address)
        with pytest.raises(NotJoined, match=told["RemoteException"]["message"]):
            await joiner.join(TARGET, PARTS, SIZE)
        assert (len(namenode.asked) == 1) is once
        assert [again_in_s for _, again_in_s in files.told] == [rest_s]
        assert not await joiner.works(MARKER)
