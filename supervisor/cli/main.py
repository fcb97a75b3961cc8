"""The command tree. A verb is imported when it is used: `--help` loads little more than click."""

from __future__ import annotations

import difflib
import importlib
import sys

import click

from supervisor.cli.options import Globals, global_options
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import TfSupervisorError

VERBS = {
    "local": (
        "supervisor.cli.local.commands",
        "Start, inspect and stop the embedded cluster of this machine.",
    ),
    "submit": ("supervisor.cli.jobs", "Start a job."),
    "run": ("supervisor.cli.jobs", "Submit a job, follow it, and exit with its result."),
    "validate": ("supervisor.cli.jobs", "Check a job file without starting it."),
    "wait": ("supervisor.cli.jobs", "Wait until a job is running, has ended, or has reached a step."),
    "stop": ("supervisor.cli.control", "Stop a job; its checkpoints stay."),
    "start": ("supervisor.cli.control", "Start a stopped job again from its newest checkpoint."),
    "restart": ("supervisor.cli.control", "Restart a job, or one task of it."),
    "status": ("supervisor.cli.look", "Show jobs and their tasks."),
    "explain": ("supervisor.cli.look", "Tell what failed in a job, what was decided and how long it took."),
    "events": ("supervisor.cli.look", "Show what happened, oldest first."),
    "checkpoints": ("supervisor.cli.look", "List a job's committed checkpoints."),
    "pin": ("supervisor.cli.control", "Keep a checkpoint for good."),
    "unpin": ("supervisor.cli.control", "Let a pinned checkpoint be removed when it is old."),
    "nodes": ("supervisor.cli.look", "Show the nodes and what runs on them."),
    "tail": ("supervisor.cli.tail", "Show the output of a task, across its restarts."),
    "signal": ("supervisor.cli.control", "Send a signal to a task."),
    "exec": ("supervisor.cli.execute", "Run a command beside a task, in its environment."),
    "version": ("supervisor.cli.look", "Show the version."),
}

_FUNCTIONS = {"exec": "execute"}


class LazyGroup(click.Group):
    """A group that knows its verbs' names and one-line helps, and imports a verb only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every verb, in the order of VERBS."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb itself; None for an unknown one."""
        del ctx
        if cmd_name not in VERBS:
            return None
        command = getattr(importlib.import_module(VERBS[cmd_name][0]), _FUNCTIONS.get(cmd_name, cmd_name))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Add a did-you-mean to the error about an unknown verb."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; see {ctx.info_name} --help"
            raise click.UsageError(f"unknown command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@global_options
@click.pass_context
def cli(ctx: click.Context, given: Globals) -> None:
    """Run distributed TensorFlow training that survives the loss of any process or machine.

    The cluster is found by --state or --config, else TFSUP_STATE, TFSUP_CONFIG, else in ./var/local.
    """
    ctx.obj = given


def main() -> None:
    """Entry point of the scripts. Exit codes: docs/cli.md; wrong input gives no traceback."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except TfSupervisorError as error:
        click.echo(f"error: {neutralise(str(error))}", err=True)
        code = error.exit_code
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
