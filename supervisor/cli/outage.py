"""The behaviour of a command while no leader answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import click

from supervisor.cli.progress import RewrittenLine
from supervisor.cli.terminal import neutralise, one_line
from supervisor.contract.errors import Unreachable

SAY_AFTER_S = 2.0
AGAIN_S = 0.3
FOLLOW_DEADLINE_S = 1.0
ASK_S = 10.0
SAY_WHEN_ASKING_S = 1.0


class Outage:
    """The outage of a command that follows: it waits for ever, and prints a message once for each outage,
    after 2 s.

    Call `failed` after each call without an answer, and `over` after each answer.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._said = False

    def failed(self, error: Unreachable) -> None:
        """Print that the command waits, once, if the outage has lasted long enough."""
        now = time.monotonic()
        if self._since is None:
            # The failed call has itself waited for so long.
            self._since = now - FOLLOW_DEADLINE_S
        if not self._said and now - self._since >= SAY_AFTER_S:
            self._said = True
            click.echo(f"waiting for the cluster, Ctrl-C ends this: {one_line(str(error))}", err=True)

    def over(self) -> None:
        """Note that the cluster answers."""
        if self._said:
            click.echo("the cluster answers again", err=True)
        self._since, self._said = None, False


class Asking:
    """The outage of a command that asks once: it asks again for ASK_S, so that it survives a change of
    leader.

    Construct it on a running event loop. After a second it prints that it waits. `failed` and `over` are used
    as in Outage; `failed` raises the error when the time is over.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + ASK_S
        said = f"waiting for a leader of the cluster, for at most {ASK_S:g} s"
        self._timer = self._loop.call_later(SAY_WHEN_ASKING_S, partial(click.echo, said, err=True))

    def failed(self, error: Unreachable) -> None:
        """Wait for the next try, or raise the error."""
        if self._loop.time() >= self._until:
            raise error

    def over(self) -> None:
        """Note an answer: the next outage has the full time again."""
        self._timer.cancel()
        self._until = self._loop.time() + ASK_S


async def until_nothing_is_left(
    look: Callable[[], Awaitable[str]], timeout_s: float | None, *, shown: bool
) -> bool:
    """Call `look` until it returns an empty text; False if the time is over first.

    It survives outages, and prints them. `shown`: the text of `look` is shown in a line that is rewritten.
    """
    end_s = time.monotonic() + timeout_s if timeout_s is not None else None
    line, outage = RewrittenLine(wanted=shown), Outage()
    while True:
        left = "the cluster does not answer"
        try:
            left = await look()
            outage.over()
        except Unreachable as error:
            outage.failed(error)
        if not left:
            line.clear()
            return True
        line.write(left)
        if end_s is not None and time.monotonic() >= end_s:
            line.clear()
            click.echo(neutralise(left), err=True)
            return False
        await asyncio.sleep(AGAIN_S)
