"""The fields of the API of Kubernetes: `python -m tests.kubernetes.schema WHEEL` prints `api.txt`.

The wheel is kubernetes-validate 1.37.0 of PyPI, which holds the API's JSON schemas of Kubernetes 1.25 to 1.37
(kubernetes/kubernetes, Apache License 2.0). Names, types, and the version in which a field is seen first are
taken, of the kinds of `KINDS` and of all that they hold. A line is `TYPE.FIELD[!] KIND SINCE`; with `!` the
field is required. KIND is a type of JSON or of the list, `quantity`, `number-or-text`, `list KIND`, or `map
KIND`. A line `TYPE = APIVERSION` is an object that may be applied.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("api.txt")
KINDS = (
    *(f"io.k8s.api.core.v1.{kind}" for kind in ("Namespace", "ServiceAccount", "Service", "ConfigMap")),
    "io.k8s.api.apps.v1.StatefulSet",
    "io.k8s.api.networking.v1.NetworkPolicy",
    "io.k8s.api.policy.v1.PodDisruptionBudget",
)
VERSIONS = range(25, 38)
SPECIAL = {"Quantity": "quantity", "IntOrString": "number-or-text", "FieldsV1": "object", "Time": "string"}
Schema = dict[str, Any]
_PLAIN = {"string": (str,), "integer": (int,), "boolean": (bool,), "number": (int, float), "object": (dict,)}
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i|[MGTPE])?")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a type."""

    kind: str
    since: int
    required: bool


@dataclass(frozen=True, slots=True)
class Api:
    """The types of the list, and which of them are objects of which version of the API."""

    types: Mapping[str, Mapping[str, Field]]
    objects: Mapping[str, str]

    def problems(self, value: object, version: int) -> list[str]:
        """The objections of a strict API server of Kubernetes 1.VERSION to an object."""
        kind = value.get("kind") if isinstance(value, dict) else None
        assert isinstance(value, dict)
        if self.objects.get(str(kind)) != value.get("apiVersion"):
            return [f"{value.get('apiVersion')} {kind}: no such kind"]
        return list(self._check(str(kind), value, str(kind), version))

    def _check(self, kind: str, value: object, where: str, version: int) -> Iterator[str]:
        word, _, of = kind.partition(" ")
        if word == "list":
            if not isinstance(value, list):
                yield f"{where}: no list"
                return
            for index, each in enumerate(value):
                yield from self._check(of, each, f"{where}[{index}]", version)
        elif word == "map":
            if not isinstance(value, dict):
                yield f"{where}: no map"
                return
            for name, each in value.items():
                yield from self._check(of, each, f"{where}.{name}", version)
        elif kind in self.types:
            yield from self._fields(kind, value, where, version)
        elif not _is_plain(kind, value):
            yield f"{where}: {value!r} is no {kind}"

    def _fields(self, kind: str, value: object, where: str, version: int) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{where}: no {kind}"
            return
        fields = {name: each for name, each in self.types[kind].items() if each.since <= version}
        for name, each in value.items():
            if name in fields:
                yield from self._check(fields[name].kind, each, f"{where}.{name}", version)
            else:
                yield f"{where}: {kind} has no field {name} in 1.{version}"
        missing = [name for name, field in fields.items() if field.required and name not in value]
        yield from (f"{where}: {kind} needs {name}" for name in missing)


def _is_plain(kind: str, value: object) -> bool:
    if kind == "quantity":
        return isinstance(value, str) and _QUANTITY.fullmatch(value) is not None
    if kind == "number-or-text":
        return isinstance(value, int | str) and not isinstance(value, bool)
    return isinstance(value, _PLAIN[kind]) and (kind == "boolean" or not isinstance(value, bool))


def load() -> Api:
    """The list."""
    types: dict[str, dict[str, Field]] = {}
    objects: dict[str, str] = {}
    for line in FILE.read_text().splitlines():
        head, _, rest = line.partition(" ")
        if rest.startswith("= "):
            objects[head] = rest.removeprefix("= ")
            continue
        kind, _, since = rest.rpartition(" ")
        name, _, field = head.partition(".")
        types.setdefault(name, {})[field.rstrip("!")] = Field(kind, int(since), field.endswith("!"))
    return Api(types, objects)


def lines(wheel: Path) -> Iterator[str]:
    """The lines of the list."""
    archive = zipfile.ZipFile(wheel)
    every = [_definitions(archive, version) for version in VERSIONS]
    newest = every[-1]
    for name in sorted(_reached(newest), key=lambda each: each.rpartition(".")[2]):
        short, schema = name.rpartition(".")[2], newest[name]
        if short in SPECIAL:
            continue
        if name in KINDS:
            yield f"{short} = {schema['properties']['apiVersion']['enum'][0]}"
        for field, of in schema["properties"].items():
            since = next(
                version
                for version, known in zip(VERSIONS, every, strict=True)
                if field in known.get(name, {}).get("properties", {})
            )
            mark = "!" if field in schema.get("required", ()) else ""
            yield f"{short}.{field}{mark} {_kind(of)} {since}"


def _definitions(archive: zipfile.ZipFile, version: int) -> dict[str, Schema]:
    base = "kubernetes_validate/kubernetes-json-schema"
    document = json.loads(archive.read(f"{base}/v1.{version}.0-local-strict/_definitions.json"))
    found: dict[str, Schema] = document["$defs"]
    return found


def _reached(definitions: Mapping[str, Schema]) -> set[str]:
    found: set[str] = set()
    left = list(KINDS)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += re.findall(r'"\$ref": "[^"]*/([^"/]+)"', json.dumps(definitions[name]))
    assert len({each.rpartition(".")[2] for each in found}) == len(found)
    return found


def _kind(schema: Schema) -> str:
    if isinstance(ref := schema.get("$ref"), str):
        short = ref.rpartition(".")[2]
        return SPECIAL.get(short, short)
    types = schema["type"]
    kind = types if isinstance(types, str) else next(each for each in types if each != "null")
    if kind == "array":
        return f"list {_kind(schema['items'])}"
    if kind == "object" and "additionalProperties" in schema:
        return f"map {_kind(schema['additionalProperties'])}"
    return str(kind)


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in lines(Path(sys.argv[1]))))
