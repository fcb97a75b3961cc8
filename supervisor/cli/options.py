"""Options that every verb takes, before or after its name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import click

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Globals:
    """The place of the cluster, and the form of output. None: not given."""

    state: Path | None = None
    config: Path | None = None
    output: str | None = None

    def over(self, base: Globals) -> Globals:
        """These values, completed by those of `base`."""
        return Globals(self.state or base.state, self.config or base.config, self.output or base.output)

    @property
    def json(self) -> bool:
        """Whether the output is for a program."""
        return self.output == "json"


def global_options(function: Callable[Concatenate[Globals, P], R]) -> Callable[P, R]:
    """Add --state, --config and --output; the function gets them first. Options after the verb win."""

    @click.option(
        "--state", type=click.Path(path_type=Path, file_okay=False), help="Directory of an embedded cluster."
    )
    @click.option(
        "--config", type=click.Path(path_type=Path, dir_okay=False), help="Client configuration of a cluster."
    )
    @click.option(
        "-o", "--output", type=click.Choice(["table", "json"]), help="For people (table) or programs (json)."
    )
    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        state, config, output = (kwargs.pop(name) for name in ("state", "config", "output"))
        assert state is None or isinstance(state, Path)
        assert config is None or isinstance(config, Path)
        assert output is None or isinstance(output, str)
        given = Globals(state, config, output)
        context = click.get_current_context()
        if isinstance(context.obj, Globals):
            given = given.over(context.obj)
        return function(given, *args, **kwargs)

    return wrapped
