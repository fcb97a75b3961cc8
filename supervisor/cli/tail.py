"""`tail`: a task's output, across its attempts and also when it moves to another node."""

from __future__ import annotations

import asyncio
import base64
import sys

import click

from supervisor.cli.options import Globals, global_options
from supervisor.cli.render import json_line
from supervisor.cli.target import Target, find_target
from supervisor.cli.terminal import Neutraliser, on_terminal
from supervisor.contract.errors import NotFound, Unreachable
from supervisor.contract.ids import TaskId
from supervisor.contract.views import TailChunk, TailRequest

_AGAIN_S = 0.3


@click.command()
@click.argument("task", metavar="JOB/ROLE:INDEX")
@click.option("-f", "--follow", is_flag=True, help="Go on with new output, also of later attempts.")
@click.option("-c", "--bytes", "last_bytes", type=click.IntRange(min=0), default=8192, show_default=True)
@click.option("--raw", is_flag=True, help="Write the bytes as they are; refused on a terminal.")
@global_options
def tail(given: Globals, task: str, follow: bool, last_bytes: int, raw: bool) -> None:
    """Show the output of a task, with what could steer the terminal shown as escapes."""
    if raw and on_terminal():
        raise click.UsageError("--raw could steer your terminal; redirect the output")
    request = TailRequest(str(TaskId.parse(task)), follow, last_bytes)
    asyncio.run(_tail(find_target(given), given, request, raw=raw))


async def _tail(target: Target, given: Globals, request: TailRequest, *, raw: bool) -> None:
    printer = _Printer(given, raw=raw)
    async with target.client() as client:
        while True:
            try:
                async for chunk in client.tail(request):
                    printer.show(chunk)
            except (Unreachable, NotFound) as error:
                # While a node is lost or a task moves there is nobody to ask; who follows waits for the next.
                if not request.follow or (isinstance(error, NotFound) and not printer.shown):
                    raise
            if not request.follow:
                printer.finish()
                return
            await asyncio.sleep(_AGAIN_S)
            request = TailRequest(request.task, follow=True, last_bytes=0)


class _Printer:
    def __init__(self, given: Globals, *, raw: bool) -> None:
        self.shown = False
        self._json = given.json
        self._raw = raw
        self._attempt = ""
        self._safe = Neutraliser()

    def show(self, chunk: TailChunk) -> None:
        self.shown = True
        if self._json:
            click.echo(json_line(chunk))
            return
        data = base64.b64decode(chunk.data)
        if self._raw:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        if chunk.attempt != self._attempt:
            if self._attempt:
                click.echo(self._safe.feed(b"", final=True), nl=False)
                self._safe = Neutraliser()
                click.echo(f"--- {chunk.attempt} ---", err=True)
            self._attempt = chunk.attempt
        click.echo(self._safe.feed(data), nl=False)

    def finish(self) -> None:
        if not self._json and not self._raw:
            click.echo(self._safe.feed(b"", final=True), nl=False)
