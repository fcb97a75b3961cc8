"""Verbs that only read: status, explain, events, version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import click

from supervisor.cli import names, render
from supervisor.cli.jobs import goodput
from supervisor.cli.options import Globals, global_options
from supervisor.cli.outage import AGAIN_S, ASK_S, FOLLOW_DEADLINE_S, Asking, Outage
from supervisor.cli.target import Target, find_target
from supervisor.cli.terminal import neutralise, on_terminal
from supervisor.contract import codec
from supervisor.contract.errors import Unreachable, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.incident import OMITTED, Cause
from supervisor.contract.views.jobs import (
    API_PROTOCOL,
    ClusterStatus,
    EventBatch,
    EventsRequest,
    EventView,
    Explanation,
    IncidentView,
    JobView,
)

if TYPE_CHECKING:
    from supervisor.api.client import ControlClient

R = TypeVar("R")
TAIL_LINES, LEAST_LINES = 12, 4
EVENTS_OF_A_JOB = 1000
"""As many as tell when it began to run, and when it ended."""


@click.command()
@click.argument("job", shell_complete=names.jobs, required=False, default="")
@click.option("--as", "form", type=click.Choice(["tfjob"]), help="With JSON: as kubectl shows a TFJob.")
@global_options
def status(given: Globals, job: str, form: str | None) -> None:
    """Show all jobs, or JOB with its tasks."""
    if form is not None:
        if not given.json:
            raise UserError(f"--as {form} is a form of JSON; add --output json")
        render.emit_json(ask(given, lambda client: _as_tfjobs(client, check_name("job", job) if job else "")))
        return
    document = ask(given, lambda client: client.status(check_name("job", job) if job else ""))
    if given.json:
        render.emit_json(document)
    else:
        _show_status(document, detailed=bool(job) or len(document.jobs) == 1)


@click.command()
@click.argument("job", shell_complete=names.jobs)
@global_options
def explain(given: Globals, job: str) -> None:
    """Tell what failed in JOB, what was decided and why, and how long each phase took."""
    document = ask(given, lambda client: client.explain(check_name("job", job)))
    if given.json:
        render.emit_json(
            {"job": codec.to_plain(document.job), "incidents": codec.to_plain(document.incidents)}
        )
    else:
        click.echo(explanation(document))


@click.command()
@click.argument("job", shell_complete=names.jobs, required=False, default="")
@click.option("-f", "--follow", is_flag=True, help="Then show new events as they come.")
@click.option(
    "-n",
    "--last",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="The number of past events.",
)
@global_options
def events(given: Globals, job: str, follow: bool, last: int) -> None:
    """Show what happened in the cluster, or to JOB; with -f, JSON has one event a line."""
    request = EventsRequest(check_name("job", job) if job else "", follow, last)
    asyncio.run(_events(find_target(given), given, request))


@click.command()
@global_options
def version(given: Globals) -> None:
    """Show the version of this program and of its protocol."""
    from importlib import metadata

    try:
        release = metadata.version("tf-supervisor")
    except metadata.PackageNotFoundError:
        release = "unknown (not installed)"
    if given.json:
        render.emit_json({"version": release, "api_protocol": API_PROTOCOL})
    else:
        click.echo(f"tf-supervisor {release}, API protocol {API_PROTOCOL}")


def print_event(event: EventView) -> None:
    """Print an event as a line for people."""
    about = f"{event.job}: " if event.job else ""
    click.echo(neutralise(f"{render.when(event.wall_ms)}  {about}{event.text or event.kind}"))


def ask(given: Globals, question: Callable[[ControlClient], Awaitable[R]]) -> R:
    """The cluster's answer; a change of leader is borne for a while."""

    async def answer() -> R:
        async with find_target(given).client(ASK_S) as client:
            asking = Asking()
            try:
                return await question(client)
            finally:
                asking.over()

    return asyncio.run(answer())


async def _events(target: Target, given: Globals, request: EventsRequest) -> None:
    """Print events until the end, or for ever.

    After a change of leader it goes on after the last one seen.
    """
    outage = Outage() if request.follow else Asking()
    async with target.client(FOLLOW_DEADLINE_S if request.follow else ASK_S) as client:
        while True:
            try:
                async for batch in client.events(request):
                    outage.over()
                    _print_batch(given, batch, follow=request.follow)
                    if not request.follow:
                        return  # that was all
                    request = replace(request, after=batch.last)
            except Unreachable as error:
                outage.failed(error)
            await asyncio.sleep(AGAIN_S)


def _print_batch(given: Globals, batch: EventBatch, *, follow: bool) -> None:
    if given.json and not follow:
        render.emit_json(batch)
        return
    for event in batch.events:
        if given.json:
            click.echo(render.json_line(event))
        else:
            print_event(event)


async def _as_tfjobs(client: ControlClient, name: str) -> dict[str, object]:
    """A job as kubectl shows a TFJob, or a list of all."""
    from supervisor.contract.job.tfjob.conditions import as_tfjob

    events: tuple[EventView, ...] = ()
    async for batch in client.events(EventsRequest(name, last=EVENTS_OF_A_JOB)):
        events = batch.events
        break
    names = [name] if name else [job.name for job in (await client.status()).jobs]
    items = [as_tfjob(await client.explain(each), events, render.rfc3339) for each in names]
    return items[0] if name else {"apiVersion": "v1", "kind": "List", "items": items}


def _show_status(document: ClusterStatus, *, detailed: bool) -> None:
    pauses = [(document.paused, document.paused_wall_ms)]
    pauses += [(job.paused, job.paused_wall_ms) for job in document.jobs if detailed]
    for why, since_ms in dict.fromkeys(each for each in pauses if each[0]):
        click.echo(neutralise(_held(why, since_ms)))
    leader = next((entry.supervisor for entry in document.supervisors if entry.leading), "nobody")
    click.echo(neutralise(f"cluster {document.cluster}: {leader} leads, D = {render.seconds(document.d_ms)}"))
    for line in document.etcd:
        click.echo(neutralise(line))
    rows = [
        (
            job.name,
            job.phase.value,
            job.generation,
            render.step(job.step),
            str(job.newest_commit.step) if job.newest_commit else "-",
            f"{sum(task.state == 'running' for task in job.tasks)}/{len(job.tasks)}",
            job.restarts_program + job.restarts_infrastructure,
            "; ".join(dict.fromkeys(filter(None, (job.waiting_for or job.reason, job.paused)))),
        )
        for job in document.jobs
    ]
    heads = ("job", "phase", "generation", "step", "committed", "tasks", "restarts", "reason")
    render.table(heads, rows, "no job has been submitted; run `supervisorctl submit FILE`")
    if detailed:
        for job in document.jobs:
            click.echo()
            _show_tasks(job)
            _show_rest(job)


def _show_tasks(job: JobView) -> None:
    rows = [
        (
            task.task,
            task.state,
            task.node or "-",
            task.attempt or "-",
            task.pid or "-",
            task.address or "-",
            render.step(task.step),
            f"{task.rate:g}/s" if task.rate else "-",
            f"straggler: {task.detail}" if task.straggler else task.detail,
        )
        for task in job.tasks
    ]
    render.table(("task", "state", "node", "attempt", "pid", "address", "step", "rate", "detail"), rows)


def _show_rest(job: JobView) -> None:
    """Print the lines about the job as a whole."""
    lines = [f"restart budget: {_budget(job)}"]
    if job.owner:
        lines.append(f"owner: {job.owner}" + (f", group {job.group}" if job.group else ""))
    if job.waiting_for:
        lines.append(f"waiting for: {job.waiting_for}")
    if job.goodput is not None:
        lines.append(goodput.line(job.goodput))
    lines += _commits(job)
    if job.tensorboard:
        lines.append(f"TensorBoard: {job.tensorboard}")
    if job.code:
        lines.append(f"code: sha256 {job.code}")
    for line in lines:
        click.echo(neutralise(line))


def _commits(job: JobView) -> list[str]:
    """Lines about the steps that a lost node would cost."""
    lines = []
    if job.commit_lag_ms >= 0:
        ahead = f"{job.commit_lag_steps} steps, {render.seconds(job.commit_lag_ms)}"
        newest = f"newest commit: {job.newest_commit}; training is ahead of it by {ahead}"
        lines.append(newest if job.newest_commit else f"no commit yet, after {ahead} of training")
    if job.cadence:
        lines.append(job.cadence)
    if job.commit_trouble:
        lines.append(f"trouble: {job.commit_trouble}")
    if job.saves_skipped:
        lines.append(f"saves skipped for newer ones: {job.saves_skipped}")
    return [*lines, *job.notices, *(f"to do: {each}" for each in job.advice)]


def _budget(job: JobView) -> str:
    budget = job.budget
    return (
        f"{budget.in_a_row} of {budget.in_a_row_allowed} used in a row without progress, "
        f"{budget.in_window} of {budget.in_window_allowed} within {budget.window_ms / 60_000:g} min"
    )


def explanation(document: Explanation) -> str:
    """The text that `explain` prints."""
    job = document.job
    reason = f": {job.reason}" if job.reason else ""
    lines = (
        f"{job.name} is {job.phase.value}{reason}",
        f"generation {job.generation}, "
        + (f"step {job.step}" if job.step >= 0 else "no step is known (docs/progress.md)"),
        f"restarts by its own fault: {job.restarts_program}; by others: {job.restarts_infrastructure}",
        f"restart budget: {_budget(job)}",
        *((_held(job.paused, job.paused_wall_ms),) if job.paused else ()),
        *((f"waiting for: {job.waiting_for}",) if job.waiting_for else ()),
        *((job.cadence,) if job.cadence else ()),
        *job.notices,
        *((f"trouble: {job.commit_trouble}",) if job.commit_trouble else ()),
        *(f"to do: {each}" for each in job.advice),
    )
    told = [neutralise("\n".join(lines)), *(f"\n{_of_incident(each)}" for each in document.incidents)]
    return "\n".join(told if document.incidents else (*told, "nothing has failed"))


def _held(why: str, since_ms: int) -> str:
    """A line about a pause, or the brake."""
    return f"nothing is restarted or moved since {render.moment(since_ms)}: {why}"


def _went_back(incident: IncidentView) -> list[str]:
    """Lines about the step from which training went on, and the steps that are made again."""
    base, lines = incident.base, []
    if incident.cause == Cause.SUBMITTED.value:
        if base is not None or incident.from_scratch:
            lines.append(f"began from checkpoint {base}" if base is not None else "began from scratch")
        return [*lines, *((f"first step: {incident.to_step}",) if incident.to_step >= 0 else ())]
    if base is not None and 0 <= incident.to_step < base.step:
        lines.append(
            f"checkpoint {base} was in $CHECKPOINT_DIR, but its steps began at {incident.to_step}: "
            "it does not restore, or counts them anew"
        )
        if incident.lost_steps >= 0:
            lines.append(f"{incident.lost_steps} steps are made again, up to step {incident.from_step}")
        return [*lines, *_first_step(incident)]
    if base is not None:
        lines.append(f"went back to checkpoint {base}, saved by generation {base.generation}")
    elif incident.from_scratch:
        lines.append("began from scratch: there was no checkpoint to go back to")
    if incident.lost_steps >= 0 and not lines:
        lines.append(f"{incident.lost_steps} steps are made again, up to step {incident.from_step}")
    elif incident.lost_steps >= 0:
        lines.append(
            f"{incident.lost_steps} steps are made again from there, up to step {incident.from_step}"
        )
    elif lines:
        last = f"the last one seen was {incident.from_step}" if incident.from_step >= 0 else "none was seen"
        lines.append(f"how many steps are made again is not known: {last} before the restart")
    return [*lines, *_first_step(incident)]


def _first_step(incident: IncidentView) -> list[str]:
    if incident.to_step < 0:
        return []
    # A number below that of its base was printed once, when it began.
    known = incident.from_step >= (incident.base.step if incident.base is not None else 0)
    before = f"was at step {incident.from_step}, " if known else ""
    return [f"{before}first step after the restart: {incident.to_step}"]


def show_incident(incident: IncidentView) -> None:
    """Print a failure in a few lines: cause, decision, durations, and the last output if it shows the
    cause.
    """
    click.echo(_of_incident(incident))


def _of_incident(incident: IncidentView) -> str:
    where = f" on {incident.node}" if incident.node else ""
    first = (
        f"{render.when(incident.wall_ms)}  "
        + neutralise(f"{incident.cause}: {incident.task or incident.job}{where}  ")
        + render.paint(incident.outcome.value)
    )
    verb = "start" if incident.cause == Cause.SUBMITTED.value else "restart"
    lines = [f"decided: {verb} {incident.scope}, by the rule {incident.rule}"]
    if incident.detail:
        lines.append(incident.detail)
    if incident.phases_ms:
        drawn = render.time_line(incident.phases_ms) if on_terminal() else []
        words = "" if drawn else f": {render.phases(incident.phases_ms)}"
        lines += [f"took {render.seconds(incident.total_ms)}{words}", *(f"  {each}" for each in drawn)]
    lines += _went_back(incident)
    if incident.stack:
        lines += ["where it hung:", *(f"  | {line}" for line in incident.stack.splitlines())]
    if incident.tail:
        printed = incident.tail.splitlines()
        until = printed.index(OMITTED) + 1 if OMITTED in printed else 0
        last = [*printed[:until], *printed[until:][-max(LEAST_LINES, TAIL_LINES - until) :]]
        lines += ["last lines of its output:", *(f"  | {line}" for line in last)]
    return "\n".join((first, *(f"    {neutralise(line)}" for line in lines)))
