"""Faults as data, and the pieces that inject them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.faults import FAULTS
from chaos.faults.fault import Family, Incidents
from chaos.faults.kernel import Life
from chaos.faults.release import CHANGES, next_release
from chaos.scenarios import PAIR, scenarios
from supervisor.contract import codec
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause
from supervisor.contract.observed import Incarnation, NodeResources

CAUSES = {cause.value for cause in Cause}
PHASES = {phase.value for phase in JobPhase}


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def until(what: str, done: object, deadline_s: float = 30.0) -> None:
    assert callable(done)
    deadline = time.monotonic() + deadline_s
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def test_every_name_is_given_once() -> None:
    modules = [module for name, module in sys.modules.items() if name.startswith("chaos.faults.")]
    told = Counter(fault.name for module in modules for fault in vars(module).get("FAULTS", ()))
    assert {name for name, count in told.items() if count > 1} == set()
    assert set(FAULTS) == set(told)
    assert PAIR not in FAULTS


@pytest.mark.parametrize(
    "family", [Family.TASK, Family.AGENT, Family.SUPERVISOR, Family.NODE, Family.ETCD, Family.ENVIRONMENT]
)
def test_every_family_has_faults(family: Family) -> None:
    assert [fault for fault in FAULTS.values() if fault.family is family]


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_what_a_fault_says_of_itself_makes_sense(name: str) -> None:
    fault = FAULTS[name]
    assert fault.expects.causes <= CAUSES
    assert fault.expects.scopes <= {"task", "all"}
    assert fault.expects.ends <= PHASES
    assert 0 <= fault.hold_s[0] <= fault.hold_s[1] < fault.bound_s
    if fault.expects.incidents is Incidents.NONE:
        assert not fault.expects.causes
        assert not fault.expects.program_faults
    else:
        assert fault.expects.causes, "an incident without a cause that it may have"


def test_a_seed_chooses_the_same_again() -> None:
    pair = scenarios()[PAIR]
    chosen = [pair.choose(random.Random("7/1"), FAULTS) for _ in range(2)]
    assert chosen[0] == chosen[1]
    faults, count = chosen[0]
    assert count == 2
    assert len({fault.name for fault in faults}) == len(faults)


def test_what_must_be_alone_is_in_no_pair() -> None:
    pair = scenarios()[PAIR]
    faults, _ = pair.choose(random.Random(7), FAULTS)
    assert {fault.name for fault in faults} == {name for name, fault in FAULTS.items() if not fault.alone}


def test_a_process_is_told_from_its_successor(sleeper: subprocess.Popen[bytes]) -> None:
    life = Life.of(sleeper.pid)
    assert life is not None
    assert life.alive
    assert not Life(life.pid, life.start_ticks + 1).alive
    sleeper.kill()
    until("it is gone", lambda: not life.alive)
    assert Life.of(sleeper.pid) is None, "a zombie is nobody"


def test_a_stopped_process_is_seen(sleeper: subprocess.Popen[bytes]) -> None:
    life = Life.of(sleeper.pid)
    assert life is not None
    assert not life.frozen
    os.kill(life.pid, signal.SIGSTOP)
    until("it is stopped", lambda: life.frozen)
    os.kill(life.pid, signal.SIGCONT)
    until("it goes on", lambda: not life.frozen)


def test_the_next_release_knows_more_than_this_one(tmp_path: Path) -> None:
    tree = next_release(tmp_path / "next")
    assert next_release(tmp_path / "next") == tree
    for name, _, new in CHANGES:
        assert new in (tree / name).read_text()
    older = Incarnation("n", "i", "b", 1, "h", "a", 1, 2, 3, NodeResources(1.0, 1))
    script = (
        "import sys\n"
        "from supervisor.contract import codec\n"
        "from supervisor.contract.observed import Incarnation\n"
        "found = codec.decode(Incarnation, sys.stdin.buffer.read())\n"
        "sys.stdout.buffer.write(codec.encode(found))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tree, input=codec.encode(older), capture_output=True, check=True
    )
    assert b"zone" in done.stdout
    assert codec.decode(Incarnation, done.stdout) == older
