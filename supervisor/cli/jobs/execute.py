"""`exec`: a command beside a running task, with its output and its exit code."""

from __future__ import annotations

import asyncio
import base64
import sys
from contextlib import aclosing

import click

from supervisor.cli import names
from supervisor.cli.options import Globals, global_options
from supervisor.cli.render import emit_json
from supervisor.cli.target import Target, find_target
from supervisor.cli.terminal import Neutraliser
from supervisor.contract.errors import Unreachable
from supervisor.contract.ids import TaskId
from supervisor.contract.views.jobs import ExecChunk, ExecRequest

EXEC_TIMED_OUT = 124
MOST_JSON_BYTES = 16 << 20


@click.command("exec")
@click.argument("task", shell_complete=names.tasks, metavar="JOB/ROLE:INDEX")
@click.option(
    "--timeout", default=60.0, show_default=True, help="Seconds until the command is killed (code 124)."
)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@global_options
@click.pass_context
def execute(
    context: click.Context, given: Globals, task: str, timeout: float, command: tuple[str, ...]
) -> None:
    """Run COMMAND beside a task: on its node, in its directory, with its environment.

    Exits with the command's exit code. The command and all that it starts die with this one.
    """
    if not 0 < timeout <= 24 * 3600:
        raise click.UsageError("--timeout: more than 0 s, and at most a day")
    request = ExecRequest(str(TaskId.parse(task)), command, round(timeout * 1000))
    screen = _Document(request.task) if given.json else _Streams()
    context.exit(asyncio.run(_execute(find_target(given), request, screen)))


async def _execute(target: Target, request: ExecRequest, screen: _Streams | _Document) -> int:
    async with target.client() as client, aclosing(client.exec(request)) as chunks:
        async for chunk in chunks:
            if chunk.data:
                screen.show(chunk.stream, base64.b64decode(chunk.data))
            if chunk.code >= 0:
                return screen.end(chunk)
    raise Unreachable(
        f"the agent did not report the end of the command; see `supervisorctl status {request.task}`"
    )


class _Streams:
    """Standard output and error: neutralised on a terminal, unchanged elsewhere."""

    def __init__(self) -> None:
        self._safe = {"out": Neutraliser(), "err": Neutraliser()}

    def show(self, stream: str, data: bytes, *, final: bool = False) -> None:
        target = sys.stderr if stream == "err" else sys.stdout
        if target.isatty():
            click.echo(self._safe[stream].feed(data, final=final), nl=False, err=stream == "err")
        else:
            target.buffer.write(data)
            target.buffer.flush()

    def end(self, chunk: ExecChunk) -> int:
        for stream in self._safe:
            self.show(stream, b"", final=True)
        if chunk.timed_out:
            click.echo("exec: killed, its time was over", err=True)
            return EXEC_TIMED_OUT
        return chunk.code


class _Document:
    """One JSON document at the end, with at most 16 MiB of each stream."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._bytes = {"out": bytearray(), "err": bytearray()}
        self._cut = False

    def show(self, stream: str, data: bytes) -> None:
        kept = self._bytes[stream]
        room = MOST_JSON_BYTES - len(kept)
        kept += data[:room]
        self._cut = self._cut or len(data) > room

    def end(self, chunk: ExecChunk) -> int:
        code = EXEC_TIMED_OUT if chunk.timed_out else chunk.code
        text = {name: data.decode("utf-8", "backslashreplace") for name, data in self._bytes.items()}
        emit_json(
            {
                "task": self._task,
                "attempt": chunk.attempt,
                "node": chunk.node,
                "exit_code": code,
                "timed_out": chunk.timed_out,
                "stdout": text["out"],
                "stderr": text["err"],
                "cut": self._cut,
            }
        )
        return code
