"""The daemons as services in a box, installed as docs/install.md says, and a job for them."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.deploy.box import NAME, ROOT, Box, wait_for
from tests.deploy.etcd_member import environment
from tests.support.etcd_server import etcd_binaries
from tests.support.ports import free_port

AGENT, SUPERVISOR = "tfsup-agent", "tfsup-supervisord"
CONFIG = "/etc/tf-supervisor"
ETCD = "etcd-1"
HOLDERS = {"supervisor": f"supervisor-{NAME}", "agent": f"agent-{NAME}", "client": "user-admin"}
"""Configuration -> its certificate."""
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

STORE = "file:///var/lib/tf-supervisor/store"


class Services:
    """A cluster of one etcd, one supervisor and one agent in a box. `agent`: more of its settings."""

    def __init__(self, box: Box, scratch: Path, agent: Mapping[str, object] | None = None) -> None:
        self.box = box
        self._scratch = scratch
        self._etcd_ports = {ETCD: (free_port(), free_port())}
        api, node = f"{NAME}:{free_port()}", f"{NAME}:{free_port()}"
        common: dict[str, object] = {"control_plane_grace": GRACE}
        self._settings: dict[str, dict[str, object]] = {
            "supervisor": {**common, "listen": api.replace(NAME, "127.0.0.1"), "advertise": api},
            "agent": {
                **common,
                "listen": node.replace(NAME, "127.0.0.1"),
                "advertise": node,
                "supervisors": [api],
                "spare_launchers": 0,
                "stores": [STORE],
                **(agent or {}),
            },
            "client": {"supervisors": [api], "checkpoint_base": STORE},
        }
        for kind, settings in self._settings.items():
            tls = {"ca": f"{CONFIG}/tls/ca.pem"}
            tls |= {
                name: f"{CONFIG}/tls/{HOLDERS[kind]}.{end}" for name, end in (("cert", "pem"), ("key", "key"))
            }
            settings["tls"] = tls
            if kind != "client":
                settings["etcd"] = {"endpoints": [f"{ETCD}:{self._etcd_ports[ETCD][0]}"], "tls": tls}

    def install(self) -> None:
        """As docs/install.md says."""
        install = ROOT / "deploy/install.sh"
        for kind in ("supervisor", "agent"):
            self.box.run(str(install), kind)
        holders = (f"etcd:{ETCD}", f"supervisor:{NAME},127.0.0.1", f"agent:{NAME},127.0.0.1", "user:admin")
        self.box.run(COMMAND, "certs", "issue", "/etc/certificates", *holders)
        self._install_etcd()
        files = [f"{holder}.{end}" for holder in HOLDERS.values() for end in ("pem", "key")]
        for name in ("ca.pem", "user-ca.pem", *files):
            where = (f"/etc/certificates/{name}", f"{CONFIG}/tls/{name}")
            self.box.run("install", "-m", "0600", "-o", "tfsup", *where)
        for kind, settings in self._settings.items():
            self.configure(kind, settings)
        for unit in (AGENT, SUPERVISOR):
            # There is no journal in the box, and the clone may be where no service looks for its program.
            drop_in = (
                f"[Service]\nStandardOutput=append:{self._scratch}/{unit}.log\nStandardError=inherit\n"
                f"Environment=PYTHONPATH={ROOT}\n"
            )
            if unit == SUPERVISOR:
                drop_in += "PrivateTmp=no\nProtectHome=read-only\n"
            self.write(f"/etc/systemd/system/{unit}.service.d/box.conf", drop_in)
        self.box.run("install", "-d", "-o", "tfsup", "/var/lib/tf-supervisor/store")
        self.box.run("systemctl", "daemon-reload")

    def _install_etcd(self) -> None:
        """A cluster of one member, which is reached by its name."""
        self.box.run("bash", "-c", f'echo "127.0.0.1 {ETCD}" >>/etc/hosts')
        if self.box.run("getent", "passwd", "etcd", check=False).returncode != 0:
            self.box.run("useradd", "--system", "etcd")
        self.box.run("install", "-d", "-o", "etcd", "-m", "0750", "/etc/etcd")
        own = [f"etcd-{ETCD}{kind}.{end}" for kind in ("", "-peer") for end in ("pem", "key")]
        for name in ("ca.pem", "peer-ca.pem", *own):
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

    def run(self, more: str = "") -> None:
        """Start the daemons, and wait until a job of one task trains; `more` of its job file."""
        self.box.run("systemctl", "start", SUPERVISOR, AGENT)
        (self._scratch / "job").mkdir()
        (self._scratch / "job/count.py").write_text(PROGRAM)
        (self._scratch / "job/job.yaml").write_text(JOB + more)
        self.ask("submit", str(self._scratch / "job/job.yaml"))
        self.ask("wait", "counting", "--for", "step=3", "--timeout", "60")

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
