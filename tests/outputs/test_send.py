"""Sending outputs: what grows, what is rewritten, what does not fit, hostile trees, a store that fails."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

import recovery.outputs.reading as reading_module
import recovery.outputs.scan as scan_module
import recovery.outputs.send as send_module
from recovery.io.files import open_to_read
from recovery.outputs.index import MAX_DEPTH, OutputIndex, directory_of, encode_index, parse_index
from recovery.outputs.note import OutputState, load_state, state_path
from recovery.outputs.send import OutputSender
from recovery.outputs.stored import Fetcher, Have, read_index, read_outputs
from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryCheckpointStore, Moment
from supervisor.adapters.clock import BootClock
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import Conflict, IncompatibleRecord, StoreUnreachable

UUID, MEMBER = "uuid-1", "worker.0"
BASE = directory_of(UUID, MEMBER)


@pytest.fixture(params=["local", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    made: CheckpointStore = (
        LocalStore(tmp_path / "store") if request.param == "local" else MemoryCheckpointStore()
    )
    await made.prepare()
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("out", "notes"):
        (tmp_path / name).mkdir()
    return tmp_path


def sender_of(
    store: CheckpointStore, home: Path, attempt: int = 1, node: str = "n1", budget: int = 1 << 30
) -> OutputSender:
    note = load_state(state_path(home / "notes", MEMBER))
    state = note or OutputState("job", UUID, MEMBER, "memory://", node, 1, attempt, budget)
    state = replace(state, node=node, attempt=attempt, budget_bytes=budget)
    return OutputSender(store, home / "out", home / "notes", state, BootClock(), lambda: uuid.uuid4().hex)


async def stored(store: CheckpointStore) -> OutputIndex:
    index = await read_index(store, BASE)
    assert index is not None
    return index


async def fetched(store: CheckpointStore, target: Path) -> dict[str, bytes]:
    """All that the store has, by path."""
    index = await stored(store)
    target.mkdir()
    fetcher = Fetcher(store, BASE, target, target.parent / f"{target.name}-spool")
    for path, file in index.files.items():
        await fetcher.fetch(path, file)
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


async def test_what_a_task_writes_is_in_the_store_as_it_is(store: CheckpointStore, home: Path) -> None:
    sender = sender_of(store, home)
    await sender.send(final=False)
    assert await read_index(store, BASE) is None, "a task that writes nothing costs the store nothing"
    (home / "out/export/1").mkdir(parents=True)
    (home / "out/export/1/saved_model.pb").write_bytes(b"graph" * 1000)
    (home / "out/empty").touch()
    await sender.send(final=False)
    assert (await stored(store)).writing
    await sender.send(final=True)
    index = await stored(store)
    assert not index.writing
    assert await fetched(store, home / "came") == {
        "export/1/saved_model.pb": b"graph" * 1000,
        "empty": b"",
    }
    serial = index.serial
    await sender.send(final=True)
    assert (await stored(store)).serial == serial, "nothing new writes nothing"
    assert [index.member for index in await read_outputs(store, UUID)] == [MEMBER]


async def test_a_file_that_grows_is_not_sent_again_and_again(store: CheckpointStore, home: Path) -> None:
    sender, line = sender_of(store, home), b"event " * 100
    with (home / "out/events").open("ab", buffering=0) as file:
        for count in range(1, 41):
            file.write(line)
            await sender.send(final=False)
            assert (await stored(store)).files["events"].size == count * len(line)
    pieces = (await store.list(f"{BASE}/pieces")).files
    assert len(pieces) <= 7
    assert sum(piece.size for piece in pieces) == 40 * len(line), "what was replaced is removed"
    assert len((await store.list(f"{BASE}/index")).files) == 2
    await sender.send(final=True)
    assert await fetched(store, home / "came") == {"events": line * 40}


async def test_a_file_that_was_changed_inside_while_it_grew_is_whole_at_the_end(
    store: CheckpointStore, home: Path
) -> None:
    sender, path = sender_of(store, home), home / "out/weights"
    path.write_bytes(bytes(1 << 20))
    await sender.send(final=False)
    with path.open("r+b") as file:
        file.seek(500_000)
        file.write(b"inside")
        file.seek(0, os.SEEK_END)
        file.write(b"more")
    await sender.send(final=True)
    assert (await fetched(store, home / "came"))["weights"] == path.read_bytes()


async def test_what_is_renamed_or_removed_is_so_in_the_store(store: CheckpointStore, home: Path) -> None:
    sender = sender_of(store, home)
    (home / "out/temp-1").mkdir()
    (home / "out/temp-1/model").write_bytes(b"m")
    await sender.send(final=False)
    (home / "out/temp-1").rename(home / "out/1")
    await sender.send(final=True)
    assert await fetched(store, home / "came") == {"1/model": b"m"}


async def test_a_successor_goes_on_where_the_agent_was_killed(store: CheckpointStore, home: Path) -> None:
    (home / "out/a").write_bytes(b"a" * 1000)
    await sender_of(store, home).send(final=False)
    version = (await stored(store)).files["a"].version
    with (home / "out/a").open("ab") as file:
        file.write(b"b" * 10)
    successor = sender_of(store, home)
    await successor.send(final=True)
    found = (await stored(store)).files["a"]
    assert (found.size, found.version) == (1010, version)
    assert len(found.pieces) == 2


async def test_what_a_killed_agent_had_sent_without_an_index_is_removed(
    store: CheckpointStore, home: Path
) -> None:
    await store.write_bytes(f"{BASE}/pieces/n1@lost", b"x")
    await store.write_bytes(f"{BASE}/pieces/n2@on-its-way", b"x")
    (home / "out/a").write_bytes(b"a")
    await sender_of(store, home).send(final=True)
    names = {file.path.rpartition("/")[2] for file in (await store.list(f"{BASE}/pieces")).files}
    assert "n1@lost" not in names
    assert "n2@on-its-way" in names, "another node may be about to name it"


async def test_a_hostile_tree_is_bounded_refused_with_a_word_and_never_followed(
    store: CheckpointStore, home: Path
) -> None:
    out = home / "out"
    secret = home / "secret"
    secret.write_bytes(b"secret")
    (out / "link").symlink_to(secret)
    (out / "up").symlink_to("..")
    os.mkfifo(out / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(out / "socket"))
    (out / "line\nfeed").write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(out) + b"/bad\xff")).write_bytes(b"x")
    deep = out
    for _ in range(MAX_DEPTH + 5):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"x")
    with (out / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (out / "good").write_bytes(b"good")
    sender = sender_of(store, home)
    await sender.send(final=True)
    index = await stored(store)
    assert set(index.files) == {"good"}
    words = " ".join(sender.state.left_out.values())
    for word in ("symbolic link", "FIFO", "socket", "control character", "UTF-8", "deep", "output_budget"):
        assert word in words
    assert index.left_out_count == len(index.left_out) == 8
    assert all(name.isprintable() for name in index.left_out)


async def test_files_of_another_user_are_left_out(store: CheckpointStore, home: Path) -> None:
    (home / "out/theirs").write_bytes(b"x")
    sender = sender_of(store, home)
    sender._uid = os.getuid() + 1
    await sender.send(final=True)
    assert "another user" in sender.state.left_out["theirs"]


async def test_what_the_budget_has_no_room_for_is_named_and_comes_when_there_is(
    store: CheckpointStore, home: Path
) -> None:
    sender = sender_of(store, home, budget=1000)
    (home / "out/first").write_bytes(bytes(800))
    await sender.send(final=False)
    (home / "out/second").write_bytes(bytes(300))
    await sender.send(final=False)
    index = await stored(store)
    assert (set(index.files), index.left_out_count) == ({"first"}, 1)
    assert "limits.output_budget" in index.left_out["second"]
    (home / "out/first").unlink()
    await sender.send(final=False)
    index = await stored(store)
    assert (set(index.files), index.left_out_count) == ({"second"}, 0)


async def test_a_store_that_fails_makes_it_late_and_nothing_is_sent_twice(home: Path) -> None:
    store, uploads, broken = MemoryCheckpointStore(), [], True
    await store.prepare()

    async def hook(operation: str, path: str, moment: Moment) -> None:
        if operation == "upload" and moment is Moment.AFTER:
            uploads.append(path)
        if broken and operation == "write_bytes":
            raise StoreUnreachable("no answer")

    store.hook = hook
    (home / "out/a").write_bytes(b"a")
    sender = sender_of(store, home)
    for _ in range(3):
        with pytest.raises(StoreUnreachable):
            await sender.send(final=True)
    broken = False
    await sender.send(final=True)
    assert len(uploads) == 1
    assert set((await stored(store)).files) == {"a"}


async def test_an_index_whose_answer_was_lost_is_no_other_writers(home: Path) -> None:
    store, lost = MemoryCheckpointStore(), iter([True])
    await store.prepare()

    async def hook(operation: str, path: str, moment: Moment) -> None:
        if operation == "write_bytes" and moment is Moment.AFTER and next(lost, False):
            raise StoreUnreachable("the answer was lost")

    store.hook = hook
    (home / "out/a").write_bytes(b"a")
    sender = sender_of(store, home)
    with pytest.raises(StoreUnreachable):
        await sender.send(final=True)
    await sender.send(final=True)
    assert sender.state.late == ()
    assert await fetched(store, home / "came") == {"a": b"a"}


async def test_two_nodes_that_write_at_once_lose_nothing(store: CheckpointStore, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for each in (first, second):
        (each / "out").mkdir(parents=True)
        (each / "notes").mkdir()
    (first / "out/old").write_bytes(b"old")
    (first / "out/both").write_bytes(b"first")
    one, other = sender_of(store, first), sender_of(store, second, attempt=2, node="n2")
    await one.send(final=False)
    (second / "out/both").write_bytes(b"second")
    (second / "out/new").write_bytes(b"new")
    await other.send(final=False)
    with (first / "out/old").open("ab") as file:
        file.write(b" and its end")
    (first / "out/both").write_bytes(b"first, later")
    await one.send(final=True)
    assert one.state.late == ("both",)
    assert await fetched(store, tmp_path / "came") == {
        "old": b"old and its end",
        "both": b"second",
        "new": b"new",
    }


async def test_a_copy_of_a_file_that_grows_grows_in_place(store: CheckpointStore, home: Path) -> None:
    sender, target = sender_of(store, home), home / "came"
    target.mkdir()
    path = home / "out/events"
    path.write_bytes(b"one")
    await sender.send(final=False)
    fetcher = Fetcher(store, BASE, target, home / "spool")
    first = (await stored(store)).files["events"]
    await fetcher.fetch("events", first)
    with (target / "events").open("rb") as reader:
        assert reader.read() == b"one"
        with path.open("ab") as file:
            file.write(b"two")
        await sender.send(final=False)
        now = (await stored(store)).files["events"]
        await fetcher.fetch("events", now, Have(first.version, first.size))
        assert reader.read() == b"two", "whoever has it open sees it grow"
    assert list((home / "spool").iterdir()) == []


async def test_nothing_in_the_way_leads_out_of_the_target(store: CheckpointStore, home: Path) -> None:
    (home / "out/d").mkdir()
    (home / "out/d/f").write_bytes(b"x")
    (home / "out/g").write_bytes(b"x")
    await sender_of(store, home).send(final=True)
    index, target, elsewhere = await stored(store), home / "came", home / "elsewhere"
    target.mkdir()
    elsewhere.mkdir()
    (target / "d").symlink_to(elsewhere)
    (target / "g").symlink_to(elsewhere / "g")
    fetcher = Fetcher(store, BASE, target, home / "spool")
    with pytest.raises(Conflict):
        await fetcher.fetch("d/f", index.files["d/f"])
    await fetcher.fetch("g", index.files["g"])
    assert list(elsewhere.iterdir()) == []
    assert not (target / "g").is_symlink()


async def test_what_could_not_be_looked_at_stays_in_the_store(
    store: CheckpointStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "out/sub").mkdir()
    (home / "out/sub/model").write_bytes(b"m")
    (home / "out/other").write_bytes(b"o")
    sender = sender_of(store, home)
    await sender.send(final=False)
    real = os.open

    def broken(path: str | Path, flags: int, *args: int, dir_fd: int | None = None) -> int:
        if path == "sub":
            raise OSError(5, "Input/output error")
        return real(path, flags, *args, dir_fd=dir_fd)

    (home / "out/other").write_bytes(b"other")
    with monkeypatch.context() as patch:
        patch.setattr("recovery.outputs.scan.os.open", broken)
        await sender.send(final=True)
    assert set((await stored(store)).files) == {"sub/model", "other"}
    await sender.send(final=True)
    assert (await fetched(store, home / "came")) == {"sub/model": b"m", "other": b"other"}


async def test_too_many_files_push_none_out_that_is_stored(
    store: CheckpointStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "MAX_FILES", 10)
    monkeypatch.setattr(send_module, "MAX_FILES", 10)
    for number in range(10):
        (home / f"out/{number}").write_bytes(b"x")
    sender = sender_of(store, home)
    await sender.send(final=False)
    for number in range(10, 30):
        (home / f"out/{number}").write_bytes(b"x")
    await sender.send(final=True)
    index = await stored(store)
    assert set(index.files) == {str(number) for number in range(10)}
    assert index.left_out_count >= 10
    parse_index(encode_index(index))


async def test_files_of_other_nodes_count(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_module, "MAX_FILES", 3)
    for name in ("first", "second"):
        (tmp_path / name / "out").mkdir(parents=True)
        (tmp_path / name / "notes").mkdir()
        for number in range(2):
            (tmp_path / name / "out" / f"{name}{number}").write_bytes(bytes(40))
    await sender_of(store, tmp_path / "first").send(final=True)
    other = sender_of(store, tmp_path / "second", attempt=2, node="n2")
    await other.send(final=True)
    index = await stored(store)
    assert (len(index.files), index.left_out_count) == (3, 1)
    cheap = sender_of(store, tmp_path / "second", attempt=3, node="n2", budget=90)
    (tmp_path / "second/out/third").write_bytes(bytes(40))
    await cheap.send(final=True)
    assert (await stored(store)).size <= 120


async def test_an_index_of_another_task_is_not_believed(store: CheckpointStore, home: Path) -> None:
    for member in ("../x", "/x", "worker.1"):
        raw = encode_index(OutputIndex("job", member, 1))
        await store.write_bytes(f"{directory_of(UUID, f'a.{len(member)}')}/index/0000000001", raw)
        with pytest.raises(IncompatibleRecord):
            await read_index(store, directory_of(UUID, f"a.{len(member)}"))
    raw = encode_index(OutputIndex("job", MEMBER, 1))
    await store.write_bytes(f"{BASE}/index/9999999999", raw)
    with pytest.raises(IncompatibleRecord):
        await read_index(store, BASE)


async def test_a_file_that_was_renamed_before_its_index_was_written_is_in_it_once(home: Path) -> None:
    store, broken = MemoryCheckpointStore(), True
    await store.prepare()

    async def hook(operation: str, _path: str, _moment: Moment) -> None:
        if broken and operation == "write_bytes":
            raise StoreUnreachable("no answer")

    store.hook = hook
    (home / "out/a.tmp").write_bytes(b"a")
    sender = sender_of(store, home)
    with pytest.raises(StoreUnreachable):
        await sender.send(final=False)
    (home / "out/a.tmp").rename(home / "out/a")
    broken = False
    await sender.send(final=True)
    assert set((await stored(store)).files) == {"a"}


async def test_a_file_that_nobody_may_read_is_named(
    store: CheckpointStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "out/good").write_bytes(b"x")
    (home / "out/secret").write_bytes(b"x")
    real = open_to_read

    def refuse(path: str, dir_fd: int | None = None) -> int:
        if path == "secret":
            raise PermissionError(13, "Permission denied")
        return real(path, dir_fd)

    monkeypatch.setattr(reading_module, "open_to_read", refuse)
    sender = sender_of(store, home)
    await sender.send(final=True)
    index = await stored(store)
    assert (set(index.files), index.writing) == ({"good"}, False)
    assert "Permission denied" in index.left_out["secret"]
    serial = index.serial
    await sender.send(final=True)
    assert (await stored(store)).serial == serial
