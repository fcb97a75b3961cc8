"""What a dead attempt leaves in memory is gone before the next one starts; what others use stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.inside.launcher import remains

NOBODYS = 61_234
"""A uid that nothing on the machine has: all that has it is this test's."""

PROGRAM = """
import ctypes, os, subprocess, sys
sys.path.insert(0, sys.argv[2])
from agent.inside.launcher.remains import Remains, _objects
os.chdir(sys.argv[1])
os.setgroups([])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[3]))
libc = ctypes.CDLL(None)

def told(when):
    print(when, *sorted(os.listdir(".")), len(list(_objects())))

def attempt():
    os.makedirs("cache/deep", exist_ok=True)
    for name in ("psm_1", "sem.x", "cache/deep/file"):
        open(name, "w").close()
    assert min(libc.shmget(0, 4096, 0o1600), libc.semget(0, 1, 0o1600), libc.msgget(0, 0o1600)) >= 0

attempt()  # of a launcher that was killed
kept = Remains((os.getcwd(),))
kept.importing()
told("imports")
open("import", "w").close()
assert libc.shmget(0, 4096, 0o1600) >= 0
kept.imported()
attempt()
other = subprocess.Popen(["sleep", "1000"])
kept.clear()
told("shared")
other.kill()
other.wait()
Remains(()).clear()
told("of-all")
kept.clear()
told("cleared")
Remains((os.getcwd(),)).clear()
told("ended")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_dead_attempt_leaves_nothing_in_memory_to_the_next(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    memory.chmod(0o1777)
    (memory / "of-another-user").touch()
    for above in memory.parents[:-1]:
        above.chmod(above.stat().st_mode | 0o011)
    source = Path(remains.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(memory), str(source), str(NOBODYS)],
        capture_output=True,
        text=True,
        check=False,
    )
    left = "cache import of-another-user psm_1 sem.x 4"
    assert done.stdout.splitlines() == [
        "imports of-another-user 0",
        f"shared {left}",
        f"of-all {left}",
        "cleared import of-another-user 1",
        "ended of-another-user 0",
    ], done.stderr
