"""Which port a task asks for that has to come back without its reservation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.events import Spawned, SpecRead
from agent.core.instructions import Say
from agent.inside import protocol
from supervisor.contract.desired import ClusterSpec, RoleAddresses
from tests.guarantees.test_agent_rules import ORDER, RUNNING, Core, only

KNOWN = ClusterSpec("job", 1, "p1", (), (RoleAddresses("dispatcher", ("h:20042",)),))


@pytest.mark.parametrize(("follow", "asked"), [(False, 20042), (True, None)])
def test_what_others_were_told_of_is_claimed_again_and_only_a_follower_takes_any(
    follow: bool, asked: int | None
) -> None:
    core = Core()
    order = replace(ORDER, role="dispatcher", outside=True, follow=follow)
    core.see(RUNNING, order)
    core.feed(SpecRead("p1", KNOWN))
    core.feed(Spawned(core.launcher_id, 100, 1))
    core.hear(protocol.Hello(1, core.launcher_id, "job", 100, 1, "boot", True))
    core.see(RUNNING, order)
    requests = [each.message for each in only(Say, core.said) if isinstance(each.message, protocol.Reserve)]
    assert [each.reuse for each in requests] == [asked]
