"""The `environment:` of a job file: the lock file that it names is read, checked and pinned by its sha256."""

from __future__ import annotations

import hashlib
from pathlib import Path

from supervisor.adapters.files.jobfile_model import EnvironmentModel
from supervisor.adapters.files.yaml_file import Document, Where
from supervisor.contract.errors import UserError
from supervisor.contract.job.environment import MAX_LOCK_BYTES, read_lock
from supervisor.contract.job.spec import EnvironmentRef

_WHERE: Where = ("environment",)


def read_environment(
    document: Document, given: EnvironmentModel | None, workdir: str
) -> EnvironmentRef | None:
    """The environment of the job, or None; errors go to the document."""
    if given is None:
        return None
    if (given.requirements is None) == (given.archive is None):
        document.problem(_WHERE, "needs `requirements: FILE` or `archive: URI`, one of the two")
        return None
    if given.archive is not None:
        if given.sha256 is None:
            text = (
                "missing; add what `sha256sum FILE` prints for the archive, which may change under its name"
            )
            document.problem((*_WHERE, "sha256"), text)
            return None
        return EnvironmentRef(given.sha256, archive=given.archive, python=given.python or "")
    if given.sha256 is not None:
        document.problem((*_WHERE, "sha256"), "is for an archive; the lock file has hashes of its own")
        return None
    assert given.requirements is not None
    digest = _digest_of_lock(document, Path(workdir, given.requirements))
    if digest is None:
        return None
    return EnvironmentRef(digest, given.requirements, "", given.wheelhouse or "", given.python or "")


def _digest_of_lock(document: Document, path: Path) -> str | None:
    where: Where = (*_WHERE, "requirements")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LOCK_BYTES + 1)
        read_lock(data)
    except OSError as error:
        document.problem(where, f"cannot read {path}: {error.strerror}")
        return None
    except UserError as error:
        document.problem(where, f"{path}: {error}")
        return None
    return hashlib.sha256(data).hexdigest()
