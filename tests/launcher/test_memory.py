"""Memory of a launcher that is forked, and of the program in the fork."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.inside import protocol
from tests.launcher.harness import Agent, launcher, wait_for

MERGES = (
    tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 1)
    and Path("/sys/kernel/mm/transparent_hugepage").is_dir()
)
THREADS_ROOM = """
import ctypes, threading
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
def room():
    at = libc.malloc(1000)
    for line in open("/proc/self/maps"):
        low, high = (int(each, 16) for each in line.split()[0].split("-"))
        if low <= at < high:
            print("room", (high - low) >> 20, "MiB", flush=True)
thread = threading.Thread(target=room)
thread.start()
thread.join()
"""
MERGED = """
import ctypes, mmap, sys
sys.path.insert(0, ".")
from agent.inside.child import pages

def kernel_can():
    size, huge = 32 << 20, 2 << 20
    area = mmap.mmap(-1, size + huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.write(b"x" * (size + huge))
    begin = -(-ctypes.addressof(ctypes.c_char.from_buffer(area)) // huge) * huge
    madvise = ctypes.CDLL(None).madvise
    return madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), 25) == 0

data = bytearray(range(256)) * (1 << 17)
print(pages.merge() >> 20, data == bytearray(range(256)) * (1 << 17), kernel_can())
"""
SPARSE = """
import mmap, sys
sys.path.insert(0, ".")
from agent.inside.child import pages
area = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 64 << 20, 2 << 20):
    area[at] = 1
def resident():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])
before = resident()
pages.merge()
print((resident() - before) >> 10)
"""


@pytest.mark.parametrize(("own", "least", "most"), [({}, 8, 64), ({"MALLOC_ARENA_TEST": "8"}, 0, 1)])
def test_a_thread_of_a_warm_program_takes_its_memory_in_bulk(
    own: dict[str, str], least: int, most: int
) -> None:
    with launcher(env=own) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        rig.write("train.py", THREADS_ROOM)
        rig.run(agent, "python", "train.py")
        assert agent.all(protocol.Started)[-1].warm
        assert least <= int(rig.log().split()[1]) <= most


def test_memory_is_merged_and_stays_what_it_was() -> None:
    def merged() -> bool | None:
        mib, same, kernel_can = run(MERGED).split()
        assert same == "True"
        # A kernel whose memory is in small pieces has no such pages to spare, for anybody.
        return (int(mib) >= 30) is MERGES or kernel_can == "False" or None

    wait_for("memory in large pages, which this kernel gives to others", merged)


def test_memory_that_was_never_touched_is_not_filled() -> None:
    assert int(run(SPARSE)) < 16


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
