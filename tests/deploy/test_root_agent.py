"""An agent that is root, by the drop-in, for tasks that are plain processes of a user of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.control.decide.nodes.node_loss import FENCED
from tests.deploy.box import ROOT, Box, scratch_directory, wait_for
from tests.deploy.services import AGENT, Services

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LOW, HIGH = 400_000, 400_100


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with scratch_directory() as scratch, Box(scratch) as box:
        found = Services(box, scratch, {"task_user": f"{LOW}-{HIGH}", "firewall": True})
        found.install()
        for name in ("docker", "firewall"):
            drop_in = f"/etc/systemd/system/{AGENT}.service.d/{name}.conf"
            box.run("install", "-D", str(ROOT / f"deploy/systemd/agent-{name}.conf"), drop_in)
        box.run("systemctl", "daemon-reload")
        found.run()
        yield found
        # The box has this machine's network, and the rules outlive their agent.
        box.run("nft", "delete", "table", "inet", "tfsup_training_box")


def status_of(services: Services, pid: object) -> dict[str, str]:
    """The kernel's /proc/PID/status of a process of the box."""
    lines = services.box.run("cat", f"/proc/{pid}/status").stdout.splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_a_task_has_no_right_and_can_gain_none(services: Services) -> None:
    told = status_of(services, services.task()["pid"])
    (uid,) = set(told["Uid"].split())
    assert LOW < int(uid) <= HIGH
    assert (told["NoNewPrivs"], int(told["CapEff"], 16), told["Umask"]) == ("1", 0, "0022")
    agent = Path(f"/proc/{services.box.main_pid(AGENT)}/status").read_text()
    assert "\nUmask:\t0077\n" in agent
    assert "\nUid:\t0\t" in agent


def test_the_agent_can_do_to_a_task_what_it_has_to(services: Services) -> None:
    before = services.task()
    said = services.ask("exec", "counting/worker:0", "--", "sh", "-c", "touch $CHECKPOINT_DIR/mine && id -u")
    assert LOW < int(said) <= HIGH
    # The firewall is the agent's: it can be set and seen from the network of this machine.
    assert "tfsup_training_box" in services.box.run("nft", "list", "tables").stdout
    services.ask("restart", "counting")
    wait_for("its end", lambda: not services.alive(before["pid"]), 60)
    services.ask("wait", "counting", "--for", "running", "--timeout", "60")
    wait_for("the next attempt", lambda: services.task()["pid"] not in (None, before["pid"]), 60)


def test_an_agent_that_is_stopped_leaves_nothing_behind_and_one_that_is_restarted_everything(
    services: Services,
) -> None:
    services.ask("wait", "counting", "--for", "running", "--timeout", "60")
    before, agent = services.task(), services.box.main_pid(AGENT)
    services.box.run("systemctl", "restart", AGENT)
    services.new_agent(agent)
    services.ask("wait", "counting", "--for", "running", "--timeout", "30")
    assert services.task()["pid"] == before["pid"]
    services.box.run("systemctl", "stop", AGENT)
    assert not services.alive(before["pid"])
    assert FENCED in services.ask("nodes", "--output", "json")
    services.box.run("systemctl", "start", AGENT)
    wait_for("the next attempt", lambda: services.task()["pid"] not in (None, before["pid"]), 60)
