"""Faults below a mount: NameNodes, DataNodes, its own process, and namespaces made before it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.hdfs import HdfsCluster
from recovery.mount import control
from recovery.mount.base import stage_live
from recovery.mount.caller import is_dying
from recovery.mount.filesystem import wait_for
from recovery.mount.points import layers, prepare_point, take_away
from recovery.mount.record import MountBeat, stat_fields
from supervisor.adapters.clock import BootClock
from tests.mount.world import Site, hdfs_site, patterned, wait

CALL_MS = 3_000


@pytest.fixture(scope="module")
def own() -> Iterator[HdfsCluster]:
    """One HDFS for the tests of this file, each of which mends what it broke."""
    with HdfsCluster() as cluster:
        yield cluster


@pytest.fixture
async def breakable(own: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(own.conf_dir))
    site = hdfs_site(own.fresh_uri("mount"), own.conf_dir, tmp_path)
    await stage_live(site.store(), site.live(), None)
    yield site
    await site.stores.close()
    site.assert_clean()


def failure(work: Callable[[], object]) -> tuple[int, float]:
    """(errno, seconds) of what must fail."""
    began = time.monotonic()
    try:
        work()
    except OSError as error:
        return error.errno or 0, time.monotonic() - began
    raise AssertionError("it did not fail")


async def test_a_frozen_namenode_gives_eio_in_time_and_everything_goes_on_after_it(
    breakable: Site, own: HdfsCluster
) -> None:
    wish = replace(breakable.wish(), call_ms=CALL_MS, flush_ms=20_000)

    def work(top: Path) -> None:
        (top / "a").write_bytes(b"before")
        writing = (top / "b").open("wb", buffering=0)
        writing.write(b"held")
        assert breakable.files().failed_ms() is None
        with own.namenode().frozen():
            each: list[Callable[[], object]] = [(top / "a").stat, lambda: list(top.iterdir())]
            attempts = [*(each * 4), *([(top / "a").unlink] * 4), writing.close]
            results: list[tuple[int, float]] = []
            threads = [
                threading.Thread(target=lambda each=each: results.append(failure(each))) for each in attempts
            ]
            began = time.monotonic()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            took = time.monotonic() - began
        assert {code for code, _ in results} == {errno.EIO}, results
        assert len(results) == len(attempts)
        failed_ms = breakable.files().failed_ms()
        assert failed_ms is not None
        assert BootClock().now_ms() - failed_ms < 60_000
        # The kernel lets calls on one directory wait for each other; all were answered in time.
        assert took < 50, took
        own.wait_ready()
        (top / "c").write_bytes(b"after")
        assert (top / "c").read_bytes() == b"after"

    with breakable.mounted(wish=wish) as directory:
        await asyncio.to_thread(work, directory)


SAVER = """
import sys, threading
from pathlib import Path

top = Path(sys.argv[1])
held = (top / "held").open("wb", buffering=0)
held.write(b"held")
print("ready", flush=True)
sys.stdin.readline()
for work in (held.close, lambda: (top / "a").read_bytes(), lambda: list(top.iterdir())):
    threading.Thread(target=work).start()
"""


async def test_who_is_killed_while_the_namenode_is_frozen_is_gone_at_once(
    breakable: Site, own: HdfsCluster
) -> None:
    wish = replace(breakable.wish(), call_ms=60_000, flush_ms=60_000)

    def work(top: Path) -> None:
        (top / "a").write_bytes(b"before")
        saver = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(top)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert saver.stdin is not None
        assert saver.stdout is not None
        with saver:
            assert saver.stdout.readline() == "ready\n"
            with own.namenode().frozen():
                saver.stdin.write("go\n")
                saver.stdin.flush()
                tasks = Path("/proc", str(saver.pid), "task")
                wait(lambda: len(list(tasks.iterdir())) == 4, 20, "three calls that wait")
                saver.kill()
                saver.wait(20)
        own.wait_ready()
        (top / "b").write_bytes(b"after")
        assert (top / "b").read_bytes() == b"after"

    with breakable.mounted(wish=wish) as directory:
        await asyncio.to_thread(work, directory)


async def test_a_call_of_whom_nobody_waits_for_is_given_up() -> None:
    ended = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    loop = asyncio.get_running_loop()
    for in_vain, limit_s, code in ((True, 60.0, errno.EINTR), (False, 0.1, errno.EIO)):
        with pytest.raises(OSError, match=rf"^\[Errno {code}\]"):
            await asyncio.to_thread(wait_for, forever(), loop, limit_s, lambda vain=in_vain: vain)
        await asyncio.wait_for(ended.wait(), 20)
        ended.clear()


@pytest.mark.parametrize("killed", [True, False])
def test_who_is_killed_is_dying_and_who_lives_or_ends_by_itself_is_not(killed: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert not is_dying(process.pid)
        if killed:
            process.kill()
        else:
            process.stdin.close()
        wait(lambda: stat_fields(process.pid)[0] == b"Z", 20, "its end")
        assert is_dying(process.pid) is killed
        process.wait()
        assert not is_dying(process.pid)
    assert not is_dying(0)


async def test_a_short_outage_of_the_namenode_is_waited_for(breakable: Site, own: HdfsCluster) -> None:
    def work(top: Path) -> None:
        namenode = own.namenode()
        namenode.freeze()
        timer = threading.Timer(6.0, namenode.thaw)
        timer.start()
        (top / "a").write_bytes(b"patience")
        timer.join()
        assert (top / "a").read_bytes() == b"patience"

    with breakable.mounted() as directory:
        await asyncio.to_thread(work, directory)


async def test_a_datanode_that_dies_under_a_write_costs_no_file(breakable: Site, own: HdfsCluster) -> None:
    data = patterned(48 << 20)

    def work(top: Path) -> None:
        with (top / "big").open("wb", buffering=0) as file:
            view = memoryview(data)
            for start in range(0, len(view), 1 << 20):
                file.write(view[start : start + (1 << 20)])
                if start == 24 << 20:
                    own.datanode(0).kill()
        assert (top / "big").read_bytes() == data
        own.datanode(0).restart()
        own.wait_ready()

    with breakable.mounted() as directory:
        await asyncio.to_thread(work, directory)


async def test_a_quota_is_an_error_of_the_program_and_of_nothing_else(
    breakable: Site, own: HdfsCluster
) -> None:
    live = breakable.live()
    top_path = breakable.uri.split("/", 3)[3]

    def work(top: Path) -> None:
        (top / "small").write_bytes(b"fits")
        own.set_quota(f"/{top_path}", 1 << 20)
        with pytest.raises(OSError, match="quota"):
            (top / "big").write_bytes(patterned(3 << 20))
        assert (top / "small").read_bytes() == b"fits"
        assert not (top / "big").exists()

    with breakable.mounted() as directory:
        await asyncio.to_thread(work, directory)
    assert [entry.name for entry in await live.own("")] == ["small"]


def beat_of(site: Site) -> MountBeat:
    beat = site.files().read_beat()
    assert beat is not None
    return beat


def wait_served(site: Site) -> None:
    """Another process has mounted it."""
    wish, clock = site.wish(), BootClock()
    serving = control.MountState.SERVING
    wait(lambda: control.look(site.files(), wish, clock.now_ms()) is serving, 60, "it is not mounted again")


async def test_what_a_killed_mount_leaves_can_be_mounted_over_and_taken_away(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        await asyncio.to_thread((directory / "a").write_bytes, b"a")
        old = beat_of(local)
        os.kill(old.pid, signal.SIGKILL)
        wait(lambda: not local.files().served(), 40, "it does not die")
        with pytest.raises(OSError, match="not connected"):
            (directory / "a").read_bytes()
        child = control.start(local.parent(), 1)
        wait_served(local)
        assert await asyncio.to_thread((directory / "a").read_bytes) == b"a"
        # The empty directory below, and the mount; nothing of the dead one.
        assert layers(directory) == 2
    child.wait()


async def test_nobody_writes_below_a_mount_that_is_gone(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        os.kill(beat_of(local).pid, signal.SIGTERM)
        wait(lambda: layers(directory) == 0, 40, "it is not unmounted")
    point = local.parent() / "g3"
    prepare_point(point)
    with pytest.raises(OSError, match="Read-only"):
        (point / "x").write_bytes(b"")
    take_away(point)


async def test_two_processes_never_serve_one_mount(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        before = beat_of(local)
        second = control.start(local.parent(), 1)
        assert second.wait(60) == 75
        assert beat_of(local).pid == before.pid
        assert layers(directory) == 2


async def test_a_mount_that_nobody_wishes_for_any_more_ends(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        local.files().forget_wish()
        wait(lambda: layers(directory) == 0, 40, "it stays")


async def test_a_healed_mount_reaches_a_namespace_that_was_made_before(local: Site) -> None:
    """As a container has it: its mounts are a slave of the node's."""
    await stage_live(local.store(), local.live(), None)
    parent = local.parent()
    parent.mkdir(exist_ok=True)

    def ask(inside: subprocess.Popen[bytes], name: bytes) -> bytes:
        assert inside.stdin
        assert inside.stdout
        inside.stdin.write(name + b"\n")
        return inside.stdout.read(1)

    def work() -> None:
        with local.mounted() as directory:
            (directory / "a").write_bytes(b"a")
            script = f"while read name; do cat {directory}/$name; done"
            command = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            ) as inside:
                assert ask(inside, b"a") == b"a"
                os.kill(beat_of(local).pid, signal.SIGKILL)
                wait(lambda: not local.files().served(), 40, "it does not die")
                child = control.start(parent, 1)
                wait_served(local)
                (directory / "b").write_bytes(b"b")
                assert ask(inside, b"b") == b"b"
                inside.kill()
        child.wait()

    await asyncio.to_thread(subprocess.run, ["mount", "--bind", str(parent), str(parent)], check=True)
    try:
        await asyncio.to_thread(subprocess.run, ["mount", "--make-shared", str(parent)], check=True)
        await asyncio.wait_for(asyncio.to_thread(work), 180)
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", "-l", str(parent)], check=True)
