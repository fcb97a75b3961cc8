"""The request of `submit`, `run` and `validate`: the job in a file, and the archive of its program.

Only those verbs load this module: reading and packing a job needs packages that no other verb uses.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click

from supervisor.adapters.files.code_archive import CodeArchive, pack
from supervisor.adapters.files.jobfile import JobFile, load_job_file
from supervisor.adapters.files.tfjob import text_of
from supervisor.adapters.files.yaml_file import Document, read
from supervisor.api.client import ControlClient
from supervisor.api.upload import upload_code
from supervisor.cli.target import Target
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import TfSupervisorError, UserError
from supervisor.contract.job.container import cautions
from supervisor.contract.job.spec import JobSpec
from supervisor.contract.job.tfjob.convert import is_manifest
from supervisor.contract.views.jobs import SubmitMode, SubmitRequest

UNKNOWN_BASE = "hdfs://unknown/checkpoints"
"""The checkpoint base of a cluster that is not asked. A directory in HDFS goes with every mode."""


@dataclass(frozen=True, slots=True)
class Order:
    """A request to submit, the archive that is uploaded before it, and its job file."""

    request: SubmitRequest
    archive: CodeArchive | None
    document: Document

    @contextmanager
    def located(self) -> Iterator[None]:
        """Add the line in the job file to errors of the cluster about a field."""
        try:
            yield
        except TfSupervisorError as error:
            if not error.field:
                raise
            raise type(error)(self.document.place(error.field, str(error))) from error

    async def upload(self, client: ControlClient) -> None:
        """Upload the program, unless the cluster has it already."""
        if self.archive is not None:
            await upload_code(client, self.archive)


@contextmanager
def errors_of(file: Path, name: str | None) -> Iterator[None]:
    """Raise the errors of a job file in place of one about the cluster."""
    try:
        yield
    except TfSupervisorError:
        check_file(file, name)
        raise


def read_order(
    target: Target | None, file: Path, name: str | None, *, resume: bool, fresh: bool, hold: bool = False
) -> Order:
    """The order for the job in a file; raises UserError with all errors, NotFound."""
    if resume and fresh:
        raise UserError("--resume and --fresh contradict each other; give one of them")
    mode = SubmitMode.RESUME if resume else SubmitMode.FRESH if fresh else SubmitMode.NEW
    base = target.checkpoint_base if target is not None else UNKNOWN_BASE
    return order_of(load_job_file(file, checkpoint_base=base or None, name=name), mode, hold=hold)


def order_of(job: JobFile, mode: SubmitMode, *, hold: bool = False) -> Order:
    """The order for a job. Raises UserError if its program cannot be packed."""
    spec, archive = _packed(job)
    return Order(SubmitRequest(spec, mode, hold or job.hold, job.given), archive, job.document)


def _packed(job: JobFile) -> tuple[JobSpec, CodeArchive | None]:
    """The job, and the archive of the program's present directory if the file has `code:`."""
    if job.code is None:
        return job.spec, None
    archive = pack(job.code)
    environment = job.spec.environment
    if environment is not None and environment.requirements:
        lock = posixpath.normpath(environment.requirements)
        if lock not in archive.paths:
            text = f"{lock} is not shipped: code.exclude leaves it out; nodes need it"
            raise UserError(job.document.place(("environment", "requirements"), text))
    return replace(job.spec, code=archive.ref), archive


def check_file(file: Path, name: str | None) -> JobFile:
    """The job in a file, checked without a cluster. Raises UserError, NotFound."""
    job = load_job_file(file, checkpoint_base=UNKNOWN_BASE, name=name)
    return replace(job, spec=_packed(job)[0])


def print_converted(file: Path, name: str | None) -> None:
    """Print the job file that a TFJob becomes. Raises UserError, NotFound."""
    if not is_manifest(read(file).value):
        raise UserError(f"{file} is no TFJob, which --convert is for; `validate` checks a job file")
    job = check_file(file, name)
    show_cautions(job.spec, job.document)
    head = f"# Made of {file.name}, and meant for the same directory."
    head += " Its job is suspended: submit --hold\n" if job.hold else "\n"
    click.echo(neutralise(head) + text_of(job.document), nl=False)


def show_cautions(spec: JobSpec, document: Document) -> None:
    """Print warnings about allowed values that will hardly work, to standard error."""
    for note in document.notes:
        click.echo(neutralise(f"note: {note}"), err=True)
    for each in cautions(spec):
        click.echo(neutralise(f"warning: {document.place(each.where, each.text)}"), err=True)
