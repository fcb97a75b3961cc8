"""`logs`: the output of all tasks of a job, merged by time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

import click

from supervisor.cli import names
from supervisor.cli.jobs.merged_lines import Line, LineCutter, last, merged
from supervisor.cli.jobs.tail import ALL_BYTES, End, end_options
from supervisor.cli.options import Globals, global_options
from supervisor.cli.outage import AGAIN_S, ASK_S, FOLLOW_DEADLINE_S, Asking, Outage
from supervisor.cli.render import json_line
from supervisor.cli.target import Target, find_target
from supervisor.cli.terminal import colours, neutralise, one_line
from supervisor.contract.errors import NotFound, Unreachable, UserError
from supervisor.contract.ids import TaskId, check_name
from supervisor.contract.views.jobs import TailRequest

if TYPE_CHECKING:
    from supervisor.api.client import ControlClient

MOST_TASKS = 200
TOGETHER_S = 0.2
"""Seconds for which new lines wait for older ones of other tasks."""
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


@dataclass(frozen=True, slots=True)
class _LineView:
    """A line as programs get it: `at_ms` is when it began, by its node's clock; 0: that is not known."""

    task: str
    attempt: str
    node: str
    at_ms: int
    text: str


@click.command()
@click.argument("job", shell_complete=names.jobs)
@click.option("-f", "--follow", is_flag=True, help="Then show new output as it comes.")
@click.option("--since", default="", metavar="DURATION", help="Only of the last time, such as 10m or 2h.")
@click.option(
    *("--role", "roles"),
    multiple=True,
    metavar="ROLE",
    shell_complete=names.roles_of_job,
    help="Only tasks of this role; repeatable.",
)
@click.option(
    *("--task", "tasks"),
    multiple=True,
    metavar="ROLE:INDEX",
    shell_complete=names.tasks_of_job,
    help="Only this task; repeatable.",
)
@click.option("--timestamps", is_flag=True, help="Begin each line with the time at which it came.")
@global_options
@end_options(
    "Only the last lines of what would be shown.",
    "The bytes to take from the end of each attempt's output; 64 KiB without -n and --since.",
)
def logs(
    end: End,
    given: Globals,
    job: str,
    follow: bool,
    since: str,
    roles: tuple[str, ...],
    tasks: tuple[str, ...],
    timestamps: bool,
) -> None:
    """Show the output of JOB's tasks, merged by time, with what could steer the terminal shown as escapes.

    Output of nodes that are lost or away comes from the job's store.

    For example: supervisorctl logs digits --role worker -n 50 -f
    """
    check_name("job", job)
    named = frozenset(map(partial(_task, job), tasks))
    wanted = _Wanted(job, frozenset(roles), named)
    request = TailRequest("", False, ALL_BYTES if since else 64 << 10, merged=True, since_ms=_since(since))
    asyncio.run(
        _logs(find_target(given), wanted, end.of(request), _Printer(given, timestamps), follow=follow)
    )


def _task(job: str, text: str) -> str:
    try:
        return str(TaskId.parse(f"{job}/{text}"))
    except UserError as error:
        raise UserError(f"--task {text!r}: write ROLE:INDEX, for example worker:0") from error


def _since(text: str) -> int:
    if not text:
        return 0
    from supervisor.adapters.files.quantities import duration_ms

    try:
        return int(time.time() * 1000) - duration_ms(text)
    except ValueError as error:
        raise UserError(f"--since {error}") from error


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The tasks of a job whose output is wanted; without names all of them."""

    job: str
    roles: frozenset[str]
    tasks: frozenset[str]

    async def find(self, client: ControlClient) -> list[str]:
        """Their names. Raises NotFound for one that is none, UserError for too many."""
        known = [each.task for job in (await client.status(self.job)).jobs for each in job.tasks]
        roles = {TaskId.parse(task).role for task in known}
        if unknown := sorted(self.roles - roles):
            raise NotFound(f"job {self.job} has no role {unknown[0]!r}; it has {', '.join(sorted(roles))}")
        found = [task for task in known if not self.roles or TaskId.parse(task).role in self.roles]
        found = [task for task in found if task in self.tasks] if self.tasks else found
        if missing := sorted(self.tasks - set(known)):
            raise NotFound(f"no task {missing[0]}; see `supervisorctl status {self.job}`")
        if len(found) > MOST_TASKS:
            raise UserError(
                f"job {self.job} has {len(found)} tasks, and at most {MOST_TASKS} are merged: "
                "name some by --role or --task"
            )
        return found


@dataclass(slots=True)
class _Source:
    """The output of one task, from the place up to which it was shown."""

    client: ControlClient
    request: TailRequest
    outage: Outage | Asking
    printer: _Printer
    cutter: LineCutter = field(init=False)

    def __post_init__(self) -> None:
        self.cutter = LineCutter(self.request.task)

    async def lines(self) -> AsyncGenerator[Line, None]:
        """The lines to the present end; with `follow`, for ever."""
        while True:
            try:
                async with aclosing(self.client.tail(self.request)) as chunks:
                    async for chunk in chunks:
                        self.outage.over()
                        if chunk.note:
                            self.printer.note(self.request.task, chunk.note)
                        self.request = replace(self.request, after=chunk.place)
                        for line in self.cutter.feed(chunk):
                            yield line
            except Unreachable as error:
                self.outage.failed(error)
            except NotFound:
                # This stream has no line now; others have some.
                self.outage.over()
                return
            else:
                if not self.request.follow:
                    for line in self.cutter.finish():
                        yield line
                    return
            await asyncio.sleep(AGAIN_S)


async def _logs(
    target: Target, wanted: _Wanted, request: TailRequest, printer: _Printer, *, follow: bool
) -> None:
    async with target.client(ASK_S) as client:
        tasks = await wanted.find(client)
    printer.know(tasks)
    async with target.client(FOLLOW_DEADLINE_S if follow else ASK_S) as client:
        outage = Outage() if follow else Asking()
        sources = [_Source(client, replace(request, task=task), outage, printer) for task in tasks]
        shown = False
        async for line in last(merged([source.lines() for source in sources]), request.last_lines):
            shown = True
            printer.show(line)
        outage.over()
        if follow:
            await _follow(sources, printer)
        if not shown and request.last_bytes:
            raise NotFound(
                f"no task of {wanted.job} has any output here; see `supervisorctl status {wanted.job}`"
            )


async def _follow(sources: Sequence[_Source], printer: _Printer) -> None:
    """Show new lines as they come, in their order as far as they come together."""
    lines: asyncio.Queue[Line] = asyncio.Queue(1000)

    async def read(source: _Source) -> None:
        source.request = replace(source.request, follow=True, last_bytes=ALL_BYTES, since_ms=0, last_lines=0)
        while True:
            async for line in source.lines():
                await lines.put(line)
            await asyncio.sleep(AGAIN_S)

    async with asyncio.TaskGroup() as group:
        for source in sources:
            group.create_task(read(source))
        while True:
            came = [await lines.get()]
            await asyncio.sleep(TOGETHER_S)
            while not lines.empty():
                came.append(lines.get_nowait())
            for line in sorted(came, key=lambda line: line.at_ms):
                printer.show(line)


class _Printer:
    """Prints lines to standard output with the names of their tasks, and notes to standard error."""

    def __init__(self, given: Globals, timestamps: bool) -> None:
        self._json = given.json
        self._timestamps = timestamps
        self._prefixes: dict[str, str] = {}
        self._attempts: dict[str, str] = {}
        self._said: set[tuple[str, str]] = set()

    def know(self, tasks: Sequence[str]) -> None:
        """Give each task its prefix."""
        names = [task.partition("/")[2] for task in tasks]
        width = max(map(len, names), default=0)
        for task, name, colour in zip(tasks, names, cycle(_COLOURS), strict=False):
            prefix = f"{name:<{width}} |"
            self._prefixes[task] = click.style(prefix, fg=colour) if colours() else prefix

    def show(self, line: Line) -> None:
        """Print a line."""
        text = neutralise(line.text)
        if self._json:
            click.echo(json_line(_LineView(line.task, line.attempt, line.node, line.at_ms, text)))
            return
        prefix = self._prefixes[line.task]
        before = self._attempts.get(line.task, line.attempt)
        self._attempts[line.task] = line.attempt
        if line.attempt != before:
            click.echo(f"{prefix} ==> {one_line(f'{line.attempt} on {line.node}')} <==", err=True)
        stamp = f"{_clock_time(line.at_ms)} " if self._timestamps else ""
        for part in text.split("\n"):
            click.echo(f"{prefix} {stamp}{part}")

    def note(self, task: str, text: str) -> None:
        """Print a note on a task's output, once."""
        if (task, text) not in self._said:
            self._said.add((task, text))
            click.echo(f"logs: {one_line(f'{task}: {text}')}", err=True)


def _clock_time(ms: int) -> str:
    if not 0 < ms < 1 << 50:
        return "-".ljust(23)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000)) + f".{ms % 1000:03d}"
