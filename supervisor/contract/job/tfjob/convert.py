"""From a TFJob to a job file. Pure: plain values in, plain values out.

The result is what a user would write as a job file, and passes through the job file's own reader. `origin`
names the field of the manifest that each field was made of, so that the reader's errors name it, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from supervisor.contract.job.container import Where
from supervisor.contract.job.spec import CHIEF_ROLES, Strategy
from supervisor.contract.job.tfjob.check import Findings, check, near, own
from supervisor.contract.job.tfjob.containers import put_container
from supervisor.contract.job.tfjob.fields import PREFIX, VOLUMES
from supervisor.contract.job.tfjob.made import Conversion, Replica, listed, mapping, one_of
from supervisor.contract.job.tfjob.tasks import put_role, replicas_of

API_VERSION, KIND = "kubeflow.org/v1", "TFJob"
CONTROLLER = "kubeflow.org/training-operator"
_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
_CLEANING = ("All", "Running", "None", "")
_SUCCESS = ("", "AllWorkers")
_PERMANENT = ("program_exit", "data_loss", "out_of_range", "resource_exhausted")
"""Causes of an exit with a code of the program's own, which ExitCode takes for permanent."""

RETRYABLE = 128
"""The first exit code that ExitCode takes for a passing fault."""

_YEAR = "365d"


def is_manifest(document: object) -> bool:
    """Whether a document is an object of Kubernetes, and not a job file."""
    return isinstance(document, Mapping) and bool({"apiVersion", "kind"} & set(document))


def convert(manifest: Mapping[str, object], scalar: Callable[[str], object]) -> Conversion:
    """Convert a manifest.

    `scalar` reads an annotation's text as YAML would: a number, true, false, or the text.
    """
    for name, good in (("kind", KIND), ("apiVersion", API_VERSION)):
        if (given := manifest.get(name)) != good:
            foreign = Conversion(Findings())
            shown = f"{str(given)[:60]!r} is not supported" if name in manifest else "missing"
            foreign.findings.problem(
                (name,), f"{shown}; what can be submitted is {name}: {good}, or a job file"
            )
            return foreign
    findings = check(manifest)
    made = Conversion(findings)
    if findings.readable:
        metadata, spec = mapping(manifest.get("metadata")), mapping(manifest.get("spec"))
        annotations = own({name: str(text) for name, text in mapping(metadata.get("annotations")).items()})
        _name(made, metadata)
        replicas = tuple(replicas_of(made, mapping(spec.get("tfReplicaSpecs"))))
        if replicas:
            _strategy(made, spec, replicas, annotations)
            _sizes(made, spec, replicas)
        for replica in replicas:
            put_role(made, replica, annotations)
        if replicas:
            put_container(made, replicas, annotations)
            _restarts(made, spec, replicas)
            _priority(made, spec, replicas, annotations)
        _run_policy(made, spec, replicas)
        _overlay(made, replicas, annotations, scalar)
    return made


def _name(made: Conversion, metadata: Mapping[str, object]) -> None:
    where: Where = ("metadata", "name")
    if metadata.get("name"):
        made.put(("name",), metadata["name"], where)
        if metadata.get("generateName"):
            made.findings.note(("metadata", "generateName"), "has no effect: metadata.name is given")
    elif metadata.get("generateName"):
        text = "a job is found again by its name, which stays the same; write metadata.name, or give --name"
        made.findings.problem(("metadata", "generateName"), text)
    else:
        made.findings.problem(where, "missing; add the name of the job")


def _run_policy(made: Conversion, spec: Mapping[str, object], replicas: tuple[Replica, ...]) -> None:
    top: Where = ("spec", "runPolicy")
    policy = mapping(spec.get("runPolicy"))
    seconds = policy.get("activeDeadlineSeconds")
    if isinstance(seconds, int):
        where: Where = (*top, "activeDeadlineSeconds")
        if seconds < 1:
            made.findings.problem(where, "must be at least 1")
        else:
            made.put(("limits", "wall_time"), f"{seconds}s", where)
    after = policy.get("ttlSecondsAfterFinished")
    if isinstance(after, int):
        where = (*top, "ttlSecondsAfterFinished")
        if after < 0:
            made.findings.problem(where, "must be at least 0")
        else:
            made.put(("limits", "delete_after"), f"{after}s", where)
    one_of(made, (*top, "cleanPodPolicy"), policy.get("cleanPodPolicy"), _CLEANING)
    if policy.get("cleanPodPolicy") == "None" and any(each.role in ("ps", "evaluator") for each in replicas):
        text = (
            "None leaves servers running; here all tasks end when the job is done, and their output is kept"
        )
        made.findings.note((*top, "cleanPodPolicy"), text)
    one_of(made, (*top, "managedBy"), policy.get("managedBy"), (CONTROLLER,))
    _success(made, spec, replicas)
    made.hold = policy.get("suspend") is True


def _success(made: Conversion, spec: Mapping[str, object], replicas: tuple[Replica, ...]) -> None:
    where: Where = ("spec", "successPolicy")
    given = spec.get("successPolicy")
    one_of(made, where, given, _SUCCESS)
    roles = {each.role: each for each in replicas}
    if not given and "worker" in roles and roles["worker"].count > 1 and not set(CHIEF_ROLES) & set(roles):
        made.put(("success_policy",), "worker_0", where if "successPolicy" in spec else roles["worker"].where)


def _priority(
    made: Conversion,
    spec: Mapping[str, object],
    replicas: tuple[Replica, ...],
    annotations: Mapping[str, str],
) -> None:
    """Set the priority from the pods' numbers. Names of classes need an annotation in their place."""
    if "priority" in annotations:
        return
    scheduling = mapping(mapping(spec.get("runPolicy")).get("schedulingPolicy"))
    classes: list[tuple[object, Where]] = [
        (scheduling.get("priorityClass"), ("spec", "runPolicy", "schedulingPolicy", "priorityClass")),
        *((each.pod.get("priorityClassName"), (*each.pod_at, "priorityClassName")) for each in replicas),
    ]
    for name, where in classes:
        if name:
            annotation = f'metadata.annotations: {{{PREFIX}priority: "1000"}}'
            text = f"it is an object of Kubernetes; write its value in its place: {annotation}"
            made.findings.problem(where, f"is refused: {text}")
    given = [(number, each) for each in replicas if isinstance(number := each.pod.get("priority"), int)]
    if given:
        number, each = max(given, key=lambda pair: pair[0])
        made.put(("priority",), number, (*each.pod_at, "priority"))


def _sizes(made: Conversion, spec: Mapping[str, object], replicas: tuple[Replica, ...]) -> None:
    where: Where = ("spec", "runPolicy", "schedulingPolicy", "minAvailable")
    least = mapping(mapping(spec.get("runPolicy")).get("schedulingPolicy")).get("minAvailable")
    total = sum(each.count for each in replicas)
    dynamic = spec.get("enableDynamicWorker") is True
    fewer = least if isinstance(least, int) else total if not dynamic else 1
    if isinstance(least, int) and (not 0 <= least <= total or (least < total and not dynamic)):
        text = f"a job starts as a whole, which is {total} tasks; write that, or enableDynamicWorker: true"
        made.findings.problem(where, text)
    if dynamic:
        text = "TF_CONFIG has `cluster` with all tasks, also here, and not `sparseCluster`"
        made.findings.note(("spec", "enableDynamicWorker"), text)
    made.origin[("roles",)] = ("spec", "tfReplicaSpecs")
    for each in replicas:
        made.origin[("roles", each.role)] = each.where
        at: Where = (*each.where, "replicas") if "replicas" in each.given else each.where
        if dynamic and each.role == "worker" and each.count > 1:
            others = total - each.count
            made.put(
                ("roles", each.role, "min"),
                max(1, fewer - others),
                where if least else ("spec", "enableDynamicWorker"),
            )
            made.put(("roles", each.role, "max"), int(each.count), at)
        else:
            made.put(("roles", each.role, "count"), int(each.count), at)


def _restarts(made: Conversion, spec: Mapping[str, object], replicas: tuple[Replica, ...]) -> None:
    policies: dict[str, Where] = {}
    for each in replicas:
        where: Where = (*each.where, "restartPolicy") if "restartPolicy" in each.given else each.where
        policy = each.given.get("restartPolicy") or "Never"
        if one_of(made, where, policy, _POLICIES):
            policies.setdefault("OnFailure" if policy == "Always" else str(policy), where)
    if len(policies) > 1:
        text = (
            f"a job has one policy, and this one has {' and '.join(policies)} (Never where none is written)"
        )
        made.findings.problem(list(policies.values())[1], f"{text}; write the same for all replica types")
    elif policies:
        limit = mapping(spec.get("runPolicy")).get("backoffLimit")
        policy, where = next(iter(policies.items()))
        _restart(made, policy, where, limit if isinstance(limit, int) else None)


def _restart(made: Conversion, policy: str, where: Where, limit: int | None) -> None:
    at: Where = ("spec", "runPolicy", "backoffLimit")
    if limit is not None and limit < 0:
        made.findings.problem(at, "must be at least 0")
        return
    if policy == "Never":
        limit, at = 0, where
    if limit is not None:
        made.put(("restart", "max"), int(limit), at)
        made.put(("restart", "max_in_window"), int(limit), at)
        made.put(("restart", "window"), _YEAR, at)
    if policy == "ExitCode":
        made.put(("restart", "retry_from"), RETRYABLE, where)
        for cause in _PERMANENT:
            made.put(("restart", "rules", cause), "fail", where)


def _strategy(
    made: Conversion,
    spec: Mapping[str, object],
    replicas: tuple[Replica, ...],
    annotations: Mapping[str, str],
) -> None:
    if "strategy" in annotations:
        return
    where: Where = ("spec", "tfReplicaSpecs")
    roles = {each.role: each.count for each in replicas}
    chosen, why = choose(roles, dynamic=spec.get("enableDynamicWorker") is True)
    made.put(("strategy",), chosen.value, where)
    if why:
        made.findings.note(
            where, f"taken as strategy {chosen.value}: {why}; the annotation {PREFIX}strategy says another"
        )


def choose(roles: Mapping[str, int], *, dynamic: bool) -> tuple[Strategy, str]:
    """The strategy of a manifest that names none, and what its user should know about that choice."""
    trains = sum(count for role, count in roles.items() if role not in ("ps", "evaluator"))
    if {"ps", "worker"} <= set(roles) and dynamic:
        return Strategy.ASYNC, "workers that come and go train independently"
    if {"ps", "worker"} <= set(roles):
        text = "every loss restarts all tasks from the newest checkpoint, which is right for any program"
        return Strategy.SYNC, f"{text}; async and coordinator restart a lost worker alone"
    if trains > 1 and "master" not in roles:
        return Strategy.MULTIWORKER, ""
    return Strategy.PLAIN, ""


def _overlay(
    made: Conversion,
    replicas: tuple[Replica, ...],
    annotations: Mapping[str, str],
    scalar: Callable[[str], object],
) -> None:
    """Set what annotations say: each names a field of the job file, or a volume."""
    volumes = {str(mapping(each).get("name")) for one in replicas for each in listed(one.pod.get("volumes"))}
    for name, text in annotations.items():
        where: Where = ("metadata", "annotations", PREFIX + name)
        volume = name.removeprefix(VOLUMES)
        if volume == name:
            target: Where = tuple(name.split("."))
            for known in [known for known in made.origin if known[: len(target)] == target]:
                del made.origin[known]
            value = _value(text, scalar)
            if text.startswith("[") and value == text and "env" not in target:
                told = """is no list in JSON; write for example '["a", "b"]'"""
                made.findings.problem(where, told)
            made.put(target, value, where)
        elif volume not in volumes:
            made.findings.problem(where, f"there is no volume {volume[:60]!r}" + near(volume, volumes))
        elif not text.startswith("/"):
            made.findings.problem(where, f"{text[:60]!r} must be an absolute path, a directory of the nodes")


def _value(text: str, scalar: Callable[[str], object]) -> object:
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text, parse_int=scalar, parse_float=scalar, parse_constant=scalar)
        except (ValueError, RecursionError):
            return text
    return scalar(text)
