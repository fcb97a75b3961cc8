"""The field paths of a CustomResourceDefinition, with their types: `python -m tests.contract.tfjob.crd FILE`.

`v1.txt` is what it printed of `manifests/base/crds/kubeflow.org_tfjobs.yaml` in kubeflow/training-operator
v1.9.0. Names and types alone are taken. Below most fields of a pod, of a container and of a volume nothing is
listed: each of those is treated as one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ruamel.yaml import YAML

POD = "spec.tfReplicaSpecs.*.template.spec"
DEEP = (
    *(f"{POD}.{name}" for name in ("containers", "volumes", "nodeSelector", "os")),
    *(
        f"{POD}.containers[].{name}"
        for name in ("command", "args", "env", "resources", "ports", "volumeMounts")
    ),
    *(f"{POD}.volumes[].{name}" for name in ("hostPath", "emptyDir", "persistentVolumeClaim")),
)
"""Fields of a pod whose own fields are listed."""


def paths(schema: Mapping[str, object], path: str = "") -> Iterator[tuple[str, str]]:
    """Each field below a schema, with its type."""
    for name, field in sorted(_mapping(schema.get("properties")).items()):
        yield from _field(_mapping(field), f"{path}.{name}" if path else name)
    if isinstance(items := schema.get("items"), dict):
        yield from _field(items, f"{path}[]")
    if isinstance(values := schema.get("additionalProperties"), dict):
        yield from _field(values, f"{path}.*")


def _field(schema: Mapping[str, object], path: str) -> Iterator[tuple[str, str]]:
    either = schema.get("x-kubernetes-int-or-string")
    yield path, "quantity" if either else str(schema.get("type"))
    if _is_listed(path):
        yield from paths(schema, path)


def _is_listed(path: str) -> bool:
    """Whether the fields below are listed."""
    if path == "status":
        return False
    if not path.startswith(f"{POD}."):
        return True
    if path in (f"{POD}.containers[]", f"{POD}.volumes[]"):
        return True
    return any(
        path == deep or path.startswith((f"{deep}.", f"{deep}[]"))
        for deep in DEEP
        if not _is_shallow(path, deep)
    )


def _is_shallow(path: str, deep: str) -> bool:
    """Whether `deep` is a list of which one level is listed."""
    return deep in (f"{POD}.containers", f"{POD}.volumes") and path != deep


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def main() -> None:
    """Print the list."""
    document = YAML(typ="safe", pure=True).load(Path(sys.argv[1]).read_text())
    version = next(each for each in document["spec"]["versions"] if each["name"] == "v1")
    for path, kind in paths(version["schema"]["openAPIV3Schema"]):
        sys.stdout.write(f"{path} {kind}\n")


if __name__ == "__main__":
    main()
