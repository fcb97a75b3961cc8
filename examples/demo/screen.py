"""The user's screen: on a terminal a live region under the story, in a pipe plain lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.demo.watch import Watch
from supervisor.cli.terminal import one_line
from supervisor.contract.incident import PHASES, Cause
from supervisor.contract.views.jobs import EventView, IncidentView, TaskView

REFRESH_PER_S = 8
PLAIN_EVERY_S = 3.0
CURVE_WIDTH = 48
_SMOOTH = 8
_BARS = "▁▂▃▄▅▆▇█"
_DECISIONS = {
    "prepare": "yellow",
    "node_suspected": "yellow",
    "node_cleared": "green",
    "restart_in_place": "yellow",
    "close": "yellow",
    "flip": "yellow",
    "recovered": "green",
}
_STATES = {"running": "green", "lost": "red", "exited": "yellow"}


class Screen:
    """Lines of the story, each with the seconds since the start, above what is true now."""

    def __init__(self, console: Console, job: str) -> None:
        self.console = console
        self.started_s = time.monotonic()
        self._job = job
        self._watch: Watch | None = None
        self._plain_due_s = 0.0
        self._live = Live(
            console=console,
            refresh_per_second=REFRESH_PER_S,
            get_renderable=self._now,
            transient=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def show(self, watch: Watch) -> None:
        """From now on keep this picture under the story."""
        self._watch = watch
        if self.console.is_terminal:
            self._live.start()

    def close(self) -> None:
        """Take the live region away; what has been said stays."""
        self._live.stop()
        self._watch = None

    def say(self, text: str, style: str = "") -> None:
        """One line of the story."""
        line = Text(f"{time.monotonic() - self.started_s:6.1f} s  ", style="dim")
        line.append(one_line(text), style=style)
        self.console.print(line, soft_wrap=not self.console.is_terminal)

    def decided(self, event: EventView) -> None:
        """Show a decision of the leader, in its own words."""
        if event.kind in _DECISIONS:
            self.say(f"-> {event.text}", _DECISIONS[event.kind])

    def title(self, text: str) -> None:
        """A new act."""
        self.console.print()
        self.say(text, "bold cyan")

    def tick(self) -> None:
        """In a pipe there is no live region: now and then a line about the loss, or what is waited for."""
        now_s = time.monotonic()
        if self._watch is None or self.console.is_terminal or now_s < self._plain_due_s:
            return
        self._plain_due_s = now_s + PLAIN_EVERY_S
        loss = smooth(self._watch.losses)
        if loss:
            self.say(f"step {self._watch.step}  loss {loss[-1]:.3f}  committed {self._watch.committed_step}")
        elif self._watch.view is not None and self._watch.view.waiting_for:
            self.say(f"waiting for {self._watch.view.waiting_for}")

    def incidents(self, incidents: Sequence[IncidentView], outside_ms: Mapping[str, int]) -> None:
        """Show the incidents, one column each, with the times of the phases of their recoveries.

        `outside_ms`: by incident, from the kill to the first new step on the outside stopwatch.
        """
        table = Table(title="Incidents (times in ms)", title_justify="left")
        table.add_column()
        for incident in incidents:
            lost_node = incident.cause == Cause.NODE_LOST.value
            name = incident.node if lost_node else incident.task.partition("/")[2]
            table.add_column(name, justify="right")
        rows: dict[str, Callable[[IncidentView], object]] = {
            "cause": lambda incident: incident.cause,
            "rule": lambda incident: incident.rule,
            "at step": lambda incident: incident.from_step,
            "on from step": lambda incident: incident.to_step,
            **{phase.replace("_", " "): partial(_phase, phase) for phase in PHASES},
            "total": lambda incident: incident.total_ms,
            "outside stopwatch": lambda incident: outside_ms.get(incident.id, "-"),
        }
        for name, value in rows.items():
            table.add_row(name, *(str(value(incident)) for incident in incidents))
        self.console.print(table)

    def _now(self) -> RenderableType:
        watch = self._watch
        if watch is None:
            return Text()
        loss = smooth(watch.losses)
        head = Text("loss ", style="dim")
        head.append(curve(loss, CURVE_WIDTH), style="magenta")
        head.append(f" {loss[-1]:.3f}" if loss else " ...", style="bold magenta")
        view = watch.view
        facts = f"step {watch.step}   committed {watch.committed_step}"
        if view is not None:
            facts += f"   generation {view.generation}   {view.rate:.0f} steps/s per replica"
            facts += f"   waiting for {view.waiting_for}" if view.waiting_for else ""
        table = Table.grid(padding=(0, 3))
        for task in view.tasks if view is not None else ():
            table.add_row(*_cells(task))
        body = Group(head, Text(one_line(facts)), table)
        return Panel(body, title=self._job, title_align="left", border_style="dim")


def _phase(name: str, incident: IncidentView) -> object:
    return incident.phases_ms.get(name, "-")


def smooth(losses: Sequence[tuple[int, float]]) -> list[float]:
    """Moving averages: the loss of a single small batch jumps about."""
    values = [loss for _, loss in losses]
    return [
        sum(part) / len(part)
        for end in range(1, len(values) + 1)
        if (part := values[max(0, end - _SMOOTH) : end])
    ]


def curve(values: Sequence[float], width: int) -> str:
    """Values as a row of at most `width` bars, the whole history squeezed into it."""
    if not values:
        return ""
    count = min(width, len(values))
    picked = [values[(index + 1) * len(values) // count - 1] for index in range(count)]
    top = max(picked) or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))] for value in picked)


def _cells(task: TaskView) -> list[Text]:
    return [
        Text(f"{task.role}:{task.index}"),
        Text(task.node, style="dim"),
        Text(f"pid {task.pid}" if task.pid else ""),
        Text(one_line(f"{task.state} {task.detail}".strip()), style=_STATES.get(task.state, "")),
        Text(f"step {task.step}" if task.step >= 0 else "", style="dim"),
    ]
