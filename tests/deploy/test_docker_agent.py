"""An agent whose tasks are containers, as root by the drop-in, beside a dockerd that is a service too."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.container_image import IMAGE, USER_ID, rootfs
from tests.deploy.box import ROOT, Box, scratch_directory, wait_for
from tests.deploy.services import AGENT, Services

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_DOCKER = """
[Service]
Type=notify
Environment=PATH={path}
ExecStart=dockerd --config-file {scratch}/daemon.json
KillMode=process
StandardOutput=append:{scratch}/docker.log
StandardError=inherit
"""
_CONTROLLERS = """
for each in cpu cpuacct cpuset memory pids devices freezer blkio; do
    mkdir -p /sys/fs/cgroup/$each
    mount --bind "$0/$each" /sys/fs/cgroup/$each
done
"""


class Dockerd:
    """A service of the box, with its data outside of the box's overlays."""

    def __init__(self, box: Box, scratch: Path) -> None:
        self._box = box
        self.cgroup = scratch.name
        settings = {
            "data-root": str(scratch / "docker"),
            "bridge": "none",
            "iptables": False,
            "ip-forward": False,
            "cgroup-parent": f"/{self.cgroup}",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "live-restore": True,
        }
        (scratch / "daemon.json").write_text(json.dumps(settings))
        box.run("bash", "-euc", _CONTROLLERS, str(scratch / "controllers"))
        unit = _DOCKER.format(path=_PATH, scratch=scratch)
        box.run("bash", "-c", 'printf %s "$1" > "$0"', "/etc/systemd/system/docker.service", unit)
        box.run("systemctl", "daemon-reload")
        box.run("systemctl", "start", "docker")
        self.cli("import", str(rootfs()), IMAGE)

    def cli(self, *arguments: str) -> str:
        client = shutil.which("docker", path=f"{_PATH}:{os.environ['PATH']}")
        assert client is not None
        return self._box.run(client, *arguments).stdout.strip()


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Services, Dockerd]]:
    with scratch_directory() as scratch:
        try:
            with Box(scratch) as box:
                docker = Dockerd(box, scratch)
                services = Services(box, scratch, {"runtime": "docker", "docker": {"image": IMAGE}})
                services.install()
                drop_in = f"/etc/systemd/system/{AGENT}.service.d/docker.conf"
                box.run("install", "-D", str(ROOT / "deploy/systemd/agent-docker.conf"), drop_in)
                box.run("systemctl", "daemon-reload")
                services.run("code: {dir: .}\n")
                yield services, docker
        finally:
            for left in Path("/sys/fs/cgroup").glob(f"*/**/{scratch.name}"):
                for each in sorted(left.rglob("*/"), reverse=True):
                    each.rmdir()
                left.rmdir()


def test_the_task_is_in_a_container_and_outlives_its_agent_and_dockerd(
    cluster: tuple[Services, Dockerd],
) -> None:
    services, docker = cluster
    assert Path(f"/proc/{services.box.main_pid(AGENT)}").stat().st_uid == 0
    before, container = services.task(), docker.cli("ps", "--quiet", "--no-trunc")
    assert len(container.split()) == 1
    assert docker.cli("exec", container, "stat", "-c", "%u", "/proc/1") == str(USER_ID)
    agent = services.signal(AGENT, signal.SIGKILL)
    services.new_agent(agent)
    services.signal("docker", signal.SIGKILL)
    wait_for("dockerd's end", lambda: services.box.show("docker", "ActiveState") == "failed", 30)
    assert services.alive(before["pid"])
    services.box.run("systemctl", "start", "docker")
    services.ask("wait", "counting", "--for", "running", "--timeout", "60")
    after = services.task()
    assert (after["pid"], after["attempt"]) == (before["pid"], before["attempt"])
    assert docker.cli("ps", "--quiet", "--no-trunc") == container


def test_doctor_finds_nothing_that_a_node_lacks(cluster: tuple[Services, Dockerd]) -> None:
    services, _ = cluster
    command = (str(ROOT / ".venv/bin/supervisorctl"), "doctor", "--agent-config")
    found = services.box.run(*command, "/etc/tf-supervisor/agent.yaml", "-o", "json", check=False).stdout
    failed = [each for each in json.loads(found)["findings"] if each["state"] == "fail"]
    assert failed == []
