"""The configuration files of the daemons in pods, as documents of YAML."""

from __future__ import annotations

import io
from collections.abc import Mapping

from ruamel.yaml import YAML

from supervisor.cli.kubernetes.wanted import AGENT_PORT, HIGH, HTTP_PORT, LOW, PORT, Wanted
from supervisor.contract.access import Role

CONFIG = "/etc/tf-supervisor/config"
HADOOP = "/etc/tf-supervisor/hadoop"
TLS = "/run/tf-supervisor/tls"
STATE = "/var/lib/tf-supervisor"
STORE = "/store"
POOL, CLIENT = "pool.yaml", "client.yaml"
OWN = "own"
"""A pod has its own certificate under this name."""
DRAINER = "drainer"
"""The files with the certificate of `--drain-as`."""


def supervisor_files(wanted: Wanted) -> dict[str, str]:
    """A file for each supervisor."""
    return {f"{pod}.yaml": text(_supervisor(wanted, pod)) for pod in wanted.supervisor_names}


def agent_files(wanted: Wanted) -> dict[str, str]:
    """The file that all agents share (docs/engines.md), and the client's of their keepers."""
    client = {CLIENT: text(_client(wanted))} if wanted.drain_as else {}
    return {POOL: text(_pool(wanted)), **client}


def text(value: object) -> str:
    """A document of YAML."""
    yaml, out = YAML(), io.StringIO()
    yaml.width = 4096
    yaml.dump(value, out)
    return out.getvalue()


def _supervisor(wanted: Wanted, pod: str) -> dict[str, object]:
    return {
        "cluster": wanted.cluster,
        "id": pod,
        **_common(wanted, PORT, wanted.host(pod)),
        "state_dir": f"{STATE}/supervisor",
    }


def _pool(wanted: Wanted) -> dict[str, object]:
    return {
        "cluster": wanted.cluster,
        "node": "any",
        "supervisors": _addresses(wanted),
        "interface": wanted.interface,
        **_common(wanted, AGENT_PORT, wanted.host("agent-0").replace("agent-0", "{host}", 1)),
        "state_dir": f"{STATE}/agents",
        "lock_dir": f"{STATE}/ports",
        "checkpoint_parent": f"{STATE}/tasks",
        "port_low": LOW,
        "port_high": HIGH,
        # A launcher may not take a nice value back in a pod, and kills would be late (decision 0046).
        "task_nice": 0,
        # The room of a pod ends with its eviction, so what may be dropped is dropped long before.
        "checkpoint_budget": f"{wanted.disk // 4}B",
        "work_budget": f"{wanted.disk // 4}B",
        "log_budget": f"{min(wanted.disk // 10, 2 << 30)}B",
        # All that the device plugin gave the pod; nothing else is visible in it.
        "gpus": {"only": None if wanted.gpus else []},
    }


def _client(wanted: Wanted) -> dict[str, object]:
    files = {"ca": f"{TLS}/ca.pem", "cert": f"{TLS}/{DRAINER}.pem", "key": f"{TLS}/{DRAINER}.key"}
    return {"cluster": wanted.cluster, "supervisors": _addresses(wanted), "tls": files}


def _common(wanted: Wanted, port: int, host: str) -> dict[str, object]:
    tls = {"ca": f"{TLS}/ca.pem", "cert": f"{TLS}/{OWN}.pem", "key": f"{TLS}/{OWN}.key"}
    hadoop = {"hadoop": {"conf_dir": HADOOP, "user": wanted.hadoop_user}} if wanted.hadoop else {}
    return {
        "etcd": {"endpoints": list(wanted.etcd), "tls": dict(tls)},
        "listen": f"0.0.0.0:{port}",
        "advertise": f"{host}:{port}",
        "tls": dict(tls),
        "user_ca": f"{TLS}/user-ca.pem",
        "http": {"listen": f"0.0.0.0:{HTTP_PORT}", "advertise": f"{host}:{HTTP_PORT}"},
        "users": _users(wanted),
        "stores": [*(["hdfs:"] if wanted.hadoop else []), *([f"file://{STORE}"] if wanted.claim else [])],
        **hadoop,
    }


def _users(wanted: Wanted) -> Mapping[str, object]:
    drainer = {wanted.drain_as: Role.OPERATOR} if wanted.drain_as else {}
    return {name: {"role": role.value} for name, role in {**wanted.users, **drainer}.items()}


def _addresses(wanted: Wanted) -> list[str]:
    return [f"{wanted.host(pod)}:{PORT}" for pod in wanted.supervisor_names]
