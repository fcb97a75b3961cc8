"""All objects of a cluster in Kubernetes, and the text that `kubectl apply` takes."""

from __future__ import annotations

from ruamel.yaml.scalarstring import LiteralScalarString

from supervisor.cli.kubernetes import files
from supervisor.cli.kubernetes.files import STORE, agent_files, supervisor_files
from supervisor.cli.kubernetes.network import COMPONENT, policies
from supervisor.cli.kubernetes.pods import agent_pod, supervisor_pod
from supervisor.cli.kubernetes.wanted import AGENT, AGENT_PORT, HTTP_PORT, PORT, SUPERVISOR, Wanted

PART_OF = {"app.kubernetes.io/name": "tf-supervisor"}
LEVEL = "pod-security.kubernetes.io/enforce"
Object = dict[str, object]


def objects(wanted: Wanted) -> list[Object]:
    """Every object, in the order in which they are made.

    There is no Role: no program here asks the API of Kubernetes, so no account has a right or a token.
    """
    hadoop = [_config(wanted, "hadoop", wanted.hadoop)] if wanted.hadoop else []
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": wanted.namespace, "labels": {**PART_OF, LEVEL: "restricted"}},
        },
        *(_object(wanted, "v1", "ServiceAccount", name, _NO_TOKEN) for name in (SUPERVISOR, AGENT)),
        *(
            _object(wanted, "networking.k8s.io/v1", "NetworkPolicy", name, {"spec": spec})
            for name, spec in policies(wanted)
        ),
        *hadoop,
        _config(wanted, SUPERVISOR, supervisor_files(wanted)),
        _config(wanted, AGENT, agent_files(wanted)),
        _service(wanted, SUPERVISOR, PORT),
        _service(wanted, AGENT, AGENT_PORT),
        _disruptions(wanted, SUPERVISOR),
        _disruptions(wanted, AGENT),
        _set(wanted, SUPERVISOR, wanted.supervisors, supervisor_pod(wanted), [_state()]),
        _set(wanted, AGENT, wanted.agents, agent_pod(wanted), []),
    ]


def text(wanted: Wanted) -> str:
    """The documents, below the steps that come first as a comment."""
    comment = "".join(f"# {line}".rstrip() + "\n" for line in steps(wanted))
    return comment + "---\n".join(files.text(_readable(each)) for each in objects(wanted))


def steps(wanted: Wanted) -> list[str]:
    """The steps that the user takes by hand, as commands of a shell."""
    supervisors = " ".join(f"supervisor:{pod},{wanted.host(pod)}" for pod in wanted.supervisor_names)
    agents = " ".join(f"agent:{wanted.node(pod)},{wanted.host(pod)}" for pod in wanted.agent_names)
    users = " ".join(f"user:{each}" for each in (*wanted.users, wanted.drain_as) if each)
    drainer = f" certs/user-{wanted.drain_as}.*" if wanted.drain_as else ""
    store = f"file://{STORE}" if wanted.claim else "hdfs://NAMESERVICE/DIR"
    return [
        f"The cluster {wanted.cluster} of tf-supervisor; docs/kubernetes.md explains it.",
        "",
        "1. Certificates, in the directory that has the authority of etcd's members too:",
        f"supervisorctl certs issue certs {supervisors} {users}",
        f"supervisorctl certs issue certs {agents}",
        "",
        "2. The namespace, and its Secrets:",
        f"kubectl create namespace {wanted.namespace}",
        _secret(wanted, SUPERVISOR, f"certs/{SUPERVISOR}-{SUPERVISOR}-*"),
        _secret(wanted, AGENT, f"certs/{AGENT}-{wanted.cluster}.{AGENT}-*{drainer}"),
        "",
        "3. This file:",
        "kubectl apply -f FILE",
        "",
        f"Jobs keep their checkpoints in {store}.",
    ]


def _secret(wanted: Wanted, component: str, patterns: str) -> str:
    return (
        f"kubectl -n {wanted.namespace} create secret generic {component}-tls "
        f"$(printf -- '--from-file=%s ' certs/ca.pem certs/user-ca.pem {patterns})"
    )


_NO_TOKEN: Object = {"automountServiceAccountToken": False}


def _object(wanted: Wanted, version: str, kind: str, name: str, more: Object) -> Object:
    component = {COMPONENT: name} if name in (SUPERVISOR, AGENT) else {}
    metadata = {"name": name, "namespace": wanted.namespace, "labels": {**PART_OF, **component}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def _config(wanted: Wanted, name: str, data: object) -> Object:
    return _object(wanted, "v1", "ConfigMap", name, {"data": data})


def _service(wanted: Wanted, component: str, port: int) -> Object:
    """A headless Service: each pod has a name in the DNS, also before it is ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _labels(component),
        "ports": [{"name": "grpc", "port": port}, {"name": "http", "port": HTTP_PORT}],
    }
    return _object(wanted, "v1", "Service", component, {"spec": spec})


def _disruptions(wanted: Wanted, component: str) -> Object:
    # A pod that does not work holds up nobody who drains its machine.
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": _labels(component)},
    }
    return _object(wanted, "policy/v1", "PodDisruptionBudget", component, {"spec": spec})


def _set(wanted: Wanted, component: str, replicas: int, pod: Object, claims: list[Object]) -> Object:
    spec = {
        "serviceName": component,
        "replicas": replicas,
        # A rollout goes on when a pod has had the time to join the cluster again.
        "minReadySeconds": 20,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": _labels(component)},
        "template": {"metadata": {"labels": _labels(component)}, "spec": pod},
        **({"volumeClaimTemplates": claims} if claims else {}),
    }
    return _object(wanted, "apps/v1", "StatefulSet", component, {"spec": spec})


def _state() -> Object:
    """The volume of a supervisor's state, of the default class of storage."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": "state"}, "spec": spec}


def _labels(component: str) -> dict[str, str]:
    return {**PART_OF, COMPONENT: component}


def _readable(value: object) -> object:
    """Texts of several lines as blocks."""
    if isinstance(value, dict):
        return {key: _readable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if isinstance(value, str) and "\n" in value:
        return LiteralScalarString(value)
    return value
