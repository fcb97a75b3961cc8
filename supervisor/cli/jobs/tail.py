"""`tail`: a task's output, across its attempts and nodes."""

from __future__ import annotations

import asyncio
import base64
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Concatenate, ParamSpec, TypeVar

import click

from supervisor.cli import names
from supervisor.cli.options import Globals, global_options
from supervisor.cli.outage import AGAIN_S, ASK_S, FOLLOW_DEADLINE_S, Asking, Outage
from supervisor.cli.render import json_line
from supervisor.cli.target import Target, find_target
from supervisor.cli.terminal import Neutraliser, on_terminal, one_line
from supervisor.contract.errors import Unreachable
from supervisor.contract.ids import TaskId
from supervisor.contract.views.jobs import LINES_WITHIN, TailChunk, TailRequest

P = ParamSpec("P")
R = TypeVar("R")
ALL_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class End:
    """How much is wanted of the end of each attempt's output. None: not given."""

    lines: int | None
    bytes: int | None

    def of(self, request: TailRequest) -> TailRequest:
        """A request for so much. Without both it stays as it is."""
        if self.lines == 0:
            return replace(request, last_bytes=0)
        most = request.last_bytes if self.lines is None else LINES_WITHIN
        return replace(
            request, last_bytes=most if self.bytes is None else self.bytes, last_lines=self.lines or 0
        )


def end_options(of_lines: str, of_bytes: str) -> Callable[[Callable[Concatenate[End, P], R]], Callable[P, R]]:
    """Add -n and -c with these helps; the function gets an End first."""

    def add(function: Callable[Concatenate[End, P], R]) -> Callable[P, R]:
        @click.option("-n", "--lines", type=click.IntRange(min=0), help=of_lines)
        @click.option("-c", "--bytes", type=click.IntRange(min=0, max=ALL_BYTES), help=of_bytes)
        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            lines, most = (kwargs.pop(name) for name in ("lines", "bytes"))
            assert lines is None or isinstance(lines, int)
            assert most is None or isinstance(most, int)
            return function(End(lines, most), *args, **kwargs)

        return wrapped

    return add


@click.command()
@click.argument("task", shell_complete=names.tasks, metavar="JOB/ROLE:INDEX")
@click.option(
    "-f", "--follow", is_flag=True, help="Then show new output as it comes, also of later attempts."
)
@click.option("--raw", is_flag=True, help="Write the bytes as they are; refused on a terminal.")
@click.option(
    "--stacks", is_flag=True, help="Show the stored stacks of attempts that may have hung, not output."
)
@global_options
@end_options(
    "The lines to show from the end of each attempt's output.",
    "The bytes to show from the end of each attempt's output; 8192 without -n.",
)
def tail(end: End, given: Globals, task: str, follow: bool, raw: bool, stacks: bool) -> None:
    """Show the output of a task's attempts, with what could steer the terminal shown as escapes.

    For example: supervisorctl tail digits/worker:0 -n 20 -f
    """
    if raw and on_terminal():
        raise click.UsageError("--raw could steer your terminal; redirect the output")
    if stacks and follow:
        raise click.UsageError("--stacks shows what is stored; it cannot follow")
    request = end.of(TailRequest(str(TaskId.parse(task)), follow, stacks=stacks))
    asyncio.run(_tail(find_target(given), request, _Printer(given, raw=raw)))


async def _tail(target: Target, request: TailRequest, printer: _Printer) -> None:
    """Print output until the end, or for ever. After a change of leader it goes on after the last piece."""
    outage = Outage() if request.follow else Asking()
    async with target.client(FOLLOW_DEADLINE_S if request.follow else ASK_S) as client:
        while True:
            try:
                async for chunk in client.tail(request):
                    outage.over()
                    printer.show(chunk)
                    request = replace(request, after=chunk.place)
            except Unreachable as error:
                outage.failed(error)
            else:
                if not request.follow:
                    outage.over()
                    printer.finish()
                    return
            await asyncio.sleep(AGAIN_S)


class _Printer:
    """Prints output to standard output, and its attempt and notes about missing output to standard error."""

    def __init__(self, given: Globals, *, raw: bool) -> None:
        self._json = given.json
        self._raw = raw
        self._attempt = ""
        self._safe = Neutraliser()

    def show(self, chunk: TailChunk) -> None:
        if chunk.note:
            click.echo(f"tail: {one_line(chunk.note)}", err=True)
        if chunk.attempt != self._attempt:
            self._begin(chunk)
        if self._json:
            if chunk.data:
                click.echo(json_line(chunk))
            return
        data = base64.b64decode(chunk.data)
        if self._raw:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            click.echo(self._safe.feed(data), nl=False)

    def finish(self) -> None:
        if not self._json and not self._raw:
            click.echo(self._safe.feed(b"", final=True), nl=False)

    def _begin(self, chunk: TailChunk) -> None:
        self.finish()
        self._safe = Neutraliser()
        self._attempt = chunk.attempt
        if not self._json and chunk.attempt:
            where = f" on {chunk.node}" if chunk.node else ""
            cut = ", its end" if chunk.cut else ""
            click.echo(f"==> {one_line(chunk.attempt + where + cut)} <==", err=True)
