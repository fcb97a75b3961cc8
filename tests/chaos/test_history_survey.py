"""A survey finds what a job has left behind, and secrets where others may read them."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from chaos.history.formats import Leak, Watched
from chaos.history.lines import read
from chaos.history.survey import Site, leaks_in_commands, leaks_in_etcd, leaks_in_logs, leftovers
from chaos.history.watcher import Watcher

T = TypeVar("T")
SECRET = "0123456789abcdef"
SECRETS = {"a secret": SECRET}


def site(tmp_path: Path, *pids: int, ports: tuple[int, int] = (1, 0)) -> Site:
    for name in ("locks", "tasks"):
        (tmp_path / name).mkdir(exist_ok=True)
    return Site("n1", os.getpid(), lambda: [*pids], tmp_path, ports)


def found(*sites: Site, store: Path | None = None) -> set[tuple[str, str]]:
    return {(left.kind, left.what) for left in leftovers(sites, store, "uuid")}


def told(directory: Path) -> tuple[Watched, ...]:
    return read(Watched, directory / "watch-events.jsonl")


def until(look: Callable[[], T]) -> T:
    deadline = time.monotonic() + 30
    while not (seen := look()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return seen


def test_a_clean_node_has_nothing_left(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "20000").touch()
    store = tmp_path / "store"
    (store / ".staging").mkdir(parents=True)
    (store / ".jobs" / "00001").mkdir(parents=True)
    (store / "g00001-s0000000001.0123456789abcdef").mkdir()
    assert found(site(tmp_path, os.getpid()), store=store) == set()


def test_each_leftover_is_told(tmp_path: Path) -> None:
    node = site(tmp_path)
    (node.files / "tasks" / "uuid").mkdir()
    (node.files / "tasks" / "another").mkdir()
    lock = (node.files / "locks" / "20000").open("w")
    store = tmp_path / "store"
    (store / ".staging" / "g1").mkdir(parents=True)
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with lock, socket.create_server(("127.0.0.1", 0)) as listener:
        fcntl.flock(lock, fcntl.LOCK_EX)
        port = listener.getsockname()[1]
        marked = subprocess.Popen(sleeper, env={"TFSUP_MARKER": "left#0"})
        try:
            wait_for_exec(marked.pid)
            left = found(site(tmp_path, os.getpid(), marked.pid, ports=(port, port)), store=store)
        finally:
            marked.kill()
            marked.wait()
    assert left == {
        ("process", f"{marked.pid}, left#0"),
        ("port", str(port)),
        ("port lock", "20000"),
        ("directory", "tasks/uuid"),
        ("directory", str(store / ".staging")),
    }


def wait_for_exec(pid: int) -> None:
    deadline = time.monotonic() + 30
    while b"TFSUP_MARKER" not in Path(f"/proc/{pid}/environ").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A node's disk, which its users may look into; what chaos keeps it in is shut."""
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o700)
    path = shut / "disk"
    path.mkdir()
    path.chmod(0o755)
    return path


def test_secrets_are_found_where_others_may_read(public: Path) -> None:
    for name, mode in (("daemon.log", 0o600), ("open", 0o644), ("private", 0o600)):
        path = public / name
        path.write_text(f"x {SECRET} y")
        path.chmod(mode)
    (public / "clean.log").write_text("nothing")
    shut = public / "shut"
    shut.mkdir(mode=0o700)
    (shut / "open").write_text(SECRET)
    (shut / "open").chmod(0o644)
    told = {leak.where for leak in leaks_in_logs(SECRETS, [public])}
    assert told == {str(public / "daemon.log"), str(public / "open")}


def test_secrets_are_found_on_command_lines() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", SECRET])
    try:
        deadline = time.monotonic() + 30
        while not (told := list(leaks_in_commands(SECRETS, [process.pid, os.getpid()]))):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert told == [Leak("a secret", f"the command line of process {process.pid}")]


def test_in_etcd_a_jobs_own_record_may_hold_its_environment() -> None:
    written = [("jobs/a", SECRET), ("assignments/n/a/p/w.0", SECRET), ("events/1", f"it said {SECRET}")]
    assert list(leaks_in_etcd(SECRETS, written)) == [Leak("a secret", "etcd: events/1")]


FOLLOWS = """
import sys, time
from pathlib import Path
from chaos.history.watcher import Watcher
says = "import os, time; print('{\\"serial\\": %d, \\"text\\": 0}' % os.getpid(), flush=True); time.sleep(99)"
Watcher([sys.executable, "-c", says], Path(sys.argv[1])).start()
time.sleep(600)
"""


def test_a_follower_of_events_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    owner = subprocess.Popen([sys.executable, "-c", FOLLOWS, str(tmp_path)], cwd=root)
    try:
        until((tmp_path / "watch-events.jsonl").exists)
        seen = until(lambda: told(tmp_path))
    finally:
        owner.kill()
        owner.wait()
    until(lambda: not Path(f"/proc/{seen[0].serial}").exists())


def test_what_a_client_is_sent_is_written_down(tmp_path: Path) -> None:
    says = (
        """import time; print('{"serial": 7, "text": "it began", "more": 1}', flush=True); time.sleep(600)"""
    )
    watcher = Watcher([sys.executable, "-c", says], tmp_path)
    watcher.start()
    seen = until(lambda: told(tmp_path))
    watcher.stop()
    assert [(each.serial, each.text) for each in seen] == [(7, "it began")]
