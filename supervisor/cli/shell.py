"""Completion of the words of `supervisorctl` in a shell, and its manual page."""

from __future__ import annotations

from collections.abc import Iterator

import click

from supervisor.cli.options import Globals, global_options

PROGRAM = "supervisorctl"
_EVERYWHERE = ("state", "config", "output", "help")
"""Options of every verb: the manual has them once."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--name", default=PROGRAM, show_default=True, help="The command that the shell completes.")
@global_options
def completion(given: Globals, shell: str, name: str) -> None:
    """Print a script by which SHELL completes verbs, options, and names of jobs, tasks and nodes.

    For bash: supervisorctl completion bash >/etc/bash_completion.d/supervisorctl
    """
    del given
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    variable = f"_{name}_COMPLETE".replace("-", "_").replace(".", "_").upper()
    click.echo(kind(root, {}, name, variable).source())


@click.command()
@global_options
def man(given: Globals) -> None:
    """Print the manual page, made from the help of all verbs.

    To read it: supervisorctl man | man -l -
    """
    del given
    root = click.get_current_context().find_root()
    click.echo("\n".join(_page(root.command)))


def _page(command: click.Command) -> Iterator[str]:
    assert isinstance(command, click.Group)
    context = click.Context(command, info_name=PROGRAM)
    yield f'.TH {PROGRAM.upper()} 1 "" "tf-supervisor"'
    yield ".SH NAME"
    yield _text(f"{PROGRAM} - keep distributed TensorFlow training alive")
    yield ".SH SYNOPSIS"
    yield _text(f"{PROGRAM} [OPTIONS] COMMAND [ARGS]...")
    yield ".SH DESCRIPTION"
    yield from _help(command)
    yield ".SH OPTIONS"
    yield from _options(command, context)
    yield ".SH COMMANDS"
    yield from _verbs(command, context)
    yield ".SH EXIT STATUS"
    yield _text("0: done. Other codes are in docs/cli.md.")


def _verbs(group: click.Group, parent: click.Context) -> Iterator[str]:
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        assert command is not None
        context = click.Context(command, parent, info_name=name)
        usage = " ".join([context.command_path.removeprefix(PROGRAM), *command.collect_usage_pieces(context)])
        yield ".SS " + _text(usage.strip())
        yield from _help(command)
        yield from _options(command, context)
        if isinstance(command, click.Group):
            yield from _verbs(command, context)


def _help(command: click.Command) -> Iterator[str]:
    for paragraph in (command.help or "").split("\n\n"):
        yield ".PP"
        yield _text(" ".join(paragraph.replace("\b", "").split()))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is None or (context.parent is not None and parameter.name in _EVERYWHERE):
            continue
        yield ".TP"
        yield f"\\fB{_text(record[0])}\\fR"
        yield _text(record[1])


def _text(words: str) -> str:
    r"""Words as roff shows them: hyphens that can be copied, no request in the first column."""
    safe = words.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe
