"""A launcher of an earlier release would ignore that a path is to be adopted: it gives way to another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.events import SpecRead
from agent.core.instructions import Fence, Launch
from agent.inside import protocol
from tests.agent.core import ORDER, RUNNING, SPEC, Core, only

ADOPTING = replace(ORDER, checkpoint_adopt="/tmp/work")


@pytest.mark.parametrize("adopts", [True, False])
def test_only_a_launcher_that_knows_how_starts_a_task_that_adopts_a_path(*, adopts: bool) -> None:
    core = Core().prepared(ADOPTING)
    core.hear(protocol.Hello(1, core.launcher_id, "job", 100, 1, "boot", warm=True, adopts=adopts))
    core.hear(protocol.Reserved("p1.worker.0", 20000))
    said = [*core.see(RUNNING, ADOPTING), *core.feed(SpecRead("p1", SPEC))]
    assert len(only(Launch, said)) == adopts
    assert len(only(Fence, said)) == (not adopts)


def test_a_hello_of_an_earlier_release_is_read() -> None:
    line = protocol.encode(protocol.Hello(1, "L", "job", 1, 1, "boot", warm=True))
    assert b"adopts" in line
    found = protocol.decode(line.replace(b',"adopts":false', b""))
    assert isinstance(found, protocol.Hello)
    assert not found.adopts
