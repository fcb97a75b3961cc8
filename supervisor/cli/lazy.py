"""Groups of verbs that are imported when they are used: `--help` loads little more than click."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import ClassVar

import click


class LazyGroup(click.Group):
    """A group that knows its verbs' names and one-line helps, and imports a verb only to run it.

    Attributes:
        verbs: name -> module, one-line help.
        functions: name -> function in that module, if that differs from the verb's name.
    """

    verbs: ClassVar[Mapping[str, tuple[str, str]]] = {}
    functions: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every verb, in the order of `verbs`."""
        del ctx
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb itself; None for an unknown one."""
        del ctx
        if cmd_name not in self.verbs:
            return None
        module = importlib.import_module(self.verbs[cmd_name][0])
        command = getattr(module, self.functions.get(cmd_name, cmd_name))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Add a did-you-mean to the error about an unknown verb."""
        if args and args[0] not in self.verbs and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self.verbs, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; see {ctx.info_name} --help"
            raise click.UsageError(f"unknown command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)
