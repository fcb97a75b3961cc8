"""The kernel's log tells whom its OOM killer killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.oom import KMSG, OomLog

GLOBAL = b"3,1,5,-;Out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:8kB, UID:0\n"
CGROUP = b"3,2,6,-;Memory cgroup out of memory: Killed process 4712 (python) total-vm:9kB, anon-rss:8kB\n"
SUMMARY = b"6,3,7,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python,pid=4713,uid=0\n"
OTHER = b"6,4,8,-;process 4714 was seen; 4715 ran out of memory\n"


def write(path: Path, *records: bytes) -> None:
    with path.open("ab") as file:
        file.write(b"".join(records))


def test_only_those_that_the_kernel_names_are_told(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    write(log, GLOBAL)
    oom = OomLog(log)
    assert not oom.killed(4711)  # before our time
    write(log, GLOBAL, CGROUP, SUMMARY, OTHER)
    assert [pid for pid in range(4710, 4717) if oom.killed(pid)] == [4711, 4712, 4713]
    oom.close()


@pytest.mark.parametrize("path", [Path("/nonesuch"), KMSG])
def test_a_log_that_cannot_be_read_accuses_nobody(path: Path) -> None:
    oom = OomLog(path)
    assert not oom.killed(1)
    oom.close()
    assert not oom.killed(1)
