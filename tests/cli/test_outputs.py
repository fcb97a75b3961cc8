"""`supervisorctl outputs JOB`: what tasks wrote, listed and fetched from the store, whoever wrote to that."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from recovery.outputs.index import OutputIndex, directory_of, encode_index
from recovery.outputs.note import OutputState
from recovery.outputs.send import OutputSender
from recovery.stores.local import LocalStore
from supervisor.adapters.clock import BootClock
from supervisor.cli.jobs import outputs
from supervisor.cli.main import cli
from supervisor.contract.errors import Conflict, IncompatibleRecord, NotFound

UUID = "uuid-1"


async def write(root: Path, member: str, files: dict[str, bytes], attempt: int = 1) -> None:
    store, out = LocalStore(root / "store"), root / f"{member}-{attempt}"
    await store.prepare()
    for name, data in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(data)
    (root / "notes").mkdir(exist_ok=True)
    state = OutputState("digits", UUID, member, "file:///", f"n{attempt}", 1, attempt, 1 << 20)
    sender = OutputSender(store, out, root / "notes", state, BootClock(), lambda: uuid.uuid4().hex)
    await sender.send(final=True)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    async def place(_given: object, _job: str) -> tuple[str, str]:
        return f"file://{tmp_path}/store", UUID

    monkeypatch.setattr(outputs, "_place", place)
    asyncio.run(write(tmp_path, "chief.0", {"export/model": b"m" * 2000, "table.csv": b"1,2"}))
    asyncio.run(write(tmp_path, "worker.10", {"events": b"e"}))
    asyncio.run(write(tmp_path, "worker.2", {"events": b"e"}))
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["outputs", *words], standalone_mode=False)


def test_files_are_listed_by_task(root: Path) -> None:
    lines = run("digits").output.splitlines()
    assert lines[0] == f"digits: file://{root}/store"
    assert [line.split()[:2] for line in lines[2:]] == [
        ["chief:0", "export/model"],
        ["chief:0", "table.csv"],
        ["worker:2", "events"],
        ["worker:10", "events"],
    ]
    document = json.loads(run("digits", "ls", "--task", "chief:0", "export", "-o", "json").output)
    assert [file["path"] for task in document["tasks"] for file in task["files"]] == ["export/model"]
    assert isinstance(run("digits", "ls", "--task", "ps:0").exception, NotFound)


def test_files_are_fetched_into_a_new_directory_alone(root: Path) -> None:
    target = root / "got"
    done = run("digits", "get", "--to", str(target))
    assert done.output == f"digits: 4 files, 2.0 KiB, are in {target}\n"
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert found == {"chief.0/export/model", "chief.0/table.csv", "worker.10/events", "worker.2/events"}
    assert (target / "chief.0/export/model").read_bytes() == b"m" * 2000
    assert isinstance(run("digits", "get", "--to", str(target)).exception, Conflict)
    document = json.loads(run("digits", "get", "--to", str(root / "one"), "table.csv", "-o", "json").output)
    assert (document["count"], document["size"], document["missing"]) == (1, 3, [])
    assert isinstance(run("digits", "get", "--to", str(root / "no"), "none").exception, NotFound)


def test_one_file_in_the_way_of_another_does_not_keep_the_others(root: Path) -> None:
    asyncio.run(write(root, "chief.0", {"table.csv/part": b"2"}, attempt=2))
    done = run("digits", "get", "--to", str(root / "got"), "--task", "chief:0")
    assert "2 files" in done.output
    assert (root / "got/chief.0/export/model").exists()


def test_an_index_that_names_another_place_is_refused(root: Path) -> None:
    base = directory_of(UUID, "evil.0")
    raw = encode_index(OutputIndex("digits", "../../evil.0", 1))
    asyncio.run(LocalStore(root / "store").write_bytes(f"{base}/index/0000000001", raw))
    assert isinstance(run("digits", "get", "--to", str(root / "got")).exception, IncompatibleRecord)
    assert not (root / "got/evil.0").exists()
