"""Verbs that submit a job, or wait for it: submit, run, validate, wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from supervisor.cli import names
from supervisor.cli.jobs.control import print_accepted, warn
from supervisor.cli.jobs.follow import GOALS, PHASES, Goal, StatusLine, end_code, wait_for
from supervisor.cli.jobs.look import print_event, show_incident
from supervisor.cli.options import Globals, global_options
from supervisor.cli.outage import ASK_S, Asking
from supervisor.cli.render import emit_json
from supervisor.cli.target import Target, find_any_target, find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import NotFound, Unreachable, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.incident import Outcome
from supervisor.contract.views.jobs import Accepted, EventsRequest, JobView, SubmitRequest

if TYPE_CHECKING:
    from supervisor.api.client import ControlClient
    from supervisor.cli.jobs.order import Order
    from supervisor.contract.job.spec import JobSpec

F = TypeVar("F", bound=Callable[..., object])


def _goals(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    del ctx, param
    return [each for each in (*PHASES, "step=") if each.startswith(incomplete)]


def submit_options(function: F) -> F:
    """Add FILE, --name, --resume and --fresh."""
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
@click.option("--hold", is_flag=True, help="Record the job; `start` starts it.")
@click.option("--convert", is_flag=True, help="Print the job file that a TFJob becomes, and start nothing.")
@global_options
def submit(
    given: Globals, file: Path, name: str | None, resume: bool, fresh: bool, hold: bool, convert: bool
) -> None:
    """Start the job in FILE, a job file or a TFJob of Kubeflow."""
    from supervisor.cli.jobs.order import errors_of, print_converted, read_order, show_cautions

    if convert:
        print_converted(file, name)
        return
    with errors_of(file, name):
        target = find_target(given)
    order = read_order(target, file, name, resume=resume, fresh=fresh, hold=hold)
    show_cautions(order.request.spec, order.document)
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
    from supervisor.cli.jobs.order import errors_of, read_order, show_cautions

    with errors_of(file, name):
        target = find_target(given)
    order = read_order(target, file, name, resume=resume, fresh=fresh)
    if order.request.hold:
        raise UserError(f"{file}: the job is suspended, so it would never end; use submit, or remove suspend")
    show_cautions(order.request.spec, order.document)
    with order.located():
        code = asyncio.run(_run(target, order, given))
    context.exit(code)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="Use this name instead of the one in the file.")
@click.option("--offline", is_flag=True, help="Do not ask the cluster whether the job fits it.")
@global_options
def validate(given: Globals, file: Path, name: str | None, offline: bool) -> None:
    """Check the job in FILE, with the cluster if there is one; nothing is started."""
    from supervisor.cli.jobs.order import errors_of, read_order, show_cautions

    with errors_of(file, name):
        target = None if offline else find_any_target(given)
    order = read_order(target, file, name, resume=False, fresh=False)
    spec = order.request.spec
    show_cautions(spec, order.document)
    if target is None:
        print_accepted(given, _unasked(spec, "--offline" if offline else "none was started here"))
        return
    with order.located():
        try:
            answer = asyncio.run(_validate(target, order.request))
        except Unreachable as error:
            answer = _unasked(spec, str(error))
    print_accepted(given, answer)


@click.command()
@click.argument("job", shell_complete=names.jobs)
@click.option("--for", "goal", default="", metavar="GOAL", shell_complete=_goals, help=f"The goal: {GOALS}.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds; without it, for ever.")
@global_options
@click.pass_context
def wait(context: click.Context, given: Globals, job: str, goal: str, timeout: float | None) -> None:
    """Wait until JOB has reached a goal.

    Exits with 0, 10 (failed), 11 (stopped), 12 (the time is over), 13 (ended otherwise) or 16 (parked).

    For example: supervisorctl wait digits --for step=1000 --timeout 60
    """
    wanted = Goal.parse(goal)
    context.exit(asyncio.run(_wait(find_target(given), given, job, wanted, timeout)))


async def _submit(target: Target, order: Order) -> Accepted:
    async with target.client() as client:
        await order.upload(client)
        return await client.submit(order.request)


async def _validate(target: Target, request: SubmitRequest) -> Accepted:
    async with target.client(ASK_S) as client:
        asking = Asking()
        try:
            return await client.validate(request)
        finally:
            asking.over()


def _unasked(spec: JobSpec, why: str) -> Accepted:
    """The answer about a job from its file alone, without a cluster."""
    told = f"the file is valid: {len(spec.tasks())} tasks"
    unchecked = (
        f"no cluster was asked ({why}): it is not checked whether the job's name and checkpoint directory "
        "are free, whether the nodes have what it asks for, and what the cluster's configuration says of it"
    )
    return Accepted(spec.name, told, (unchecked,))


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
    where = "unknown" if job is None else job.phase.value
    if job is not None and job.step >= 0:
        where += f", step {job.step}"
    reason = f": {job.reason}" if job is not None and job.reason else ""
    click.echo(
        neutralise(f"{name}: {'reached' if code == 0 else 'did not reach'} {goal.text} ({where}{reason})")
    )


async def _run(target: Target, order: Order, given: Globals) -> int:
    name = order.request.spec.name
    line = StatusLine(wanted=not given.json)
    async with target.client() as client, target.client() as listener:
        await order.upload(client)
        accepted = await client.submit(order.request)
        warn(accepted)
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
            click.echo(neutralise(ending(job)))
            if job.phase is JobPhase.FAILED:
                await _show_last_failure(client, name)
        return end_code(job)


def ending(job: JobView) -> str:
    """The line about a job that has ended."""
    at = f" at step {job.step}" if job.step >= 0 else ""
    return f"{job.name}: {job.phase.value}{at}: {job.reason}"


async def _show_last_failure(client: ControlClient, name: str) -> None:
    failed = [i for i in (await client.explain(name)).incidents if i.outcome is Outcome.FAILED]
    for incident in failed[-1:]:
        show_incident(incident)


async def _print_events(client: ControlClient, name: str, line: StatusLine, *, quiet: bool) -> None:
    """Print new events, across changes of leader."""
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
