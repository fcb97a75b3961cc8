"""The pods of supervisors and agents: what runs in them, with which rights, and where it keeps what."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.cli.kubernetes.files import CLIENT, CONFIG, DRAINER, HADOOP, OWN, POOL, STATE, STORE, TLS
from supervisor.cli.kubernetes.wanted import AGENT, AGENT_PORT, HTTP_PORT, PORT, SUPERVISOR, Wanted

USER = 10_001
"""The user of all programs in the image; nobody on a machine."""
OVERHEAD = 1 << 30
"""Memory of a pod beside its tasks: the agent, its keeper, and spare room."""
ENDING_S = 45
"""The time that a keeper takes beside its notice: the agent's end, the fence, and the lift of the drain."""
MACHINE = "machine"
"""The label of a node that names its machine."""
GPU = "nvidia.com/gpu"
_SECRETS = "/secrets"
_FIRST = ("tini", "--")
"""The first process of a container has to reap what its children leave behind."""
_ALIVE = """\
import socket, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.wrap_socket(socket.create_connection(("127.0.0.1", {port}), 4)).close()
"""
"""A supervisor answers a handshake in its one loop: one that hangs does not."""
Spec = dict[str, object]


def supervisor_pod(wanted: Wanted) -> Spec:
    """A supervisor. Its state is a volume of its own, as its promises outlive it (rule 1.7)."""
    container: Spec = {
        "name": SUPERVISOR,
        "image": wanted.image,
        "command": [*_FIRST, "tfsup-supervisord", "--config", f"{CONFIG}/$(POD_NAME).yaml"],
        "env": [_field("POD_NAME", "metadata.name"), {"name": "HOME", "value": "/tmp"}],
        "ports": [{"name": "grpc", "containerPort": PORT}, {"name": "http", "containerPort": HTTP_PORT}],
        "readinessProbe": {"tcpSocket": {"port": "grpc"}, "periodSeconds": 5},
        "livenessProbe": {
            "exec": {"command": ["python3", "-I", "-S", "-c", _ALIVE.format(port=HTTP_PORT)]},
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
        },
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": _rights(),
        "volumeMounts": [
            {"name": "state", "mountPath": STATE},
            *_mounts(wanted),
        ],
    }
    spread = _spread(SUPERVISOR, "DoNotSchedule")
    return _pod(wanted, SUPERVISOR, container, [], {"topologySpreadConstraints": [spread]})


def agent_pod(wanted: Wanted) -> Spec:
    """An agent under its keeper. All that is in the pod ends with it: the next one is a new incarnation."""
    client = ["--config", f"{CONFIG}/{CLIENT}"] if wanted.drain_as else []
    container: Spec = {
        "name": AGENT,
        "image": wanted.image,
        "command": [
            *_FIRST,
            *("python3", "-P", "-m", "supervisor.engines.keeper", "--pool", wanted.cluster),
            *("--place", "$(POD_NAME)", "--id", "$(POD_UID)", "--label", f"{MACHINE}=$(MACHINE)"),
            *("--agent-config", f"{CONFIG}/{POOL}", *client, "--cpus", str(wanted.cpus)),
            *("--memory", str(wanted.memory), "--notice", str(wanted.notice_s)),
        ],
        "env": [
            _field("POD_NAME", "metadata.name"),
            _field("POD_UID", "metadata.uid"),
            _field("MACHINE", "spec.nodeName"),
            {"name": "HOME", "value": "/tmp"},
            *_gpu_environment(wanted),
        ],
        "ports": [
            {"name": "grpc", "containerPort": AGENT_PORT},
            {"name": "http", "containerPort": HTTP_PORT},
        ],
        # No livenessProbe: the keeper replaces an agent that dies, and the end of a container ends its tasks.
        "readinessProbe": {"tcpSocket": {"port": "grpc"}, "periodSeconds": 5},
        # The keeper has the tasks save, and ends with all of them; with it ends the container, and this wait.
        "lifecycle": {
            "preStop": {
                "exec": {"command": ["sh", "-c", f"kill -USR2 1; sleep {wanted.notice_s + ENDING_S}"]}
            }
        },
        "resources": _resources(wanted),
        "securityContext": _rights(),
        "volumeMounts": [
            # A directory of the agent's own user: a volume's root is one that every user may write to.
            {"name": "scratch", "mountPath": STATE, "subPath": "state"},
            {"name": "shm", "mountPath": "/dev/shm"},
            *_mounts(wanted),
        ],
    }
    more: Spec = {
        "topologySpreadConstraints": [_spread(AGENT, "ScheduleAnyway")],
        "terminationGracePeriodSeconds": wanted.notice_s + ENDING_S,
    }
    if wanted.gpus:
        more["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    volumes: list[Spec] = [
        {"name": "scratch", "emptyDir": {"sizeLimit": _size(wanted.disk)}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _size(wanted.shm)}},
    ]
    return _pod(wanted, AGENT, container, volumes, more)


def _pod(wanted: Wanted, component: str, container: Spec, volumes: list[Spec], more: Spec) -> Spec:
    hadoop: list[Spec] = [{"name": "hadoop", "configMap": {"name": "hadoop"}}] if wanted.hadoop else []
    store: list[Spec] = []
    if wanted.claim:
        store = [{"name": "store", "persistentVolumeClaim": {"claimName": wanted.claim}}]
    return {
        "serviceAccountName": component,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [_prepare(wanted, component)],
        "containers": [container],
        **more,
        "volumes": [
            {"name": "config", "configMap": {"name": component}},
            {"name": "secrets", "secret": {"secretName": f"{component}-tls"}},
            {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
            {"name": "tmp", "emptyDir": {}},
            *volumes,
            *hadoop,
            *store,
        ],
    }


def _prepare(wanted: Wanted, component: str) -> Spec:
    """Copies this pod's own certificate out of the Secret of all, with a mode that the daemons take.

    Kubernetes lets a pod's group read the files of a Secret, and daemons refuse a key that others can read.
    """
    name = f"{component}-$POD_NAME" if component == SUPERVISOR else f"{component}-{wanted.cluster}.$POD_NAME"
    own = [f"{_SECRETS}/{name}.{end}" for end in ("pem", "key")]
    copies = [
        f"install -m 0400 {_SECRETS}/ca.pem {_SECRETS}/user-ca.pem {TLS}",
        *(f"install -m 0400 {file} {TLS}/{OWN}.{end}" for file, end in zip(own, ("pem", "key"), strict=True)),
    ]
    if component == AGENT and wanted.drain_as:
        user = f"{_SECRETS}/user-{wanted.drain_as}"
        copies += [f"install -m 0400 {user}.{end} {TLS}/{DRAINER}.{end}" for end in ("pem", "key")]
    mounts = [
        {"name": "secrets", "mountPath": _SECRETS, "readOnly": True},
        {"name": "run", "mountPath": "/run/tf-supervisor"},
    ]
    if component == AGENT:
        copies.append(f"install -d -m 0700 {_SCRATCH}/state")
        mounts.append({"name": "scratch", "mountPath": _SCRATCH})
    return {
        "name": "prepare",
        "image": wanted.image,
        "command": ["sh", "-ec", "\n".join([f"install -d -m 0700 {TLS}", *copies, ""])],
        "env": [_field("POD_NAME", "metadata.name")],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}},
        "securityContext": _rights(),
        "volumeMounts": mounts,
    }


_SCRATCH = "/scratch"


def _mounts(wanted: Wanted) -> list[Spec]:
    hadoop: list[Spec] = [{"name": "hadoop", "mountPath": HADOOP, "readOnly": True}] if wanted.hadoop else []
    store: list[Spec] = [{"name": "store", "mountPath": STORE}] if wanted.claim else []
    return [
        {"name": "config", "mountPath": CONFIG, "readOnly": True},
        {"name": "run", "mountPath": "/run/tf-supervisor"},
        {"name": "tmp", "mountPath": "/tmp"},
        *hadoop,
        *store,
    ]


def _resources(wanted: Wanted) -> Spec:
    """The same as request and as limit: the kubelet ends such pods last."""
    own = {"cpu": str(wanted.cpus), "memory": _size(wanted.memory + wanted.shm + OVERHEAD)}
    gpus = {GPU: str(wanted.gpus)} if wanted.gpus else {}
    return {"requests": {**own, "ephemeral-storage": _size(wanted.disk), **gpus}, "limits": {**own, **gpus}}


def _gpu_environment(wanted: Wanted) -> list[Mapping[str, str]]:
    if wanted.gpus:
        return [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}]
    # An image with CUDA asks the runtime for all GPUs of the machine.
    return [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def _rights() -> Spec:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _spread(component: str, otherwise: str) -> Spec:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": otherwise,
        "labelSelector": {"matchLabels": {"app.kubernetes.io/component": component}},
    }


def _field(name: str, path: str) -> Spec:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _size(count: int) -> str:
    return f"{-(-count // (1 << 20))}Mi"
