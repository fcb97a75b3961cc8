"""The screen of `supervisorctl top`: jobs, nodes and events, drawn by rich."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
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
WIDE = 100
"""From so many columns on, jobs show all their cells."""
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

    def draw(self, width: int, height: int) -> RenderableType:
        """The screen of a terminal of that size. Jobs that do not run and nodes in trouble come first."""
        jobs = sorted(self.status.jobs, key=_job_order) if self.status is not None else []
        nodes = sorted(self.nodes.nodes, key=_node_order) if self.nodes is not None else []
        room = max(4 * LEAST_ROWS, height - FRAME)
        for_jobs = min(len(jobs), room // 2)
        for_nodes = min(len(nodes), room // 4)
        last = list(self.events)[-(room - for_jobs - for_nodes) :]
        return Group(
            *self._head(nodes),
            _table([_job_row(each, wide=width >= WIDE) for each in jobs], for_jobs, "no job"),
            _table([_node_row(each) for each in nodes], for_nodes, "no node"),
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
            lines.append(
                Text(one_line(f"nothing is restarted or moved: {self.status.paused}"), style=render.BAD)
            )
        lines += [Text(one_line(line), style=render.WARN) for line in self.status.etcd]
        if self.trouble:
            lines.append(Text(one_line(self.trouble), style=render.BAD))
        return lines


def _job_order(job: JobView) -> tuple[int, str]:
    ended = job.phase.value in {"succeeded", "failed", "stopped"}
    return (1 if job.phase.value == _RUNNING else 2 if ended else 0, job.name)


def _node_order(node: NodeView) -> tuple[bool, str]:
    return (node.state not in _URGENT, node.node)


def _job_row(job: JobView, *, wide: bool) -> dict[str, str]:
    """The cells of a job by their heads. On a narrow screen some are left out, for names and notes."""
    there = sum(task.state == _RUNNING for task in job.tasks)
    return {
        "job": job.name,
        "phase": job.phase.value,
        **({"gen": str(job.generation)} if wide else {}),
        "step": render.step(job.step),
        **({"rate": f"{job.rate:g}/s" if job.rate else "-"} if wide else {}),
        "committed": str(job.newest_commit.step) if job.newest_commit else "-",
        **({"goodput": share(job.goodput)} if wide else {}),
        "tasks": f"{there}/{len(job.tasks)}",
        "restarts": str(job.restarts_program + job.restarts_infrastructure),
        "note": job.waiting_for or job.paused or job.reason or job.commit_trouble,
    }


def _node_row(node: NodeView) -> dict[str, str]:
    """The cells of a node by their heads."""
    return {
        "node": node.node,
        "state": node.state,
        "beat": f"{node.beat_age_ms / 1000:.1f} s" if node.beat_age_ms >= 0 else "-",
        "tasks": str(len(node.tasks)),
        "GPUs": f"{node.gpus_used}/{node.gpus}" if node.gpus else "-",
        "note": node.reason,
    }


def _event_line(event: EventView) -> str:
    about = f"{event.job}: " if event.job else ""
    return one_line(f"{render.when(event.wall_ms)}  {about}{event.text or event.kind}")


def _table(rows: Sequence[Mapping[str, str]], most: int, empty: str) -> RenderableType:
    if not rows:
        return Text(empty, style=render.DIM)
    cells = [[one_line(cell) for cell in row.values()] for row in rows[:most]]
    table = grid(tuple(rows[0]), cells, render.COLOURS, wrap=False)
    if len(cells) == len(rows):
        return table
    return Group(table, Text(f"and {len(rows) - len(cells)} more", style=render.DIM))


async def show(target: Target, every_s: float) -> None:
    """Draw the cluster each `every_s` seconds, until it is cancelled."""
    screen = Screen()
    console = Console(no_color=not colours(), highlight=False)
    async with target.client(FOLLOW_DEADLINE_S) as client:
        with Live(
            screen.draw(console.width, console.height), console=console, screen=True, auto_refresh=False
        ) as live:
            listening = asyncio.create_task(_listen(client, screen))
            try:
                while True:
                    await _ask(client, screen)
                    live.update(screen.draw(console.width, console.height), refresh=True)
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
