"""The container of a job file from the replica types of a manifest: image, directory, mounts. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping

from supervisor.contract.job.container import Where
from supervisor.contract.job.tfjob.check import near
from supervisor.contract.job.tfjob.fields import PREFIX, VOLUMES
from supervisor.contract.job.tfjob.made import Conversion, Plain, Replica, listed, mapping, one_of
from supervisor.contract.job.tfjob.texts import quantity, size

_PULLS = {"Always": "always", "IfNotPresent": "missing", "Never": "never"}
_MEMORY_AT, _SCRATCH_AT = "/dev/shm", "/tmp"


def put_container(made: Conversion, replicas: tuple[Replica, ...], annotations: Mapping[str, str]) -> None:
    """Set image, directory, mounts and the time to save; a job has one of each."""
    _image(made, replicas)
    _workdir(made, replicas, shipped=any(name.partition(".")[0] == "code" for name in annotations))
    _grace(made, replicas)
    mounts: dict[str, tuple[Plain, Where, Where]] = {}
    wanted: dict[str, set[str]] = {each.role: set() for each in replicas}
    for each in replicas:
        for mount, where, source_at in _mounts(made, each, annotations):
            target = str(mount["target"])
            wanted[each.role].add(target)
            if mounts.setdefault(target, (mount, where, source_at))[0] != mount:
                made.findings.problem(
                    where, f"{target} is another directory elsewhere in this manifest; a job has one there"
                )
    for index, (target, (_, where, source_at)) in enumerate(mounts.items()):
        made.origin[("container", "mounts", index, "source")] = source_at
        made.origin[("container", "mounts", index, "target")] = (*where, "mountPath")
        if any(target not in targets for targets in wanted.values()):
            made.findings.note(where, f"{target} is there in the tasks of all replica types")
    if mounts:
        first = next(iter(mounts.values()))[1]
        made.put(("container", "mounts"), [mount for mount, _, _ in mounts.values()], first)


def _image(made: Conversion, replicas: tuple[Replica, ...]) -> None:
    found: dict[tuple[str, str], Where] = {}
    for each in replicas:
        image = str(each.main.get("image") or "")
        where: Where = (*each.at, "imagePullPolicy")
        pull = each.main.get("imagePullPolicy") or ("Always" if _newest(image) else "IfNotPresent")
        if not one_of(made, where, pull, tuple(_PULLS)):
            return
        found.setdefault((image, str(pull)), (*each.at, "image"))
    if len(found) > 1:
        shown = " and ".join(f"{image or 'none'} ({pull})" for image, pull in found)
        text = f"a job has one image, and this one has {shown}; use the same for all replica types"
        made.findings.problem(list(found.values())[1], text)
        return
    (image, pull), where = next(iter(found.items()))
    if image:
        made.put(("container", "image"), image, where)
        made.origin[("container",)] = where[:-1]
        made.put(("container", "pull"), _PULLS[pull], (*where[:-1], "imagePullPolicy"))


def _newest(image: str) -> bool:
    """Whether an image's tag is `latest`, written or not, as Kubernetes sees it."""
    _, _, tag = image.rpartition("/")[2].partition(":")
    return "@" not in image and tag in ("", "latest")


def _workdir(made: Conversion, replicas: tuple[Replica, ...], *, shipped: bool) -> None:
    found = {str(each.main.get("workingDir") or ""): (*each.at, "workingDir") for each in reversed(replicas)}
    image = any(each.main.get("image") for each in replicas)
    if len(found) > 1:
        shown = " and ".join(path or "none" for path in found)
        made.findings.problem(
            next(iter(found.values())), f"a job has one working directory, and this one has {shown}"
        )
    else:
        path, where = next(iter(found.items()))
        if path or (image and not shipped):
            made.put(("workdir",), path or "/", where)


def _grace(made: Conversion, replicas: tuple[Replica, ...]) -> None:
    name = "terminationGracePeriodSeconds"
    given = [(seconds, each) for each in replicas if isinstance(seconds := each.pod.get(name), int)]
    if given:
        seconds, each = max(given, key=lambda pair: pair[0])
        made.put(("limits", "save_grace"), f"{seconds}s", (*each.pod_at, name))


def _mounts(
    made: Conversion, replica: Replica, annotations: Mapping[str, str]
) -> Iterator[tuple[Plain, Where, Where]]:
    """The mounts of a replica type, each with its place, and that of its directory."""
    volumes: dict[str, tuple[Mapping[str, object], Where]] = {}
    for index, item in enumerate(listed(replica.pod.get("volumes"))):
        volume, at = mapping(item), (*replica.pod_at, "volumes", index)
        if volumes.setdefault(str(volume.get("name")), (volume, at))[1] != at:
            made.findings.problem(
                (*at, "name"), f"{str(volume.get('name'))[:60]!r} is the name of two volumes"
            )
    used = set()
    for index, item in enumerate(listed(replica.main.get("volumeMounts"))):
        where: Where = (*replica.at, "volumeMounts", index)
        mount = mapping(item)
        name, target = str(mount.get("name")), str(mount.get("mountPath") or "")
        used.add(name)
        if name not in volumes:
            made.findings.problem((*where, "name"), f"there is no volume {name[:60]!r}" + near(name, volumes))
            continue
        source, source_at = _source(made, *volumes[name], target, annotations)
        if source:
            path = posixpath.join(source, str(mount.get("subPath") or ""))
            yield (
                {
                    "source": posixpath.normpath(path) if path.startswith("/") else path,
                    "target": target.rstrip("/") or target,
                    "read_only": mount.get("readOnly") is True,
                },
                where,
                source_at,
            )
    for name in [name for name in volumes if name not in used]:
        made.findings.note(volumes[name][1], "has no effect: no volumeMounts names it")


def _source(
    made: Conversion, volume: Mapping[str, object], where: Where, target: str, annotations: Mapping[str, str]
) -> tuple[str, Where]:
    """The directory of the node that a volume stands for, and where it is named; empty if there is none."""
    name = str(volume.get("name"))
    if named := annotations.get(f"{VOLUMES}{name}"):
        return named, ("metadata", "annotations", f"{PREFIX}{VOLUMES}{name}")
    kinds = [kind for kind, value in volume.items() if kind != "name" and value is not None]
    kind = kinds[0] if kinds else "emptyDir"
    if len(kinds) > 1:
        made.findings.problem(where, f"is {' and '.join(kinds)}; keep one of them")
    elif kind == "hostPath":
        path = mapping(volume[kind])
        if not path.get("path"):
            made.findings.problem((*where, kind, "path"), "missing; add a directory of the nodes")
        elif path.get("type") in (None, "", "Directory"):
            return str(path["path"]), (*where, kind, "path")
        else:
            text = "is refused: a directory that is there is mounted, nothing else; write Directory"
            made.findings.problem((*where, kind, "type"), text)
    elif kind == "emptyDir" and target in (_MEMORY_AT, _SCRATCH_AT):
        limit = quantity(mapping(volume.get(kind)).get("sizeLimit"))
        if target == _MEMORY_AT and limit is not None:
            made.put(("container", "shm"), size(limit), (*where, kind, "sizeLimit"))
    else:
        told = "is a directory of the pod" if kind == "emptyDir" else "is a volume of Kubernetes"
        annotation = f"metadata.annotations: {{{PREFIX}{VOLUMES}{name}: /DIR}}"
        text = f"{told}; name a directory of the nodes in its place: {annotation}"
        made.findings.problem((*where, kind), f"is refused: it {text}")
    return "", where
