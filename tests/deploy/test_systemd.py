"""The daemons as services of a real systemd: installed by the script, kept alive, and no task the wiser."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.box import NAME, ROOT, Box, wait_for
from tests.deploy.etcd_member import environment
from tests.support.etcd_server import etcd_binaries, free_port

pytestmark = pytest.mark.timeout(300)
AGENT, SUPERVISOR = "tfsup-agent", "tfsup-supervisord"
CONFIG = "/etc/tf-supervisor"
ETCD = "etcd-1"
# As Debian's etcd-server has it; a file of this machine's may be where its user may not go.
ETCD_UNIT = """
[Service]
Type=notify
User=etcd
StateDirectory=etcd
Environment=ETCD_DATA_DIR=/var/lib/etcd/default
EnvironmentFile=/etc/default/etcd
ExecStart={scratch}/etcd
StandardOutput=append:{scratch}/etcd.log
StandardError=inherit
"""
COMMAND = str(ROOT / ".venv/bin/supervisorctl")
PROGRAM = """
import itertools, os, time
told = sorted({"CHECKPOINT_DIR", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"} & os.environ.keys())
for step in itertools.count():
    print(f"step {step}, told of {told}", flush=True)
    time.sleep(0.05)
"""
GRACE = "30s"
"""D, so that a busy machine has the time to start an agent."""
JOB = """
name: counting
command: [python, count.py]
strategy: plain
roles:
  worker: {count: 1}
preload: []
"""


class Services:
    """A cluster of one etcd, one supervisor and one agent in a box, and a job on it."""

    def __init__(self, box: Box, scratch: Path) -> None:
        self.box = box
        self._scratch = scratch
        self._etcd_ports = {ETCD: (free_port(), free_port())}
        api, node = f"{NAME}:{free_port()}", f"{NAME}:{free_port()}"
        tls = {
            "ca": f"{CONFIG}/tls/ca.pem",
            "cert": f"{CONFIG}/tls/{NAME}.pem",
            "key": f"{CONFIG}/tls/{NAME}.key",
        }
        etcd_at = {"endpoints": [f"{ETCD}:{self._etcd_ports[ETCD][0]}"], "tls": tls}
        common: dict[str, object] = {"etcd": etcd_at, "control_plane_grace": GRACE}
        self._settings: dict[str, dict[str, object]] = {
            "supervisor": {**common, "listen": api.replace(NAME, "127.0.0.1"), "advertise": api},
            "agent": {
                **common,
                "listen": node.replace(NAME, "127.0.0.1"),
                "advertise": node,
                "supervisors": [api],
                "spare_launchers": 0,
            },
            "client": {"supervisors": [api], "checkpoint_base": "file:///var/lib/tf-supervisor/store"},
        }
        for settings in self._settings.values():
            settings["tls"] = tls

    def install(self) -> None:
        """As docs/install.md says."""
        install, certs = ROOT / "deploy/install.sh", ROOT / "deploy/certs.sh"
        for kind in ("supervisor", "agent"):
            self.box.run(str(install), kind)
        self.box.run(str(certs), "/etc/certificates", ETCD, f"{NAME},127.0.0.1")
        self._install_etcd()
        for name in ("ca.pem", f"{NAME}.pem", f"{NAME}.key"):
            where = (f"/etc/certificates/{name}", f"{CONFIG}/tls/{name}")
            self.box.run("install", "-m", "0600", "-o", "tfsup", *where)
        for kind, settings in self._settings.items():
            self.configure(kind, settings)
        for unit in (AGENT, SUPERVISOR):
            # There is no journal in the box, and the clone may be where no service looks for its program.
            drop_in = (
                f"[Service]\nStandardOutput=append:{self._scratch}/{unit}.log\nStandardError=inherit\n"
                f"PrivateTmp=no\nProtectHome=read-only\nEnvironment=PYTHONPATH={ROOT}\n"
            )
            self.write(f"/etc/systemd/system/{unit}.service.d/box.conf", drop_in)
        self.box.run("install", "-d", "-o", "tfsup", "/var/lib/tf-supervisor/store")
        self.box.run("systemctl", "daemon-reload")

    def _install_etcd(self) -> None:
        """A cluster of one member, which is reached by its name."""
        self.box.run("bash", "-c", f'echo "127.0.0.1 {ETCD}" >>/etc/hosts')
        if self.box.run("getent", "passwd", "etcd", check=False).returncode != 0:
            self.box.run("useradd", "--system", "etcd")
        self.box.run("install", "-d", "-o", "etcd", "-m", "0750", "/etc/etcd")
        for name in ("ca.pem", f"{ETCD}.pem", f"{ETCD}.key"):
            self.box.run("install", "-o", "etcd", "-m", "0600", f"/etc/certificates/{name}", "/etc/etcd/")
        settings = environment(ETCD, self._etcd_ports, Path("/etc/etcd"))
        self.write("/etc/default/etcd", "".join(f"{key}={value}\n" for key, value in settings.items()))
        self.write("/etc/systemd/system/etcd.service", ETCD_UNIT.format(scratch=self._scratch))
        shutil.copy(next(iter(etcd_binaries().values())), self._scratch / "etcd")
        self.box.run("systemctl", "daemon-reload")
        self.box.run("systemctl", "start", "etcd")

    def configure(self, kind: str, changes: dict[str, object]) -> None:
        """Edit a configuration file that the script has installed."""
        program = (
            "import json, sys\nfrom ruamel.yaml import YAML\n"
            "path, changes = sys.argv[1:]\nyaml = YAML()\nbody = yaml.load(open(path))\n"
            "body.update(json.loads(changes))\nyaml.dump(body, open(path, 'w'))\n"
        )
        path = f"{CONFIG}/{kind}.yaml"
        self.box.run(str(ROOT / ".venv/bin/python"), "-c", program, path, json.dumps(changes))

    def write(self, path: str, text: str) -> None:
        """A file in the box."""
        self.box.run("mkdir", "-p", str(Path(path).parent))
        self.box.run("bash", "-c", 'printf %s "$1" > "$0"', path, text)

    def ask(self, *arguments: str) -> str:
        """`supervisorctl`."""
        return self.box.run(COMMAND, "--config", f"{CONFIG}/client.yaml", *arguments).stdout

    def task(self) -> dict[str, object]:
        """The job's only task, as `status` shows it."""
        (task,) = json.loads(self.ask("status", "counting", "--output", "json"))["jobs"][0]["tasks"]
        assert isinstance(task, dict)
        return task

    def alive(self, pid: object) -> bool:
        """Whether the box has this process."""
        return self.box.run("test", "-d", f"/proc/{pid}", check=False).returncode == 0

    def signal(self, unit: str, number: signal.Signals) -> int:
        """Send it to a daemon that runs; its pid."""
        pid = self.box.main_pid(unit)
        assert pid > 0, f"{unit} does not run{self.box.logs()}"
        os.kill(pid, number)
        return pid

    def new_agent(self, than: int) -> int:
        """Wait for another agent that is ready; its pid."""

        def ready() -> int:
            pid = self.box.main_pid(AGENT)
            return pid if pid != than and self.box.show(AGENT, "ActiveState") == "active" else 0

        return wait_for(f"another agent{self.box.logs()}", ready, 30)


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    # Not in pytest's own directories, which other users may not enter, nor in /var, which is the box's own.
    scratch = Path(tempfile.mkdtemp(prefix="tfsup-systemd-", dir="/tmp"))
    scratch.chmod(0o755)
    try:
        with Box(scratch) as box:
            found = Services(box, scratch)
            found.install()
            box.run("systemctl", "start", SUPERVISOR, AGENT)
            (scratch / "job").mkdir()
            (scratch / "job/count.py").write_text(PROGRAM)
            (scratch / "job/job.yaml").write_text(JOB)
            found.ask("submit", str(scratch / "job/job.yaml"))
            found.ask("wait", "counting", "--for", "step=3", "--timeout", "60")
            yield found
    finally:
        shutil.rmtree(scratch)


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
