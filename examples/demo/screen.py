"""What the user sees: on a terminal a live region under the story, in a pipe plain lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.demo.watch import Watch
from supervisor.cli.terminal import one_line
from supervisor.contract.incident import PHASES, Event
from supervisor.contract.views import IncidentView, TaskView

REFRESH_PER_S = 8
PLAIN_EVERY_S = 3.0
PLAIN_WIDTH = 140
CURVE_WIDTH = 48
_SMOOTH = 8
_BARS = "▁▂▃▄▅▆▇█"
_DECISIONS = {
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

    def decided(self, event: Event) -> None:
        """What the leader decided and why, as it says it."""
        if event.kind in _DECISIONS:
            self.say(f"-> {event.text}", _DECISIONS[event.kind])

    def title(self, text: str) -> None:
        """A new act."""
        self.console.print()
        self.say(text, "bold cyan")

    def tick(self) -> None:
        """In a pipe there is no live region: now and then a line about the loss."""
        now_s = time.monotonic()
        if self._watch is None or self.console.is_terminal or now_s < self._plain_due_s:
            return
        self._plain_due_s = now_s + PLAIN_EVERY_S
        loss = smooth(self._watch.losses)
        if loss:
            self.say(f"step {self._watch.step}  loss {loss[-1]:.3f}  committed {self._watch.committed_step}")

    def incidents(self, incidents: Sequence[IncidentView]) -> None:
        """The table of what failed and how long each phase of its recovery took."""
        table = Table(title="Incidents (times in ms)", title_justify="left", expand=False)
        for name in ("failed", "cause", "restarted", "step", "on from"):
            table.add_column(name)
        for phase in PHASES:
            table.add_column(phase.replace("_", " "), justify="right")
        table.add_column("total", justify="right", style="bold")
        for incident in incidents:
            phases = [str(incident.phases_ms.get(phase, "-")) for phase in PHASES]
            table.add_row(
                incident.task.partition("/")[2] or incident.node,
                incident.cause,
                "the task, in place" if incident.scope == "task" else "all tasks",
                str(incident.from_step),
                str(incident.to_step),
                *phases,
                str(incident.total_ms),
            )
        width = None if self.console.is_terminal else PLAIN_WIDTH
        self.console.print(table, width=width)

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
