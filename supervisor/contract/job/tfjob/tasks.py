"""The roles of a job file from the replica types of a manifest: commands, environments, resources. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from supervisor.contract.job.container import Where
from supervisor.contract.job.tfjob.check import near
from supervisor.contract.job.tfjob.fields import PREFIX
from supervisor.contract.job.tfjob.made import Conversion, Replica, listed, mapping, one_of
from supervisor.contract.job.tfjob.texts import decimal, literal, quantity, referenced, size

TYPES = ("Chief", "Master", "PS", "Worker", "Evaluator")
MAIN_CONTAINER = "tensorflow"
_GPU, _DISK = "nvidia.com/gpu", "ephemeral-storage"


def replicas_of(made: Conversion, given: Mapping[str, object]) -> Iterator[Replica]:
    """The replica types that a job file can have; errors about the others."""
    top: Where = ("spec", "tfReplicaSpecs")
    known, seen = {name.lower() for name in TYPES}, dict[str, str]()
    if not given:
        made.findings.problem(top, f"missing; add at least one of {', '.join(TYPES)}")
    for key, value in given.items():
        where, role = (*top, key), key.lower()
        if role not in known:
            made.findings.problem(where, "is no replica type of a TFJob" + near(key, TYPES))
        elif role in seen:
            made.findings.problem(where, f"is the same replica type as {seen[role]}; keep one of the two")
        elif isinstance(value, Mapping):
            seen[role] = key
            if (replica := _replica(made, role, where, value)) is not None:
                yield replica


def _replica(made: Conversion, role: str, where: Where, given: Mapping[str, object]) -> Replica | None:
    template = mapping(given.get("template"))
    for name in mapping(mapping(template.get("metadata")).get("annotations")):
        if str(name).startswith(PREFIX):
            place = (*where, "template", "metadata", "annotations", name)
            made.findings.problem(place, "belongs into the TFJob's own metadata.annotations; move it there")
    pod = mapping(template.get("spec"))
    at: Where = (*where, "template", "spec", "containers")
    containers = [mapping(each) for each in listed(pod.get("containers"))]
    names = [str(each.get("name")) for each in containers]
    if MAIN_CONTAINER not in names:
        made.findings.problem(
            at, f"there is no container named {MAIN_CONTAINER}, which is the one that trains"
        )
        return None
    index = names.index(MAIN_CONTAINER)
    for other, name in enumerate(names):
        if other != index:
            text = (
                "another container beside it is refused: a task is one program under tf-supervisor's launcher"
            )
            made.findings.problem((*at, other), f"{name[:60]!r}: {text}; start it from the command, or apart")
    return Replica(role, where, given, pod, containers[index], (*at, index))


def put_role(made: Conversion, replica: Replica, annotations: Mapping[str, str]) -> None:
    """Set the command, environment, resources and node labels of a role."""
    _command(made, replica, annotations)
    _resources(made, replica)
    for name, value in mapping(replica.pod.get("nodeSelector")).items():
        target: Where = ("roles", replica.role, "resources", "labels", name)
        made.put(target, value, (*replica.pod_at, "nodeSelector", name))
    one_of(made, (*replica.pod_at, "os", "name"), mapping(replica.pod.get("os")).get("name"), ("linux",))


def _command(made: Conversion, replica: Replica, annotations: Mapping[str, str]) -> None:
    variables, hidden = _environment(made, replica)
    words: list[tuple[str, Where]] = [
        (str(word), (*replica.at, name, index))
        for name in ("command", "args")
        for index, word in enumerate(listed(replica.main.get(name)))
    ]
    annotated = {"command", f"roles.{replica.role}.command"} & set(annotations)
    if replica.main.get("command"):
        target: Where = ("roles", replica.role, "command")
        texts = [literal(made.expanded(word, variables, where)) for word, where in words]
        made.put(target, texts, (*replica.at, "command"))
        for index, (word, where) in enumerate(words):
            made.origin[(*target, index)] = where
            _check_hidden(made, where, word, hidden)
    elif annotated and words:
        text = f"needs a command before it; the annotation {PREFIX}{min(annotated)} stands for both"
        made.findings.problem((*replica.at, "args"), text)
    elif not annotated:
        text = (
            "missing; an image's ENTRYPOINT and CMD are not run, as a program starts under tf-supervisor's "
            f"launcher: write them here, or into the annotation {PREFIX}command (docker image inspect IMAGE)"
        )
        made.findings.problem((*replica.at, "command"), text)


def _environment(made: Conversion, replica: Replica) -> tuple[dict[str, str], frozenset[str]]:
    """The variables by whose values `$(VAR)` is replaced, and those whose values nobody knows yet."""
    variables: dict[str, str] = {}
    hidden = {"TF_CONFIG"}
    made.origin[("roles", replica.role, "env")] = (*replica.at, "env")
    for index, item in enumerate(listed(replica.main.get("env"))):
        where: Where = (*replica.at, "env", index)
        variable = mapping(item)
        name = str(variable.get("name") or "")
        if not name:
            made.findings.problem(where, "has no name; add it")
            continue
        target: Where = ("roles", replica.role, "env", name)
        origin = mapping(variable.get("valueFrom"))
        source = origin.get("secretKeyRef")
        if variable.get("value") and origin:
            made.findings.problem(where, "has both value and valueFrom; keep one of the two")
        elif variable.get("valueFrom") is not None and not any(origin.values()):
            made.findings.problem(
                (*where, "valueFrom"), "is empty; write secretKeyRef, or value in its place"
            )
        elif isinstance(source, Mapping):
            for part in [part for part in ("name", "key") if not source.get(part)]:
                made.findings.problem((*where, "valueFrom", "secretKeyRef", part), "missing; add it")
            hidden.add(name)
            variables.pop(name, None)
            secret = f"{source.get('name') or ''}.{source.get('key') or ''}"
            made.put(target, {"secret": secret}, (*where, "valueFrom", "secretKeyRef"))
        elif not origin:
            text = str(variable.get("value") or "")
            _check_hidden(made, (*where, "value"), text, hidden)
            hidden.discard(name)
            variables[name] = made.expanded(text, variables, (*where, "value"))
            made.put(target, literal(variables[name]), (*where, "value") if "value" in variable else where)
    return variables, frozenset(hidden)


def _check_hidden(made: Conversion, where: Where, text: str, hidden: frozenset[str] | set[str]) -> None:
    for name in sorted(referenced(text) & hidden):
        why = f"$({name}) is known when a task starts and not before"
        made.findings.problem(
            where, f"{why}; let a shell read it: [sh, -c, 'exec python train.py \"${name}\"']"
        )


def _resources(made: Conversion, replica: Replica) -> None:
    top: Where = (*replica.at, "resources")
    given = mapping(replica.main.get("resources"))
    limits, requests = mapping(given.get("limits")), mapping(given.get("requests"))
    for name in dict.fromkeys((*limits, *requests)):
        found = {
            kind: quantity(of[name])
            for kind, of in (("requests", requests), ("limits", limits))
            if name in of
        }
        for kind in [kind for kind, number in found.items() if number is None]:
            made.findings.problem(
                (*top, kind, name), "must be a quantity of Kubernetes, for example 2, 500m or 4Gi"
            )
        kind, number = list(found.items())[-1]
        if number is None or None in found.values():
            continue
        if name in limits and name in requests and quantity(requests[name]) != number and name != _DISK:
            text = "has no effect where it differs from the limit, which a task is given and held to"
            made.findings.note((*top, "requests", name), text)
        _resource(made, replica.role, name, number, (*top, kind, name))


def _resource(made: Conversion, role: str, name: str, number: Fraction, where: Where) -> None:
    target: Where = ("roles", role, "resources")
    if name == "cpu":
        made.put((*target, "cpus"), decimal(number), where)
    elif name == "memory":
        made.put((*target, "memory"), size(number), where)
    elif name == _GPU and number.denominator == 1:
        made.put((*target, "gpus"), int(number), where)
    elif name == _GPU:
        made.findings.problem(where, "must be a whole number of GPUs")
    elif name == _DISK:
        made.findings.note(
            where, "has no effect: a node's agent bounds the disk that a job fills (docs/configuration.md)"
        )
    else:
        made.findings.problem(where, f"is refused: nodes have cpu, memory and {_GPU}")
