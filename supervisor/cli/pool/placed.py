"""The fields that a pool adds to a job's file: a place, and data that was written for the job. Pure."""

from __future__ import annotations

from collections.abc import Iterable

POOL = "pool"
"""The label that all nodes of a pool have."""


def keep_to_pool(pool: str, job: dict[str, object]) -> None:
    """Have each role of a job file ask for nodes of this pool, unless it names another one."""
    roles = job.get("roles")
    for role in roles.values() if isinstance(roles, dict) else ():
        if not isinstance(role, dict):
            continue
        resources = role.setdefault("resources", {})
        labels = resources.setdefault("labels", {}) if isinstance(resources, dict) else None
        if isinstance(labels, dict):
            labels.setdefault(POOL, pool)


def name_data(names: Iterable[str], checkpoint_base: str | None, job: dict[str, object]) -> None:
    """Add to a job file's `data` the directories of these names, beside the job's checkpoints."""
    checkpoint = job.get("checkpoint")
    given = checkpoint.get("uri") if isinstance(checkpoint, dict) else None
    store = given or f"{(checkpoint_base or '').rstrip('/')}/{job.get('name')}"
    data = job.setdefault("data", {})
    if isinstance(data, dict):
        data.update({name: f"{store}-data/{name}" for name in names})
    if not data:
        del job["data"]
