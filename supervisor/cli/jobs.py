"""Verbs that bring a job in, or wait for it: submit, run, validate, wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import click

from supervisor.adapters.code_archive import CodeArchive, pack
from supervisor.adapters.jobfile import JobFile, load_job_file
from supervisor.adapters.yaml_file import Document
from supervisor.api.client import ControlClient
from supervisor.api.upload import upload_code
from supervisor.cli.control import print_accepted
from supervisor.cli.follow import Goal, StatusLine, end_code, wait_for
from supervisor.cli.look import print_event, show_incident
from supervisor.cli.options import Globals, global_options
from supervisor.cli.render import emit_json
from supervisor.cli.target import Target, find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import NotFound, TfSupervisorError, Unreachable, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.incident import Outcome
from supervisor.contract.job import JobSpec
from supervisor.contract.views import Accepted, EventsRequest, JobView, SubmitMode, SubmitRequest

F = TypeVar("F", bound=Callable[..., object])


def submit_options(function: F) -> F:
    """FILE, --name, --resume and --fresh."""
    function = click.option("--fresh", is_flag=True, help="Start from scratch although the name was used.")(
        function
    )
    function = click.option("--resume", is_flag=True, help="Go on from the job's newest checkpoint.")(
        function
    )
    function = click.option("--name", help="Use this name instead of the one in the file.")(function)
    return click.argument("file", type=click.Path(path_type=Path))(function)


@click.command()
@submit_options
@global_options
def submit(given: Globals, file: Path, name: str | None, resume: bool, fresh: bool) -> None:
    """Start the job in FILE."""
    target = find_target(given)
    order = _order(target, file, name, resume=resume, fresh=fresh)
    with order.located():
        print_accepted(given, asyncio.run(_submit(target, order)))


@click.command()
@submit_options
@global_options
@click.pass_context
def run(
    context: click.Context, given: Globals, file: Path, name: str | None, resume: bool, fresh: bool
) -> None:
    """Start the job in FILE, follow it, and exit with its result: 0, 10 (failed) or 11 (stopped)."""
    target = find_target(given)
    order = _order(target, file, name, resume=resume, fresh=fresh)
    with order.located():
        code = asyncio.run(_run(target, order, given))
    context.exit(code)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="Use this name instead of the one in the file.")
@click.option("--offline", is_flag=True, help="Do not ask the cluster whether the job fits it.")
@global_options
def validate(given: Globals, file: Path, name: str | None, offline: bool) -> None:
    """Check the job in FILE; nothing is started."""
    # The file's own errors come first, also where there is no cluster to ask.
    spec, _ = _packed(load_job_file(file, checkpoint_base="file:///unused", name=name))
    if offline:
        print_accepted(given, Accepted(spec.name, f"the file is valid: {len(spec.tasks())} tasks"))
        return
    target = find_target(given)
    order = _order(target, file, name, resume=False, fresh=False)
    with order.located():
        print_accepted(given, asyncio.run(_validate(target, order.request)))


@click.command()
@click.argument("job")
@click.option(
    "--for", "goal", required=True, metavar="GOAL", help="running|succeeded|failed|stopped|ended|step=N"
)
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds; without it, for ever.")
@global_options
@click.pass_context
def wait(context: click.Context, given: Globals, job: str, goal: str, timeout: float | None) -> None:
    """Wait until JOB is there. Exits with 0, 10 (failed), 11 (stopped), 12 (timeout) or 13 (cannot be)."""
    context.exit(asyncio.run(_wait(find_target(given), given, job, Goal.parse(goal), timeout)))


@dataclass(frozen=True, slots=True)
class _Order:
    """What is submitted, the archive that goes before it, and the file that it is from."""

    request: SubmitRequest
    archive: CodeArchive | None
    document: Document

    @contextmanager
    def located(self) -> Iterator[None]:
        """What the cluster finds wrong with a field is told with the field's line in the file."""
        try:
            yield
        except TfSupervisorError as error:
            if not error.field:
                raise
            raise type(error)(self.document.place(error.field, str(error))) from error


def _order(target: Target, file: Path, name: str | None, *, resume: bool, fresh: bool) -> _Order:
    if resume and fresh:
        raise UserError("--resume and --fresh contradict each other; give one of them")
    mode = SubmitMode.RESUME if resume else SubmitMode.FRESH if fresh else SubmitMode.NEW
    job = load_job_file(file, checkpoint_base=target.checkpoint_base or None, name=name)
    spec, archive = _packed(job)
    return _Order(SubmitRequest(spec, mode), archive, job.document)


def _packed(job: JobFile) -> tuple[JobSpec, CodeArchive | None]:
    """The job, with the program's directory as it is at this moment if the file says `code:`."""
    if job.code is None:
        return job.spec, None
    archive = pack(job.code)
    return replace(job.spec, code=archive.ref), archive


async def _submit(target: Target, order: _Order) -> Accepted:
    async with target.client() as client:
        if order.archive is not None:
            await upload_code(client, order.archive)
        return await client.submit(order.request)


async def _validate(target: Target, request: SubmitRequest) -> Accepted:
    async with target.client() as client:
        return await client.validate(request)


async def _wait(target: Target, given: Globals, name: str, goal: Goal, timeout_s: float | None) -> int:
    line = StatusLine()
    async with target.client() as client:
        code, job = await wait_for(client, check_name("job", name), goal, timeout_s, line.show)
    line.clear()
    _print_end(given, name, goal, code, job)
    return code


def _print_end(given: Globals, name: str, goal: Goal, code: int, job: JobView | None) -> None:
    if given.json:
        emit_json(
            {
                "job": name,
                "for": goal.text,
                "reached": code == 0,
                "phase": job.phase.value if job is not None else "",
                "step": job.step if job is not None else -1,
                "reason": job.reason if job is not None else "",
                "exit_code": code,
            }
        )
        return
    where = "unknown" if job is None else f"{job.phase.value}, step {job.step}"
    reason = f": {job.reason}" if job is not None and job.reason else ""
    click.echo(
        neutralise(f"{name}: {'reached' if code == 0 else 'did not reach'} {goal.text} ({where}{reason})")
    )


async def _run(target: Target, order: _Order, given: Globals) -> int:
    name = order.request.spec.name
    line = StatusLine(wanted=not given.json)
    async with target.client() as client, target.client() as listener:
        if order.archive is not None:
            await upload_code(client, order.archive)
        accepted = await client.submit(order.request)
        if not given.json:
            click.echo(neutralise(f"{accepted.job}: {accepted.detail}"))
        events = asyncio.create_task(_print_events(listener, name, line, quiet=given.json))
        try:
            _, job = await wait_for(client, name, Goal("ended"), None, line.show)
        finally:
            await _finish(events)
            line.clear()
        assert job is not None
        if given.json:
            emit_json(await client.explain(name))
        else:
            click.echo(neutralise(f"{name}: {job.phase.value} at step {job.step}: {job.reason}"))
            if job.phase is JobPhase.FAILED:
                await _show_last_failure(client, name)
        return end_code(job.phase)


async def _show_last_failure(client: ControlClient, name: str) -> None:
    failed = [i for i in (await client.explain(name)).incidents if i.outcome is Outcome.FAILED]
    for incident in failed[-1:]:
        show_incident(incident)


async def _print_events(client: ControlClient, name: str, line: StatusLine, *, quiet: bool) -> None:
    """Events as they come, from any leader."""
    request = EventsRequest(name, follow=True)
    while not quiet:
        with suppress(Unreachable, NotFound):
            async for batch in client.events(request):
                request = replace(request, after=batch.last)
                for event in batch.events:
                    line.clear()
                    print_event(event)
        await asyncio.sleep(0.2)


async def _finish(events: asyncio.Task[None]) -> None:
    """Let the last events arrive, then end the stream."""
    await asyncio.wait([events], timeout=0.3)
    events.cancel()
    with suppress(asyncio.CancelledError):
        await events
