"""The daemons take the printed configuration, and a cluster of the printed pods trains and outlives them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from chaos.container_image import IMAGE
from chaos.dockerd import Dockerd
from supervisor.adapters.files.config.client import load_client
from supervisor.adapters.files.config.supervisor import load_supervisor
from supervisor.cli.main import cli
from supervisor.engines import agent_file
from supervisor.engines.agent_file import Own
from tests.examples.harness import EXAMPLES
from tests.kubernetes.pods import Pod, Stage, secret
from tests.kubernetes.printed import LEAST, Document, Printed, allowed, hadoop, manifests
from tests.support.etcd_server import etcd_binaries

WAIT_S = 150.0


def issue(printed: Printed, directory: Path, *more: str) -> None:
    """Run the printed commands that make certificates."""
    commands = [each.split() for each in printed.commands("supervisorctl")]
    assert [words[1:4] for words in commands] == [["certs", "issue", "certs"]] * 2
    for holders in (*(words[4:] for words in commands), more):
        done = CliRunner().invoke(cli, ["certs", "issue", str(directory), *holders])
        assert done.exit_code == 0, done.exception


@pytest.mark.parametrize("more", [(), ("--gpus", "2", "--drain-as", "keeper")])
def test_the_daemons_take_their_files(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdfs = hadoop(tmp_path) if more else ()
    printed = manifests(*LEAST, *more, *hdfs)
    issue(printed, tmp_path / "certs", "etcdctl:admin")
    for component, ours in (("supervisor", "supervisor-2"), ("agent", "training.agent-0")):
        place = tmp_path / component
        (place / "run/tf-supervisor/tls").mkdir(parents=True)
        # As the first container of a pod copies them (`test_a_cluster_of_the_manifests`).
        names = {f"{component}-{ours}": "own", "user-keeper": "drainer"}
        for file in secret(printed, f"{component}-tls", tmp_path / "certs"):
            shutil.copy(file, place / f"run/tf-supervisor/tls/{names.get(file.stem, file.stem)}{file.suffix}")
        for name, text in printed.find("ConfigMap", component)["data"].items():
            placed = text.replace("/etc/tf-supervisor/hadoop", str(tmp_path))
            (place / name).write_text(placed.replace("/run/tf-supervisor", f"{place}/run/tf-supervisor"))
    monkeypatch.setattr(os, "geteuid", lambda: 10_001)
    supervisor = load_supervisor(tmp_path / "supervisor/supervisor-2.yaml")
    assert supervisor.id == "supervisor-2"
    assert supervisor.address == "supervisor-2.supervisor.tf-supervisor.svc:7600"
    assert supervisor.http_url == "https://supervisor-2.supervisor.tf-supervisor.svc:7602"
    for files in (supervisor.tls_files(), supervisor.etcd_tls_files(), supervisor.http_tls_files()):
        assert files is not None
        files.load()
    agent_file.check(pool := tmp_path / "agent/pool.yaml", "training")
    given = YAML(typ="safe").load(pool)["gpus"]
    # With GPUs all that are visible; a keeper whose file says nothing would offer none (docs/engines.md).
    agent_file.adapt_to(found := {"gpus": given}, Own(node="training.agent-0"))
    assert found["gpus"] == {"only": None if more else []}
    if more:
        client = load_client(tmp_path / "agent/client.yaml")
        assert client.supervisors == [f"supervisor-{n}.supervisor.tf-supervisor.svc:7600" for n in range(3)]
        files = client.tls_files()
        assert files is not None
        files.load()


class Cluster:
    """etcd, a client and pods, in a network of a real dockerd."""

    def __init__(self, dockerd: Dockerd, directory: Path) -> None:
        self.dockerd = dockerd
        self.directory = directory
        words = ("--supervisors", "1", "--agents", "2", "--cpus", "1", "--memory", "1GiB", "--notice", "30")
        printed = manifests(*LEAST, *words, "--drain-as", "keeper")
        self.stage = Stage(dockerd, dockerd.network(), printed, directory)
        issue(printed, self.stage.certificates, "etcd:etcd-1")
        self._start_etcd()
        self._start_client()

    def _start_etcd(self) -> None:
        binary = list(etcd_binaries().values())[-1]
        own = "/certs/etcd-etcd-1"
        self.dockerd.cli(
            *("run", "--detach", "--name=etcd-1", f"--network={self.stage.network}"),
            *(f"--volume={binary}:/etcd:ro", f"--volume={self.stage.certificates}:/certs:ro", IMAGE),
            *("/etcd", "--data-dir=/tmp/data", "--listen-client-urls=https://0.0.0.0:2379"),
            *(
                "--advertise-client-urls=https://etcd-1:2379",
                "--client-cert-auth",
                "--trusted-ca-file=/certs/ca.pem",
            ),
            *(f"--cert-file={own}.pem", f"--key-file={own}.key"),
        )

    def _start_client(self) -> None:
        tls = {"ca": "certs/ca.pem", "cert": "certs/user-admin.pem", "key": "certs/user-admin.key"}
        supervisors = ["supervisor-0.supervisor.tf-supervisor.svc:7600"]
        base = {"cluster": "training", "supervisors": supervisors, "checkpoint_base": "file:///store"}
        (self.directory / "client.yaml").write_text(json.dumps(base | {"tls": tls}))
        self.dockerd.cli(
            *(
                "run",
                "--detach",
                "--name=client",
                f"--network={self.stage.network}",
                *self.stage.installation,
            ),
            *(f"--volume={self.directory}:/client:ro", IMAGE, "sleep", "infinity"),
        )

    def ctl(self, *words: str) -> Document:
        """The document that a verb prints."""
        done = self.attempt(*words)
        assert done.returncode == 0, done.stderr
        found: Document = json.loads(done.stdout)
        return found

    def attempt(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a verb in the client's container."""
        ours = ("supervisorctl", "--config", "/client/client.yaml", "--output", "json")
        return self.dockerd.attempt("exec", "client", *ours, *words, timeout_s=WAIT_S)

    def check_connections(self, *pods: Pod) -> set[tuple[str, str, str, int]]:
        """The connections of pods: of whom, in which direction, with whom. A NetworkPolicy allows each."""
        names = self.dockerd.cli("ps", "--format={{.Names}}").split()
        form = "--format={{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        whose = {self.dockerd.cli("inspect", form, name): name.partition("-")[0] for name in names}
        found = set()
        for pod in pods:
            policy = self.stage.printed.find("NetworkPolicy", pod.component)["spec"]
            for direction, address, port in pod.connections():
                peer = whose[address]
                found.add((pod.component, direction, peer, port))
                fitting = {(who, f"TCP:{port}") for who in ({"client": "true"}.get(peer, peer), "anybody")}
                assert fitting & allowed(policy[direction]), (pod.name, direction, peer, port)
        return found

    def ready(self) -> set[str]:
        """The nodes that are ready."""
        done = self.attempt("nodes")
        nodes = json.loads(done.stdout)["nodes"] if done.returncode == 0 else []
        return {each["node"] for each in nodes if each["state"] == "ready"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    directory = Path(tempfile.mkdtemp(prefix="pods-"))
    directory.chmod(0o755)
    with Dockerd(apart=True) as dockerd:
        yield Cluster(dockerd, directory)
    shutil.rmtree(directory)


def wait_for(condition: Callable[[], bool], what: str, *pods: Pod) -> None:
    """Wait for a condition; the logs of pods tell why it does not come about."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "\n".join([what, *(pod.log for pod in pods)])
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="dockerd needs root")
def test_a_cluster_of_the_manifests_trains_and_outlives_its_pods(cluster: Cluster) -> None:
    supervisor = Pod(cluster.stage, "supervisor", 0)
    agents = [Pod(cluster.stage, "agent", number) for number in range(2)]
    for pod in (supervisor, *agents):
        pod.start()
    both = {"training.agent-0", "training.agent-1"}
    wait_for(lambda: cluster.ready() == both, "both nodes are ready", supervisor, *agents)
    (node,) = (each for each in cluster.ctl("nodes")["nodes"] if each["node"] == "training.agent-1")
    assert node["labels"] == {
        "pool": "training",
        "place": "agent-1",
        "agent": "uid-of-agent-1-0",
        "machine": "machine-1",
    }
    probe = supervisor.main["livenessProbe"]["exec"]["command"]
    assert supervisor.run(probe) == 0

    job = cluster.directory / "job"
    shutil.copytree(EXAMPLES / "plain", job)
    with (job / "job.yaml").open("a") as file:
        file.write("code: {dir: .}\n")
    cluster.ctl("submit", "/client/job/job.yaml")
    cluster.ctl("wait", "plain", "--for", "step=20")
    assert b"step 20" in b64decode(cluster.ctl("tail", "plain/worker:0")["data"])
    assert cluster.check_connections(supervisor, *agents) >= {
        ("agent", "egress", "etcd", 2379),
        ("agent", "egress", "supervisor", 7600),
        ("supervisor", "egress", "etcd", 2379),
        ("supervisor", "egress", "agent", 7601),
        ("supervisor", "ingress", "agent", 7600),
    }
    (view,) = cluster.ctl("status", "plain")["jobs"]
    number = int(view["tasks"][0]["node"][-1])
    agents[number].stop()
    assert f"its tasks save, and training.agent-{number} is drained" in agents[number].log
    assert "drained" in [each["cause"] for each in cluster.ctl("explain", "plain")["incidents"]]
    # The same name, and nothing of the pod before: no state, another incarnation, no drain.
    again = Pod(cluster.stage, "agent", number, life=1)
    again.start()
    wait_for(lambda: cluster.ready() == both, "the node is back", again)
    cluster.ctl("wait", "plain", "--for", "succeeded")

    cluster.dockerd.cli("exec", supervisor.container, "sh", "-c", "kill -STOP $(cat /proc/1/task/1/children)")
    assert supervisor.run(probe) == 1
