"""Tests in several processes are given different ports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TAKES = """
from tests.support import ports
ports.LOW, ports.HIGH = 19_000, 19_001
print(ports.free_port(), flush=True)
input()
"""


def taking(directory: Path) -> subprocess.Popen[str]:
    """A process that takes one of two ports until it gets a line."""
    env = os.environ | {"TMPDIR": str(directory)}
    pipe = subprocess.PIPE
    program = [sys.executable, "-c", TAKES]
    return subprocess.Popen(program, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_port_is_given_to_one_process_at_a_time(tmp_path: Path) -> None:
    with taking(tmp_path) as first, taking(tmp_path) as second:
        held = [port_of(each) for each in (first, second)]
        assert sorted(held) == [19_000, 19_001]
        with taking(tmp_path) as third:
            assert "no 1 free ports in a row in 19000-19001" in third.communicate("\n")[1]
        first.communicate("\n")
        with taking(tmp_path) as third:
            assert int(third.communicate("\n")[0]) == held[0]
        second.communicate("\n")
