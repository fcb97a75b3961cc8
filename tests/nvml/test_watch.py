"""The watch over scripted GPUs, through the real binding, in a real child process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from agent.core.gpus.health import GpuSight, Xid
from agent.gpus.nvml_probe import NO_DRIVER, NvmlGpus
from agent.settings import GpuSettings
from chaos.nvml import FakeNvml
from supervisor.contract.observed import GpuHealth
from tests.launcher.harness import wait_for
from tests.nvml.watching import DEADLINE_S, Watched, children, watching
from tests.support.sinks import ListSink

GONE = 4_000_000


class Make(Protocol):
    def __call__(self, count: int = 2, *, old: bool = False) -> FakeNvml: ...


async def looked_anew(watched: Watched) -> None:
    """Wait for a look at the GPUs that comes after this call."""
    count = len(watched.sights)
    await watched.until(lambda: any(sight.gpus is not None for sight in watched.sights[count:]))


def settings(
    nvml: FakeNvml, *, patience_ms: int = 10_000, kernel_log: str = "", poll_ms: int = 100
) -> GpuSettings:
    """Patient, where a test is not about patience: these machines are busy."""
    return GpuSettings(str(nvml.library), poll_ms, patience_ms, kernel_log)


async def test_inventory(scripted: Make) -> None:
    nvml = scripted(3)
    nvml.set(0, peers=f"{nvml.uuids[2]}", used=4096, temp=55)
    nvml.set(2, peers=nvml.uuids[0], mig=1)
    async with watching(settings(nvml)) as watched:
        await watched.until(lambda: len(watched.book.known) == 3)
        sight = [watched.book.known[uuid].sight for uuid in nvml.uuids]
        assert watched.book.driver == nvml.driver
        assert [each.index for each in sight] == [0, 1, 2]
        assert [each.peers for each in sight] == [(nvml.uuids[2],), (), (nvml.uuids[0],)]
        assert [each.mig for each in sight] == [False, False, True]
        assert [each.numa for each in sight] == [0, 1, 0]
        one = sight[0]
        assert (one.name, one.memory_bytes, one.memory_used) == ("NVIDIA H200", 141 << 30, 4096)
        assert (one.processes, one.temperature, one.recovery) == ((), 55, 0)
        assert watched.health == [GpuHealth.OK] * 3


async def test_processes_are_known_by_the_leader_of_their_session(scripted: Make) -> None:
    """A wrapper's child computes; of one that is gone its own number is left."""
    nvml = scripted(1)
    command = ["sh", "-c", "sleep 1000 & echo $!; wait"]
    wrapper = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        assert wrapper.stdout is not None
        child = int(await wrapper.stdout.readline())
        nvml.set(0, procs=f"{child}:4096,{GONE}:5")
        async with watching(settings(nvml)) as watched:
            await watched.until(lambda: watched.health == [GpuHealth.OK])
            sight = watched.book.known[nvml.uuids[0]].sight
            assert sight.processes == ((wrapper.pid, 4096), (GONE, 5))
    finally:
        os.killpg(wrapper.pid, signal.SIGKILL)
        await wrapper.wait()


@pytest.mark.parametrize(("by", "count"), [("index", 2), ("uuid", 2), ("nothing", 0)])
async def test_gpus_that_are_others_are_left_alone(scripted: Make, by: str, count: int) -> None:
    nvml = scripted(3)
    only = {"index": ("0", "2"), "uuid": (nvml.uuids[0], nvml.uuids[2]), "nothing": ()}[by]
    async with watching(replace(settings(nvml), only=only)) as watched:
        await looked_anew(watched)
        assert sorted(watched.book.known) == sorted((nvml.uuids[0], nvml.uuids[2]) if count else ())
        assert not watched.problem


async def test_an_event_is_told_at_once_and_once(scripted: Make) -> None:
    nvml = scripted()
    async with watching(settings(nvml)) as watched:
        await watched.until(lambda: len(watched.health) == 2)
        nvml.event(1, 79)
        nvml.event(0, 43)
        await watched.until(lambda: watched.health == [GpuHealth.OK, GpuHealth.FAULTY])
        count = len(watched.sights)
        await watched.until(lambda: len(watched.sights) > count + 2)
        xids = [strike for sight in watched.sights for strike in sight.xids]
        assert xids == [Xid(79, nvml.uuids[1]), Xid(43, nvml.uuids[0])]


async def test_what_is_polled(scripted: Make) -> None:
    nvml = scripted()
    async with watching(settings(nvml)) as watched:
        await watched.until(lambda: len(watched.health) == 2)
        nvml.set(0, recovery=1)
        nvml.set(1, error=15)
        await watched.until(lambda: watched.health == [GpuHealth.FAULTY] * 2)
        nvml.set(0, recovery=0)
        nvml.set(1, error=0)
        await watched.until(lambda: watched.health == [GpuHealth.OK] * 2)


@pytest.mark.parametrize("fact", ["recovery", "ecc_vol", "remap_pending", "remap_failed", "error"])
async def test_what_asks_for_something_is_not_waited_for_until_the_next_poll(
    scripted: Make, fact: str
) -> None:
    nvml = scripted()
    async with watching(settings(nvml, poll_ms=60_000)) as watched:
        await watched.until(lambda: len(watched.health) == 2)
        nvml.set(1, **{fact: 15 if fact == "error" else 1})

        def looks() -> list[tuple[GpuSight, ...]]:
            return [sight.gpus for sight in watched.sights if sight.gpus]

        await watched.until(lambda: looks()[0] != looks()[-1])
        assert len(looks()) <= 3, "one look for each change, not one for each glance"
        assert looks()[0][0] == looks()[-1][0]


async def test_a_hung_driver_makes_gpus_unknown_until_it_answers(scripted: Make) -> None:
    nvml = scripted()
    async with watching(settings(nvml, patience_ms=800)) as watched:
        await watched.until(lambda: len(watched.health) == 2)
        nvml.rule("hang *")
        await watched.until(lambda: watched.health == [GpuHealth.UNKNOWN] * 2)
        assert "not answered" in watched.problem
        nvml.rule()
        await watched.until(lambda: watched.health == [GpuHealth.OK] * 2)
        assert watched.problem == ""


async def test_a_driver_that_hangs_at_once_is_told_of(scripted: Make) -> None:
    nvml = scripted()
    nvml.rule("hang nvmlInitWithFlags")
    async with watching(settings(nvml, patience_ms=800)) as watched:
        await watched.until(lambda: "not answered" in watched.problem)
        nvml.rule()
        await watched.until(lambda: watched.health == [GpuHealth.OK] * 2)


async def test_a_crash_within_the_patience_is_not_noticed(scripted: Make) -> None:
    nvml = scripted()
    async with watching(settings(nvml)) as watched:
        await watched.until(lambda: len(watched.health) == 2)
        before = children()
        before[0].send_signal(signal.SIGSEGV)
        count = len(watched.sights)
        await watched.until(lambda: len(watched.sights) > count + 2 and children() not in ([], before))
        assert not any(sight.problem for sight in watched.sights)
        nvml.event(0, 95)
        await watched.until(lambda: watched.health == [GpuHealth.FAULTY, GpuHealth.OK])


@pytest.mark.parametrize("code", [4, 19, 999])
async def test_gpus_that_the_next_child_cannot_open_are_unknown_until_it_can(
    scripted: Make, code: int
) -> None:
    nvml = scripted()
    async with watching(settings(nvml)) as watched:
        await watched.until(lambda: len(watched.health) == 2)
        nvml.rule(f"fail nvmlDeviceGetHandleByIndex_v2 {code}")
        children()[0].send_signal(signal.SIGSEGV)
        await watched.until(lambda: watched.health == [GpuHealth.UNKNOWN] * 2)
        assert watched.sights[-1].unopened == 2
        nvml.rule()
        await watched.until(lambda: watched.health == [GpuHealth.OK] * 2)
        nvml.event(1, 95)
        await watched.until(lambda: watched.health == [GpuHealth.OK, GpuHealth.FAULTY])
        assert [watched.book.known[uuid].gpu.fault for uuid in nvml.uuids] == [0, 1]


async def test_one_that_cannot_be_opened_leaves_the_others_known(scripted: Make) -> None:
    nvml = scripted()
    async with watching(settings(nvml)) as watched:
        await watched.until(lambda: len(watched.health) == 2)
        nvml.set(0, error=999)
        children()[0].send_signal(signal.SIGSEGV)
        await watched.until(lambda: watched.sights[-1].unopened == 1)
        assert watched.health == [GpuHealth.UNKNOWN, GpuHealth.OK]
        nvml.set(0, error=0)
        await watched.until(lambda: watched.health == [GpuHealth.OK] * 2)


@pytest.mark.parametrize("code", [6, 15])
async def test_a_gpu_that_the_next_child_does_not_find_is_gone(scripted: Make, code: int) -> None:
    nvml = scripted()
    async with watching(settings(nvml)) as watched:
        await watched.until(lambda: len(watched.health) == 2)
        nvml.rule(f"fail nvmlDeviceGetHandleByIndex_v2 {code}")
        children()[0].send_signal(signal.SIGSEGV)
        await watched.until(lambda: watched.health == [GpuHealth.FAULTY] * 2)
        assert watched.sights[-1].unopened == 0


async def test_a_driver_that_crashes_for_good(scripted: Make) -> None:
    nvml = scripted()
    nvml.rule("crash nvmlDeviceGetMemoryInfo_v2")
    async with watching(settings(nvml, patience_ms=800)) as watched:
        await watched.until(lambda: "signal 11" in watched.problem)
        nvml.rule()
        await watched.until(lambda: watched.health == [GpuHealth.OK] * 2)


async def test_a_driver_that_answers_once_and_crashes_is_asked_ever_more_slowly(scripted: Make) -> None:
    nvml = scripted()
    nvml.rule("crash nvmlEventSetWait_v2")
    async with watching(settings(nvml, patience_ms=1_500)) as watched:
        await watched.until(lambda: len(watched.health) == 2)
        await watched.until(lambda: "signal 11" in watched.problem)
        nvml.rule()
        await watched.until(lambda: watched.health == [GpuHealth.OK] * 2)


async def test_no_library(tmp_path: Path) -> None:
    missing = GpuSettings(str(tmp_path / "libnvidia-ml.so.1"), 100, 800, "")
    async with watching(missing) as watched:
        await watched.until(lambda: "Library Not Found" in watched.problem)
        assert watched.health == []


async def test_a_library_without_its_driver(scripted: Make) -> None:
    nvml = scripted()
    nvml.rule("fail nvmlInitWithFlags 9")
    async with watching(settings(nvml, patience_ms=800)) as watched:
        await watched.until(lambda: "Driver Not Loaded" in watched.problem)


async def test_no_driver_costs_no_process() -> None:
    async with watching(GpuSettings(), lambda: NO_DRIVER) as watched:
        await watched.until(lambda: watched.problem == NO_DRIVER)
        assert not children()
    assert [sight.problem for sight in watched.sights] == [NO_DRIVER]


async def test_a_machine_without_room_for_one_more_process_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As long as that lasts, and no end of the agent."""
    monkeypatch.setattr(sys, "executable", "/nothing/python")
    async with watching(GpuSettings(patience_ms=200), lambda: "") as watched:
        await watched.until(lambda: "no process to ask NVML" in watched.problem)


async def test_without_a_driver_the_same_is_told_for_ever() -> None:
    """The patience is at its end in each millisecond here."""
    watched, ends = Watched(), 0
    settings = GpuSettings(patience_ms=1)
    task = asyncio.create_task(NvmlGpus(settings, ListSink(), lambda: NO_DRIVER).run(watched.post))
    await watched.until(lambda: watched.problem == NO_DRIVER)
    while ends < 20:
        await asyncio.sleep(0.03)
        ends += 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    problems = [sight.problem for sight in watched.sights]
    assert problems[-1] == NO_DRIVER
    assert problems.count(NO_DRIVER) == 1


async def test_an_old_driver_is_polled(scripted: Make) -> None:
    """It has neither events nor remapped rows, fields or MIG."""
    nvml = scripted(old=True)
    async with watching(settings(nvml)) as watched:
        await watched.until(lambda: watched.health == [GpuHealth.OK] * 2)
        sight = watched.book.known[nvml.uuids[0]].sight
        assert (sight.recovery, sight.remap_failed, sight.ecc_volatile, sight.peers) == (-1, -1, 0, ())
        assert sight.memory_used > 0, "also what the driver keeps for itself"
        nvml.set(0, ecc_vol=2)
        await watched.until(lambda: watched.book.known[nvml.uuids[0]].gpu.fault == 1)
        nvml.set(1, error=15)
        await watched.until(lambda: watched.health == [GpuHealth.OK, GpuHealth.FAULTY])


async def test_a_gpu_that_supports_little(scripted: Make) -> None:
    nvml = scripted(1)
    nvml.set(
        0, ecc_vol=None, ecc_agg=None, remap_pending=None, recovery=None, power=None, temp=None, mig=None
    )
    async with watching(settings(nvml)) as watched:
        await watched.until(lambda: watched.health == [GpuHealth.OK])
        sight = watched.book.known[nvml.uuids[0]].sight
        assert (sight.ecc_volatile, sight.recovery, sight.power_mw, sight.temperature) == (-1, -1, -1, -1)


async def test_the_kernel_log_is_a_second_source(scripted: Make, tmp_path: Path) -> None:
    nvml = scripted(old=True)
    log = tmp_path / "kmsg"
    os.mkfifo(log)
    async with watching(settings(nvml, kernel_log=str(log))) as watched:
        await watched.until(lambda: len(watched.health) == 2)
        writer = os.open(log, os.O_WRONLY)
        try:
            os.write(writer, b"4,1,2,-;NVRM: Xid (PCI:0000:01:00): 79, pid=17, name=python, GPU is gone\n")
            os.write(writer, b"4,2,3,-;NVRM: Xid (PCI:00AB:01:00): 48, of another machine's\n")
            await watched.until(lambda: watched.health == [GpuHealth.OK, GpuHealth.FAULTY])
        finally:
            os.close(writer)


@pytest.mark.parametrize("rule", ["", "hang nvmlInitWithFlags", "fail nvmlInitWithFlags 999"])
async def test_an_xid_that_a_child_did_not_live_to_tell_is_told_once_by_the_next(
    scripted: Make, tmp_path: Path, rule: str
) -> None:
    """Even while NVML cannot be used."""
    nvml = scripted(old=True)
    log = tmp_path / "kmsg"
    log.write_text("4,7,1,-;NVRM: Xid (PCI:0000:00:00): 79, of an earlier life\n")
    async with watching(settings(nvml, kernel_log=str(log))) as watched:
        await watched.until(lambda: watched.health == [GpuHealth.OK] * 2)
        child = children()[0]
        child.suspend()
        with log.open("a") as kernel:
            kernel.write("4,8,2,-;NVRM: Xid (PCI:0000:01:00): 79, pid=17, name=python, GPU is gone\n")
        nvml.rule(rule)
        child.kill()
        await watched.until(lambda: watched.health == [GpuHealth.OK, GpuHealth.FAULTY])
        nvml.rule()
        await looked_anew(watched)
        children()[0].kill()
        await looked_anew(watched)
        assert [strike for sight in watched.sights for strike in sight.xids] == [Xid(79, pci="0000:01:00")]


async def test_the_child_ends_with_the_agent(scripted: Make) -> None:
    nvml = scripted()
    program = (
        "import asyncio, sys\n"
        "from agent.gpus.nvml_probe import NvmlGpus\n"
        "from agent.settings import GpuSettings\n"
        "from tests.support.sinks import ListSink\n"
        "watch = NvmlGpus(GpuSettings(sys.argv[1], 100, 10_000, ''), ListSink())\n"
        "asyncio.run(watch.run(lambda event: print('seen', flush=True)))\n"
    )
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(nvml.library), stdout=asyncio.subprocess.PIPE
    )
    assert agent.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        assert await agent.stdout.readline() == b"seen\n"
        child = psutil.Process(agent.pid).children()[0]
        agent.kill()
        await agent.wait()
    await asyncio.to_thread(wait_for, "end of the child", lambda: ended(child), DEADLINE_S)


def ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
