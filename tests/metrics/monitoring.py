"""A real Prometheus and a real Alertmanager over an embedded cluster, and a receiver of their alerts."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from supervisor.cli.local.cluster import LocalCluster
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/alerts.yaml"
DEADLINE_S = 60.0
EVERY = "500ms"


@dataclass
class Receiver:
    """What an Alertmanager has sent to a webhook, oldest first."""

    alerts: list[dict[str, dict[str, str]]] = field(default_factory=list)

    def names(self) -> set[str]:
        """The names of the alerts that fire or have fired."""
        return {each["labels"]["alertname"] for each in list(self.alerts)}


@contextmanager
def receiving() -> Iterator[tuple[Receiver, int]]:
    """A receiver, and the port that it listens on."""
    receiver = Receiver()

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            receiver.alerts += [each for each in body["alerts"] if each["status"] == "firing"]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver, server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Monitoring:
    """Prometheus and what it tells."""

    port: int
    receiver: Receiver

    def ask(self, path: str, **query: str) -> dict[str, object]:
        """The data of an answer of its API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: dict[str, object] = json.load(answer)["data"]
            return found

    def series(self, expression: str) -> list[dict[str, object]]:
        """The series of an instant query."""
        found = self.ask("query", query=expression)["result"]
        assert isinstance(found, list)
        return found

    def until_series(self, expression: str) -> None:
        """Wait until a query has a series."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.series(expression):
            assert time.monotonic() < deadline, f"no series: {expression}"
            time.sleep(0.1)

    def until_received(self, alert: str) -> dict[str, dict[str, str]]:
        """Wait until the receiver has an alert."""
        deadline = time.monotonic() + DEADLINE_S
        while alert not in self.receiver.names():
            assert time.monotonic() < deadline, f"{alert} was not received; {self.ask('alerts')}"
            time.sleep(0.1)
        return next(each for each in self.receiver.alerts if each["labels"]["alertname"] == alert)


@contextmanager
def monitoring(
    directory: Path, cluster: LocalCluster, faster: Mapping[str, str] | None = None
) -> Iterator[Monitoring]:
    """Both programs, over all members of the cluster.

    `faster`: parts of the rules that are replaced, so that a test need not wait for minutes.
    """
    rules = RULES.read_text()
    for before, after in (faster or {}).items():
        assert before in rules, before
        rules = rules.replace(before, after)
    (directory / "alerts.yaml").write_text(rules)
    port, manager = free_port(), free_port()
    with ExitStack() as stack:
        receiver, hook = stack.enter_context(receiving())
        _write(directory / "alertmanager.yml", _manager(hook))
        _write(directory / "prometheus.yml", _prometheus(cluster, manager))
        log = stack.enter_context((directory / "monitoring.log").open("w"))
        for argv in (
            (
                "prometheus-alertmanager",
                "--config.file=alertmanager.yml",
                "--storage.path=alertmanager",
                f"--web.listen-address=127.0.0.1:{manager}",
                "--cluster.listen-address=",
            ),
            (
                "prometheus",
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=prometheus",
                f"--web.listen-address=127.0.0.1:{port}",
            ),
        ):
            process = subprocess.Popen(argv, cwd=directory, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
        found = Monitoring(port, receiver)
        _until_ready(port, manager, directory / "monitoring.log")
        yield found


def _until_ready(port: int, manager: int, log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    for each in (port, manager):
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{each}/-/ready", timeout=5):
                    break
            except OSError:
                assert time.monotonic() < deadline, log.read_text()[-2000:]
                time.sleep(0.05)


def _manager(hook: int) -> dict[str, object]:
    return {
        "route": {"receiver": "test", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "test", "webhook_configs": [{"url": f"http://127.0.0.1:{hook}/"}]}],
    }


def _prometheus(cluster: LocalCluster, manager: int) -> dict[str, object]:
    settings = cluster.layout.read()
    targets = [f"127.0.0.1:{port}" for port in settings.http.values()]
    return {
        "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY},
        "rule_files": ["alerts.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{manager}"]}]}]},
        "scrape_configs": [
            {
                "job_name": "tfsup",
                "authorization": {"credentials_file": str(cluster.layout.http_token)},
                "static_configs": [{"targets": targets, "labels": {"cluster": "local"}}],
            }
        ],
    }


def _write(path: Path, body: object) -> None:
    """As JSON, which is YAML."""
    path.write_text(json.dumps(body))
