"""A disk that is full costs a node what is new on it, never what runs."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.saved.record import AgentRecord
from agent.state_file import ROOM_BYTES, STATE, LockedStateFile
from supervisor.contract import codec
from supervisor.contract.errors import Refused
from tests.agent.cluster import Job, Node, is_alive
from tests.agent.daemon import RECORD
from tests.support.etcd_server import EtcdServer


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(directory: Path) -> Path:
    path = directory / "filler"
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return path


async def test_the_next_records_room_is_kept(small: Path) -> None:
    file = LockedStateFile(small, small)
    assert file.read() is None
    await file.save(RECORD)
    fill(small)
    for number in range(3):
        await file.save(replace(RECORD, born=number))
    file.close()
    assert LockedStateFile(small, small).read() == replace(RECORD, born=2)


async def test_what_does_not_fit_is_refused_and_the_old_record_stands(small: Path) -> None:
    file = LockedStateFile(small, small)
    assert file.read() is None
    await file.save(RECORD)
    filler = fill(small)
    large = replace(RECORD, succeeds=("x" * 2 * ROOM_BYTES,))
    with pytest.raises(Refused, match=r"cannot write .*agent.json: No space left on device"):
        await file.save(large)
    assert codec.decode(AgentRecord, (small / STATE).read_bytes()) == RECORD
    filler.unlink()
    await file.save(large)
    file.close()
    assert LockedStateFile(small, small).read() == large


async def test_an_agent_on_a_full_disk_goes_on_and_is_succeeded(small: Path) -> None:
    with EtcdServer() as etcd:
        # On a busy machine a successor may need longer to start than the fast profile gives it.
        node = Node(etcd.endpoint, name="full", profile="default")
        (node.root / node.name).symlink_to(small)
        try:
            node.start()
            me = await node.until_joined()
            running = await Job(node, me).run()
            fill(small)
            node.signal(signal.SIGKILL)
            node.kill()
            node.start()
            successor = await node.until_joined(me.incarnation)
            assert successor.succeeds == (me.incarnation,)
            assert is_alive(running)
        finally:
            await node.close()
