"""A new index for a model whose newest one cannot be read, from an older one and the store. Pure.

What model servers see stays as it is. The index that is broken may have withdrawn a version or moved a label.
So the directories say which versions are published, and labels of others are gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from recovery.models.index import ModelIndex, ModelVersion, VersionState

UNKNOWN = "unknown"
_ID = re.compile(r"g(\d{1,9})\.(\d{1,9})-.*", re.ASCII)


def unknown_version(number: int, serial: int, digest: str, size: int, now_ms: int) -> ModelVersion:
    """A version that servers see and no readable index knows. `serial`: of the broken index."""
    return ModelVersion(
        version=number,
        id=f"repaired-{serial}-{number}",
        digest=digest,
        source=UNKNOWN,
        member=UNKNOWN,
        check=UNKNOWN,
        size=size,
        generation=0,
        attempt=0,
        taken_ms=now_ms,
    )


def repaired(
    base: ModelIndex,
    serial: int,
    seen: Collection[int],
    kept: Collection[str],
    unknown: Iterable[ModelVersion],
) -> ModelIndex:
    """The index that follows the broken one.

    Args:
        base: the newest index that can be read; an empty one if there is none.
        serial: of the broken index.
        seen: the numbers of directories in the model's place.
        kept: the names of directories for versions that are not published.
        unknown: versions in the model's place that `base` does not know.
    """
    known = tuple(_as_found(each, seen, kept) for each in base.versions)
    versions = tuple(sorted((*known, *unknown), key=lambda each: each.version))
    published = {each.version for each in versions if each.is_published}
    attempts = [(int(match[1]), int(match[2])) for match in map(_ID.fullmatch, kept) if match is not None]
    generation, attempt = max([(base.generation, base.attempt), *attempts])
    withdrawn = any(
        before.is_published and not after.is_published
        for before, after in zip(base.versions, known, strict=True)
    )
    return replace(
        base,
        serial=serial + 1,
        generation=generation,
        attempt=attempt,
        # Each index has given one number at most. One that it gave may be gone by now.
        last=max(base.last + serial - base.serial, *seen, 0),
        versions=versions,
        labels={label: number for label, number in base.labels.items() if number in published},
        held=base.held or withdrawn,
    )


def _as_found(version: ModelVersion, seen: Collection[int], kept: Collection[str]) -> ModelVersion:
    if version.state is VersionState.REMOVED:
        return version
    if version.id in kept:
        return replace(version, state=VersionState.WITHDRAWN)
    state = VersionState.PUBLISHED if version.version in seen else VersionState.REMOVED
    return replace(version, state=state)
