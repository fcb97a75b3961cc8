"""The daemons as services of a real systemd: installed by the script, kept alive, and no task the wiser."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.box import ROOT, Box, scratch_directory, wait_for
from tests.deploy.services import AGENT, CONFIG, SUPERVISOR, Services

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with scratch_directory() as scratch, Box(scratch) as box:
        found = Services(box, scratch)
        found.install()
        found.run()
        yield found


def test_the_daemons_run_as_a_user_of_their_own(services: Services) -> None:
    for unit in (AGENT, SUPERVISOR):
        assert services.box.show(unit, "ActiveState") == "active"
        owner = Path(f"/proc/{services.box.main_pid(unit)}").stat().st_uid
        assert owner != 0
    environ = Path(f"/proc/{services.box.main_pid(AGENT)}/environ").read_bytes()
    assert b"WATCHDOG_USEC=5000000" in environ


def test_what_a_task_gets_is_nothing_of_systemds(services: Services) -> None:
    assert "told of ['CHECKPOINT_DIR']" in services.ask("tail", "counting/worker:0")


def test_an_agent_that_is_killed_comes_back_to_the_same_task(services: Services) -> None:
    before, agent = services.task(), services.signal(AGENT, signal.SIGKILL)
    services.new_agent(agent)
    services.ask("wait", "counting", "--for", "running", "--timeout", "30")
    assert services.alive(before["pid"])
    after = services.task()
    assert (after["pid"], after["attempt"]) == (before["pid"], before["attempt"])


def test_an_agent_is_upgraded_under_its_task(services: Services) -> None:
    before, agent = services.task(), services.box.main_pid(AGENT)
    services.box.run("systemctl", "restart", AGENT)
    services.new_agent(agent)
    services.ask("wait", "counting", "--for", "running", "--timeout", "30")
    assert services.task()["pid"] == before["pid"]
    assert services.alive(before["pid"])


def test_an_agent_that_hangs_is_replaced_before_its_node_is_lost(services: Services) -> None:
    before, agent = services.task(), services.signal(AGENT, signal.SIGSTOP)
    services.new_agent(agent)
    services.ask("wait", "counting", "--for", "running", "--timeout", "30")
    assert services.task()["pid"] == before["pid"]
    assert services.box.show(AGENT, "NRestarts") != "0"


def test_a_supervisor_that_is_killed_comes_back(services: Services) -> None:
    before = services.signal(SUPERVISOR, signal.SIGKILL)
    wait_for("another supervisor", lambda: services.box.main_pid(SUPERVISOR) not in {0, before}, 30)
    services.ask("wait", "counting", "--for", "running", "--timeout", "30")


@pytest.mark.slow
def test_tasks_of_an_agent_that_is_stopped_for_good_end_by_themselves(services: Services) -> None:
    pid = services.task()["pid"]
    services.box.run("systemctl", "stop", AGENT)
    assert services.alive(pid)
    wait_for("the task's end", lambda: not services.alive(pid), 60)
    services.box.run("systemctl", "start", AGENT)

    def again() -> bool:
        # What was reported last may still be the old attempt.
        task = services.task()
        return task["state"] == "running" and task["pid"] != pid

    wait_for("the task's next attempt", again, 90)


def test_a_mistake_in_the_configuration_is_not_tried_again_and_again(services: Services) -> None:
    path = f"{CONFIG}/agent.yaml"
    services.box.run("cp", "-p", path, f"{path}.right")
    try:
        services.configure("agent", {"nodes": "box"})
        services.box.run("systemctl", "restart", AGENT, check=False)
        wait_for("the failure", lambda: services.box.show(AGENT, "ActiveState") == "failed", 30)
        assert services.box.show(AGENT, "ExecMainStatus") == "2"
        assert "nodes" in services.box.logs()
    finally:
        # Another test may come after this one.
        services.box.run("mv", f"{path}.right", path)
        services.box.run("systemctl", "start", AGENT)
        services.ask("wait", "counting", "--for", "running", "--timeout", "60")


@pytest.mark.parametrize("unit", [AGENT, SUPERVISOR])
def test_units_say_nothing_that_systemd_does_not_know(unit: str, tmp_path: Path) -> None:
    text = (ROOT / f"deploy/systemd/{unit}.service").read_text()
    file = tmp_path / f"{unit}.service"
    file.write_text(text.replace("/opt/tf-supervisor/.venv/bin", str(ROOT / ".venv/bin")))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    assert f"{unit}.service" not in checked.stderr, checked.stderr
