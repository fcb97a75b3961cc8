"""What a command that follows says while the cluster does not answer: once for each outage, after 2 s."""

from __future__ import annotations

import time

import click

from supervisor.cli.terminal import one_line
from supervisor.contract.errors import Unreachable

SAY_AFTER_S = 2.0
AGAIN_S = 0.3
FOLLOW_DEADLINE_S = 1.0


class Outage:
    """`failed` after each call that nobody answered, `over` after each answer."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._said = False

    def failed(self, error: Unreachable) -> None:
        """Say what is waited for, if the outage has lasted long enough and it was not said before."""
        now = time.monotonic()
        if self._since is None:
            # The failed call has itself waited for so long.
            self._since = now - FOLLOW_DEADLINE_S
        if not self._said and now - self._since >= SAY_AFTER_S:
            self._said = True
            click.echo(f"waiting for the cluster, Ctrl-C ends this: {one_line(str(error))}", err=True)

    def over(self) -> None:
        """The cluster answers."""
        if self._said:
            click.echo("the cluster answers again", err=True)
        self._since, self._said = None, False
