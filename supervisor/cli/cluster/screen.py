"""The screen of `supervisorctl top`: jobs, nodes and events, drawn by rich."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from supervisor.api.client import ControlClient
from supervisor.cli import render
from supervisor.cli.jobs.goodput import share
from supervisor.cli.outage import FOLLOW_DEADLINE_S
from supervisor.cli.rich_table import grid
from supervisor.cli.target import Target
from supervisor.cli.terminal import colours, one_line
from supervisor.contract.errors import Unreachable
from supervisor.contract.views.jobs import ClusterStatus, EventsRequest, EventView, JobView
from supervisor.contract.views.nodes import NodeList, NodeView

EVENTS_KEPT = 100
LEAST_ROWS = 3
FRAME = 9
"""Lines of a screen that are no rows: titles, heads, rules, counts of what is left out."""
_RUNNING = "running"
_URGENT = ("suspected", "lost", "gone", "draining", "cordoned")


@dataclass(slots=True)
class Screen:
    """The content of the screen: the newest answers of the leader, and the last events.

    Attributes:
        trouble: why the answers are old; empty while the cluster answers.
    """

    status: ClusterStatus | None = None
    nodes: NodeList | None = None
    events: deque[EventView] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    trouble: str = ""

    def draw(self, height: int) -> RenderableType:
        """The screen on `height` lines. Jobs that do not run and nodes in trouble come first."""
        jobs = sorted(self.status.jobs, key=_job_order) if self.status is not None else []
        nodes = sorted(self.nodes.nodes, key=_node_order) if self.nodes is not None else []
        room = max(4 * LEAST_ROWS, height - FRAME)
        for_jobs = min(len(jobs), room // 2)
        for_nodes = min(len(nodes), room // 4)
        last = list(self.events)[-(room - for_jobs - for_nodes) :]
        return Group(
            *self._head(nodes),
            _table(_JOB_HEADS, [_job_row(each) for each in jobs], for_jobs, "no job"),
            _table(_NODE_HEADS, [_node_row(each) for each in nodes], for_nodes, "no node"),
            Text(),
            *(Text(_event_line(each), overflow="ellipsis", no_wrap=True) for each in last),
        )

    def _head(self, nodes: Sequence[NodeView]) -> list[Text]:
        if self.status is None:
            return [Text(self.trouble or "asking the cluster")]
        leader = next((each.supervisor for each in self.status.supervisors if each.leading), "nobody")
        running = sum(job.phase.value == _RUNNING for job in self.status.jobs)
        ready = sum(node.state == "ready" for node in nodes)
        counts = f"{running} of {len(self.status.jobs)} jobs run, {ready} of {len(nodes)} nodes are ready"
        lines = [Text(one_line(f"cluster {self.status.cluster}: {leader} leads; {counts}"), style="bold")]
        if self.status.paused:
            lines.append(Text(one_line(f"PAUSED: {self.status.paused}"), style=render.BAD))
        lines += [Text(one_line(line), style=render.WARN) for line in self.status.etcd]
        if self.trouble:
            lines.append(Text(one_line(self.trouble), style=render.BAD))
        return lines


_JOB_HEADS = ("job", "phase", "gen", "step", "rate", "committed", "goodput", "tasks", "restarts", "note")
_NODE_HEADS = ("node", "state", "beat", "tasks", "GPUs", "note")


def _job_order(job: JobView) -> tuple[int, str]:
    ended = job.phase.value in {"succeeded", "failed", "stopped"}
    return (1 if job.phase.value == _RUNNING else 2 if ended else 0, job.name)


def _node_order(node: NodeView) -> tuple[bool, str]:
    return (node.state not in _URGENT, node.node)


def _job_row(job: JobView) -> tuple[str, ...]:
    there = sum(task.state == _RUNNING for task in job.tasks)
    return (
        job.name,
        job.phase.value,
        str(job.generation),
        render.step(job.step),
        f"{job.rate:g}/s" if job.rate else "-",
        str(job.newest_commit.step) if job.newest_commit else "-",
        share(job.goodput),
        f"{there}/{len(job.tasks)}",
        str(job.restarts_program + job.restarts_infrastructure),
        job.waiting_for or job.paused or job.reason or job.commit_trouble,
    )


def _node_row(node: NodeView) -> tuple[str, ...]:
    gpus = f"{node.gpus_used}/{node.gpus}" if node.gpus else "-"
    beat = f"{node.beat_age_ms / 1000:.1f} s" if node.beat_age_ms >= 0 else "-"
    return (node.node, node.state, beat, str(len(node.tasks)), gpus, node.reason)


def _event_line(event: EventView) -> str:
    about = f"{event.job}: " if event.job else ""
    return one_line(f"{render.when(event.wall_ms)}  {about}{event.text or event.kind}")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], most: int, empty: str) -> RenderableType:
    shown = rows[:most]
    table = grid(heads, [[one_line(cell) for cell in row] for row in shown], render.COLOURS, wrap=False)
    if not rows:
        return Text(empty, style=render.DIM)
    if len(shown) == len(rows):
        return table
    return Group(table, Text(f"and {len(rows) - len(shown)} more", style=render.DIM))


async def show(target: Target, every_s: float) -> None:
    """Draw the cluster each `every_s` seconds, until it is cancelled."""
    screen = Screen()
    console = Console(no_color=not colours(), highlight=False)
    async with target.client(FOLLOW_DEADLINE_S) as client:
        with Live(screen.draw(console.height), console=console, screen=True, auto_refresh=False) as live:
            listening = asyncio.create_task(_listen(client, screen))
            try:
                while True:
                    await _ask(client, screen)
                    live.update(screen.draw(console.height), refresh=True)
                    await asyncio.sleep(every_s)
            finally:
                listening.cancel()


async def _ask(client: ControlClient, screen: Screen) -> None:
    try:
        screen.status, screen.nodes = await client.status(""), await client.nodes()
    except Unreachable as error:
        screen.trouble = f"the cluster does not answer; what is shown is old: {error}"
    else:
        screen.trouble = ""


async def _listen(client: ControlClient, screen: Screen) -> None:
    """Collect events. After a change of leader it goes on after the last one seen."""
    request = EventsRequest("", follow=True, last=EVENTS_KEPT)
    while True:
        try:
            async for batch in client.events(request):
                screen.events.extend(batch.events)
                request = EventsRequest("", follow=True, last=EVENTS_KEPT, after=batch.last)
        except Unreachable:
            await asyncio.sleep(FOLLOW_DEADLINE_S)
