"""The kernel's log tells whom its OOM killer killed, its cgroups how often, and what memory is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.boundaries import Beside
from agent.host.memory import Cgroup, free_bytes
from agent.host.oom import KMSG, OomLog, OomNearby, with_oom
from recovery.policy.causes import classify
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause
from tests.support.builders import ended, job_spec, report

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


class Kernel:
    """Its files, below `root`; `version` of its cgroups."""

    def __init__(self, root: Path, version: int) -> None:
        self.proc, self.cgroups, self.version = root / "proc", root / "cgroup", version

    def put(self, pid: int | str, path: str) -> None:
        (self.proc / str(pid)).mkdir(parents=True)
        line = f"0::{path}" if self.version == 2 else f"4:cpu,memory:{path}"
        (self.proc / str(pid) / "cgroup").write_text(f"9:name=systemd:/\n{line}\n")

    def counts(self, path: str, kills: int) -> None:
        directory = self.cgroups / ("" if self.version == 2 else "memory") / path.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        (directory / name).write_text(f"low 0\noom_kill {kills}\n")

    def limit(self, path: str, most: str, used: int, idle: int) -> None:
        directory = self.cgroups / ("" if self.version == 2 else "memory") / path.lstrip("/")
        names = ("memory.max", "memory.current", "inactive_file")
        if self.version == 1:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        (directory / names[0]).write_text(f"{most}\n")
        (directory / names[1]).write_text(f"{used}\n")
        (directory / "memory.stat").write_text(f"anon 5\n{names[2]} {idle}\n")


@pytest.mark.parametrize("version", [1, 2])
def test_a_child_is_told_apart_only_where_the_attempt_has_a_cgroup_to_itself(
    tmp_path: Path, version: int
) -> None:
    kernel = Kernel(tmp_path, version)
    for pid, path in (("self", "/agent"), (7, "/docker/abc"), (8, "/agent")):
        kernel.put(pid, path)
    kernel.counts("/docker/abc", 3)
    kernel.counts("/agent", 0)
    nearby = OomNearby(kernel.proc, kernel.cgroups)
    for pid in (7, 8, 9):
        nearby.began(pid)
    assert [nearby.struck(pid) for pid in (7, 8, 9, 10)] == [Beside.NOBODY] * 4
    kernel.counts("/docker/abc", 4)
    kernel.counts("/agent", 1)
    assert [nearby.struck(pid) for pid in (7, 8, 9, 10)] == [
        Beside.OURS,
        Beside.SOMEBODY,
        Beside.NOBODY,
        Beside.NOBODY,
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_a_child_that_is_killed_before_the_agent_hears_of_its_attempt_counts(
    tmp_path: Path, version: int
) -> None:
    kernel = Kernel(tmp_path, version)
    for pid, path in (("self", "/agent"), (1, "/docker/abc"), (7, "/docker/abc")):
        kernel.put(pid, path)
    kernel.counts("/docker/abc", 3)
    nearby = OomNearby(kernel.proc, kernel.cgroups)
    nearby.launching(1)
    kernel.counts("/docker/abc", 4)
    nearby.began(7)
    assert nearby.struck(7) is Beside.OURS


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_memory_that_an_attempt_met_is_named_with_its_number(
    tmp_path: Path, version: int
) -> None:
    kernel = Kernel(tmp_path, version)
    for pid, path in (("self", "/agent"), (7, "/docker/abc/task"), (8, "/agent")):
        kernel.put(pid, path)
    for path, most in (
        ("/docker/abc", str(200 << 20)),
        ("/docker/abc/task", str(2**63 - 4096)),
        ("/agent", "9"),
    ):
        kernel.counts(path, 0)
        kernel.limit(path, most, 700, 200)
    nearby = OomNearby(kernel.proc, kernel.cgroups)
    for number in (7, 8):
        nearby.began(number)
    assert [nearby.limit_met(number) for number in (7, 8)] == ["", ""]
    for path in ("/docker/abc/task", "/agent"):
        kernel.counts(path, 1)
    assert [nearby.limit_met(number) for number in (7, 8)] == ["its memory limit of 200 MiB was reached", ""]


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_processes_is_named_where_an_attempt_has_a_cgroup_to_itself(
    tmp_path: Path, version: int
) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    pids = cgroups if version == 2 else cgroups / "pids"
    for pid, path in (("self", "agent"), ("7", "docker"), ("8", "agent")):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "cgroup").write_text(f"0::/{path}\n" if version == 2 else f"8:pids:/{path}\n")
        (pids / path).mkdir(parents=True, exist_ok=True)
        (pids / path / "pids.events").write_text("max 2\n")
        (pids / path / "pids.max").write_text("64\n")
    nearby = OomNearby(proc, cgroups)
    for number in (7, 8):
        nearby.began(number)
    assert [nearby.limit_met(number) for number in (7, 8, 9)] == [""] * 3
    for path in ("agent", "docker"):
        (pids / path / "pids.events").write_text("max 5\n")
    assert [nearby.limit_met(number) for number in (7, 8, 9)] == ["the pids limit of 64 was reached", "", ""]


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_cgroup_has_left_counts_what_could_be_dropped_as_free(tmp_path: Path, version: int) -> None:
    kernel = Kernel(tmp_path, version)
    kernel.put("self", "/agent")
    kernel.counts("/agent", 0)
    kernel.limit("/agent", "1000", 700, 200)
    cgroup = Cgroup.of("self", kernel.proc, kernel.cgroups)
    assert cgroup.limits() == (1000, 500)
    kernel.limit("/agent", "max", 700, 200)
    assert cgroup.limits() == (-1, 500)
    assert Cgroup.of(1, kernel.proc, kernel.cgroups).limits() == (-1, -1)


def test_what_the_machine_has_left(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  100 kB\nMemAvailable:   3 kB\n")
    assert free_bytes(meminfo) == 3 * 1024
    assert free_bytes() > 0


@pytest.mark.parametrize(
    ("killed", "beside", "cause", "says"),
    [
        (False, Beside.NOBODY, Cause.PROGRAM_EXIT, ""),
        (False, Beside.OURS, Cause.OOM, "the OOM killer ended one of its processes"),
        (False, Beside.SOMEBODY, Cause.PROGRAM_EXIT, "meanwhile the OOM killer struck"),
        (True, Beside.SOMEBODY, Cause.OOM, "the OOM killer ended it"),
    ],
)
def test_an_attempt_that_fails_of_a_childs_death_is_out_of_memory(
    killed: bool, beside: Beside, cause: Cause, says: str
) -> None:
    end = with_oom(ended(1), killed=killed, beside=beside)
    judged = classify(report(end=end), job_spec(), JobPhase.RUNNING)
    assert judged is not None
    assert judged.cause is cause
    assert end.detail.startswith(says)
    assert bool(end.detail) == bool(says)
